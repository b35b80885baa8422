"""Gradients of folds, scans and maps: beside torch's own, beside a loop over elements, and by finite differences."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch._vmap_internals import _vmap
from torch.autograd import gradcheck
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

import tilefold
from api.differentiated import (
    F64,
    PAIR,
    Tensor,
    assert_alike,
    assert_differentiated,
    by_our_rules,  # noqa: F401  # a fixture
    drawn,
    with_gradients,
)
from asked import asked
from tilefold import Monoid, math, monoids
from tilefold.api import dispatch, ends, gradients, map_rules, on_cpu, operations
from tilefold.api.gradients import derived
from tilefold.errors import BackendError, GradientError
from tilefold.runtime.overrides import listed

INF = float("inf")
pytestmark = pytest.mark.usefixtures("by_our_rules")


# ----------------------------------------------------------------------------------------------- beside torch's own

X = (drawn(3, 4, 2),)
ROWS, PARAMETERS = (drawn(3, 4),), (drawn(3, 4), drawn(4, seed=1), drawn(4, seed=2))
OVER = {"a dim": 1, "the first": 0, "two apart": (0, 2), "all": (0, 1, 2)}
LIKE_TORCH: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Tensor, ...]]] = {
    **{
        f"{name} over {over}": (
            functools.partial(getattr(tilefold, name), dim=dim), functools.partial(getattr(torch, name), dim=dim), X,
        )
        for name in ("sum", "mean", "logsumexp", "var", "std") for over, dim in OVER.items()
    },
    **{
        f"norm {order}": (
            lambda x, p=order: tilefold.vector_norm(x, p, 1), lambda x, p=order: torch.linalg.vector_norm(x, p, 1), X,
        )
        for order in (0.5, 1, 2, 3)
    },
    "var_mean": (lambda x: tilefold.var_mean(x, 1), lambda x: torch.var_mean(x, 1), X),
    "prod": (lambda x: tilefold.prod(x, 1), lambda x: torch.prod(x, 1), X),
    "max": (lambda x: tilefold.max(x, 1), lambda x: torch.max(x, 1), X),
    "softmax": (lambda x: tilefold.softmax(x, 1), lambda x: torch.softmax(x, 1), X),
    "log_softmax": (lambda x: tilefold.log_softmax(x, 0), lambda x: torch.log_softmax(x, 0), X),
    "normalize": (lambda x: tilefold.normalize(x, 2.0, 1), lambda x: functional.normalize(x, 2.0, 1), X),
    "layer_norm": (
        lambda x, w, b: tilefold.layer_norm(x, (4,), w, b), lambda x, w, b: functional.layer_norm(x, (4,), w, b), PARAMETERS,
    ),
    "rms_norm": (
        lambda x, w, b: tilefold.rms_norm(x, (4,), w) + b, lambda x, w, b: functional.rms_norm(x, (4,), w) + b, PARAMETERS,
    ),
    "group_norm": (
        lambda x, w, b: tilefold.group_norm(x[..., None], 2, w, b),
        lambda x, w, b: functional.group_norm(x[..., None], 2, w, b),
        PARAMETERS,
    ),
    "cumsum": (lambda x: tilefold.cumsum(x, 1), lambda x: torch.cumsum(x, 1), X),
    "cumprod": (lambda x: tilefold.cumprod(x, 1), lambda x: torch.cumprod(x, 1), X),
    "logcumsumexp": (lambda x: tilefold.logcumsumexp(x, 1), lambda x: torch.logcumsumexp(x, 1), X),
    "cummax": (lambda x: tilefold.cummax(x, 0), lambda x: torch.cummax(x, 0), X),
    "cummin reversed": (
        lambda x: tilefold.scan(x, monoids.CUMMIN, 0, reverse=True).values,
        lambda x: torch.cummin(x.flip(0), 0)[0].flip(0),
        X,
    ),
    "amax": (lambda x: tilefold.amax(x, (0, 2)), lambda x: torch.amax(x, (0, 2)), X),
    "min of all": (tilefold.min, torch.min, X),
    "aminmax": (lambda x: tilefold.aminmax(x, dim=1), lambda x: torch.aminmax(x, dim=1), X),
    "norm inf": (lambda x: tilefold.vector_norm(x, INF, 1), lambda x: torch.linalg.vector_norm(x, INF, 1), X),
    "norm -inf": (lambda x: tilefold.vector_norm(x, -INF, 1), lambda x: torch.linalg.vector_norm(x, -INF, 1), X),
}  # fmt: skip


@pytest.mark.parametrize("name", LIKE_TORCH)
def test_gradients_are_torchs(name: str) -> None:
    function, like, given = LIKE_TORCH[name]
    assert_alike(function, like, *given)


@pytest.mark.parametrize(
    "name",
    ["logsumexp over a dim", "std over a dim", "norm 3", "prod", "layer_norm", "softmax", "logcumsumexp"],
)
def test_gradients_have_gradients(name: str) -> None:
    function, _, given = LIKE_TORCH[name]
    assert_differentiated(lambda *x: [r for r in listed(function(*x)) if r.is_floating_point()], *given)


BATCHED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    **{
        name: (LIKE_TORCH[name][0], LIKE_TORCH[name][2])
        for name in (
            "logsumexp over two apart", "var over a dim", "norm 3", "norm inf", "prod", "max", "aminmax", "softmax",
            "layer_norm", "normalize", "cumsum", "logcumsumexp", "cummax",
        )
    },
    "an affine scan": (lambda x, y: tilefold.scan((x, y), monoids.AFFINE, 1), (drawn(2, 3), drawn(2, 3, seed=1))),
    "segments": (
        lambda x: tilefold.segment_reduce(x, monoids.LOGSUMEXP, torch.tensor([0, 2, 2, 3])), (drawn(3, 2),),
    ),
    "top-k": (lambda x: tilefold.topk(x, 2, 0).values, (drawn(3, 2),)),
    "a transpose": (lambda x: tilefold.transpose(x, 0, 1), (drawn(3, 2),)),
    "a product": (
        lambda x, y: tilefold.matmul(x, y, epilogue=lambda v: v * v, row=(monoids.SUM, None)), (drawn(3, 2), drawn(2, 3)),
    ),
    "a chunk": (lambda x: tilefold.reduce(x, monoids.LOGSUMEXP, 1, return_state=True)[1], (drawn(3, 2),)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("name", BATCHED)
def test_cotangents_and_tangents_come_in_batches(name: str) -> None:
    """`is_grads_batched`, and `vectorize`, which torch.autograd maps by a vmap of its own."""
    function, given = BATCHED[name]
    results = [r for r in listed(function(*given)) if r.requires_grad]
    batches = [torch.randn(3, *r.shape, dtype=r.dtype) for r in results]
    made = torch.autograd.grad(
        results, given, batches, is_grads_batched=True, retain_graph=True, allow_unused=True
    )
    for i in range(3):
        alone = torch.autograd.grad(
            results, given, [b[i] for b in batches], retain_graph=True, allow_unused=True
        )
        for batch, one in zip(made, alone, strict=True):
            assert (batch is None) == (one is None)
            if one is not None:
                torch.testing.assert_close(batch[i], one, rtol=1e-12, atol=1e-14)

    def first(*given: Tensor) -> Tensor:
        return next(r for r in listed(function(*given)) if r.is_floating_point())

    forwards, backwards = (
        torch.autograd.functional.jacobian(first, tuple(given), vectorize=True, strategy=f"{way}-mode")
        for way in ("forward", "reverse")
    )
    for one, other in zip(forwards, backwards, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_batches_of_batches_of_cotangents_are_right_or_refused() -> None:
    """By torch.autograd's own vmap twice, which torch.func's takes the place of."""
    refused = dict[str, str]()
    for name, (function, given) in BATCHED.items():
        (made, *_), (x, *_) = [r for r in listed(function(*given)) if r.requires_grad], given
        batches = torch.randn(2, 3, *made.shape, dtype=made.dtype)

        def back(g: Tensor, made: Tensor = made, x: Tensor = x) -> Tensor:
            return torch.autograd.grad(made, x, g, retain_graph=True)[0]

        want = torch.stack([torch.stack([back(g) for g in some]) for some in batches])
        try:
            got = _vmap(_vmap(back))(batches)
        except BackendError as error:
            refused[name] = str(error)
        else:
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)
    assert "a product" in refused
    for message in refused.values():
        assert "one dim of `is_grads_batched` or `vectorize`, got several; use torch.func.vmap" in message


# ------------------------------------------------------------------------------------------------ dtypes, layouts, corners


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_gradients_have_their_inputs_dtype(dtype: torch.dtype) -> None:
    """Computed in float32, and rounded once."""
    x, w = drawn(5, 40, dtype=dtype), drawn(40, seed=1, dtype=dtype)
    wide = [t.detach().double().requires_grad_() for t in (x, w)]
    dy = torch.randn(5, 40, generator=torch.Generator().manual_seed(3)).to(dtype)
    made = torch.autograd.grad(tilefold.layer_norm(x, (40,), w), (x, w), dy)
    want = torch.autograd.grad(functional.layer_norm(wide[0], (40,), wide[1]), wide, dy.double())
    eps = torch.finfo(dtype).eps
    for got, exact in zip(made, want, strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), exact, rtol=eps, atol=16 * torch.finfo(torch.float32).eps)


def test_layouts() -> None:
    """Views, expanded inputs and cotangents that are no tensors of their own."""
    base = drawn(4, 6)
    assert_alike(
        lambda x: tilefold.logsumexp(x.t()[::2].expand(2, 3, 4), 2).expand(5, 2, 3),
        lambda x: torch.logsumexp(x.t()[::2].expand(2, 3, 4), 2).expand(5, 2, 3),
        base,
    )


@pytest.mark.parametrize("shape", [(), (1,), (3, 1), (0, 3), (3, 0)])
def test_few_elements(shape: tuple[int, ...]) -> None:
    x = drawn(*shape).detach().requires_grad_()
    dim = len(shape) - 1 if shape else 0
    assert_alike(lambda x: tilefold.sum(x, dim), lambda x: torch.sum(x, dim), x)
    assert_alike(lambda x: tilefold.cumsum(x, dim), lambda x: torch.cumsum(x, dim), x)
    assert_alike(lambda x: tilefold.softmax(x, dim), lambda x: torch.softmax(x, dim), x)


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_equal_elements_share_an_exponentials_gradient(dtype: torch.dtype) -> None:
    """Prefixes whose largest elements tie, and rows padded with -inf."""
    x = torch.tensor([[2, 2, 2, 1], [0, 0, -INF, -INF], [3, 1, 3, 1]], dtype=dtype, requires_grad=True)
    for function, like in (
        (tilefold.logcumsumexp, torch.logcumsumexp),
        (tilefold.logsumexp, torch.logsumexp),
    ):
        got, want = (with_gradients(lambda x, f=f: f(x, 1), (x,))[-1] for f in (function, like))
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    pair = [x.detach()[:1].clone().requires_grad_()]
    assert gradcheck(lambda x: tilefold.logcumsumexp(x.double(), 1), pair) if dtype == F64 else True


def test_a_guarded_maximum_needs_the_total_alone() -> None:
    """An online softmax as users write it: one pass over the row, and the slopes of ties shared."""

    def combine(a: Any, b: Any) -> tuple[Any, Any]:
        m = math.maximum(a.m, b.m)
        safe = math.where(m == -INF, 0.0, m)
        return m, a.l * math.exp(a.m - safe) + b.l * math.exp(b.m - safe)

    pair = Monoid(
        combine, (-INF, 0), fields=("m", "l"), lift=lambda x: (x, 1.0), project=lambda m, l: m + math.log(l),
        commutative=True, check=False,
    )  # fmt: skip
    assert derived(pair, (F64,)).needs_total_alone()
    x = torch.tensor([[2, 2, 2, -INF], [0, 0, 1, 1]], dtype=F64, requires_grad=True)
    assert_alike(lambda x: tilefold.reduce(x, pair, 1), lambda x: torch.logsumexp(x, 1), x)


def test_infinite_rows() -> None:
    """A row of -inf has the gradient 0 where torch has NaN: nothing is at stake there."""
    x = torch.tensor([[-INF, -INF], [0.0, -INF], [1.0, 2.0]], dtype=F64, requires_grad=True)
    tilefold.logsumexp(x, 1).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad[1:], torch.softmax(x.detach()[1:], 1))
    assert bool(torch.isfinite(x.grad).all())


def test_only_what_is_asked_for() -> None:
    """An input without a gradient has none, and whole numbers have none."""
    x, w = drawn(3, 4), drawn(3, 4, seed=1).detach()
    made = tilefold.reduce((x, w), PAIR, 1)
    made.sum().backward()
    assert x.grad is not None
    assert w.grad is None
    assert not tilefold.argmax(x, 1).requires_grad
    assert not tilefold.max(x, 1).indices.requires_grad
    assert tilefold.max(x, 1).values.requires_grad
    assert not tilefold.sum(x.detach()).requires_grad
    with torch.no_grad():
        assert not tilefold.sum(x).requires_grad


# -------------------------------------------------------------------------------------------------------- ties

TIED = torch.tensor([[2, 2, 1, 2], [0, -3, -3, 3], [5, 5, 5, 5], [1, 2, 3, 4], [-1, 0, 0, -1]], dtype=F64)


@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "name", ["amax", "amin", "max", "min", "max of all", "aminmax", "norm inf", "norm -inf", "cummax"]
)
def test_ties_share_as_torch_shares_them(name: str, dtype: torch.dtype) -> None:
    """Evenly, or by index: the one that is chosen has it all. Rows with NaN have NaN."""
    first, *order = name.split()
    functions: list[Callable[[Tensor], Any]] = []
    for m in (tilefold, torch):
        norm = torch.linalg.vector_norm if m is torch else tilefold.vector_norm
        if first == "norm":
            functions.append(lambda x, norm=norm: norm(x, float(order[0]), 1))
        else:
            dims = {} if order else {"dim": 1}
            functions.append(lambda x, m=m, dims=dims: getattr(m, first)(x, **dims))
    x = TIED.to(dtype)
    if first in ("amax", "amin"):
        x = torch.cat([x, torch.tensor([[float("nan"), 1, 2, 2], [INF, INF, 1, 0]], dtype=dtype)])
    got, want = (with_gradients(f, (x.clone().requires_grad_(),)) for f in functions)
    for mine, other in zip(got, want, strict=True):
        torch.testing.assert_close(mine, other, equal_nan=True)


@pytest.mark.parametrize("power", [-120, 66])
@pytest.mark.parametrize("name", ["norm 2", "norm 3", "norm 0.5", "var", "std", "normalize"])
def test_gradients_are_right_where_squares_leave_the_range(name: str, power: int) -> None:
    """As results are: of magnitudes whose squares float32 does not hold."""
    calls: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
        "var": (tilefold.var, torch.var), "std": (tilefold.std, torch.std),
        "normalize": (
            lambda x, d: tilefold.normalize(x, 2.0, d, eps=1e-37), lambda x, d: functional.normalize(x, 2.0, d, eps=1e-37),
        ),
    }  # fmt: skip
    order = float(name.split()[-1]) if name.startswith("norm ") else 0.0
    norms = (
        lambda x, d: tilefold.vector_norm(x, order, d),
        lambda x, d: torch.linalg.vector_norm(x, order, d),
    )
    function, like = calls.get(name, norms)
    x = (drawn(3, 9).detach() * 2.0**power).float().requires_grad_()
    wide = x.detach().double().requires_grad_()
    want = torch.autograd.grad(like(wide, 1).sum(), wide)[0]
    got = torch.autograd.grad(function(x, 1).sum(), x)[0]
    scale = float(want.abs().max())
    within = (want.abs() < torch.finfo(torch.float32).max) & bool(scale > 1e-36)
    torch.testing.assert_close(got.double()[within], want[within], rtol=1e-4, atol=1e-5 * scale)
    assert got.isfinite()[within].all()


# ------------------------------------------------------------------------------------------------ what autograd is told


def saved_bytes(call: Callable[[], Any]) -> int:
    """Of all tensors that a call saves, each once."""
    found: dict[Any, int] = {}

    def pack(t: Tensor) -> Tensor:
        found[t.data_ptr(), t.dtype, t.shape] = t.numel() * t.element_size()
        return t

    with saved_tensors_hooks(pack, lambda t: t):
        call()
    return sum(found.values())


OTHERS = ("prod", "max", "std", "norm", "cumprod", "logcumsumexp", "cummax")
SAVED = [name for name in LIKE_TORCH if name.split()[0] not in OTHERS]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", SAVED)
def test_no_more_is_saved_than_torch_saves(name: str, dtype: torch.dtype) -> None:
    """Inputs, or what torch saves in their place: softmax its result, norms a mean and a root of each row."""
    function, like, given = LIKE_TORCH[name]
    given = [t.detach().to(dtype).requires_grad_() for t in given]
    inputs = (
        sum(t.numel() * t.element_size() for t in given)
        if "norm" not in name and "softmax" not in name
        else 0
    )
    assert saved_bytes(lambda: function(*given)) <= max(saved_bytes(lambda: like(*given)), inputs)


@pytest.mark.filterwarnings("ignore:.*ndim > 0 to a scalar:DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "launches"), [("softmax", 1), ("log_softmax", 1), ("layer_norm", 2), ("rms_norm", 2)]
)
def test_backwards_of_maps_read_rows_once(name: str, launches: int) -> None:
    """A row is held while it is folded and mapped; parameters' gradients are summed in the same launch and a second one."""
    function, _, given = LIKE_TORCH[name]
    given = [t.detach().float().requires_grad_() for t in given]
    with tilefold.backend("interpret"):
        (made,) = listed(function(*given))
        plans = []
        with pytest.MonkeyPatch.context() as patch:
            run = dispatch.run

            def noted(*arguments: Any, **named: Any) -> list[Tensor]:
                results = run(*arguments, **named)
                plans.append(tilefold.last_plan())
                return results

            patch.setattr(dispatch, "run", noted)
            made.backward(torch.ones_like(made))
    (plan,) = plans
    assert plan.launches == launches
    assert "each held whole" in plan.reason


@pytest.mark.filterwarnings("ignore:.*ndim > 0 to a scalar:DeprecationWarning")
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("scale", [2.0**-60, 2.0**66], ids=["tiny", "huge"])
def test_norms_of_far_rows(name: str, scale: float) -> None:
    """Whose squares float32 holds in units alone: a saved mean and root are those of the row as it is."""
    x, w = drawn(3, 8, dtype=torch.float32), drawn(8, seed=1, dtype=torch.float32)
    far = (x.detach() * scale).requires_grad_()
    arguments: dict[str, Any] = {"eps": 0.0}
    gy = torch.randn(3, 8, generator=torch.Generator().manual_seed(2))
    wide = [t.detach().double().requires_grad_() for t in (far, w)]
    want = torch.autograd.grad(
        getattr(functional, name)(wide[0], (8,), wide[1], **arguments), wide, gy.double()
    )
    for backend in ("cpu", "interpret"):
        with tilefold.backend(backend):
            made = torch.autograd.grad(getattr(tilefold, name)(far, (8,), w, **arguments), (far, w), gy)
        for got, exact in zip(made, want, strict=True):
            torch.testing.assert_close(got.double(), exact, rtol=1e-4, atol=1e-5 * exact.abs().max().item())


def saved(call: Callable[..., Any], given: Sequence[Tensor]) -> int:
    """How many bytes a call saves for its backward."""
    found: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        found[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with saved_tensors_hooks(pack, lambda t: t):
        call(*given)
    return sum(found.values())


@pytest.mark.parametrize("name", [name for name in LIKE_TORCH if name not in SAVED])
def test_folds_save_no_more_than_torch_saves(name: str) -> None:
    function, like, given = LIKE_TORCH[name]
    assert saved(function, given) <= saved(like, given)


def test_sums_save_nothing() -> None:
    """And what is chosen the positions alone."""
    x = drawn(64, 64)
    for call in (tilefold.sum, tilefold.mean, tilefold.cumsum):
        assert saved(lambda x, call=call: call(x, 1), [x]) == 0
    assert saved(lambda x: tilefold.max(x, 1), [x]) == 64 * 8


def test_an_input_that_was_changed_is_torchs_error() -> None:
    x = drawn(3, 4)
    y = x * 1.0
    made = tilefold.logsumexp(y, 1)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        made.sum().backward()


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit.script.*:DeprecationWarning"
)  # torch's own, at its import of functorch
def test_transforms_of_torch_func() -> None:
    x = drawn(3, 4).detach()
    loss = lambda x: (tilefold.softmax(x, -1) ** 2).sum()  # noqa: E731
    like = lambda x: (torch.softmax(x, -1) ** 2).sum()  # noqa: E731
    torch.testing.assert_close(torch.func.grad(loss)(x), torch.func.grad(like)(x))
    each = torch.vmap(torch.func.grad(loss))(x)
    torch.testing.assert_close(each, torch.vmap(torch.func.grad(like))(x))
    torch.testing.assert_close(torch.func.jacrev(torch.func.jacrev(loss))(x), torch.func.hessian(like)(x))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # torch's own, at its import
@pytest.mark.parametrize("monoid", [monoids.SUM, monoids.MAX, monoids.LOGSUMEXP], ids=lambda m: m.name)
def test_a_backward_after_its_transform_has_ended(monoid: Monoid) -> None:
    """What torch.func.vjp gives is called outside of it, and its values are wrapped in a level that is no more."""
    x, state = drawn(3, 4), tuple(drawn(3, seed=at) for at in range(len(monoid.fields)))

    def call(x: Tensor, *state: Tensor) -> Tensor:
        found: Tensor = tilefold.reduce(x, monoid, 1, init=[t.exp() for t in state])
        return found

    made, back = torch.func.vjp(call, x.detach(), *(t.detach() for t in state))
    want = torch.autograd.grad(call(x, *state).sum(), (x, *state))
    for got, one in zip(back(torch.ones_like(made)), want, strict=True):
        torch.testing.assert_close(got, one)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: tilefold.reduce(x, monoids.WELFORD, 1, return_state=True)[1].pivot,
        lambda x: tilefold.scan(x, monoids.WELFORD, 1, return_state=True)[0].mean,
        lambda x: tilefold.reduce(x, monoids.DESCRIBE, 1, return_state=True)[1][0],
        lambda x: tilefold.scan(x, monoids.DESCRIBE, 1).mean,
    ],
    ids=[
        "a state that depends on its grouping",
        "prefixes with that state",
        "one among others",
        "prefixes among others",
    ],
)
def test_what_has_no_gradient_says_so(call: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(GradientError, match="has no derivative"):
        call(drawn(3, 4))
    call(drawn(3, 4).detach())


def test_a_count_has_the_gradient_0() -> None:
    """Of what is not 0: a loss that counts, too, has the gradient of the rest."""
    x = drawn(3, 4)
    for count in (tilefold.vector_norm(x, 0, 1), tilefold.reduce(x, monoids.NORM(0), 1)):
        assert torch.autograd.grad(count.sum(), x)[0].count_nonzero() == 0
    (g,) = torch.autograd.grad((tilefold.vector_norm(x, 0, 1) + tilefold.sum(x * x, 1)).sum(), x)
    torch.testing.assert_close(g, 2 * x.detach())
    assert_alike(lambda x: tilefold.normalize(x, 0.0, 1), lambda x: functional.normalize(x, 0.0, 1), x)


SEEN_THROUGH = {
    "sum over a dim", "logsumexp over a dim", "prod", "max", "softmax", "log_softmax", "layer_norm", "rms_norm",
    "group_norm", "cumsum", "cumprod", "cummax", "amax", "min of all", "aminmax",
}  # fmt: skip


@pytest.mark.parametrize("name", [n for n in LIKE_TORCH if not n.startswith(("mean", "norm ", "cummin"))])
def test_torchs_own_derivative_is_ours(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU autograd looks into a function of torch's where that has our derivative; else it sees a call of ours."""
    function, like, given = LIKE_TORCH[name]
    found = with_gradients(function, given)
    again = with_gradients(function, given)
    if name in SEEN_THROUGH:
        assert saved_bytes(lambda: function(*given)) <= saved_bytes(lambda: like(*given))
    (node,) = (
        {r.grad_fn.name() for r in found if r.grad_fn is not None} if name != "rms_norm" else {"torch's"}
    )
    assert (node != "_FunctionBackward") == (
        name in SEEN_THROUGH or name.split(" over")[0] in ("sum", "logsumexp")
    )
    monkeypatch.setattr(dispatch, "_executables", {})
    for module in (on_cpu, operations):
        monkeypatch.setattr(module, "has_own_derivative", lambda function, dtype: False)
    for one, other, ours in zip(found, again, with_gradients(function, given), strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, ours, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("dim", [0, 1, (0, 1)], ids=str)
@pytest.mark.parametrize("name", ["var", "std"])
def test_torchs_own_derivative_of_moments(name: str, dim: Any, dtype: torch.dtype) -> None:
    """Of few elements and of many, far from zero, equal ones, and where float32 does not hold their squares."""
    of_ours, of_torch = getattr(tilefold, name), getattr(torch, name)
    for shape in ((6, 50), (300, 200)):
        for scale, offset in ((1, 0), (1, 1e4), (1e25, 0), (1e-30, 0)):
            x = (drawn(*shape) * scale + offset).detach()
            x[0] = x[0, 0]
            x = x.to(dtype).requires_grad_()
            wide = x.detach().double().requires_grad_()
            for correction in (0, 1):
                for _ in range(2):
                    got, want = (
                        torch.autograd.grad(f(t, dim, correction=correction).sum(), t)[0]
                        for f, t in ((of_ours, x), (of_torch, wide))
                    )
                    assert (got - want).abs().max() <= 1e-6 * want.abs().max()
    seen = tilefold.last_plan()
    assert seen is not None
    assert seen.strategy == f"{name} 1 backward"
    if dtype == F64:
        assert_differentiated(lambda x: of_ours(x, dim), drawn(3, 4))
    else:
        assert of_ours(drawn(6, 51, dtype=dtype), dim).grad_fn.name() == f"{name.capitalize()}Backward0"


@pytest.mark.parametrize("name", ["var", "std"])
def test_torchs_own_derivative_is_not_of_rows_without_a_mean(name: str) -> None:
    x = torch.tensor([[1.0, INF, 2.0], [1.0, 2.0, 4.0], [3e38, 3e38, 3e38]], requires_grad=True)
    for _ in range(2):
        (got,) = torch.autograd.grad(getattr(tilefold, name)(x, 1).sum(), x)
        (want,) = torch.autograd.grad(getattr(torch, name)(x[1]), x)
        torch.testing.assert_close(got[1], want[1])
        assert got[0].isnan().any()
        assert torch.equal(got[2], torch.zeros(3))


def test_not_torchs_own_where_results_have_none() -> None:
    """A row of -inf, and products that are out of range, of 0 or not: then and later."""
    infinite = torch.tensor([[-INF, -INF], [0.0, 1.0]], requires_grad=True)
    products = (
        (
            [[1e-30, 1e-30, 2.0]],
            [[2e-30, 2e-30, 0.0]],
        ),  # 0 is left of the product, and of one element's derivative
        ([[2.0, 3.0, 0.0]], [[0.0, 0.0, 6.0]]),
        ([[2.0, 3.0, 4.0], [5.0, 1.0, 1.0]], [[12.0, 8.0, 6.0], [1.0, 5.0, 5.0]]),
    )
    for _ in range(2):
        (g,) = torch.autograd.grad(tilefold.logsumexp(infinite, 1).sum(), infinite)
        want = torch.tensor([[0.0, 0.0], [0.0, 1.0]]).softmax(1) * infinite.isfinite()
        torch.testing.assert_close(g, want * torch.tensor([[0.0], [1.0]]))
        for elements, slopes in products:
            x = torch.tensor(elements, requires_grad=True)
            (g,) = torch.autograd.grad(tilefold.prod(x, 1).sum(), x)
            torch.testing.assert_close(g, torch.tensor(slopes), atol=0, rtol=1e-6)


def test_rows_with_plus_infinity_are_torchs() -> None:
    x = torch.tensor([[INF, 1.0, -INF], [1.0, 2.0, 3.0]], dtype=F64, requires_grad=True)
    found = [torch.autograd.grad(m.logsumexp(x, 1).sum(), x)[0] for m in (tilefold, torch)]
    torch.testing.assert_close(*found, equal_nan=True)


@pytest.mark.parametrize("name", ["var over a dim", "layer_norm", "logsumexp over a dim", "norm 2"])
def test_both_forms_of_a_gradient_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the total alone, and by what is before and after each element, also where elements have units of their own."""
    function, like, given = LIKE_TORCH[name]
    far = [(t.detach() * 3).requires_grad_() for t in given]
    monkeypatch.setattr(ends.Ends, "total_is_enough", False)
    monkeypatch.setattr(gradients, "needs_total_alone", lambda *_: False)
    monkeypatch.setattr(gradients, "ends_of", ends.ends_of.__wrapped__)  # type: ignore[attr-defined]  # without its cache
    monkeypatch.setattr(gradients, "fold_of", gradients.Fold)
    monkeypatch.setattr(map_rules.Rules, "needs_row_alone", False)
    assert_alike(function, like, *far)


@pytest.mark.parametrize("bad", [float("nan"), INF, -INF])
@pytest.mark.parametrize("name", ["var over a dim", "std over a dim", "var_mean", "norm 3", "norm 0.5"])
def test_what_is_not_finite_is_seen_in_all_of_its_row(name: str, bad: float) -> None:
    function, like, _ = LIKE_TORCH[name]
    x = torch.tensor([[[1.0], [2.0], [bad], [0.5]]], dtype=F64, requires_grad=True)
    got, want = with_gradients(function, (x,))[-1], with_gradients(like, (x,))[-1]
    torch.testing.assert_close(got, want, rtol=1e-12, atol=0, equal_nan=True)


def test_parameters_of_no_groups_have_the_gradient_0() -> None:
    x, w, b = drawn(0, 4), drawn(4), drawn(4, seed=1)
    made = torch.autograd.grad(tilefold.group_norm(x, 2, w, b).sum(), (x, w, b))
    assert [g.count_nonzero() for g in made] == [0, 0, 0]


@pytest.mark.parametrize("shape", [(0, 8), (8, 0)], ids=str)
@pytest.mark.parametrize(
    "name", ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "softmax", "log_softmax"]
)
def test_what_has_no_elements_has_a_gradient_of_none(name: str, shape: tuple[int, int]) -> None:
    x = torch.empty(shape, requires_grad=True)
    made = getattr(tilefold, name)(x, 1)
    made = made.values if name in ("cummax", "cummin") else made
    (got,) = torch.autograd.grad(made.sum(), x)
    assert got.shape == x.shape


@pytest.mark.parametrize("call", [tilefold.var, tilefold.std])
@pytest.mark.parametrize("shape", [(4096, 65536), (8192, 151936)], ids=str)
def test_moments_of_long_rows_are_read_once_by_a_gpu(
    call: Callable[..., Tensor], shape: tuple[int, int]
) -> None:
    x = torch.empty(shape, dtype=torch.bfloat16, device="meta", requires_grad=True)
    y = call(x, 1)
    plan = asked(lambda: torch.autograd.grad(y, x, torch.empty_like(y)))[2]
    assert (plan.strategy, len(plan.launched)) == ("whole", 1)


@pytest.mark.parametrize("dim", [0, 1, (0, 1)], ids=str)
def test_ties_in_a_graph_share_their_gradient(dim: Any) -> None:
    x = torch.randint(0, 3, (6, 9), generator=torch.Generator().manual_seed(7)).double()
    x[0, 0], x[1], x[2, 3], x[3] = INF, -INF, INF, 2.0
    if dim == 1:
        x[5, 1] = float("nan")

    def call(x: Tensor) -> list[Tensor]:
        ends = tilefold.reduce(x, EXTREMES, dim)
        return [tilefold.amax(x, dim), tilefold.amin(x, dim), tilefold.vector_norm(x, INF, dim), *ends]

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    for i, like in enumerate(call(x)):
        slopes = [
            torch.autograd.grad(f(t := x.clone().requires_grad_())[i], t, torch.rand_like(like).fill_(3.0))[0]
            for f in (compiled, call)
        ]
        torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-12, atol=0, equal_nan=True)


EXTREMES = Monoid(
    lambda a, b: (math.minimum(a.low, b.low), math.maximum(a.high, b.high)),
    (INF, -INF),
    fields=("low", "high"),
    lift=lambda x: (x, x * 2),
    project=lambda low, high: (low, high, high - low),
)

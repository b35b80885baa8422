"""Gradients of folds, scans and maps: beside torch's own, beside a loop over elements, and by finite differences."""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch._vmap_internals import _vmap
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

import tilefold
from algebra.drawn import RIGHT, draw
from asked import asked
from tilefold import Monoid, math, monoids
from tilefold.algebra.evaluate import evaluate
from tilefold.api import dispatch, ends, gradients, map_rules, on_cpu, operations
from tilefold.api.gradients import derived
from tilefold.errors import BackendError, GradientError
from tilefold.runtime.overrides import listed

Tensor = torch.Tensor
F64 = torch.float64
INF = float("inf")


@pytest.fixture(autouse=True)
def _by_our_rules(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd does not look into torch's own functions: what is derived here is tested."""
    monkeypatch.setattr(dispatch, "_executables", {})
    for module in (on_cpu, operations):
        if "torchs_own" not in request.node.name:
            monkeypatch.setattr(module, "has_own_derivative", lambda function, dtype: False)
    if "torchs_own" not in request.node.name:
        monkeypatch.setattr(gradients, "backward_of_fold", lambda *asked: None)


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=F64).to(dtype).requires_grad_()


def with_gradients(function: Callable[..., Any], given: Sequence[Tensor]) -> list[Tensor]:
    """The results that have a gradient, and the inputs' gradients of a weighted sum of them."""
    results = [r for r in listed(function(*given)) if r.requires_grad]
    weights = [
        torch.linspace(-1, 2, max(r.numel(), 1))[: r.numel()].reshape(r.shape).to(r.dtype) for r in results
    ]
    return [*results, *torch.autograd.grad(results, given, weights)]


def assert_alike(function: Callable[..., Any], like: Callable[..., Any], *given: Tensor) -> None:
    for got, want in zip(with_gradients(function, given), with_gradients(like, given), strict=True):
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def assert_differentiated(function: Callable[..., Any], *given: Tensor) -> None:
    """By finite differences, twice."""
    assert gradcheck(function, given)
    assert gradgradcheck(function, given)


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


# ---------------------------------------------------------------------------------------------------- a user's monoids

PAIR = Monoid(
    lambda a, b: (a.weight + b.weight, a.total + b.total), (0, 0), fields=("weight", "total"),
    lift=lambda x, w: (w * w, w * w * x), project=lambda weight, total: total / weight, commutative=True,
)  # fmt: skip
PLACED = Monoid(lambda a, b: a + b, 0, lift=lambda x, i: x * x * i, index=True)
WITHOUT_IDENTITY = Monoid(lambda a, b: a + b, None)


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


def test_a_fold_of_two_inputs_that_broadcast() -> None:
    """Each gradient has its input's shape."""
    x, w = drawn(3, 4), drawn(4, seed=1)
    assert_alike(
        lambda x, w: tilefold.reduce((x, w), PAIR, 1),
        lambda x, w: (x * w * w).sum(1) / (w * w).expand(3, 4).sum(1),
        x,
        w,
    )
    assert_differentiated(lambda x, w: tilefold.reduce((x, w), PAIR, 1), x, w)


@pytest.mark.parametrize("dim", [0, 1, (0, 1), ()])
def test_positions_are_those_of_the_row(dim: Any) -> None:
    def like(x: Tensor) -> Tensor:
        if dim == ():
            return x * x * 0
        places = torch.arange(x.numel()).reshape(x.shape) if dim == (0, 1) else torch.arange(x.shape[dim])
        return (x * x * (places[:, None] if dim == 0 else places)).sum(dim)

    assert_alike(lambda x: tilefold.reduce(x, PLACED, dim), like, drawn(3, 4))


def test_a_monoid_without_an_identity() -> None:
    assert_alike(lambda x: tilefold.reduce(x, WITHOUT_IDENTITY, 1), lambda x: x.sum(1), drawn(3, 4))
    assert_alike(lambda x: tilefold.scan(x, WITHOUT_IDENTITY, 1), lambda x: x.cumsum(1), drawn(3, 4))


def test_elements_are_combined_in_order() -> None:
    """Matrices do not commute: what is before an element and what is after it stay on their sides."""

    def like(*m: Tensor) -> list[Tensor]:
        every = torch.stack(m, -1).unflatten(-1, (2, 2))
        made = every[:, 0]
        for t in range(1, every.shape[1]):
            made = every[:, t] @ made if later_first else made @ every[:, t]
        return list(made.flatten(-2).unbind(-1))

    given = [drawn(2, 5, seed=s) for s in range(4)]
    fold = lambda *m: list(tilefold.reduce(m, monoids.MATMUL2X2, 1))  # noqa: E731
    later_first = False
    later_first = not torch.allclose(fold(*given)[0], like(*given)[0])
    assert_alike(fold, like, *given)


def test_products_with_zeros() -> None:
    """One zero, two, and none: nothing is divided by an element."""
    x = torch.tensor([[2.0, 0.0, 3.0], [0.0, 0.0, 5.0], [1.0, 2.0, 4.0]], dtype=F64, requires_grad=True)
    assert_alike(lambda x: tilefold.prod(x, 1), lambda x: torch.prod(x, 1), x)


def test_ordered_folds_of_several_dims() -> None:
    turned = Monoid(
        lambda a, b: (a.s * b.s, a.t * b.s + b.t), (1, 0), fields=("s", "t"), lift=lambda x: (x, x)
    )

    def like(x: Tensor) -> list[Tensor]:
        s, t = torch.ones(x.shape[1], dtype=F64), torch.zeros(x.shape[1], dtype=F64)
        for i in range(x.shape[0]):
            for k in range(x.shape[2]):
                s, t = s * x[i, :, k], t * x[i, :, k] + x[i, :, k]
        return [s, t]

    assert_alike(lambda x: list(tilefold.reduce(x, turned, (0, 2))), like, drawn(2, 3, 4))


def test_a_map_of_an_ordered_fold() -> None:
    last = Monoid(
        lambda a, b: (a.s * b.s, a.t * b.s + b.t),
        (1, 0),
        fields=("s", "t"),
        lift=lambda x: (0.5, x),
        project=lambda s, t: t,
    )

    def like(x: Tensor) -> Tensor:
        total = torch.zeros_like(x[:, :1])
        for t in range(x.shape[1]):
            total = total * 0.5 + x[:, t : t + 1]
        return x * total

    assert derived(last, (F64,)).needs_total_alone() is False
    assert_alike(lambda x: tilefold.reduce_map(x, last, lambda v, total: v * total, 1), like, drawn(3, 4))


def test_a_map_with_extra_tensors_of_every_shape() -> None:
    def call(x: Tensor, whole: Tensor, column: Tensor, scalar: Tensor) -> Any:
        return tilefold.reduce_map(
            x,
            monoids.SUM,
            lambda v, t, a, b, c: (v * t * a, t + b * v * c),
            1,
            extras=(whole, column, scalar),
        )

    def like(x: Tensor, whole: Tensor, column: Tensor, scalar: Tensor) -> Any:
        total = x.sum(1, keepdim=True)
        return x * total * whole, total + column * x * scalar

    assert_alike(
        call,
        like,
        drawn(3, 4),
        drawn(3, 4, seed=1),
        drawn(3, 1),
        drawn(1).reshape(()).detach().requires_grad_(),
    )


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_the_affine_scan(reverse: bool, exclusive: bool, dim: int) -> None:
    """From a state, to a state, beside a loop."""

    def call(a: Tensor, b: Tensor, h: Tensor) -> list[Tensor]:
        (slope, value), state = tilefold.scan(
            (a, b),
            monoids.AFFINE,
            dim,
            init=(torch.ones_like(h), h),
            reverse=reverse,
            exclusive=exclusive,
            return_state=True,
        )
        return [slope, value, *state]

    def like(a: Tensor, b: Tensor, h: Tensor) -> list[Tensor]:
        rows = [torch.unbind(t, dim) for t in (a, b)]
        slope, value, made = torch.ones_like(h), h, []
        order = list(range(len(rows[0])))
        for t in reversed(order) if reverse else order:
            before = slope, value
            slope, value = slope * rows[0][t], value * rows[0][t] + rows[1][t]
            made.append(before if exclusive else (slope, value))
        made = made[::-1] if reverse else made
        return [*(torch.stack(m, dim) for m in zip(*made, strict=True)), slope, value]

    a, b = drawn(3, 4), drawn(3, 4, seed=1)
    h = drawn(4 if dim == 0 else 3, seed=2)
    assert_alike(call, like, a, b, h)
    if dim:
        assert_differentiated(call, a, b, h)


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


# -------------------------------------------------------------------------------------------------------- ties, states

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


def as_list(state: Any) -> list[Tensor]:
    return [state] if isinstance(state, Tensor) else list(state)


PAYLOAD = Monoid(
    lambda a, b: (math.maximum(a.most, b.most), math.where(b.most > a.most, b.load, a.load)), (-INF, 0),
    fields=("most", "load"), lift=lambda x: (x, x * x), commutative=False, check=False, name="payload",
)  # fmt: skip
STEPS = Monoid(
    lambda a, b: (a.s * b.s, a.t * b.s + b.t), (1, 0), fields=("s", "t"), lift=lambda x: (x, x), name="steps"
)
CHUNKED = (
    monoids.SUM, monoids.PROD, monoids.LOGSUMEXP, monoids.NORM(3), monoids.MAX, monoids.MINMAX, monoids.MAX_WITH_INDEX,
    monoids.FIRST, monoids.LAST, WITHOUT_IDENTITY, STEPS, PAYLOAD,
)  # fmt: skip


@pytest.mark.parametrize("monoid", CHUNKED, ids=lambda m: m.name)
def test_a_fold_from_a_state_to_a_state(monoid: Monoid) -> None:
    """By finite differences: elements and the state before them, results and the state after."""
    keepdim = monoid in (monoids.LOGSUMEXP, monoids.MAX, STEPS)
    state = as_list(tilefold.reduce(drawn(2, 3, seed=4).detach(), monoid, 1, keepdim, return_state=True)[1])
    floats = [t.requires_grad_() for t in state if t.is_floating_point()]

    def call(x: Tensor, *fields: Tensor) -> list[Tensor]:
        given = iter(fields)
        init = [next(given) if t.is_floating_point() else t for t in state]
        made, after = tilefold.reduce(x, monoid, 1, keepdim, init=init, return_state=True)
        return [t for t in (*as_list(made), *as_list(after)) if t.is_floating_point()]

    given = (drawn(2, 2), *floats)
    assert gradcheck(call, given, fast_mode=True)
    assert gradgradcheck(call, given, fast_mode=True)


@pytest.mark.parametrize("monoid", [*CHUNKED, monoids.NORM(2)], ids=lambda m: m.name)
def test_chunks_have_the_gradient_of_the_whole(monoid: Monoid) -> None:
    def chunked(x: Tensor) -> list[Tensor]:
        state = tilefold.reduce(x[:, :2], monoid, 1, return_state=True)[1]
        state = tilefold.reduce(x[:, 2:3], monoid, 1, init=state, return_state=True)[1]
        made = as_list(tilefold.reduce(x[:, 3:], monoid, 1, init=state))
        return [t for t in made if t.is_floating_point()]

    def whole(x: Tensor) -> list[Tensor]:
        return [t for t in as_list(tilefold.reduce(x, monoid, 1)) if t.is_floating_point()]

    assert_alike(chunked, whole, drawn(3, 6))


OF_WHOLE_NUMBERS = ("bits", "hashes", "products of a modulus")


@pytest.mark.parametrize("number", [n for n in range(20) if draw(RIGHT, 7, n).kind not in OF_WHOLE_NUMBERS])
def test_drawn_monoids_from_a_state(number: int) -> None:
    """By finite differences, with a state before the elements and without."""
    drawn_one = draw(RIGHT, 7, number)
    asked = {} if "commutative" in drawn_one.options else {"commutative": False}
    monoid = drawn_one.monoid(check=False, **asked)
    ranges = [(max(d.low, -2.0), min(d.high, 2.0)) for d in monoid.algebra.domain or ()] or [(-2.0, 2.0)] * 9
    generator = torch.Generator().manual_seed(number)

    def some(length: int) -> list[Tensor]:
        drawn_rows = [
            torch.rand(2, length, generator=generator, dtype=F64) for _ in range(monoid.algebra.inputs)
        ]
        return [
            low + (high - low) * (0.05 + 0.9 * t) for t, (low, high) in zip(drawn_rows, ranges, strict=False)
        ]

    state = as_list(tilefold.reduce(some(2), monoid, 1, return_state=True)[1])
    x = [t.requires_grad_() for t in some(3)]

    def call(*x: Tensor, **options: Any) -> list[Tensor]:
        return [t for t in as_list(tilefold.reduce(x, monoid, 1, **options)) if t.requires_grad]

    for options in ({}, {"init": state}):
        if call(*x, **options) and all(t.dtype == F64 for t in state if t.is_floating_point()):
            assert gradcheck(functools.partial(call, **options), x, fast_mode=True)


def one_by_one(monoid: Monoid, x: Sequence[Tensor], prefixes: bool) -> list[Tensor]:
    """The definition, as torch's autograd sees it: an element after another."""
    program, rows = derived(monoid, (F64,) * len(x)).program, x[0].shape[0]

    def typed(graph: Any, given: Sequence[Tensor]) -> list[Tensor]:
        made = zip(evaluate(graph, given), graph.output_dtypes, strict=True)
        return [torch.as_tensor(t, dtype=dtype).expand(rows) for t, dtype in made]

    found, state = list[list[Tensor]](), list[Tensor]()
    for place in range(x[0].shape[1]):
        elements = [t[:, place] for t in x]
        elements += [torch.full((rows,), place)] * monoid.algebra.index
        lifted = typed(program.lift, elements)
        state = typed(program.combine, [*state, *lifted]) if state else lifted
        found.append(typed(program.project, state))
    return [torch.stack(t, 1) for t in zip(*found, strict=True)] if prefixes else found[-1]


@pytest.mark.parametrize("number", range(200 if "TILEFOLD_RANDOM_PLANS" in os.environ else 5))
def test_drawn_monoids_beside_a_loop(number: int) -> None:
    """Folds and scans: gradients, and gradients of these."""
    one = draw(RIGHT, 13, number)
    monoid = one.monoid(check=False, **({} if "commutative" in one.options else {"commutative": False}))
    rounding = (torch.float32, torch.bfloat16, torch.float16)
    if one.kind in OF_WHOLE_NUMBERS or any(rule in rounding for rule in monoid.algebra.dtypes):
        return
    inputs = monoid.algebra.inputs
    ranges = [(max(d.low, -2.0), min(d.high, 2.0)) for d in monoid.algebra.domain or ()] or [
        (-2.0, 2.0)
    ] * inputs
    generator = torch.Generator().manual_seed(number)
    length = 1 + number % 6
    unit = torch.rand(inputs, 3, length, generator=generator, dtype=F64) * 0.9 + 0.05
    x = [
        (low + (high - low) * u).requires_grad_()
        for (low, high), u in zip(ranges[:inputs], unit, strict=True)
    ]
    for prefixes in (False, True):
        made = as_list(tilefold.scan(x, monoid, 1) if prefixes else tilefold.reduce(x, monoid, 1))
        wanted = one_by_one(monoid, x, prefixes)
        pairs = [(a, b) for a, b in zip(made, wanted, strict=True) if a.requires_grad and b.requires_grad]
        if not pairs:
            continue
        weights = [torch.randn(a.shape, generator=generator, dtype=F64) for a, _ in pairs]
        found = []
        for side in zip(*pairs, strict=True):
            first = torch.autograd.grad(side, x, weights, create_graph=True, materialize_grads=True)
            curved = [g.sin().sum() for g in first if g.requires_grad]
            second = torch.autograd.grad(curved, x, materialize_grads=True) if curved else ()
            found.append([t.detach() for t in (*first, *(second or map(torch.zeros_like, x)))])
        for got, want in zip(*found, strict=True):
            scale = max(1.0, float(want.abs().max()))
            assert float((got - want).abs().max()) <= 1e-7 * scale


def test_moments_from_a_state() -> None:
    """A state whose fields depend on how they were grouped may begin a fold, and has a gradient."""
    first, x = drawn(3, 5, seed=2).detach(), drawn(3, 4)
    state = tilefold.reduce(first, monoids.WELFORD, 1, return_state=True)[1]
    assert_alike(
        lambda x: tilefold.reduce(x, monoids.WELFORD, 1, init=state).M2,
        lambda x: torch.cat([first, x], 1).var(1) * 8,
        x,
    )
    total = state.sum.clone().requires_grad_()
    mean = tilefold.reduce(x.detach(), monoids.WELFORD, 1, init=state._replace(sum=total)).mean
    torch.testing.assert_close(torch.autograd.grad(mean.sum(), total)[0], state.unit / 9, atol=0, rtol=1e-12)


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


def test_a_float_that_no_element_moves_has_no_gradient() -> None:
    """A count beside a sum: as of folds, so of scans."""
    counted = Monoid(
        lambda a, b: (a.n + b.n, a.s + b.s), (0, 0), fields=("n", "s"), lift=lambda x: (1.0, x), commutative=True,
        project=lambda n, s: (n, s * s),
    )  # fmt: skip
    x = drawn(3, 4)
    for made in (tilefold.reduce(x, counted, 1), tilefold.scan(x, counted, 1)):
        assert [r.requires_grad for r in listed(made)] == [False, True]


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


# -------------------------------------------------------------------------------------------------- values of rows


def test_values_of_rows_have_gradients() -> None:
    """Beside elements', alone, and where elements depend on no row."""
    x, e = drawn(3, 4), drawn(3, 1, seed=1)
    shift = lambda v, total, e: v - total * e  # noqa: E731

    def call(x: Tensor, e: Tensor) -> Any:
        return tilefold.reduce_map(x, monoids.LOGSUMEXP, shift, 1, extras=e, rows=lambda t: (t, t * t))

    def like(x: Tensor, e: Tensor) -> Any:
        total = torch.logsumexp(x, 1, keepdim=True)
        return x - total * e, total, total * total

    assert_alike(call, like, x, e)
    assert_alike(lambda x, e: call(x, e)[1] * e, lambda x, e: like(x, e)[1] * e, x, e)
    alone = lambda v, total: v * v  # noqa: E731
    assert_alike(
        lambda x: tilefold.reduce_map(x, monoids.SUM, alone, 0, rows=lambda t: t),
        lambda x: (x * x, x.sum(0, keepdim=True)),
        x,
    )
    assert_differentiated(call, x, e)
    ordered = lambda x: tilefold.reduce_map(x, monoids.PROD, lambda v, p: v + p, 1, rows=lambda p: p * p)  # noqa: E731
    assert_alike(ordered, lambda x: (x + x.prod(1, keepdim=True), x.prod(1, keepdim=True) ** 2), x)
    assert_differentiated(ordered, x)


def test_elements_that_tie_share_what_a_map_makes_of_their_extreme() -> None:
    x = torch.tensor([[1.0, 3, 3, 2], [5, 0, 5, 5]], dtype=F64, requires_grad=True)

    def call(x: Tensor) -> tuple[Tensor, Tensor]:
        made: tuple[Tensor, Tensor] = tilefold.reduce_map(
            x, monoids.MAX, lambda v, m: v * m, 1, rows=lambda m: m * m
        )
        return made

    def like(x: Tensor) -> tuple[Tensor, Tensor]:
        most = torch.amax(x, 1)
        return x * most[:, None], most * most

    results = zip(call(x), like(x), strict=True)
    for got, want in results:
        assert got.numel() == want.numel()
        weights = torch.linspace(1, 2, want.numel(), dtype=F64)
        (made,) = torch.autograd.grad(got, x, weights.view(got.shape), retain_graph=True)
        (wanted,) = torch.autograd.grad(want, x, weights.view(want.shape), retain_graph=True)
        torch.testing.assert_close(made, wanted, rtol=1e-12, atol=0)


def test_a_value_of_a_row_goes_back_in() -> None:
    """What one map stored is folded by another: both have gradients."""
    x = drawn(3, 4)
    product = Monoid(lambda a, b: a + b, 0, lift=lambda v, s: v * s * s, commutative=True)

    def call(x: Tensor) -> Tensor:
        shifted, total = tilefold.reduce_map(x, monoids.LOGSUMEXP, lambda v, t: v - t, 1, rows=lambda t: t)
        made: Tensor = tilefold.reduce_map((shifted, total), product, lambda v, s, p: v * p + s, 1)
        return made

    def like(x: Tensor) -> Tensor:
        total = torch.logsumexp(x, 1, keepdim=True)
        return (x - total) * ((x - total) * total**2).sum(1, keepdim=True) + total

    assert_alike(call, like, x)
    assert_differentiated(call, x)


FOLDS: tuple[tuple[Monoid, Callable[[Tensor], tuple[Tensor, ...]]], ...] = (
    (monoids.SUM, lambda x: (x.sum(1, keepdim=True),)),
    (monoids.LOGSUMEXP, lambda x: (x.logsumexp(1, keepdim=True),)),
    (monoids.PROD, lambda x: (x.prod(1, keepdim=True),)),
    (monoids.NORM(2), lambda x: (torch.linalg.vector_norm(x, 2, 1, keepdim=True),)),
    (
        monoids.welford(lambda n, mean, squares: (mean, squares), "moments"),
        lambda x: (x.mean(1, keepdim=True), x.var(1, correction=0, keepdim=True) * x.shape[1]),
    ),
    (
        Monoid(lambda a, b: a + b, 0, lift=lambda x, i: x * (i + 1), index=True, name="by place"),
        lambda x: ((x * torch.arange(1, 1 + x.shape[1])).sum(1, keepdim=True),),
    ),
)


def drawn_function(generator: random.Random, values: int) -> Callable[..., Any]:
    """A function of so many values, of Python's operations and those that tensors and symbols both have."""
    steps = [(generator.choice("+*-s"), generator.randrange(99), generator.randrange(99)) for _ in range(4)]

    def function(*given: Any) -> Any:
        held = list(given)
        for op, a, b in steps:
            x, y = held[a % len(held)], held[b % len(held)]
            held.append({"+": x + y, "*": x * y * 0.5, "-": x - y, "s": (x * x + 1.0) ** 0.5}[op])
        return held[-1] + held[0] * held[-2], held[-1]

    assert values
    return function


@pytest.mark.parametrize("seed", range(60 if "TILEFOLD_RANDOM_PLANS" in os.environ else 6))
def test_drawn_maps(seed: int) -> None:
    """A drawn function of elements, results and extra tensors of any part of the shape, and one of rows: twice."""
    generator = random.Random(seed)
    monoid, folded = generator.choice(FOLDS)
    results = len(folded(torch.ones(1, 2)))
    sizes = [generator.choice([(4, 5), (5,), (4, 1), (1, 1), ()]) for _ in range(generator.randrange(3))]
    apply = drawn_function(generator, 1 + results + len(sizes))
    rows = drawn_function(generator, results)
    given = [drawn(4, 5, seed=seed), *(drawn(*size, seed=seed + i) for i, size in enumerate(sizes, 1))]

    def like(x: Tensor, *extras: Tensor) -> tuple[Tensor, ...]:
        made = folded(x)
        return (*(t.expand(4, 5) for t in apply(x, *made, *extras)), *rows(*made))

    def call(x: Tensor, *extras: Tensor) -> Any:
        return tilefold.reduce_map(x, monoid, apply, 1, extras=extras, rows=rows)

    def slopes(made: Sequence[Tensor]) -> list[Tensor]:
        """Those of a sum of squares: 0 of what nothing is made of."""
        whole = sum((t * t.detach().cos()).sum() for t in made)
        found = torch.autograd.grad(whole, given, create_graph=True, allow_unused=True)
        return [t * 0 if g is None else g + t * 0 for g, t in zip(found, given, strict=True)]

    got, want = list(call(*given)), list(like(*given))
    for tolerance in (1e-10, 1e-9, 1e-8):
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
        got, want = slopes(got), slopes(want)


@pytest.mark.parametrize("dim", [0, 1, (0, 1), ()])
def test_maps_of_folds_that_see_positions(dim: Any) -> None:
    """An index has no derivative, what is chosen by it and what is made of it have."""
    x, w = drawn(3, 4), drawn(4, seed=1)
    length = 12 if dim == (0, 1) else 1 if dim == () else x.shape[dim]
    where = torch.arange(length).reshape({0: (3, 1), 1: (1, 4), (0, 1): (3, 4)}.get(dim, ()))

    def located(x: Tensor, w: Tensor) -> Any:
        return tilefold.reduce_map(x, monoids.MAX_WITH_INDEX, lambda v, m, i, w: v * m * w + i, dim, extras=w)

    def like(x: Tensor, w: Tensor) -> Tensor:
        most = x.amax(dim, keepdim=True) if dim != () else x
        first = torch.where(x == most, where, 0).sum(dim, keepdim=True) if dim != () else 0
        return x * most * w + first

    assert_alike(located, like, x, w)
    assert_differentiated(located, x, w)
    by_place, _ = FOLDS[-1]
    made = tilefold.reduce_map(x, by_place, lambda v, total: v * total, dim)
    (g,) = torch.autograd.grad(made.sum(), x, create_graph=True)
    total = (x * (where + 1)).sum(dim, keepdim=True) if dim != () else x
    (want,) = torch.autograd.grad((x * total).sum(), x, create_graph=True)
    torch.testing.assert_close(g, want, rtol=1e-12, atol=1e-12)


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


@pytest.mark.parametrize(
    "call",
    [
        lambda x: tilefold.reduce(x, monoids.WELFORD, 1, return_state=True)[1].pivot,
        lambda x: tilefold.scan(x, monoids.WELFORD, 1).mean,
        lambda x: tilefold.reduce(x, monoids.DESCRIBE, 1, return_state=True)[1][0],
        lambda x: tilefold.scan(x, monoids.DESCRIBE, 1).mean,
    ],
    ids=[
        "a state that depends on its grouping",
        "prefixes that do",
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

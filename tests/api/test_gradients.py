"""Gradients of folds, scans and maps: beside torch's own, beside a loop over elements, and by finite differences."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

import tilefold
from tilefold import Monoid, math, monoids
from tilefold.api import gradients, map_gradients
from tilefold.api.gradients import derived
from tilefold.errors import GradientError
from tilefold.runtime.overrides import listed

Tensor = torch.Tensor
F64 = torch.float64
INF = float("inf")


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


@pytest.mark.parametrize("name", ["logsumexp over a dim", "layer_norm", "cumsum"])
def test_inputs_alone_are_saved(name: str) -> None:
    """No more bytes than torch's own call saves beside its inputs' own."""
    function, like, given = LIKE_TORCH[name]

    def saved(call: Callable[..., Any]) -> int:
        found: dict[int, int] = {}

        def pack(t: Tensor) -> Tensor:
            found[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with saved_tensors_hooks(pack, lambda t: t):
            call(*given)
        return sum(found.values())

    inputs = sum(t.numel() * t.element_size() for t in given)
    assert saved(function) <= max(saved(like), inputs)


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
        lambda x: tilefold.amax(x, 1),
        lambda x: tilefold.vector_norm(x, INF, 1),
        lambda x: tilefold.scan(x, monoids.WELFORD, 1).mean,
    ],
    ids=["ties", "ties of magnitudes", "states that depend on their grouping"],
)
def test_what_has_no_gradient_yet_says_so(call: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(GradientError, match="has no derivative yet"):
        call(drawn(3, 4))
    call(drawn(3, 4).detach())


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_forward_derivatives_are_refused() -> None:
    """A silent zero would be wrong."""
    x = drawn(3, 4).detach()
    with pytest.raises(GradientError, match="forward derivative"):
        torch.func.jvp(lambda x: tilefold.sum(x, 1), (x,), (x,))


@pytest.mark.parametrize("name", ["var over a dim", "layer_norm", "logsumexp over a dim", "norm 2"])
def test_both_forms_of_a_gradient_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the total alone, and by what is before and after each element, also where elements have units of their own."""
    function, like, given = LIKE_TORCH[name]
    far = [(t.detach() * 3).requires_grad_() for t in given]
    monkeypatch.setattr(gradients, "_needs_total_alone", lambda *_: False)
    monkeypatch.setattr(map_gradients._Parts, "needs_total_alone", False)
    assert_alike(function, like, *far)

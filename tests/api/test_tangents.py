"""Forward derivatives: by torch.func and by dual tensors, beside the backward's own and torch's."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import tilefold
from algebra.drawn import RIGHT, draw
from tilefold import Monoid, math, monoids
from tilefold.errors import GradientError
from tilefold.runtime.overrides import listed

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:.*torch.jit.script.*:DeprecationWarning"
    ),  # torch's forward derivatives use it
    pytest.mark.filterwarnings(
        "ignore:There is a performance drop:UserWarning"
    ),  # torch's own batching rules
]
F64 = torch.float64
PAIR = Monoid(
    lambda a, b: (a.weight + b.weight, a.total + b.total), (0, 0), fields=("weight", "total"),
    lift=lambda x, w: (w * w, w * w * x), project=lambda weight, total: total / weight, commutative=True,
)  # fmt: skip
LATEST = Monoid(  # in order: a product of affine functions, of which the last is shown
    lambda a, b: (a.slope * b.slope, b.slope * a.height + b.height), (1, 0), fields=("slope", "height"),
    lift=lambda x: (math.sin(x), x), project=lambda slope, height: height, commutative=False,
)  # fmt: skip
OFFSETS = torch.tensor([0, 1, 3, 3])
STATE = (torch.tensor([0.5, 1.0, -1.0], dtype=F64), torch.tensor([1.0, 2.0, 0.5], dtype=F64))


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=F64)


X, W = drawn(3, 4), drawn(4, seed=1)
CALLS: dict[str, Callable[[Tensor], Any]] = {
    **{
        name: functools.partial(lambda name, x: getattr(tilefold, name)(x, 1), name)
        for name in ("sum", "mean", "logsumexp", "var", "std", "var_mean", "prod", "amax", "max", "softmax", "log_softmax",
                     "cumsum", "cumprod", "cummax", "logcumsumexp")
    },
    "norm 2": lambda x: tilefold.vector_norm(x, 2, 1),
    "norm 3": lambda x: tilefold.vector_norm(x, 3),
    "layer_norm": lambda x: tilefold.layer_norm(x, (4,), W),
    "layer_norm, of its weight": lambda x: tilefold.layer_norm(W.expand(3, 4), (4,), x[0], x[1]),
    "rms_norm": lambda x: tilefold.rms_norm(x, (4,), W),
    "group_norm": lambda x: tilefold.group_norm(x[..., None], 2),
    "normalize": lambda x: tilefold.normalize(x),
    "two that broadcast": lambda x: tilefold.reduce((x, x[:1] * 2), PAIR, 1),
    "in order": lambda x: tilefold.reduce(x, LATEST, 0),
    "from a state to a state": lambda x: [
        t for r in tilefold.reduce(x[:, :3], monoids.LOGSUMEXP, 1, init=(x[:, 3], STATE[1]), return_state=True)
        for t in listed(r)
    ],
    "a map with rows": lambda x: tilefold.reduce_map(
        x, monoids.LOGSUMEXP, lambda x, total, w: math.exp(x - total) * w, 1, extras=[x.flip(0)], rows=lambda total: total
    ),
    "affine": lambda x: tilefold.scan((x, x.flip(1)), monoids.AFFINE, 1)[1],
    "affine, backwards without its own": lambda x: tilefold.scan(
        (x, x.flip(1)), monoids.AFFINE, 1, reverse=True, exclusive=True
    )[1],
    "affine from a state to a state": lambda x: [
        t for r in tilefold.scan((x, x.flip(1)), monoids.AFFINE, 1, init=(STATE[0], x[:, 0]), return_state=True)
        for t in listed(tuple(r))
    ],
    "segments": lambda x: tilefold.segment_reduce(x, monoids.LOGSUMEXP, offsets=OFFSETS, dim=0),
    "topk": lambda x: tilefold.topk(x, 2, 1),
    "transpose": lambda x: tilefold.transpose(x, 0, 1),
    "matmul": lambda x: tilefold.matmul(x, x.T, bias=x[:, 0], epilogue="gelu"),
    "matmul with a row": lambda x: tilefold.matmul(
        x, x.T, row=(monoids.LOGSUMEXP, lambda value, total: value - total)
    )[1],
}  # fmt: skip


def floats(function: Callable[[Tensor], Any]) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """All results that have derivatives."""

    def call(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(r for r in listed(function(x)) if r.is_floating_point() and r.numel())

    return call


def pushed(function: Callable[[Tensor], Any], x: Tensor, t: Tensor) -> tuple[Tensor, ...]:
    """The tangents of results, by two backwards."""
    made, back = vjp(function, x)
    zeros = tuple(map(torch.zeros_like, made))
    return vjp(lambda u: back(u)[0], zeros)[1](t)[0]  # type: ignore[no-any-return]  # torch's own


def assert_close(got: Tensor, want: Tensor) -> None:
    """But for what is left of sums that cancel."""
    assert float((got - want).detach().abs().max()) <= 1e-10 * max(1.0, float(want.abs().max()))


@pytest.mark.parametrize("name", CALLS)
def test_tangents_are_those_of_the_backward(name: str) -> None:
    function, t = floats(CALLS[name]), drawn(3, 4, seed=2)
    for got, want in zip(jvp(function, (X,), (t,))[1], pushed(function, X, t), strict=True):
        assert_close(got, want)


@pytest.mark.parametrize(
    "name", CALLS if "TILEFOLD_RANDOM_PLANS" in os.environ else ["logsumexp", "amax", "layer_norm", "affine"]
)
def test_second_derivatives(name: str) -> None:
    """Of a tangent again, of a gradient, and the gradient of a tangent."""
    function, t = floats(CALLS[name]), drawn(3, 4, seed=2)

    def along(x: Tensor) -> tuple[Tensor, ...]:
        return pushed(function, x, t)

    twice = jvp(lambda x: jvp(function, (x,), (t,))[1], (X,), (t,))[1]
    for got, want in zip(twice, pushed(along, X, t), strict=True):
        assert_close(got, want)
    loss = lambda made: sum(r.sin().sum() for r in made)  # noqa: E731
    assert_close(grad(lambda x: loss(jvp(function, (x,), (t,))[1]))(X), grad(lambda x: loss(along(x)))(X))
    slopes = lambda x: (grad(lambda x: loss(function(x)))(x),)  # noqa: E731
    assert_close(jvp(slopes, (X,), (t,))[1][0], pushed(slopes, X, t)[0])


@pytest.mark.parametrize("number", range(60 if "TILEFOLD_RANDOM_PLANS" in os.environ else 6))
def test_drawn_monoids(number: int) -> None:
    one = draw(RIGHT, 11, number)
    monoid = one.monoid(check=False, **({} if "commutative" in one.options else {"commutative": False}))
    inputs = monoid.algebra.inputs
    ranges = [(max(d.low, -2.0), min(d.high, 2.0)) for d in monoid.algebra.domain or ()] or [
        (-2.0, 2.0)
    ] * inputs
    unit = torch.rand(inputs, 3, 4, generator=torch.Generator().manual_seed(number), dtype=F64) * 0.9 + 0.05
    x, *given = (low + (high - low) * u for (low, high), u in zip(ranges, unit, strict=False))
    t = drawn(3, 4, seed=9)

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return floats(lambda x: tilefold.reduce([x, *given], monoid, 1))(x)

    if not [r for r in function(x.requires_grad_()) if r.requires_grad]:
        return  # a monoid of whole numbers
    x = x.detach()
    for got, want in zip(jvp(function, (x,), (t,))[1], pushed(function, x, t), strict=True):
        assert_close(got, want)


@pytest.mark.parametrize("name", ["logsumexp", "layer_norm", "affine", "amax"])
def test_jacobians_and_maps(name: str) -> None:
    function = lambda x: floats(CALLS[name])(x)[0]  # noqa: E731
    torch.testing.assert_close(jacfwd(function)(X), jacrev(function)(X))
    torch.testing.assert_close(
        hessian(lambda x: function(x).sin().sum())(X), jacrev(jacrev(lambda x: function(x).sin().sum()))(X)
    )
    several, t = torch.stack([X, X * 2]), drawn(3, 4, seed=2)
    want = torch.stack([jvp(function, (x,), (t,))[1] for x in several])
    torch.testing.assert_close(vmap(lambda x: jvp(function, (x,), (t,))[1])(several), want)
    (got,) = jvp(lambda x: (vmap(function)(torch.stack([x, x * 2])),), (X,), (t,))[1]
    torch.testing.assert_close(got[0], want[0])


MIXED = ["logsumexp", "amax", "layer_norm", "affine"]


@pytest.mark.parametrize("name", CALLS if "TILEFOLD_RANDOM_PLANS" in os.environ else MIXED)
def test_gradients_of_dual_tensors_are_dual(name: str) -> None:
    """One tangent, and all of a Hessian, which torch.autograd has for itself; none is left once their level has ended."""
    function, t = floats(CALLS[name]), drawn(3, 4, seed=2)
    loss = lambda x: sum((r.sin() * r).sum() for r in function(x))  # noqa: E731
    want, leaf = hessian(loss)(X), X.clone().requires_grad_()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(leaf, t)
        made = loss(dual)
        (slope,) = torch.autograd.grad(made, leaf, create_graph=True)
        assert_close(forward_ad.unpack_dual(slope).tangent.detach(), torch.einsum("ijkl,kl->ij", want, t))
    (later,) = torch.autograd.grad(made, leaf)
    assert_close(later, grad(loss)(X))
    got = torch.autograd.functional.hessian(loss, X, vectorize=True, outer_jacobian_strategy="forward-mode")
    assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dual_tensors(dtype: torch.dtype) -> None:
    """Outside of torch.func; a gradient may be asked of the same tensor; tangents have the results' dtype."""
    x, t = X.to(dtype).requires_grad_(), drawn(3, 4, seed=2).to(dtype)
    with forward_ad.dual_level():
        for ours, theirs in ((tilefold.logsumexp, torch.logsumexp), (tilefold.softmax, torch.softmax)):
            got = forward_ad.unpack_dual(ours(forward_ad.make_dual(x, t), 1)).tangent
            want = forward_ad.unpack_dual(theirs(forward_ad.make_dual(x, t), 1)).tangent
            assert got is not None
            assert got.dtype == dtype
            torch.testing.assert_close(got, want, rtol=2**-6 if dtype == torch.bfloat16 else 1e-5, atol=2**-7)
            assert not forward_ad.unpack_dual(tilefold.argmax(forward_ad.make_dual(x, t), 1)).tangent
        (g,) = torch.autograd.grad(got.float().sum(), x)
    assert g.shape == x.shape


def test_results_of_whole_numbers_are_not_rounded() -> None:
    """A map's forward derivative folds elements again: a sum beyond 2^24 keeps its last bit."""
    x, e = torch.full((3, 5), 2**28 + 1), drawn(3, 5)

    def parity(e):
        return tilefold.reduce_map(x, monoids.SUM, lambda x, total, e: (total % 7) * e, 1, extras=e)

    made, got = jvp(parity, (e,), (e,))
    assert torch.equal(got, e * (5 * (2**28 + 1) % 7))
    assert torch.equal(made, got)


@pytest.mark.parametrize("first", [torch.int64, torch.float32], ids=str)
def test_results_of_mixed_dtypes_are_not_rounded(first: torch.dtype) -> None:
    """Nor those of float64 behind another dtype, in a gradient and in its forward derivative."""
    x, y = torch.arange(1, 13).reshape(3, 4).to(first), drawn(3, 4)
    pair = Monoid(lambda a, b: a + b, 0, lift=lambda x, y: x * y)

    def ours(y: Tensor) -> Tensor:
        found: Tensor = tilefold.reduce_map((x, y), pair, lambda x, y, total: y * (total * total), 1)
        return found.sum()

    def like(y: Tensor) -> Tensor:
        return (y * (x * y).sum(1, keepdim=True) ** 2).sum()

    assert_close(grad(ours)(y), grad(like)(y))
    assert_close(hessian(ours)(y), hessian(like)(y))


def test_finite_differences() -> None:
    """torch's own check, forward too."""
    for name in ("logsumexp", "rms_norm", "affine", "matmul"):
        x = X.clone().requires_grad_()
        assert torch.autograd.gradcheck(
            floats(CALLS[name]), (x,), check_forward_ad=True, check_batched_grad=False, fast_mode=True
        )


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (), (3, 1)])
def test_few_elements(shape: tuple[int, ...]) -> None:
    x = drawn(*shape)
    for function in (
        lambda x: tilefold.sum(x),
        lambda x: tilefold.cumsum(x, 0),
        lambda x: tilefold.softmax(x, 0),
    ):
        made, got = jvp(function, (x,), (torch.ones_like(x),))
        assert got.shape == made.shape
        want = jacrev(function)(x).sum(tuple(range(-x.ndim, 0))) if x.numel() and x.ndim else got
        if x.numel():
            assert_close(got, want)


def test_what_has_no_derivative_says_so() -> None:
    with pytest.raises(GradientError, match="depend on how they were grouped"):
        jvp(lambda x: tilefold.scan(x, monoids.DESCRIBE, 1)[4], (X,), (X,))
    with (
        forward_ad.dual_level(),
        pytest.raises(GradientError, match=r"forward derivative where results are written into `out`"),
    ):
        tilefold.sum(forward_ad.make_dual(X, X), 1, out=torch.empty(3, dtype=F64))


def test_compiled() -> None:
    """A graph enters a level of forward derivatives that Python does not see."""
    compiled = torch.compile(
        lambda x, t: jvp(lambda x: tilefold.logsumexp(x, 1), (x,), (t,)), backend="aot_eager", fullgraph=True
    )
    t = drawn(3, 4, seed=2)
    for got, want in zip(compiled(X, t), jvp(lambda x: torch.logsumexp(x, 1), (X,), (t,)), strict=True):
        torch.testing.assert_close(got, want)

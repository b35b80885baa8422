"""Scans of states whose fields depend on how they were grouped: derivatives from prefixes' coefficients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import grad, hessian, jacfwd, jacrev, vmap

import tilefold
from tilefold import Monoid, math, monoids
from tilefold.algebra.derivatives.separable import Term
from tilefold.api.separable_scans import separated_of
from tilefold.errors import GradientError

F64 = torch.float64
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*torch.jit.script.*:DeprecationWarning"
)  # torch's forward derivatives call it


def drawn(*shape: int, seed: int = 1, dtype: torch.dtype = F64) -> Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)
    return made.to(dtype).requires_grad_()


def about(a: Any, b: Any) -> tuple[Any, ...]:
    """Weighted sums about the pivot of the side with more elements."""
    pivot = math.where(a.count >= b.count, a.pivot, b.pivot)
    found = []
    for s in (a, b):
        d = s.pivot - pivot
        found.append((s.sum + s.weight * d, s.squares + d * (2.0 * s.sum + s.weight * d)))
    (s, q), (t, r) = found
    return a.count + b.count, a.weight + b.weight, pivot, s + t, q + r


def moments(count: Any, weight: Any, pivot: Any, total: Any, squares: Any) -> tuple[Any, ...]:
    mean = total / weight
    return pivot + mean, squares / weight - mean * mean


WEIGHTED = Monoid(
    about, (0, 0, 0, 0, 0), fields=("count", "weight", "pivot", "sum", "squares"),
    lift=lambda x, w: (1, w, x, 0.0, 0.0), project=moments, commutative=True, domain=(None, (0.5, 2.0)), check=False,
)  # fmt: skip


def welford(x: Tensor, **named: Any) -> tuple[Tensor, ...]:
    """Means and sums of squares about them of prefixes; counts have no gradient."""
    return tuple(tilefold.scan(x, monoids.WELFORD, -1, **named)[1:])


def by_loop(x: Tensor, first: Tensor | None = None) -> tuple[Tensor, ...]:
    """The same by torch, of prefixes that begin with other elements."""
    rows = x if first is None else torch.cat([first, x], -1)
    n = rows.shape[-1] - x.shape[-1]
    parts = [rows[..., : n + t + 1] for t in range(x.shape[-1])]
    means = torch.stack([p.mean(-1) for p in parts], -1)
    return means, torch.stack([p.var(-1, correction=0) * p.shape[-1] for p in parts], -1)


@pytest.mark.parametrize(
    "named", [{}, {"reverse": True}, {"exclusive": True}, {"exclusive": True, "reverse": True}], ids=str
)
def test_derivatives_of_moments_of_prefixes(named: dict[str, bool]) -> None:
    x = drawn(2, 5)
    assert gradcheck(lambda x: welford(x, **named), x, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(lambda x: welford(x, **named), x, check_fwd_over_rev=True)


def test_moments_of_prefixes_are_torchs() -> None:
    x = drawn(3, 6)
    g = [drawn(3, 6, seed=s).detach() for s in (2, 3)]
    got, want = (torch.autograd.grad(f(x), x, g) for f in (welford, by_loop))
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)
    first = drawn(3, 4, seed=4).detach()
    state = tilefold.reduce(first, monoids.WELFORD, 1, return_state=True)[1]
    got = torch.autograd.grad(welford(x, init=state), x, g)
    want = torch.autograd.grad(by_loop(x, first), x, g)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dim", [0, 1])
def test_any_dim_and_layout(dim: int) -> None:
    x = drawn(4, 3)
    g = drawn(4, 3, seed=2).detach()
    wide = x.detach().repeat_interleave(2, 1)[:, ::2].requires_grad_()
    (got,) = torch.autograd.grad(tilefold.scan(wide, monoids.WELFORD, dim).M2, wide, g.t().contiguous().t())
    of_loop = by_loop(x if dim else x.t())[1]
    (want,) = torch.autograd.grad(of_loop if dim else of_loop.t(), x, g)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)
    one = drawn(1, 5)
    (repeated,) = torch.autograd.grad(tilefold.scan(one.expand(3, 5), monoids.WELFORD, 1).M2.sum(), one)
    torch.testing.assert_close(repeated, 3 * torch.autograd.grad(welford(one)[1].sum(), one)[0])


def test_float32_far_from_zero_loses_nothing() -> None:
    """Terms of elements far from zero cancel: 1e4 times as much would be lost in float32."""
    x = (drawn(4, 200, dtype=torch.float32).detach() + 1e4).requires_grad_()
    g = drawn(4, 200, seed=2, dtype=torch.float32).detach()
    wide = x.detach().double().requires_grad_()
    (got,) = torch.autograd.grad(welford(x)[1], x, g)
    (want,) = torch.autograd.grad(by_loop(wide)[1], wide, g.double())
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), want, rtol=2**-23, atol=2**-23 * float(want.abs().max()))


def test_weights_and_elements_of_the_users_own() -> None:
    """A weight's slope has squares of elements: a polynomial of two inputs."""
    gradient_and_form = separated_of(WEIGHTED, (F64, F64))
    assert gradient_and_form is not None
    assert not gradient_and_form[0].keeps_fields
    assert Term(1, 1, (0, 0)) in gradient_and_form[1].terms
    x, w = drawn(2, 5), (drawn(2, 5, seed=2).detach().abs() + 0.5).requires_grad_()
    for named in ({}, {"reverse": True}, {"exclusive": True, "init": (1, 1.0, 0.5, 0.25, 2.0)}):

        def run(x: Tensor, w: Tensor, named: Any = named) -> tuple[Tensor, ...]:
            return tuple(tilefold.scan((x, w), WEIGHTED, 1, **named))

        assert gradcheck(run, (x, w), check_forward_ad=True)
        assert gradgradcheck(run, (x, w))
    (alone,) = torch.autograd.grad(tilefold.scan((x, w.detach()), WEIGHTED, 1)[1].sum(), x)
    torch.testing.assert_close(alone, torch.autograd.grad(tilefold.scan((x, w), WEIGHTED, 1)[1].sum(), x)[0])


def test_transforms_and_graphs() -> None:
    x = drawn(3, 4).detach()

    def curved(x: Tensor) -> Tensor:
        return sum((t.sin().sum() for t in welford(x)), x.new_zeros(()))

    want = torch.autograd.functional.jacobian(lambda x: by_loop(x)[1], x)
    torch.testing.assert_close(jacrev(lambda x: welford(x)[1])(x), want)
    torch.testing.assert_close(jacfwd(lambda x: welford(x)[1])(x), want)
    torch.testing.assert_close(hessian(curved)(x), torch.autograd.functional.hessian(curved, x))
    torch.testing.assert_close(vmap(grad(curved))(x), torch.stack([grad(curved)(row) for row in x]))
    made, y = torch.compile(curved, backend="aot_eager", fullgraph=True), x.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(made(y), y), torch.autograd.grad(curved(y), y))


def test_rows_without_elements_and_of_one() -> None:
    for shape in ((0, 3), (3, 0), (), (1,), (3, 1)):
        x = drawn(*shape)
        mean = tilefold.scan(x, monoids.WELFORD, 0).mean
        assert torch.autograd.grad(mean.sum(), x)[0].shape == x.shape


def test_what_has_no_derivative_says_so() -> None:
    x = drawn(2, 4)
    with pytest.raises(
        GradientError, match=r"no derivative unless the law shows .*got one of the fields .*infs"
    ):
        tilefold.scan(x, monoids.DESCRIBE, 1)
    with forward_ad.dual_level(), pytest.raises(GradientError, match="no derivative unless the law shows"):
        tilefold.scan(forward_ad.make_dual(x.detach(), x.detach()), monoids.DESCRIBE, 1)
    with pytest.raises(GradientError, match="has no derivative, got return_state"):
        tilefold.scan(x, monoids.WELFORD, 1, return_state=True)
    state = tilefold.reduce(x.detach(), monoids.WELFORD, 1, return_state=True)[1]

    def of_sum(total: Tensor) -> Tensor:
        return tilefold.scan(x.detach(), monoids.WELFORD, 1, init=state._replace(sum=total)).mean

    with pytest.raises(GradientError, match="one asked of `init`"):
        of_sum(state.sum.clone().requires_grad_())
    for transform in (jacrev, jacfwd):
        with pytest.raises(GradientError, match="one asked of `init`"):
            transform(of_sum)(state.sum)


def test_what_steps_is_no_polynomial() -> None:
    """A step has a slope of 0 everywhere, and is no constant: samples say so."""
    stepped = Monoid(
        about, (0, 0, 0, 0, 0), fields=("count", "weight", "pivot", "sum", "squares"), project=moments, commutative=True,
        lift=lambda x: (1, math.where(x > 0.5, 2.0, 1.0), x, 0.0, 0.0), check=False,
    )  # fmt: skip
    assert separated_of(stepped, (F64,)) is None

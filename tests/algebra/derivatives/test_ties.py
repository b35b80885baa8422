"""Slopes of combines that compare fields, where elements are equal."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import tilefold
from tilefold import Monoid
from tilefold import math as m
from tilefold.algebra.derivatives.folds import Gradient
from tilefold.algebra.derivatives.ties import resolved
from tilefold.algebra.typing import infer
from tilefold.errors import GradientError

INF, F64 = math.inf, torch.float64


def by_equality(a: Any, b: Any) -> Any:
    scale = m.exp(m.where(a.m == b.m, 0.0, -abs(a.m - b.m)))
    first = a.m > b.m
    kept, moved = m.where(first, a.s, b.s), m.where(first, b.s, a.s)
    return m.maximum(a.m, b.m), kept + moved * scale


def by_inequality(a: Any, b: Any) -> Any:
    scale = m.exp(m.where(a.m != b.m, -abs(b.m - a.m), 0.0))
    first = b.m < a.m
    return m.maximum(b.m, a.m), m.where(first, a.s + b.s * scale, b.s + a.s * scale)


def by_order(a: Any, b: Any) -> Any:
    return m.maximum(a.m, b.m), m.where(
        a.m > b.m, a.s + b.s * m.exp(b.m - a.m), b.s + a.s * m.exp(m.where(m.isinf(a.m), -INF, a.m - b.m))
    )


def by_difference(a: Any, b: Any) -> Any:
    d = m.where(m.isinf(a.m) & m.isinf(b.m), 0.0, a.m - b.m)
    return m.where(a.m - b.m > 0, a.m, b.m), m.where(d > 0, a.s + b.s * m.exp(-d), b.s + a.s * m.exp(d))


def by_two(a: Any, b: Any) -> Any:
    top = m.where(a.m >= b.m, a.m, b.m)

    def scaled(own: Any) -> Any:
        return m.where(own == top, 1.0, m.exp(own - top))

    return top, a.s * scaled(a.m) + b.s * scaled(b.m)


def softest(a: Any, b: Any) -> Any:
    """The same of the least, with exponentials of what is above it."""
    scale = m.exp(m.where(a.m == b.m, 0.0, -abs(a.m - b.m)))
    first = a.m < b.m
    kept, moved = m.where(first, a.s, b.s), m.where(first, b.s, a.s)
    return m.minimum(a.m, b.m), kept + moved * scale


def of(combine: Any, least: bool = False) -> Monoid:
    sign = -1.0 if least else 1.0
    return Monoid(
        combine, (sign * -INF, 0), fields=("m", "s"), lift=lambda x: (x, 1.0), commutative=True,
        project=lambda top, s: top + sign * m.log(s), name=combine.__name__,
    )  # fmt: skip


COMBINES = [by_equality, by_inequality, by_order, by_difference, by_two]


def of_softest(x: torch.Tensor) -> torch.Tensor:
    return -torch.logsumexp(-x, 0)


@pytest.mark.parametrize("combine", [*COMBINES, softest], ids=lambda c: c.__name__)
@pytest.mark.parametrize(
    "x", [(2.0, 2.0, 2.0), (1.0, 3.0, 3.0, 1.0), (5.0,), (-1.0, 2.0, -1.0, 0.0)], ids=str
)
def test_a_logarithm_of_exponentials_in_every_spelling(combine: Any, x: tuple[float, ...]) -> None:
    monoid, want = of(combine, combine is softest), of_softest if combine is softest else torch.logsumexp
    x = torch.tensor(x, dtype=F64, requires_grad=True)
    of_all = want(x) if combine is softest else want(x, 0)
    (slopes,) = torch.autograd.grad(of_all, x)
    state = tilefold.reduce(x[:1], monoid, 0, return_state=True)[1]
    whole = (
        tilefold.reduce(x, monoid, 0),
        tilefold.scan(x, monoid, 0)[-1],
        tilefold.reduce(x[1:], monoid, 0, init=state),
    )
    for made in whole:
        torch.testing.assert_close(made, of_all)
        (got,) = torch.autograd.grad(made, x, retain_graph=True)
        torch.testing.assert_close(got, slopes)


def test_one_of_them_reads_the_total_alone() -> None:
    assert Gradient(of(by_equality).algebra, (F64,)).needs_total_alone(None)


def test_choices_keep_the_slopes_of_what_they_choose() -> None:
    """The later one of two equal ones: values are not smooth there, and the one that is chosen has them."""
    later = Monoid(
        lambda a, b: (m.maximum(a.m, b.m), m.where(b.m >= a.m, b.v, a.v)), (-INF, 0), fields=("m", "v"),
        lift=lambda x, y: (x, y * y), project=lambda top, v: v, commutative=False, check=False,
    )  # fmt: skip
    x, y = torch.tensor([3.0, 1.0, 3.0]), torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    (got,) = torch.autograd.grad(tilefold.reduce((x, y), later, 0), y)
    assert got.tolist() == [0.0, 0.0, 8.0]
    assert resolved(infer(tilefold.monoids.MAX.algebra.combine, [F64] * 2), 1) is None


def test_slopes_that_no_side_has_are_refused() -> None:
    """Equal ones are told apart, and what is computed there has no slope."""
    x = torch.ones(3, dtype=F64, requires_grad=True)

    def steps(v: Any) -> Any:
        return m.floor(v * 2.0**40) * 2.0**-40

    equal = Monoid(
        lambda a, b: m.where(a == b, steps(a) + b, a + b), 0, check=False, commutative=True, name="equal"
    )
    (got,) = torch.autograd.grad(tilefold.reduce(x, equal, 0), x)
    assert got.tolist() == [1.0] * 3
    close = Monoid(
        lambda a, b: m.where((a - b) * (a - b) < 1e-3, steps(a) + b, a + b), 0, check=False, commutative=True, name="close"
    )  # fmt: skip
    with pytest.raises(GradientError, match="slopes of its values where two states have equal fields"):
        tilefold.reduce(x, close, 0).backward()

"""Which fields of a combine are put in order before lanes are combined: all that may round otherwise when its sides change
places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from backends.triton_cases import MONOIDS
from tilefold import Monoid, math, monoids
from tilefold.algebra.evaluate import evaluate
from tilefold.algebra.program import Program, specialize
from tilefold.algebra.proofs.symmetry import ordered_fields

INF = float("inf")
SYMMETRIC = [
    monoids.SUM, monoids.PROD, monoids.MAX, monoids.MIN, monoids.ANY, monoids.ALL, monoids.COUNT_NONZERO, monoids.MINMAX,
    monoids.ARGMAX, monoids.ARGMIN, monoids.MAX_WITH_INDEX, monoids.MIN_WITH_INDEX, monoids.NORM(), monoids.NORM(INF),
]  # fmt: skip


def program_of(monoid: Monoid, dtype: torch.dtype = torch.float32) -> Program:
    return specialize(monoid.total, (dtype,) * monoid.total.inputs)


def ordered(
    combine: Callable[..., Any], fields: Sequence[str] = ("x", "y"), **options: Any
) -> tuple[int, ...]:
    """Of a monoid whose laws nobody asks about."""
    given = {
        "lift": lambda x: (x,) * len(fields),
        "fields": tuple(fields),
        "commutative": True,
        "check": False,
    }
    return ordered_fields(program_of(Monoid(combine, (0,) * len(fields), **{**given, **options})))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.uint64], ids=str
)
@pytest.mark.parametrize("monoid", SYMMETRIC, ids=lambda m: m.name)
def test_what_most_folds_do_needs_no_order(monoid: Monoid, dtype: torch.dtype) -> None:
    assert ordered_fields(program_of(monoid, dtype)) == ()


@pytest.mark.parametrize(
    "monoid", [monoids.BITWISE_OR, monoids.BITWISE_AND, monoids.BITWISE_XOR], ids=lambda m: m.name
)
def test_bits_need_no_order(monoid: Monoid) -> None:
    assert ordered_fields(program_of(monoid, torch.int16)) == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(
    "monoid", [monoids.LOGSUMEXP, monoids.WELFORD, monoids.DESCRIBE], ids=lambda m: m.name
)
def test_the_catalogue_is_written_so_that_it_needs_no_order(monoid: Monoid, dtype: torch.dtype) -> None:
    assert ordered_fields(program_of(monoid, dtype)) == ()


def to_the_first(a: Any, b: Any) -> tuple[Any, ...]:
    """Sums about a pivot, moved to the first side's."""
    return a.number + b.number, a.pivot, a.sum + (b.sum + a.number * (b.pivot - a.pivot))


def test_only_what_a_rounding_reads_is_ordered() -> None:
    """A count of whole numbers is symmetric whatever the sums beside it do."""

    def combine(a: Any, b: Any) -> tuple[Any, ...]:
        return a.elements + b.elements, *to_the_first(a, b)

    dtypes = {"dtypes": ("index", *["compute"] * 3), "lift": lambda x: (1, 1.0, x, x)}
    assert ordered(combine, ("elements", "number", "pivot", "sum"), **dtypes) == (1, 2, 3)
    assert ordered(to_the_first, ("number", "pivot", "sum")) == (0, 1, 2)


def rescaled(a: Any, b: Any, first: Any = None, unit: float = 0.0) -> tuple[Any, Any]:
    """Log-sum-exp's way, its choices given."""
    scale = math.exp(math.where(a.x == b.x, unit, -abs(a.x - b.x)))
    first = a.x > b.x if first is None else first
    kept, other = math.where(first, a.y, b.y), math.where(first, b.y, a.y)
    return math.maximum(a.x, b.x), kept + other * scale


def test_a_choice_by_which_is_larger_needs_no_order() -> None:
    assert ordered(rescaled) == ()
    assert ordered(lambda a, b: rescaled(a, b, a.x >= b.x)) == ()
    assert ordered(lambda a, b: rescaled(a, b, b.x < a.x)) == ()
    assert ordered(lambda a, b: rescaled(a, b, unit=1.0)) == (0, 1), "equal maxima are not rescaled by 1"
    assert ordered(lambda a, b: rescaled(a, b, unit=-0.5)) == (0, 1)
    assert ordered(lambda a, b: rescaled(a, b, a.x > b.y)) == (0, 1), "other values are compared"
    assert ordered(lambda a, b: rescaled(a, b, a.x > 0.0)) == (0, 1)
    assert ordered(lambda a, b: rescaled(a, b, a.y > b.y)) == (0, 1), "equal sums of different maxima"


def test_a_choice_that_a_nan_turns_needs_an_order() -> None:
    """Where values do not compare, each side keeps the other's field, unless the result is NaN too."""
    assert ordered(lambda a, b: (math.maximum(a.x, b.x), math.where(a.x > b.x, a.y, b.y))) == (0, 1)
    doubled = ordered(lambda a, b: (math.maximum(a.x, b.x), math.where(a.x > b.x, a.y, b.y) * (a.x - b.x)))
    assert doubled == (0, 1), "its sign tells"
    squared = lambda a, b: math.where(a.x > b.x, a.y, b.y) * abs(a.x - b.x)  # noqa: E731  # one row of a table
    assert ordered(lambda a, b: (math.maximum(a.x, b.x), squared(a, b))) == (0, 1), (
        "of ties, 0 * y has y's sign"
    )


def test_a_products_order_shows_in_a_fused_sum() -> None:
    """The sums of either maximum, one product in each: which of them is fused is the compiler's choice."""

    def combine(a: Any, b: Any) -> tuple[Any, Any]:
        scale = math.exp(math.where(a.x == b.x, 0.0, -abs(a.x - b.x)))
        return math.maximum(a.x, b.x), math.where(a.x > b.x, a.y + b.y * scale, a.y * scale + b.y)

    assert ordered(combine) == (0, 1)


def test_a_sum_of_two_sums_needs_no_order() -> None:
    """Either side's product is fused with its own sum; a product of the last addition's would be one side's alone."""
    assert ordered(lambda a, b: (a.x + b.x, (a.y + a.x * a.y) + (b.y + b.x * b.y))) == ()
    assert ordered(lambda a, b: (a.x + b.x, (a.y - a.x * (a.y + a.x)) + (b.y - b.x * (b.y + b.x)))) == ()
    assert ordered(lambda a, b: (a.x + b.x, a.x * a.y + b.x * b.y)) == (0, 1)
    assert ordered(lambda a, b: (a.x + b.x, (a.y + a.x * a.y) + (b.x * b.y + b.y))) == (0, 1), "not alike"
    assert ordered(lambda a, b: (a.x + b.x, (a.y + a.x * a.y) + (b.y + b.y * b.x))) == (0, 1)
    assert ordered(lambda a, b: (a.x + b.x, (a.y + a.x * a.y) - (b.y + b.x * b.y))) == (0, 1)
    assert ordered(lambda a, b: (a.x + b.x, (a.y + a.x / a.y) + (b.y + b.x / b.y))) == (0, 1), (
        "quotients may fuse"
    )


def test_a_constant_that_a_chip_may_round_settles_nothing() -> None:
    """log2(2) is 1, and an approximation of it may not be."""

    def combine(a: Any, b: Any) -> tuple[Any, Any]:
        scale = math.log2(math.where(a.x == b.x, 2.0, abs(a.x - b.x)))
        kept, other = math.where(a.x > b.x, a.y, b.y), math.where(a.x > b.x, b.y, a.y)
        return math.maximum(a.x, b.x), kept + other * scale

    assert ordered(combine) == (0, 1)


def test_log_sum_exp_gives_the_same_bits_either_way() -> None:
    program = program_of(monoids.LOGSUMEXP)
    some = torch.tensor([-INF, -88.0, -1.5, -0.0, 0.0, 0.3, 1.0, 1e30, INF, float("nan")])
    grid = torch.cartesian_prod(some, some, torch.rand(40) * 1e3, torch.rand(40) * 1e-3)
    a, b = (grid[:, 0], grid[:, 2]), (grid[:, 1], grid[:, 3])
    for one, other in zip(
        evaluate(program.combine, [*a, *b]), evaluate(program.combine, [*b, *a]), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_fields_that_meet_in_one_result_change_places_together() -> None:
    """Also where that result could not tell the order: with one field of a state exchanged alone, it would be another."""
    assert ordered_fields(program_of(MONOIDS["tied"])) == (0, 1, 2)

    def linked(a: Any, b: Any) -> tuple[Any, ...]:
        chain = (math.where(u == 0, v, 0.0) + math.where(w == 0, x, 0.0) for u, v, w, x in (
            (a.x, a.y, b.x, b.y), (a.y, a.z, b.y, b.z)))  # fmt: skip
        return (a.x - b.x, *chain, a.w + b.w)

    assert ordered(linked, fields=("x", "y", "z", "w")) == (0, 1, 2)


def test_a_sum_of_products_rounds_by_its_order() -> None:
    """One of the two products is fused with the sum."""
    assert ordered(lambda a, b: (a.x * b.y + a.y * b.x, a.y * b.y)) == (0, 1)
    assert ordered(lambda a, b: (a.x + b.x, a.y * b.y)) == ()
    assert ordered(lambda a, b: (a.x * b.x + (a.y + b.y), a.y + b.y)) == (), "one product, of either order"
    assert ordered(lambda a, b: (a.x - b.x, a.y + b.y)) == (0,)
    assert (
        ordered(lambda a, b: (math.maximum(a.x, b.x), (a.y + b.y) * math.exp(math.maximum(a.x, b.x)))) == ()
    )
    assert ordered(lambda a, b: (abs(a.x) + abs(b.x), math.where(a.x == b.x, a.y + b.y, 0.0))) == ()
    assert ordered(lambda a, b: ((a.x + 1.0) + (b.x + 1.0), a.y + b.y)) == ()


def test_whole_numbers_are_exact() -> None:
    combine = Monoid(
        lambda a, b: (a.x * 3 + b.x * 3, a.y + b.y), (0, 0), fields=("x", "y"), lift=lambda x: (x, x), commutative=True,
        dtypes=torch.int64, check=False,
    )  # fmt: skip
    assert ordered_fields(program_of(combine, torch.int64)) == ()


@pytest.mark.parametrize(
    ("choose", "symmetric"),
    [
        (lambda a, b: math.where(a > b, a, b), False),  # NaN loses on the left and wins on the right
        (lambda a, b: math.where((a > b) | math.isnan(a), a, b), False),  # zeros of either sign; two NaN
        (lambda a, b: math.where(math.isnan(a) | math.isnan(b), 0.0, math.where(a == b, 1.0, 2.0)), True),
        (lambda a, b: math.where(a < b, INF, math.where(b < a, INF, 0.0)), True),
        (lambda a, b: math.where(a < b, INF, 0.0), False),
        (lambda a, b: math.where(a < 3.0, 1.0, math.where(b < 3.0, 1.0, 0.0)), False),  # other numbers are not tried
    ],
)  # fmt: skip
def test_choices_in_every_order_of_their_values(choose: Callable[..., Any], symmetric: bool) -> None:
    monoid = Monoid(choose, 0, commutative=True, check=False, lift=lambda x: x * 1.0)
    assert (ordered_fields(program_of(monoid)) == ()) is symmetric


def test_a_choice_between_fields_is_not_tried() -> None:
    assert ordered(lambda a, b: (math.where(a.x < b.y, a.x, b.x), a.y + b.y)) == (0, 1)


def test_positions_that_are_no_labels_may_tie() -> None:
    """Of equal values any position may be kept where positions are computed with."""

    def best(a: Any, b: Any) -> tuple[Any, Any]:
        take = (b.value > a.value) | ((b.value == a.value) & (b.index < a.index))
        return math.where(take, b.value, a.value), math.where(take, b.index, a.index)

    options = {"fields": ("value", "index"), "index": True, "commutative": True, "check": False}
    halved = Monoid(best, (-INF, INF), lift=lambda x, i: (x, i // 2), dtypes=("compute", "index"), **options)
    assert ordered_fields(program_of(halved)) == (0, 1)

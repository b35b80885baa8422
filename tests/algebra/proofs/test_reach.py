"""States of many lifts: how many they are of, that they stand on both sides of what a combine turns at, and how they came."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tilefold import Monoid, math
from tilefold.algebra.algebra import completed
from tilefold.algebra.proofs.exact import Exact, size
from tilefold.algebra.proofs.reach import pool_of_many
from tilefold.algebra.proofs.samples import Pool


def pool(combine: Any, identity: Any, *dtypes: torch.dtype, **options: Any) -> Pool:
    algebra = completed(Monoid(combine, identity, check=False, commutative=False, **options).algebra)
    made = pool_of_many(algebra, dtypes or (torch.float64,) * algebra.inputs)
    assert made is not None
    return made


def fields(made: Pool, field: int = 0) -> set[float]:
    return {value for state in made.states for value in state[field].tolist()}


def ones(x: Any) -> Any:
    return math.where(x > 0, 1, 0)


@pytest.mark.parametrize("bound", [5, 77, 1000, 123_457, 2**34 + 1])
def test_counts_stand_on_both_sides_of_a_bound(bound: int) -> None:
    for combine in (
        lambda a, b: math.where(a + b > bound, 0, a + b),
        lambda a, b: math.where(b == bound, 0, a + b),
    ):
        assert {bound - 1, bound} <= fields(pool(combine, 0, lift=ones))


def test_every_lift_is_combined_with_itself_up_to_2_to_the_40() -> None:
    assert max(fields(pool(lambda a, b: math.where(a + b < 0, 0, a + b), 0, lift=ones))) >= 2**40


def test_without_a_turn_few_are_enough() -> None:
    assert max(fields(pool(lambda a, b: a + b, 0, lift=ones))) < 2**20


@pytest.mark.parametrize("c", [1e-12, 1e-3, 17.0])
def test_elements_are_nearer_and_farther_than_a_tolerance(c: float) -> None:
    a, b, last = pool(lambda a, b: math.where(b > a + c, b, a), None).states
    near = (b[0] > a[0]) & (b[0] <= a[0] + c) & (last[0] > a[0] + c) & (last[0] <= b[0] + c)
    assert bool(near.any())


def test_elements_stay_within_the_domain() -> None:
    made = pool(lambda a, b: math.where(b > a + 0.25, b, a), None, domain=(3, 3.5))
    assert 3 <= min(fields(made)) <= max(fields(made)) <= 3.5


def test_positions_rise() -> None:
    """From the last of one state to the first of the next; runs of up to hundreds of elements."""
    made = pool(
        lambda a, b: (math.where(a.n + b.n > 100, 1, a.n + b.n), a.first, b.last), None, fields=("n", "first", "last"),
        lift=lambda x, i: (1, i, i), index=True,
    )  # fmt: skip
    a, b, c = made.states
    assert bool((a[2] < b[1]).all())
    assert bool((b[2] < c[1]).all())
    assert {99, 100} <= fields(made)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64], ids=str)
def test_states_are_what_exact_arithmetic_makes_of_the_same_elements(dtype: torch.dtype) -> None:
    made = pool(lambda a, b: math.where(a + b > 1000, a, a + b), 0, dtype, lift=lambda x: ones(x) * 0.5)
    exact = Exact(made.program.algebra, made.program.state)
    for row in range(0, made.rows, 97):
        for state, numbers in zip(made.states, made.exactly(exact, row), strict=True):
            assert size(numbers[0]) == pytest.approx(state[0][row].item(), rel=1e-12)


def test_nothing_in_the_domain_is_no_pool() -> None:
    algebra = completed(Monoid(lambda a, b: a + b, 0, check=False, domain=(0.25, 0.5)).algebra)
    assert pool_of_many(algebra, (torch.int64,)) is None


def test_elements_beside_truth_values_turn_too() -> None:
    """Elements near a turn come with the truth value of their own input: of both."""
    made = pool(
        lambda a, b: (math.where((b.x > a.x + 1e-3) & b.seen, b.x, a.x), a.seen | b.seen), None, torch.float64, torch.bool,
        fields=("x", "seen"), lift=lambda x, seen: (x, seen), dtypes=("compute", torch.bool),
    )  # fmt: skip
    a, b, _ = made.states
    assert bool(((b[0] > a[0]) & (b[0] <= a[0] + 1e-3)).any())
    assert a[1].unique().tolist() == [False, True]

"""Tiles that large states make smaller, so that registers hold them."""

from __future__ import annotations

import pytest
import torch

from tilefold import monoids
from tilefold.algebra import program as programs
from tilefold.algebra.monoid import Monoid
from tilefold.algebra.powers import spread
from tilefold.algebra.program import Program
from tilefold.planner.in_order import PARTIAL_WORDS, partials_in_order
from tilefold.planner.plan import Stage
from tilefold.planner.registers import LIFTED_WORDS, fields_of, state_words, within_registers
from tilefold.planner.second_launch import second_launch

COLUMNS = Stage("columns", 256, 2, 1, 16, 1, 4, prefetch=True)


def of_fields(fields: int, dtype: torch.dtype = torch.float32) -> Program:
    """Sums of so many fields, in order."""
    wide = Monoid(
        lambda a, b: tuple(x + y for x, y in zip(a, b, strict=True)),
        identity=(0.0,) * fields, lift=lambda x: (x,) * fields, dtypes=(dtype,) * fields, commutative=False,
    )  # fmt: skip
    return programs.specialize(wide.total, (torch.float32,))


@pytest.mark.parametrize("monoid", [monoids.SUM, monoids.ARGMAX, monoids.LOGSUMEXP, monoids.MINMAX], ids=str)
def test_small_states_leave_a_tile(monoid: Monoid) -> None:
    assert within_registers(COLUMNS, programs.specialize(monoid.total, (torch.float32,))) == COLUMNS


def test_elements_that_become_large_states_are_few() -> None:
    program = of_fields(4)
    assert state_words(program) == 4
    made = within_registers(COLUMNS, program)
    threads = made.num_warps * 32
    assert not made.prefetch
    assert made.block_outputs * made.step // threads * 4 <= LIFTED_WORDS
    assert within_registers(made, program) == made
    one = COLUMNS.but(unroll=1, prefetch=False)
    assert within_registers(one, program) == one, "no tile has less than a run"


@pytest.mark.parametrize("fields", [LIFTED_WORDS, LIFTED_WORDS + 1, 3 * LIFTED_WORDS])
def test_states_of_more_words_than_a_thread_is_to_have_leave_it_one_run(fields: int) -> None:
    assert within_registers(COLUMNS, of_fields(fields)) == COLUMNS.but(unroll=1, prefetch=False)


def test_tiles_in_order_and_absorbed_blocks_are_others() -> None:
    program = of_fields(4)
    for stage in (Stage("ordered", 256, 2, 1, 16, 1, 4, ordered=True), COLUMNS.but(absorb=True)):
        assert within_registers(stage, program) == stage
    wide = of_fields(5)
    rows = Stage("long_rows", 1, 512, 4, 4, 1, 16, absorb=True)
    assert within_registers(rows, wide) == rows.but(unroll=2)


def test_a_unit_counts_where_each_element_has_its_own() -> None:
    """A block that is absorbed has one for all its elements, which takes nothing of its tile."""
    program = programs.specialize(spread(1.0, False, False).total, (torch.float32,))
    assert (state_words(program), fields_of(program)) == (5, 4)
    absorbing = COLUMNS.but(absorb=True)
    assert within_registers(absorbing, program) == absorbing
    assert within_registers(COLUMNS, program) == within_registers(COLUMNS, of_fields(5))


@pytest.mark.parametrize("splits", [1, 3, 200, 1 << 12, 1 << 15, 1 << 20])
@pytest.mark.parametrize("words", [1, 2, 4, 8])
def test_partial_states_in_order_fit_registers(splits: int, words: int) -> None:
    """However many they are: a tile at a time."""
    stage = partials_in_order(8, splits, words)
    held = words * stage.block_outputs * stage.step
    assert held <= PARTIAL_WORDS * 32 * stage.num_warps
    assert stage.step >= min(splits, 256)


def test_fields_of_64_bits_count_twice() -> None:
    narrow, wide = of_fields(4), of_fields(2, torch.float64)
    assert state_words(narrow) == state_words(wide)
    assert second_launch(8, 512, wide).block_outputs < second_launch(8, 512, narrow).block_outputs

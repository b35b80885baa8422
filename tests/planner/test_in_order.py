"""Tiles of folds in the elements' order: lanes have work, rows are shared without much that is masked, columns are whole."""

from __future__ import annotations

import itertools
import math

import pytest

from tilefold.planner.in_order import is_known_row, ordered_stage, partials_in_order
from tilefold.planner.plan import Stage
from tilefold.planner.programs import edges
from tilefold.planner.reading import Reading

LENGTHS = (2, 3, 7, 9, 10, 16, 17, 18, 31, 33, 40, 63, 64, 65, 100, 130, 200, 333, 1000, 4097)


def rows(length: int, element: int, vector: int, *, aligns: bool = False, piece: int = 0) -> Reading:
    """Many rows of elements of so many bytes, of which a load may take `vector`."""
    return Reading(True, 1 << 20, 1, length, length << 20, vector, 16 // element, aligns=aligns, piece=piece)


def columns(length: int, element: int, vector: int, inner: int = 4096, operands: int = 1) -> Reading:
    return Reading(False, inner, 1, length, length * inner, vector, 16 // element, operands=operands)


def loads(stage: Stage, length: int) -> int:
    """Loads of one row, masked ones too: a head, whole tiles, a tail."""
    head, has_full, tail = edges(stage, length)
    first = head * stage.run * stage.lanes
    whole = (length - first) // stage.step * stage.step if has_full else 0
    rest = length - first - whole + stage.align - 1
    tails = math.ceil(rest / (stage.run * stage.lanes * tail)) * tail if tail else 0
    return head * stage.lanes + whole // stage.run + tails * stage.lanes


@pytest.mark.parametrize("element", [1, 2, 4, 8])
def test_rows_keep_every_thread_at_work(element: int) -> None:
    for length, aligns in itertools.product(LENGTHS, (False, True)):
        for vector in (1 << n for n in range((16 // element).bit_length())):
            stage = ordered_stage(rows(length, element, vector, aligns=aligns))
            threads = 32 * stage.num_warps
            assert stage.block_outputs * stage.lanes == threads
            assert stage.run <= length
            assert stage.num_warps == 1 or stage.lanes == 1  # warps would wait for each other
            neighbours = stage.run * stage.unroll
            assert (
                neighbours * element <= 64 or stage.unroll == 1 or is_known_row(rows(length, element, vector))
            )
            if stage.lanes > 1:
                assert stage.step <= length  # more than one tile: only the ends are masked


@pytest.mark.parametrize("element", [1, 2, 4])
def test_rows_of_any_length_are_read_in_vectors_with_few_masked_loads(element: int) -> None:
    """Lanes share a row only where they load little more together than one thread would."""
    full, shared = 16 // element, []
    for length in range(full, 1200, 7):
        stage = ordered_stage(rows(length, element, 1, aligns=True))
        if stage.align == 1:
            assert length <= 17
            continue
        assert stage.run == stage.align == full
        needed = math.ceil((length + full - 1) / full)
        alone = loads(stage.but(lanes=1, unroll=1 if stage.lanes == 1 and stage.unroll == 1 else 2), length)
        assert loads(stage, length) <= 1.2 * alone
        assert loads(stage, length) <= 1.5 * needed + 1
        if length >= 8 * full:
            shared.append(stage.lanes > 1)
    assert sum(shared) > 0.8 * len(shared)


def test_rows_in_pieces_are_read_several_at_a_time() -> None:
    """A piece of 5 elements is no run of 32 lanes: as many lanes as it has, and more rows."""
    whole, pieces = (ordered_stage(rows(5000, 16, 1, piece=n)) for n in (0, 5))
    assert (whole.lanes, whole.block_outputs) == (32, 1)
    assert (pieces.lanes, pieces.block_outputs) == (8, 4)
    assert ordered_stage(rows(5000, 16, 1, piece=500)).lanes == 32


def test_a_short_row_of_narrow_loads_is_a_thread_s_and_known() -> None:
    for length, vector, known in (
        (17, 1, True),
        (18, 1, False),
        (18, 2, True),
        (19, 2, False),
        (17, 4, False),
    ):
        reading = rows(length, 4, vector)
        assert is_known_row(reading) == known, (length, vector)
        assert (ordered_stage(reading).lanes == 1) >= known
    assert not is_known_row(columns(17, 4, 1))


@pytest.mark.parametrize("element", [2, 4, 8])
def test_columns_are_read_by_whole_lines_of_neighbours(element: int) -> None:
    full = 16 // element
    for length, inner, operands in itertools.product(LENGTHS, (1, 3, 8, 32, 100, 4096), (1, 2)):
        for vector in {1, full}:
            if inner % vector:
                continue
            stage = ordered_stage(columns(length, element, vector, inner, operands))
            threads = 32 * stage.num_warps
            lanes = stage.block_outputs * stage.lanes // vector
            assert lanes <= threads
            assert lanes == threads or stage.lanes * 2 > length // 4 or inner < threads * vector
            assert stage.block_outputs >= min(inner, 32 * vector)
            assert stage.step <= max(length, 1)
            assert stage.num_warps <= 8
            assert not stage.shares or length >= 2 * stage.step  # combined once: worth two tiles


@pytest.mark.parametrize("words", [1, 2, 3, 5, 12])
def test_partial_states_are_one_tile_that_fits_registers(words: int) -> None:
    for outputs, splits in itertools.product((1, 3, 1000), (2, 7, 64, 256, 257, 1000, 5000)):
        stage = partials_in_order(outputs, splits, words)
        held = words * stage.block_outputs * stage.step / (32 * stage.num_warps)
        assert held <= 64
        assert stage.block_outputs <= min(8, 1 << (outputs - 1).bit_length())
        assert stage.step >= splits or 2 * words * stage.step > 64 * 32 * stage.num_warps
        assert stage.num_warps == 4 or 2 * held > 32

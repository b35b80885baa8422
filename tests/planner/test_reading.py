"""Along which axis problems are read, how many results and elements there are, and in what vectors."""

from __future__ import annotations

import math

import pytest
import torch

from tilefold.planner.problem.canonical import canonical
from tilefold.planner.reading import Reading, reading_of


def reading(
    shape: tuple[int, ...],
    dims: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    order: tuple[int, ...] = (),
) -> Reading:
    x = torch.empty(shape, dtype=dtype)
    return reading_of(canonical([x.permute(order) if order else x], dims, ordered=False))


@pytest.mark.parametrize("dims", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)], ids=str)
def test_results_and_elements_are_counted(dims: tuple[int, ...]) -> None:
    shape = (6, 8, 12)
    found = reading(shape, dims)
    length = math.prod(shape[d] for d in dims)
    assert found.length == length
    assert found.inner * found.outer == math.prod(shape) // length
    assert found.bytes == 4 * math.prod(shape)
    assert found.by_rows == (2 in dims)
    assert (found.operands, found.element, found.full_vector) == (1, 4, 4)


def test_a_whole_vector_is_16_bytes_of_neighbours() -> None:
    for dtype, full in ((torch.int8, 16), (torch.bfloat16, 8), (torch.float32, 4), (torch.float64, 2)):
        assert reading((64, 64), (1,), dtype).vector == full
        assert reading((64, 64), (0,), dtype).vector == full
        assert reading((64, 63), (1,), dtype).vector == 1
        assert reading((64, 63), (1,), dtype).aligns
    assert reading((64, 66), (1,), torch.bfloat16).vector == 2
    assert not reading((64, 63), (0,)).aligns
    assert not reading((64, 64), (1,), order=(1, 0)).by_rows
    assert reading((64, 64), (0,), order=(1, 0)).by_rows


def test_narrow_loads_are_kept_in_flight_by_more() -> None:
    whole, narrow = reading((64, 64), (1,), torch.bfloat16), reading((64, 63), (1,), torch.bfloat16)
    assert narrow.loads == 4 * whole.loads


def test_pieces_and_lines() -> None:
    x = torch.empty(8, 100, 64)[:, ::3, :40]
    found = reading_of(canonical([x], (1, 2), ordered=False))
    assert found.piece == 40
    assert reading((8, 100, 64), (1, 2)).piece == 0
    assert reading((100, 64), (0,)).lines
    assert not reading((100, 63), (0,)).lines

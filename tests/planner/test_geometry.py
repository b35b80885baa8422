"""A problem's memory as a launch sees it."""

from __future__ import annotations

import math
import random

import problems
import pytest

from tilefold.bench.layout import unique_bytes
from tilefold.bench.suites.shapes import draw_case
from tilefold.planner.geometry import unique_sectors
from tilefold.planner.sizes import SECTOR


@pytest.mark.parametrize("seed", range(200))
def test_unique_sectors_are_counted_without_walking_through_them(seed: int) -> None:
    case = draw_case(random.Random(f"unique {seed}"), "small", seed)
    drawn = problems.problem_of(case)
    (operand,) = drawn.geometry.operands
    begin = operand.residue // operand.itemsize
    strides = (
        case.layout.strides
        if case.layout
        else tuple(math.prod(case.shape[d + 1 :]) for d in range(len(case.shape)))
    )
    exact = unique_bytes(case.shape, strides, begin, operand.itemsize) // SECTOR
    assert unique_sectors(drawn.geometry) == exact

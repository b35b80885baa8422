"""The second launch of a fold: all splits of some results in one tile, of whole warps, that its threads hold."""

from __future__ import annotations

import itertools

import pytest
import torch

from tilefold import monoids
from tilefold.algebra.program import specialize
from tilefold.planner import second_launch
from tilefold.planner.plan import Stage
from tilefold.planner.sizes import power_above

FIELDS = {1: monoids.SUM, 2: monoids.MAX_WITH_INDEX, 3: monoids.WELFORD}


def stages() -> list[tuple[int, int, Stage]]:
    found = []
    for outputs, splits, monoid in itertools.product(
        (1, 3, 64, 65, 5000), (2, 3, 8, 9, 64, 65, 200, 256, 257, 1000), FIELDS.values()
    ):
        program = specialize(monoid.total, (torch.float32,))
        found.append((outputs, splits, second_launch.second_launch(outputs, splits, program)))
    return found


def test_partial_states_are_read_by_one_program_of_a_result() -> None:
    for outputs, splits, stage in stages():
        assert stage.splits == 1
        assert stage.family == "partials"
        assert not stage.evict_first  # they were written just now, and are read from the L2
        assert stage.block_outputs <= power_above(outputs)
        assert stage.lanes <= power_above(splits)
        assert stage.num_warps in (2, 4, 8)


@pytest.mark.parametrize("outputs", [64, 5000])
def test_few_splits_are_one_tile(outputs: int) -> None:
    for _, splits, stage in (s for s in stages() if s[0] == outputs):
        if splits <= 1024:
            assert 2 * stage.step >= splits
            assert stage.block_outputs * stage.lanes <= 32 * 32 * stage.num_warps

"""Plans that are weighed: few, distinct and launchable."""

from __future__ import annotations

from dataclasses import replace

import problems
import pytest

from tilefold.planner.candidates import MOST, TILE, Wanted, base_tiles, candidates, variants_of
from tilefold.planner.choose import plan_fold
from tilefold.planner.device import H200
from tilefold.planner.view import view_of

SEEDS = range(40)


def wanted(seed: int) -> Wanted:
    drawn = problems.draw(seed)
    rule = plan_fold(drawn.problem, drawn.program, H200, "run_to_run", "rules").stages[0]
    return Wanted(rule, view_of(drawn.problem), drawn.problem, drawn.geometry, drawn.program, H200)


@pytest.mark.parametrize("seed", SEEDS)
def test_candidates_are_few_distinct_and_launchable(seed: int) -> None:
    choice = wanted(seed)
    found = candidates(choice)
    assert found[0] == choice.rule
    assert len(set(found)) == len(found) <= MOST
    for stage in found[1:]:
        sizes = (stage.block_outputs, stage.lanes, stage.run, stage.unroll, stage.num_warps)
        assert all(n >= 1 and n & (n - 1) == 0 for n in sizes)
        assert stage.num_warps <= 32
        assert stage.block_outputs * stage.step <= TILE or stage.ordered


@pytest.mark.parametrize("seed", SEEDS)
def test_variants_keep_their_tile(seed: int) -> None:
    choice = wanted(seed)
    for tile in base_tiles(choice)[:10]:
        for stage in variants_of(tile, choice):
            assert (
                replace(stage, splits=tile.splits, prefetch=tile.prefetch, num_stages=tile.num_stages) == tile
            )

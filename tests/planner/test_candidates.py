"""Tiles that a tuner may try: few, distinct and launchable."""

from __future__ import annotations

from dataclasses import replace

import problems
import pytest

from planner.executed import wanted_of
from tilefold.planner.candidates import MOST, TILE, base_tiles, candidates, variants_of

SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_candidates_are_few_distinct_and_launchable(seed: int) -> None:
    choice = wanted_of(problems.draw(seed))
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
    choice = wanted_of(problems.draw(seed))
    for tile in base_tiles(choice)[:10]:
        for stage in variants_of(tile, choice):
            assert (
                replace(stage, splits=tile.splits, prefetch=tile.prefetch, num_stages=tile.num_stages) == tile
            )

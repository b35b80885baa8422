"""Tiles that a tuner may try: few, distinct and launchable."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import problems
import pytest

from planner.executed import wanted_of
from tilefold.planner.candidates import MOST, TILE, base_tiles, candidates, variants_of

SEEDS = range(40)
WRITTEN = Path(__file__).with_name("candidates.txt")
SUMMED = (
    "block_outputs",
    "lanes",
    "run",
    "unroll",
    "splits",
    "num_warps",
    "align",
    "prefetch",
    "num_stages",
    "shares",
)


def written() -> Iterator[str]:
    """Of each problem: how many candidates there are, and the sum of each of their numbers."""
    for seed in range(150):
        found = candidates(wanted_of(problems.draw(seed)))
        sums = (f"{name} {sum(int(getattr(stage, name)) for stage in found)}" for name in SUMMED)
        yield f"{seed}: {len(found)}, {', '.join(sums)}"


def test_candidates_are_those_written_down() -> None:
    """A change that means to alter some writes them anew: `WRITTEN.write_text("\\n".join(written()))`."""
    assert list(written()) == WRITTEN.read_text(encoding="utf-8").splitlines()


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

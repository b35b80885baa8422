"""Random problems and monoids, planned by the rules and by the model: compiled for three chips, and what the X-ray sees.

A few seeds each time; `TILEFOLD_RANDOM_PLANS=200` asks for more, `TILEFOLD_RANDOM_SEED=1000` for others.
"""

from __future__ import annotations

import os
import random
from typing import Any

import problems
import pytest
from calibrate import FLOATS_ONLY, OPERATIONS

from planner.executed import RANDOM_PLANS, Launched, executed, launches_of
from tilefold.backends.triton import call as calls
from tilefold.planner.choose import plan_fold
from tilefold.planner.device import Device
from tilefold.planner.walk import walk_of
from tilefold.xray.chips import CHIPS
from tilefold.xray.compile.folds import job_of
from tilefold.xray.compile.offline import assemble, compile_job

FIRST = int(os.environ.get("TILEFOLD_RANDOM_SEED", "0"))
SEEDS = range(FIRST, FIRST + RANDOM_PLANS)
PLANNERS = ("rules", "model")


def drawn(seed: int, size: str) -> problems.Drawn:
    """A problem folded by an operation that need not be the one it was drawn with."""
    found = problems.draw(seed, size)
    allowed = [o for o in OPERATIONS if found.problem.dtypes[0].is_floating_point or o not in FLOATS_ONLY]
    return problems.draw(seed, size, random.Random(f"random plans {seed}").choice(allowed))


def launches(seed: int, size: str, planner: str, target: str) -> list[Launched]:
    chip, problem = CHIPS[target], drawn(seed, size)
    device = Device(chip.name, chip.sms, chip.architecture, chip.gb_per_s, chip.shared_bytes)
    plan = plan_fold(problem.problem, problem.program, device, "run_to_run", planner=planner)
    return launches_of(problem, plan)


@pytest.mark.parametrize("target", list(CHIPS))
@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_spills(seed: int, planner: str, target: str) -> None:
    for one in launches(seed, "full", planner, target):
        used = assemble(compile_job(job_of(one.call, "random plan", CHIPS[target]))).resources
        assert (used.spill_stores, used.spill_loads, used.stack) == (0, 0, 0), one.stage


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_more_sectors_than_the_model_says(seed: int, planner: str) -> None:
    for one in launches(seed, "small", planner, "sm_90"):
        made: Any = calls.compile_for(one.call, 90)
        walk = walk_of(one.geometry, one.stage)
        parts = 2 if walk.masks or walk.tail or walk.head else 0  # a warp that a mask splits may ask twice
        for program, (loads, stores) in zip(
            one.programs(), executed(one, made.asm["ptx"], made.metadata.shared), strict=True
        ):
            modelled, stored = one.modelled(program)
            assert loads.sectors <= modelled.sectors + parts, one.stage
            assert stores.sectors <= stored.sectors, one.stage

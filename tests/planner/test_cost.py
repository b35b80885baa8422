"""The model of a fold's time: what it must know whatever its constants are."""

from __future__ import annotations

import itertools
from dataclasses import FrozenInstanceError, replace

import problems
import pytest

from tilefold.planner.candidates import Wanted, candidates
from tilefold.planner.choose import plan_fold, plan_of
from tilefold.planner.cost import Constants, Known, cost, cost_of, counts_of, programs_held
from tilefold.planner.device import H200, Device
from tilefold.planner.view import view_of
from tilefold.xray.chips import CHIPS
from tilefold.xray.compile.job import Resources
from tilefold.xray.report.occupancy import occupancy

SEEDS = range(40)


def wanted(seed: int) -> Wanted:
    drawn = problems.draw(seed)
    rule = plan_fold(drawn.problem, drawn.program, H200, "run_to_run", "rules").stages[0]
    return Wanted(rule, view_of(drawn.problem), drawn.problem, drawn.geometry, drawn.program, H200)


@pytest.mark.parametrize("target", CHIPS)
def test_occupancy_is_what_the_xray_says(target: str) -> None:
    chip = CHIPS[target]
    device = Device(chip.name, chip.sms, chip.architecture, chip.gb_per_s, chip.shared_bytes)
    for registers, shared, warps in itertools.product(
        (16, 33, 64, 128, 255), (0, 1024, 9000, 50000), (1, 4, 8, 16)
    ):
        held = occupancy(chip, Resources(registers, 0, 0, 0, shared), warps).blocks
        assert programs_held(registers, shared, warps, device) == max(1, held)


def test_a_cost_is_frozen_and_equal_for_equal_plans() -> None:
    drawn = problems.draw(3)
    stages = plan_fold(drawn.problem, drawn.program, H200, "run_to_run").stages
    first, second = (cost(Known.of(drawn.geometry, drawn.program), stages, H200) for _ in range(2))
    assert first == second
    with pytest.raises(FrozenInstanceError):
        first.time_us = 0.0  # type: ignore[misc]  # that is the test


@pytest.mark.parametrize("seed", SEEDS)
def test_no_plan_is_faster_than_its_bytes(seed: int) -> None:
    choice = wanted(seed)
    known = Known.of(choice.geometry, choice.program)
    constants = Constants()
    for stage in candidates(choice):
        plan = plan_of(stage, choice.problem, choice.program, H200)
        found = cost(known, plan.stages, H200)
        assert found.time_us >= constants.launch_us + 32 * known.unique / constants.memory_gb_per_s / 1e3
        assert found.bytes >= 32 * known.unique
        assert 0 < found.occupancy <= 1
        assert found.limiter in ("memory", "L2", "loads", "issue", "programs", "latency")


@pytest.mark.parametrize("name", ["memory_gb_per_s", "l2_gb_per_s", "issue_per_clock", "clock_mhz"])
@pytest.mark.parametrize("seed", SEEDS[:10])
def test_a_better_chip_is_not_slower(seed: int, name: str) -> None:
    drawn = problems.draw(seed)
    stages = plan_fold(drawn.problem, drawn.program, H200, "run_to_run").stages
    counts = counts_of(Known.of(drawn.geometry, drawn.program), stages, H200)
    better = replace(Constants(), **{name: 2 * getattr(Constants(), name)})
    assert cost_of(counts, H200, better).time_us <= cost_of(counts, H200, Constants()).time_us

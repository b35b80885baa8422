"""The model of a fold's time: what it must know whatever its constants are."""

from __future__ import annotations

import itertools
from dataclasses import FrozenInstanceError, replace

import problems
import pytest
import torch

from tilefold import monoids
from tilefold.algebra import program as programs
from tilefold.algebra.program import Program
from tilefold.planner.candidates import Wanted, candidates
from tilefold.planner.chips import CHIPS
from tilefold.planner.choose import plan_fold, plan_of
from tilefold.planner.cost import Constants, Known, cost, cost_of, counts_of, programs_held
from tilefold.planner.device import H200, Device
from tilefold.planner.folds import narrowed
from tilefold.planner.geometry import geometry_of, without_positions
from tilefold.planner.plan import Stage
from tilefold.planner.view import view_of
from tilefold.problem.canonical import Problem, canonical
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


def rows_of(length: int, dtype: torch.dtype = torch.float32) -> tuple[Known, Problem, Program]:
    """A sum of 100,000 rows."""
    x = torch.empty(100_000, length, dtype=dtype, device="meta")
    problem = without_positions(canonical([x], (1,), ordered=False))
    program = narrowed(programs.specialize(monoids.SUM.total, (dtype,)), length)
    return Known.of(geometry_of(problem).at([0]), program), problem, program


def test_pieces_of_lines_cost_time_where_rows_begin_between_vectors() -> None:
    """Four threads ask for 64 bytes of a row at once, eight for a line: were pieces free, four would be faster."""
    known, problem, program = rows_of(71)
    few, more = (Stage("rows", 128 // lanes, lanes, 4, 4, 1, 4, in_order=True, align=4) for lanes in (4, 8))
    free = replace(Constants(), pieces_per_us=1e12)

    def time_us(stage: Stage, constants: Constants) -> float:
        return cost(known, plan_of(stage, problem, program, H200).stages, H200, constants).time_us

    assert time_us(few, free) < time_us(more, free) < time_us(more, Constants()) < time_us(few, Constants())
    whole, problem, program = rows_of(72)
    stage = Stage("rows", 32, 4, 4, 4, 1, 4, in_order=True)
    plan = plan_of(stage, problem, program, H200)
    assert cost(whole, plan.stages, H200, free) == cost(whole, plan.stages, H200)


@pytest.mark.parametrize(("length", "unroll"), [(37, 2), (67, 4), (125, 4)])
def test_a_line_of_a_short_row_is_read_at_once(length: int, unroll: int) -> None:
    known, problem, program = rows_of(length)
    stage = plan_fold(problem, program, H200, "run_to_run").stages[0]
    assert (stage.lanes, stage.run, stage.align, stage.unroll) == (8, 4, 4, unroll)
    assert known.geometry.length == length

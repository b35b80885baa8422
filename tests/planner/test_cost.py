"""The model of a fold's time: what it must know whatever its constants are."""

from __future__ import annotations

import itertools
import time
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import fit_instructions
import numpy as np
import problems
import pytest
import torch

from tilefold import monoids
from tilefold.algebra.program import specialize
from tilefold.errors import ArgumentError
from tilefold.planner.candidates import MOST, TILE, Wanted, base_tiles, candidates, variants_of
from tilefold.planner.choose import plan_fold, plan_of
from tilefold.planner.cost import Constants, Known, cost, cost_of, counts_of, programs_held
from tilefold.planner.device import H200, Device
from tilefold.planner.folds import narrowed, partial_dtypes, problem_of_partials
from tilefold.planner.geometry import geometry_of, partials_geometry
from tilefold.planner.instructions import CLASSES, work_of
from tilefold.planner.view import alone, view_of
from tilefold.problem import Problem, canonical
from tilefold.xray.chips import CHIPS
from tilefold.xray.compile.job import Resources
from tilefold.xray.report.occupancy import occupancy

ROOT = Path(__file__).parents[2]
A100 = Device("NVIDIA A100", 108, 80, 2039.0, 164 * 1024)
SEEDS = range(40)


def wanted(seed: int) -> Wanted:
    drawn = problems.draw(seed)
    rule = plan_fold(drawn.problem, drawn.program, H200, "run_to_run").stages[0]
    return Wanted(rule, view_of(drawn.problem), drawn.problem, drawn.geometry, drawn.program, H200)


# ----------------------------------------------------------------------------------------------------- geometry


@pytest.mark.parametrize("seed", SEEDS)
def test_partial_states_are_the_problem_that_the_second_launch_gets(seed: int) -> None:
    drawn = problems.draw(seed)
    sizes = tuple(d.itemsize for d in partial_dtypes(drawn.program))
    given = geometry_of(problem_of_partials(drawn.problem, drawn.program, 24))
    assert partials_geometry(drawn.problem.outputs, 24, sizes) == given


# ----------------------------------------------------------------------------------------------------- occupancy


@pytest.mark.parametrize("target", CHIPS)
def test_occupancy_is_what_the_xray_says(target: str) -> None:
    chip = CHIPS[target]
    device = Device(chip.name, chip.sms, chip.architecture, chip.gb_per_s, chip.shared_bytes)
    for registers, shared, warps in itertools.product(
        (16, 33, 64, 128, 255), (0, 1024, 9000, 50000), (1, 4, 8, 16)
    ):
        held = occupancy(chip, Resources(registers, 0, 0, 0, shared), warps).blocks
        assert programs_held(registers, shared, warps, device) == max(1, held)


# ----------------------------------------------------------------------------------------------------- instructions


@pytest.mark.parametrize(
    ("monoid", "dtype", "absorb", "element"),
    [
        (monoids.SUM, torch.float32, False, {"plain": 1}),
        (monoids.SUM, torch.int32, False, {"wide": 1}),
        (monoids.SUM, torch.float64, False, {"double": 1}),
        (monoids.LOGSUMEXP, torch.float32, True, {"plain": 4, "special": 1}),
    ],
)
def test_operations_of_an_element(
    monoid: object, dtype: torch.dtype, absorb: bool, element: dict[str, int]
) -> None:
    """Log-sum-exp absorbs an element by a maximum, a product, a difference, an exponential and a sum."""
    program = specialize(monoid.total, (dtype,))  # type: ignore[attr-defined]  # a Monoid
    work = work_of(program, absorb, False)
    assert {k: n for k, n in zip(CLASSES, work.element, strict=True) if n} == element


def test_the_committed_counts_are_predicted() -> None:
    """Instructions of a warp and registers of a thread, over every launch that was compiled: mean errors."""
    launches = fit_instructions.read_counts(ROOT / "benchmarks/planner/counts.jsonl")
    from tilefold.planner.fitted import INSTRUCTIONS, REGISTERS

    known = [one for one in launches if one.instructions is not None]
    assert len(known) > 300
    work = np.array([one.work for one in known]) @ np.array(list(INSTRUCTIONS.values()))
    space = np.array([one.space for one in launches]) @ np.array(list(REGISTERS.values()))
    assert np.abs(work / np.array([one.instructions for one in known]) - 1).mean() < 0.13
    assert np.abs(space / np.array([one.registers for one in launches]) - 1).mean() < 0.2


# ----------------------------------------------------------------------------------------------------- cost


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


# ----------------------------------------------------------------------------------------------------- candidates


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


# ----------------------------------------------------------------------------------------------------- choice


@pytest.mark.parametrize("seed", SEEDS)
def test_the_model_s_choice_is_no_dearer_than_the_rules(seed: int) -> None:
    drawn = problems.draw(seed)
    rules, model = (
        plan_fold(drawn.problem, drawn.program, H200, "run_to_run", planner=p) for p in ("rules", "model")
    )
    expected_us = cost(Known.of(geometry_of(drawn.problem), drawn.program), rules.stages, H200).time_us
    assert model.time_us <= expected_us


def test_a_modelled_plan_tells_its_time() -> None:
    drawn = problems.draw(3)
    plan = plan_fold(drawn.problem, drawn.program, H200, "run_to_run", planner="model")
    geometry = geometry_of(drawn.problem)
    assert plan.time_us == cost(Known.of(geometry, drawn.program), plan.stages, H200).time_us
    assert plan_fold(drawn.problem, drawn.program, H200, "run_to_run", planner="rules").time_us == 0


def test_another_planner_is_refused() -> None:
    drawn = problems.draw(3)
    with pytest.raises(ArgumentError, match="must be one of rules, model, got 'search'"):
        plan_fold(drawn.problem, drawn.program, H200, "run_to_run", planner="search")


def test_choosing_takes_milliseconds() -> None:
    """10 ms are the bound on a host of its own; tests share theirs."""
    taken = []
    for seed in range(15):
        drawn = problems.draw(seed)
        begun = time.process_time()
        plan_fold(drawn.problem, drawn.program, H200, "run_to_run", planner="model")
        taken.append(time.process_time() - begun)
    assert sorted(taken)[len(taken) // 2] < 0.05


def invariant(rows: int, length: int, dim: int, dtype: torch.dtype) -> Problem:
    x = torch.empty((rows, length) if dim else (length, rows), dtype=dtype, device="meta")
    return canonical([x], (dim,), ordered=False, batches=True).alone()


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("length", [64, 1000, 4099, 50257])
@pytest.mark.parametrize("monoid", [monoids.SUM, monoids.LOGSUMEXP, monoids.ARGMAX], ids=str)
def test_batch_invariant_choices_do_not_know_the_batch(monoid: object, length: int, dim: int) -> None:
    program = narrowed(specialize(monoid.total, (torch.bfloat16,)), length)  # type: ignore[attr-defined]  # a Monoid
    found = {
        tuple(
            replace(stage, evict_first=True)
            for stage in plan_fold(
                invariant(rows, length, dim, torch.bfloat16),
                program,
                device,
                "batch_invariant",
                planner="model",
            ).stages
        )
        for rows in (1, 2, 3, 7, 64, 100, 511, 512)
        for device in (H200, A100)
    }
    assert len(found) == 1


def test_a_batch_invariant_view_has_no_neighbours() -> None:
    problem = invariant(64, 1000, 1, torch.bfloat16)
    assert alone(view_of(problem), problem).inner > 512

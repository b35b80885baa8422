"""What first launches need: more bytes, lanes and turns are never less, and whole vectors come first."""

from __future__ import annotations

from dataclasses import replace

import problems
import pytest
import torch

from tilefold import monoids
from tilefold.algebra.program import Program, specialize
from tilefold.planner.choose import first_launches
from tilefold.planner.device import H200
from tilefold.planner.first_launch import FirstLaunch
from tilefold.planner.first_tile import first_tile
from tilefold.planner.form_choice import COPIED, least_needed, needed_us, piece_bytes
from tilefold.planner.problem.canonical import Problem, canonical

SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_needs_less_than_its_bytes(seed: int) -> None:
    drawn = problems.draw(seed)
    least_us = drawn.problem.bytes_read / (COPIED * H200.gb_per_s * 1e3)
    for launch in first_launches(drawn.problem, drawn.program):
        stage = first_tile(launch, launch.reading, H200, False)
        assert needed_us(launch, stage, H200) >= 0.99 * least_us


@pytest.mark.parametrize("seed", SEEDS)
def test_a_better_chip_needs_less(seed: int) -> None:
    drawn = problems.draw(seed)
    launch = FirstLaunch.keeping(drawn.problem, drawn.program, None)
    stage = first_tile(launch, launch.reading, H200, False)
    for better in (replace(H200, gb_per_s=2 * H200.gb_per_s), replace(H200, sms=2 * H200.sms)):
        assert needed_us(launch, stage, better) <= needed_us(launch, stage, H200)


def summed(shape: tuple[int, ...], dims: tuple[int, ...], dtype: torch.dtype) -> tuple[Problem, Program]:
    x = torch.empty(shape, dtype=dtype, device="meta")
    return canonical([x], dims, ordered=False), specialize(monoids.SUM.total, (dtype,))


@pytest.mark.parametrize(
    ("shape", "dims", "form"),
    [
        ((40000, 4099), (0,), "together"),
        ((862936, 176, 3), (0, 2), "apart"),
        ((24824, 8, 3, 13), (2,), "flat"),
        ((16384, 8192), (1,), "as it is"),
        ((16384, 8192), (0,), "as it is"),
    ],
    ids=str,
)
def test_forms_that_were_timed_to_be_faster_are_taken(
    shape: tuple[int, ...], dims: tuple[int, ...], form: str
) -> None:
    """docs/experiments/folds.md#apart and docs/experiments/folds.md#walks."""
    problem, program = summed(shape, dims, torch.bfloat16)
    launches = list(first_launches(problem, program))
    stages = [first_tile(launch, launch.reading, H200, False) for launch in launches]
    taken = stages[least_needed(list(zip(launches, stages, strict=True)), H200)]
    forms = {
        "together": taken.kept_dims is not None and taken.kept_dims.together > 1,
        "apart": taken.kept_dims is not None and bool(taken.kept_dims.dims),
        "flat": taken.flat,
        "as it is": taken.kept_dims is None and not taken.flat and not taken.shift,
    }
    assert forms[form], taken


def test_groups_that_lie_apart_are_pieces_of_their_own() -> None:
    """297 rows of eight columns beside 297 others: a program of 32 groups reads 16 rows of each at a time."""
    problem, program = summed((13000, 297, 8), (1,), torch.float32)
    whole, flat = (
        next(x for x in first_launches(problem, program) if x.flat == is_flat) for is_flat in (False, True)
    )
    assert piece_bytes(flat.geometry, first_tile(flat, flat.reading, H200, False)) == 16 * 8 * 4
    assert piece_bytes(whole.geometry, first_tile(whole, whole.reading, H200, False)) > 4 * 16 * 8 * 4

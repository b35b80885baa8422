"""What the model says that launches move, beside what the X-ray's machine counts of the compiled kernels."""

from __future__ import annotations

import functools
import math
import random
import re
from dataclasses import replace
from typing import Any

import problems
import pytest
import torch
from calibrate import drawn_plan

from planner.executed import Launched, executed, launches_of
from tilefold import monoids
from tilefold.algebra import program as programs
from tilefold.backends.triton import call as calls
from tilefold.bench.layout import unique_bytes
from tilefold.bench.suites.shapes import draw_case
from tilefold.planner.candidates import Wanted, candidates
from tilefold.planner.choose import plan_fold, plan_of
from tilefold.planner.cost import Known, counts_of
from tilefold.planner.device import H200
from tilefold.planner.folds import narrowed
from tilefold.planner.geometry import SECTOR, geometry_of, unique_sectors, without_positions
from tilefold.planner.memory_requests import Moved, program_loads
from tilefold.planner.threads import loads_of
from tilefold.planner.traffic import all_loads, asked_of
from tilefold.planner.view import view_of
from tilefold.planner.walk import tiling_of, walk_of
from tilefold.problem.canonical import canonical
from tilefold.xray.machine.counts import shared_cost
from xray.running import run_plan

SEEDS = range(5000, 5040)  # drawn plans, of one or two launches each: 60 and more
ORDERED_SEEDS = (0, 3, 10, 12, 13, 19)


@functools.cache
def launched(seed: int) -> tuple[Launched, ...]:
    drawn, _, plan = drawn_plan(seed)
    return tuple(launches_of(drawn, plan))


@functools.cache
def compiled(seed: int, number: int) -> Any:
    return calls.compile_for(launched(seed)[number].call, 90)


@pytest.mark.parametrize("seed", SEEDS)
def test_programs_walk_as_the_kernels_are_told(seed: int) -> None:
    for one in launched(seed):
        walk, told = walk_of(one.geometry, one.stage), dict(one.call.constants)
        if one.stage.gathered:  # walks nothing
            assert walk.programs(one.geometry) == one.call.grid
            continue
        assert (walk.head, walk.has_full, walk.tail) == (told["HEAD"], told["HAS_FULL"], told["TAIL"])
        assert (walk.masks, walk.wide, walk.splits_first) == (
            told["MASK_OUTPUTS"],
            told["WIDE"],
            told["SPLITS_FIRST"],
        )
        assert walk.programs(one.geometry) == one.call.grid
        tails = tiling_of(one.stage, walk, one.geometry.length, 0).tail
        if not one.stage.ordered:
            assert told["TAIL_ONCE"] == (one.stage.splits == 1 and tails == 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_tiles_lie_on_threads_as_triton_lays_them(seed: int) -> None:
    for number, one in enumerate(launched(seed)):
        if is_small(one):
            continue
        walk, stage = walk_of(one.geometry, one.stage), one.stage
        unrolls = {stage.unroll if walk.has_full else 0, walk.head, walk.tail} - {0}
        steps = [(u, s) for u in unrolls for s in range(u if stage.ordered else 1)]
        modelled = {load.spread for u, s in steps for load in loads_of(one.geometry, stage, walk, u, s)}
        assert tiles_of(compiled(seed, number).asm["ttgir"]) <= {
            (x.shape, x.each, x.lanes, x.warps, x.order) for x in modelled
        }


def is_small(one: Launched) -> bool:
    """Whether a tile has fewer elements than threads: Triton loads those in any layout that saves it a conversion."""
    walk = walk_of(one.geometry, one.stage)
    runs = min({one.stage.unroll if walk.has_full else 0, walk.head, walk.tail} - {0})
    elements = one.stage.block_outputs * one.stage.lanes * one.stage.run
    return elements * (1 if one.stage.ordered else runs) < 32 * one.stage.num_warps


def tiles_of(ttgir: str) -> set[tuple[tuple[int, ...], ...]]:
    """Shape, elements a thread, lanes, warps and order of each load."""
    layout = (
        r"(#blocked\d*) = #ttg.blocked<\{sizePerThread = \[(.*?)\], threadsPerWarp = \[(.*?)\], "
        r"warpsPerCTA = \[(.*?)\], order = \[(.*?)\]"
    )
    layouts = {m[1]: tuple(numbers(g) for g in m.groups()[1:]) for m in re.finditer(layout, ttgir)}
    loads = re.finditer(r"tt\.load .*tensor<([\dx]+)x!tt\.ptr<\w+>, (#blocked\d*)>", ttgir)
    return {(numbers(m[1].replace("x", ",")), *layouts[m[2]]) for m in loads}


def numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_request_and_sector_is_foreseen(seed: int) -> None:
    """Executed loads and stores move the sectors of the model, request by request."""
    for number, one in enumerate(launched(seed)):
        if not is_small(one):
            foreseen(one, compiled(seed, number))


@pytest.mark.parametrize("seed", ORDERED_SEEDS)
def test_every_request_of_an_ordered_fold_is_foreseen(seed: int) -> None:
    """Also where a lane owns a part of all tiles, and the last lane alone stores."""
    drawn = problems.draw(seed, "small", "max_subarray")
    rule = plan_fold(drawn.problem, drawn.program, H200, "run_to_run", "rules").stages[0]
    wanted = Wanted(rule, view_of(drawn.problem), drawn.problem, drawn.geometry, drawn.program, H200)
    found = candidates(wanted)
    for stage in random.Random(seed).sample(found, min(2, len(found))):
        for one in launches_of(drawn, plan_of(stage, drawn.problem, drawn.program, H200)):
            if not is_small(one):
                foreseen(one, calls.compile_for(one.call, 90))


def foreseen(one: Launched, made: Any) -> None:
    """What the model says of a launch is what is counted.

    Where a mask splits a warp, LLVM may give each part of it a loop of its own: then its requests are made in two parts.
    """
    counted = executed(one, made.asm["ptx"], made.metadata.shared)
    for program, (loads, stores) in zip(one.programs(), counted, strict=True):
        modelled, stored = one.modelled(program)
        assert (stored.requests, stored.sectors) == (stores.requests, stores.sectors)
        parted = loads.requests - modelled.requests
        assert 0 <= parted <= 2
        assert modelled.sectors <= loads.sectors <= modelled.sectors + parted
        assert modelled.asked == loads.asked


@pytest.mark.parametrize("seed", SEEDS)
def test_the_closed_form_is_near_what_is_enumerated(seed: int) -> None:
    one = launched(seed)[0]
    walk = walk_of(one.geometry, one.stage)
    loads = all_loads(one.geometry, one.stage, walk)
    asked = asked_of(one.geometry, one.stage, loads, {})
    programs = range(walk.programs(one.geometry))
    if len(programs) > 400 or is_small(one):
        return
    total = sum((program_loads(one.geometry, one.stage, program) for program in programs), Moved())
    assert 0.8 <= asked.sectors / total.sectors <= 1.25


@pytest.mark.parametrize("seed", range(200))
def test_unique_sectors_are_counted_without_walking_through_them(seed: int) -> None:
    import random

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


@pytest.mark.parametrize(
    ("results", "lanes", "unroll", "warps"),
    [
        (128, 4, 4, 4),
        (64, 4, 4, 2),
        (128, 2, 8, 2),
        (64, 8, 8, 4),
        (32, 16, 4, 4),
        (256, 8, 4, 8),
        (128, 1, 8, 1),
    ],
)
@pytest.mark.parametrize("monoid", [monoids.SUM, monoids.LOGSUMEXP], ids=lambda m: m.name)
def test_turns_of_banks_in_which_warps_meet(
    monoid: Any, results: int, lanes: int, unroll: int, warps: int
) -> None:
    """Within a quarter, and 80 turns, of what a program executed from its PTX makes."""
    x = torch.randn(2, 64, 256)
    problem = without_positions(canonical([x], (1,), ordered=False))
    program = narrowed(programs.specialize(monoid.total, (x.dtype,)), problem.length)
    rule = plan_fold(problem, program, H200, "run_to_run", "rules").stages[0]
    stage = replace(
        rule,
        block_outputs=results,
        lanes=lanes,
        unroll=unroll,
        num_warps=warps,
        splits=1,
        num_stages=1,
        prefetch=False,
    )
    known = Known.of(geometry_of(problem).at([0]), program)
    (counts,) = counts_of(known, (stage,), H200)
    plan = plan_of(stage, problem, program, H200)
    outcomes = run_plan(plan, problem, program, [x], [torch.empty(2, 256)], 90)
    passes = sum(shared_cost(o.accesses).passes for o in outcomes) / len(outcomes)
    expected = counts.traffic.passes / counts.programs
    assert abs(passes - expected) <= 0.25 * passes + 80
    assert (expected == 0) == (warps == 1)

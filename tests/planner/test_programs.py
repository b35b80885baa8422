"""What launches grid and ask memory for, beside what the X-ray's machine counts of the compiled kernels."""

from __future__ import annotations

import functools
import random
import re
from dataclasses import replace
from typing import Any

import problems
import pytest

from planner.coalescing import loads_of
from planner.executed import OPERATIONS, Launched, executed, launches_of, wanted_of
from planner.requests_made import is_wide, masks, splits_first
from tilefold.backends.triton import call as calls
from tilefold.backends.triton.call import Call
from tilefold.planner.candidates import candidates
from tilefold.planner.choose import plan_of
from tilefold.planner.device import H200
from tilefold.planner.plan import Plan
from tilefold.planner.programs import constant_length, programs_of, tiling_of
from tilefold.planner.sizes import SMALL_AXIS

SEEDS = range(5000, 5040)  # drawn plans, of one or two launches each: 60 and more
ORDERED_SEEDS = (0, 3, 10, 12, 13, 19)


def drawn_plan(seed: int) -> tuple[problems.Drawn, Plan]:
    """A problem, folded by an operation that need not be the one it was drawn with, and one of its plans."""
    rng = random.Random(f"walks {seed}")
    dtype = problems.draw(seed, "small").problem.dtypes[0]
    allowed = [name for name, floats in OPERATIONS.items() if dtype.is_floating_point or not floats]
    found = problems.draw(seed, "small", rng.choice(allowed), apart=True)
    stage = rng.choice(candidates(wanted_of(found)))
    return found, plan_of(stage, found.problem, found.program, H200)


@functools.cache
def launched(seed: int) -> tuple[Launched, ...]:
    drawn, plan = drawn_plan(seed)
    return tuple(launches_of(drawn, plan))


@functools.cache
def compiled(seed: int, number: int) -> Any:
    return calls.compile_for(launched(seed)[number].call, 90)


def constants_of(call: Call) -> dict[str, Any]:
    """The constants of a kernel, those of records by their fields' names."""
    told = dict(call.constants)
    for record in [value for value in told.values() if hasattr(value, "_asdict")]:
        told |= record._asdict()
    return told


@pytest.mark.parametrize("seed", SEEDS)
def test_programs_walk_as_the_kernels_are_told(seed: int) -> None:
    for one in launched(seed):
        grid, told = programs_of(one.geometry, one.stage), constants_of(one.call)
        if one.stage.gathered:  # walks nothing
            assert grid.count(one.geometry) == one.call.grid
            continue
        assert (grid.head, grid.has_full, grid.tail) == (told["HEAD"], told["HAS_FULL"], told["TAIL"])
        assert [f(one.geometry, one.stage) for f in (masks, is_wide, splits_first)] == [
            told["MASK_OUTPUTS"],
            told["WIDE"],
            told["SPLITS_FIRST"],
        ]
        assert grid.count(one.geometry) == one.call.grid
        tails = tiling_of(one.stage, grid, one.geometry.length, 0).tail
        if not one.stage.ordered:
            assert told["TAIL_ONCE"] == (one.stage.splits == 1 and tails == 1)


def test_a_length_is_a_constant_of_few_tiles() -> None:
    """Of eight at most, by one program, of no partial states or ragged rows."""
    stages = [one.stage for seed in SEEDS for one in launched(seed) if not one.stage.gathered]
    stage = replace(min(stages, key=lambda s: s.step), splits=1, align=1, family="blocks")
    most = 8 * stage.step
    assert most < SMALL_AXIS
    assert [constant_length(stage, n) for n in (1, most, most + 1)] == [1, most, 0]
    assert not constant_length(replace(stage, splits=2), most)
    assert not constant_length(replace(stage, align=2), most)
    assert not constant_length(replace(stage, family="partials"), most)
    assert not constant_length(stage, most, ragged=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_tiles_lie_on_threads_as_triton_lays_them(seed: int) -> None:
    for number, one in enumerate(launched(seed)):
        if is_small(one):
            continue
        grid, stage = programs_of(one.geometry, one.stage), one.stage
        unrolls = {stage.unroll if grid.has_full else 0, grid.head, grid.tail} - {0}
        steps = [(u, s) for u in unrolls for s in range(u if stage.ordered else 1)]
        modelled = {load.spread for u, s in steps for load in loads_of(one.geometry, stage, grid, u, s)}
        assert tiles_of(compiled(seed, number).asm["ttgir"]) <= {
            (x.shape, x.each, x.lanes, x.warps, x.order) for x in modelled
        }


def is_small(one: Launched) -> bool:
    """Whether a tile has fewer elements than threads: Triton loads those in any layout that saves it a conversion."""
    grid = programs_of(one.geometry, one.stage)
    runs = min({one.stage.unroll if grid.has_full else 0, grid.head, grid.tail} - {0})
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
    found = candidates(wanted_of(drawn))
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

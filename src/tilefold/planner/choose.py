"""From problem, program and device to a plan. Pure: equal arguments give equal plans, nothing is measured or searched.

The tile is always [run, lanes, kept, unroll]; what differs is which axis is contiguous and how many elements each takes:

    family       contiguous axis   a program owns
    small_axis   folded            many whole rows, a thread or a few a row
    rows         folded            one or several whole rows, read at once
    long_rows    folded            one row (or a split of it), walked tile by tile
    columns      kept              neighbouring results, walked down tile by tile
    ordered      either            some results, by a tree of neighbours in the elements' order
    partials     kept              the second stage: states of several splits
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from tilefold.algebra.program import Program
from tilefold.planner.columns import column_programs, columns_stage, one_lane
from tilefold.planner.device import NOMINAL, Device
from tilefold.planner.plan import Plan, Stage, count
from tilefold.planner.rows import WALKED, ordered_stage, rows_stage, walked_rows_stage
from tilefold.planner.view import EVICT_FIRST_BELOW, SMALL_AXIS, WARP, View, alone, power_above, view_of
from tilefold.problem import Problem, canonical

WARPS_WANTED = 8192  # for a fold of few results: about 62 warps a core on 132 cores, one wave
MANY_FIELDS = (
    5  # from here on, states fill a thread's registers: it takes few elements and partial states at a time
)
INVARIANT_SPLITS = 64  # at most, where splits may not follow the number of results


def plan_tensors(
    tensors: Sequence[torch.Tensor], program: Program, dims: tuple[int, ...], device: Device, guarantee: str
) -> tuple[Problem, Plan]:
    """The canonical problem of folding `dims` of validated tensors of one shape, and its plan (no stages for nothing)."""
    invariant = guarantee == "batch_invariant"
    problem = canonical(tensors, dims, ordered=not program.algebra.commutative, batches=invariant)
    if invariant:
        problem = problem.alone()
    if problem.length == 0 or problem.outputs == 0:
        return problem, Plan("triton", (), guarantee=guarantee, reason="nothing to fold")
    return problem, plan_fold(problem, program, device, guarantee)


def plan_fold(problem: Problem, program: Program, device: Device, guarantee: str) -> Plan:
    """How to fold `problem` on `device`. With "batch_invariant" neither the count of results nor the device matter."""
    invariant = guarantee == "batch_invariant"
    view = alone(view_of(problem), problem) if invariant else view_of(problem)
    chip = NOMINAL if invariant else device
    first = _stage(view, program)
    if invariant and not view.by_rows and not first.ordered:
        first = one_lane(first, view)
    in_order = not program.algebra.index or _keeps_positions(problem, first)
    first = replace(first, in_order=first.in_order and in_order)
    written = problem.outputs * sum(dtype.itemsize for dtype in program.outputs)
    if problem.bytes_read + written > EVICT_FIRST_BELOW:
        first = replace(first, evict_first=False)
    splits = _splits(view, first, chip, invariant)
    sizes = f"{count(problem.outputs, 'result')} of {count(problem.length, 'element')}"
    reason = f"{sizes}, {'rows' if view.by_rows else 'columns'} contiguous"
    if splits == 1:
        return Plan("triton", (first,), guarantee=guarantee, reason=reason)
    second = _second_stage(problem.outputs, splits, program)
    if invariant and not second.ordered:
        second = Stage("partials", 128, 1, 1, 1, 1, 4, in_order=in_order, evict_first=False)
    stages = (replace(first, splits=splits), second)
    return Plan("triton", stages, overlap=device.overlaps, guarantee=guarantee, reason=reason)


def _keeps_positions(problem: Problem, stage: Stage) -> bool:
    """Whether a lane's elements surely stay in one thread, in the order of their positions.

    Triton shares elements among threads along what it knows to be contiguous: a run that crosses rows is not, and inputs
    that are contiguous in different ways are shared in different ways.
    """
    inputs = zip(problem.dtypes, problem.aligned, strict=True)
    dims = (*problem.kept, *problem.folded)
    alike = {
        (d.itemsize, aligned, *(dim.strides[i] for dim in dims)) for i, (d, aligned) in enumerate(inputs)
    }
    inner = problem.folded[-1] if problem.folded else None
    runs = inner is None or (any(inner.strides) and (len(problem.folded) == 1 or inner.size % stage.run == 0))
    return problem.positions_ascend and len(alike) == 1 and runs


def _stage(view: View, program: Program) -> Stage:
    if not program.algebra.commutative:
        return ordered_stage(view)
    absorbs = program.absorb is not None
    fields = len(program.state)
    if view.by_rows and WALKED[0] <= view.length <= WALKED[1] and view.length & (view.length - 1):
        stage = walked_rows_stage(view)
    elif view.aligns and view.vector < view.full_vector <= view.length:
        reach = view.length + view.full_vector - 1
        stage = rows_stage(replace(view, vector=view.full_vector, length=reach), fields, absorbs, masked=True)
        stage = replace(stage, align=view.full_vector)
    else:
        stage = (rows_stage if view.by_rows else columns_stage)(view, fields, absorbs)
    if fields >= MANY_FIELDS and not view.by_rows:
        stage = replace(stage, unroll=min(stage.unroll, 2))
    together = stage.block_kept * stage.lanes
    # Triton gives a thread neighbours along the contiguous axis: the run, or else lanes or results.
    neighbours = 1 if view.by_rows and (stage.run >= view.vector or stage.align > 1) else view.vector
    in_order = together >= stage.num_warps * WARP * neighbours
    in_order = in_order and (not view.by_rows or stage.run * stage.lanes > 1 or stage.unroll == 1)
    prefetch = stage.prefetch and view.length >= 3 * stage.step
    # A block must stay in one thread to be absorbed.
    return replace(stage, absorb=absorbs and in_order, in_order=in_order, prefetch=prefetch)


def _splits(view: View, stage: Stage, chip: Device, invariant: bool) -> int:
    """How many programs share one result, so that every core has work."""
    programs = 1 if invariant else math.ceil(view.kept / stage.block_kept) * view.outer
    tiles = view.length // stage.step - (stage.align > 1)
    if view.by_rows:
        wanted = WARPS_WANTED * (2 if stage.num_warps > 8 else 1) * chip.cores // 132 // stage.num_warps
    else:
        wanted = chip.cores * column_programs(view, stage)
    if invariant and tiles:
        splits = max(1, min(INVARIANT_SPLITS, tiles // 16))
    elif (
        tiles < 2
        or programs >= chip.cores * (12 if view.vector < view.full_vector else 4) - chip.cores // 4
        or (view.by_rows and not view.few and not stage.ordered)
    ):
        return 1
    else:
        splits = max(1, min(wanted // programs, tiles))
    return math.ceil(tiles / math.ceil(tiles / splits))  # no split without elements


def _second_stage(outputs: int, splits: int, program: Program) -> Stage:
    """All splits of some results in one tile where they fit: the stage is a matter of latency."""
    if not program.algebra.commutative:
        lanes = min(power_above(splits), 256)
        return Stage(
            "partials", min(8, power_above(outputs)), lanes, 1, 1, 1, 4, ordered=True, evict_first=False
        )
    heavy = len(program.state) > 2
    lanes = max(1, min(1024, power_above(splits) // (2 if heavy else 1)))
    few = 1 if outputs <= SMALL_AXIS else 4
    kept = 32 if splits <= 8 else 16 if splits <= 64 else 8 if splits <= 128 else few if splits > 256 else 4
    kept = min(kept if len(program.state) < MANY_FIELDS else max(1, kept // 4), power_above(outputs))
    warps = max(2, min(8, kept * lanes // (WARP * (1 if heavy else 8))))
    return Stage("partials", kept, lanes, 1, 1, 1, warps, evict_first=False)

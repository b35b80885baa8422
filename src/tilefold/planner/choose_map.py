"""How a map runs: from problem, program and device to a plan. Pure, as `choose` is.

The steps of the sequence decide, in this order:

    rows_in_order   in which order programs count rows
    map_plan        which form: one launch that holds whole rows (the first that fits of those in `_free_stage`), windows of
                    rows that the L2 holds, or a fold (`choose`) and then a map of every element; each form's module has the
                    tile by rule (`maps`, `blocks`, `offset_rows`, `rings`, `spans`, `stripes`)
    planned_map     whether inputs in another order than the results are copied first (`moves`)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from tilefold.algebra.program import Program
from tilefold.planner.blocks import blocks_stage
from tilefold.planner.choose import plan_fold
from tilefold.planner.device import PORTABLE, Device
from tilefold.planner.folds import narrowed, partial_dtypes
from tilefold.planner.groups import groups_plan, needs_groups, results_of
from tilefold.planner.maps import elements_stage, rows_along, whole_stage, windows_stage
from tilefold.planner.moves import after_copies
from tilefold.planner.offset_rows import offset_stage, small_offset_stage, unalike_stage
from tilefold.planner.plan import Buffer, Launch, Plan, Stage, count, names
from tilefold.planner.problem.canonical import Problem, in_results_order, inputs_apart
from tilefold.planner.products.row import Row
from tilefold.planner.rings import last_rings, rings_stage
from tilefold.planner.sizes import SECTOR
from tilefold.planner.spans import fills_tiles, is_flat, spans_stage
from tilefold.planner.stages.maps import Clear, Dtypes, Windows, elements_of, folding, row_blocks
from tilefold.planner.stages.rows import Blocks, OffsetRows, Rings, Spans, Stripes
from tilefold.planner.stripes import stripes_stage

# Bytes of inputs that do not lie in the results' order, and of results, from which on the inputs are copied first: where rows
# are neighbours in the results, and where they are not (docs/experiments/scans.md#copied).
COPIED_ROWS, COPIED = 4 << 20, 12 << 20

# A launch whose programs, or clusters of them, hold whole rows.
Held = Stage | Blocks | OffsetRows | Rings | Spans | Stripes

KERNELS: dict[type, str] = {
    Stage: "map_blocks",
    Blocks: "map_blocks",
    OffsetRows: "map_offset",
    Rings: "map_rings",
    Spans: "map_spans",
    Stripes: "map_stripes",
}


def rows_in_order(problem: Problem, program: Program, results: Dtypes) -> Problem:
    """The problem with its output dims in the order in which programs count rows."""
    if is_flat(problem, program, results) and not fills_tiles(problem, program):
        return problem  # spans: rows one after the other, whatever extra tensors do
    return rows_along(problem, program.algebra.inputs)


def planned_map(problem: Problem, row: Row, device: Device, guarantee: str) -> tuple[Problem, Plan]:
    """The problem that the steps are of, and the plan: inputs that lie in another order than the results are copied first,
    where reads or writes would be sectors in part (docs/experiments/scans.md#copied)."""
    program, results = row.program, row.results
    if needs_groups(problem, row):
        return problem, groups_plan(problem, row, device, guarantee)
    if row.rows is not None:
        return problem, _plan_with_rows(problem, row, device, guarantee)
    plan = map_plan(problem, program, results, device, guarantee)
    copied = () if guarantee == "batch_invariant" else inputs_apart(problem)
    if not copied or not _are_copied(problem, copied, plan, results):
        return problem, plan
    ordered = rows_in_order(in_results_order(problem, copied), program, results)
    return ordered, after_copies(
        map_plan(ordered, program, results, device, guarantee), problem, copied, device
    )


def _plan_with_rows(problem: Problem, row: Row, device: Device, guarantee: str) -> Plan:
    """The steps where something is stored of each row: by the programs that hold it in registers, else in a second launch."""
    held = _invariant_stage if guarantee == "batch_invariant" else _free_stage
    stage: Held | None = None
    if problem.outputs * problem.length:
        stage = held(problem, row.program, row.results, device, stores_rows=True)
    if stage is None:
        return groups_plan(problem, row, device, guarantee, folds=False)
    return _held(problem, stage, results_of(problem, row), guarantee)


def _are_copied(problem: Problem, copied: Sequence[int], plan: Plan, results: Dtypes) -> bool:
    """Whether copies take less than what reads or writes of sectors in part would."""
    near = problem.nearest
    size = sum(d.itemsize for d in results)
    moved = math.prod(d.size for d in problem.dims) * (size + sum(problem.dtypes[i].itemsize for i in copied))
    if moved < (COPIED if near.role == "map" else COPIED_ROWS):
        return False
    stage, narrow = plan.stages[0], min(d.itemsize for d in results)
    if len(copied) < len(problem.dtypes) or len(plan.launched) > 1 or not isinstance(stage, Stage | Blocks):
        return True
    if near.role != "map":  # a row is written by its lanes
        return problem.length * narrow >= SECTOR > stage.lanes * narrow
    return near is not problem.output_dims[-1] or stage.block_outputs * narrow < SECTOR


def map_plan(problem: Problem, program: Program, results: Dtypes, device: Device, guarantee: str) -> Plan:
    """The steps: one launch where programs hold whole rows, else folds, then a map; none where there is nothing."""
    outputs = names("output", len(results))
    size = math.prod(d.size for d in problem.dims)
    buffers = tuple(Buffer(name, (size,), d) for name, d in zip(outputs, results, strict=True))
    if size == 0:
        return Plan("triton", (), buffers, (), guarantee, "nothing", "no elements")
    invariant = guarantee == "batch_invariant"
    held = _invariant_stage if invariant else _free_stage
    stage = held(problem, program, results, device)
    if stage is not None:
        return _held(problem, stage, buffers, guarantee)
    windows = windows_stage(problem, program, results, device.sms, invariant)
    if windows is not None:
        return _windowed(problem, program, windows, buffers, device, guarantee)
    return _folded_first(problem, program, results, device, guarantee)


def _invariant_stage(
    problem: Problem, program: Program, results: Dtypes, device: Device, *, stores_rows: bool = False
) -> Held | None:
    """The launch that holds rows, the same for any number of rows; None where no program, nor a cluster, can hold one.

    `stores_rows`: one that also stores what rows fold to.
    """
    # Every chip with clusters starts so many programs together, whatever its number of SMs.
    cluster = min(device.cluster, PORTABLE)
    return (
        (None if stores_rows else spans_stage(problem, program, results, device, True))
        or blocks_stage(problem, program, results, True, cluster)
        or whole_stage(problem, program, results, True, cluster)
    )


def _free_stage(
    problem: Problem, program: Program, results: Dtypes, device: Device, *, stores_rows: bool = False
) -> Held | None:
    """The same where bits may depend on the number of rows: the first kind of launch, in this order, that fits."""
    asked = problem, program, results
    if stores_rows:
        blocks = blocks_stage(*asked, False, device.cluster) or whole_stage(*asked, False, device.cluster)
        return rings_stage(*asked, device) or blocks or last_rings(*asked, device)
    stage = (
        small_offset_stage(*asked, device)
        or spans_stage(*asked, device, False)
        or offset_stage(*asked, device)
        or unalike_stage(*asked, device)
        or rings_stage(*asked, device)
        or stripes_stage(*asked, device)
        or blocks_stage(*asked, False, device.cluster)
    )
    if stage is None and (whole := whole_stage(*asked, False, device.cluster)) is not None:
        return offset_stage(*asked, device, last=True) or whole
    return stage or last_rings(*asked, device) or unalike_stage(*asked, device, last=True)


def _held(problem: Problem, stage: Held, buffers: tuple[Buffer, ...], guarantee: str) -> Plan:
    """One launch: a program, or a cluster of them, holds whole rows."""
    kernel = KERNELS[type(stage)]
    launch = Launch(kernel, stage, names("input", len(problem.dtypes)), tuple(b.name for b in buffers))
    by = f" by {stage.splits} programs" if stage.splits > 1 else ""
    reason = f"{count(problem.outputs, 'row')} of {count(problem.length, 'element')}, each held whole{by}"
    return Plan("triton", (launch,), buffers, (), guarantee, "whole", reason)


def _windowed(
    problem: Problem,
    program: Program,
    windows: Windows,
    buffers: tuple[Buffer, ...],
    device: Device,
    guarantee: str,
) -> Plan:
    """One launch for the counters, one in which a window is mapped while the L2 holds it."""
    stage, groups = windows.stage, row_blocks(problem, windows.stage.block_outputs)
    dtypes = partial_dtypes(narrowed(program, problem.length))
    states = names("partial", len(dtypes))
    workspaces = [
        Buffer(n, (stage.splits + 1, problem.outputs), d) for n, d in zip(states, dtypes, strict=True)
    ]
    workspaces.append(Buffer("counters", (1 + groups,), torch.int32))
    reads, early = names("input", len(problem.dtypes)), device.overlaps
    outputs = tuple(buffer.name for buffer in buffers)
    steps = (
        Launch("clear", Clear(), (), ("counters",), releases=early),
        Launch("map_windows", windows, reads, (*states, "counters", *outputs), early=early),
    )
    sizes = f"{count(problem.outputs, 'row')} of {count(problem.length, 'element')}"
    return Plan(
        "triton", steps, buffers, tuple(workspaces), guarantee, "windows", f"{sizes}, read again from the L2"
    )


def _folded_first(
    problem: Problem, program: Program, results: Dtypes, device: Device, guarantee: str
) -> Plan:
    """Rows are folded as `reduce` would, then every element is mapped."""
    inputs, outputs = program.algebra.inputs, names("output", len(results))
    named = names("input", len(problem.dtypes))
    size = problem.outputs * problem.length
    buffers = tuple(Buffer(name, (size,), d) for name, d in zip(outputs, results, strict=True))
    folds = plan_fold(folding(problem, program, guarantee), program, device, guarantee)
    rows = names("row", len(program.outputs))
    held = tuple(Buffer(n, (problem.outputs,), d) for n, d in zip(rows, program.outputs, strict=True))
    steps = tuple(
        replace(step, writes=rows) if step.writes[0].startswith("output") else step for step in folds.launched
    )
    settings = elements_stage(elements_of(problem, inputs, program.outputs), results)
    last = Launch("map_elements", settings, (*named[:inputs], *rows, *named[inputs:]), outputs)
    reason = f"{folds.reason}; then every element"
    return Plan(
        "triton", (*steps, last), buffers, (*folds.workspaces, *held), guarantee, "fold and map", reason
    )

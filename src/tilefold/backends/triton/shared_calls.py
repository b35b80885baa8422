"""Launches of maps that hold rows or columns in shared memory, as kernel calls: rings, offset rows, spans and stripes."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import torch

from tilefold.algebra.program import scaled_form
from tilefold.backends.triton.call import Call, launchable
from tilefold.backends.triton.emit import emit_across, emit_lanes, emit_scaled
from tilefold.backends.triton.kernels.clusters import exchange, own_words
from tilefold.backends.triton.kernels.primitives import ring_of
from tilefold.backends.triton.map_calls import (
    RowArguments,
    bits_of,
    extras_apart,
    of_rows,
    row_arguments,
    rows_source,
)
from tilefold.backends.triton.records import Results, Ring, Span, Walk
from tilefold.planner.folds import narrowed
from tilefold.planner.plan import Launch, Plan
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.products.row import Row
from tilefold.planner.sizes import VECTOR_BYTES, WARP, power_above
from tilefold.planner.stages.maps import row_blocks
from tilefold.planner.stages.rows import (
    LINE_VECTORS,
    RESERVED_BYTES,
    OffsetRows,
    Rings,
    Spans,
    Stripes,
    dense_tensors,
)

WAITS = 4  # for the turns of a row but its last one (not measured)


def rings_call(step: Launch, plan: Plan, problem: Problem, row: Row, interpret: bool) -> Call:
    """Arguments and constants of `map_rings`."""
    stage: Rings = step.settings
    program = narrowed(row.program, problem.length)
    extras = extras_apart(problem, program.algebra.inputs)
    rows = row_arguments(stage, problem, row, plan.guarantee)
    arguments = (
        rows.inputs, rows.extras, _results(rows), _walk(rows), rows.sizes.length, problem.outputs, of_rows(problem, row),
    )  # fmt: skip
    scaled = scaled_form(program)
    folding = scaled.program if scaled else program
    constants = _ring_constants(stage, problem, len(folding.state)) | {
        "SCALED": scaled is not None,
        "EXTRAS": extras,
    }
    lanes = emit_lanes(folding, stage.run * stage.unroll, interpret)
    source = f"{rows_source(folding, row, interpret, wide=True, order=extras.order)}\n\n{lanes}"
    if scaled is not None:
        source += f"\n\n{emit_scaled(scaled, interpret)}"
    blocks = math.ceil(problem.outputs / stage.block_outputs)
    clusters = min(blocks, stage.clusters or blocks)
    grid = launchable(clusters * stage.splits, problem.outputs, "reduce_map", "map")
    shared = 0 if constants["OWN"] else RESERVED_BYTES + stage.shared_bytes
    return Call(
        step.kernel, source, arguments, tuple(constants.items()), grid, stage.num_warps, 1, False, shared_bytes=shared,
        cluster=stage.splits, persistent=stage.clusters > 0, registers=stage.registers,
    )  # fmt: skip


def stripes_call(step: Launch, plan: Plan, problem: Problem, row: Row, interpret: bool) -> Call:
    """Arguments and constants of `map_stripes`."""
    stage: Stripes = step.settings
    program = narrowed(row.program, problem.length)
    rows = row_arguments(stage, problem, row, plan.guarantee)
    length = rows.sizes.length
    stripes = row_blocks(problem, stage.block_outputs)
    words = len(program.state) * stage.block_outputs
    reserved = 4 * words * stage.num_warps
    arguments = (
        rows.inputs[0], rows.y.pointers, rows.y.outer, rows.sizes.outer, rows.blocks, rows.sizes.output, length, stripes,
    )  # fmt: skip
    constants = {
        "X_STEP": rows.inputs[0].reduced,
        "Y_STEP": rows.y.reduced,
        "R": stage.lanes,
        "C": stage.vectors,
        "RUN": stage.run,
        "UNROLL": stage.unroll,
        "TURNS": stage.turns,
        "DEPTH": stage.depth,
        "MASKED": length != stage.step * stage.splits,
        "MASK_COLUMNS": rows.sizes.output % stage.block_outputs != 0,
        "CLUSTER": stage.splits,
        "EXCHANGE": exchange(stage.splits, words, again=stage.clusters > 0)
        if stage.splits > 1
        else own_words(words),
        "WAITING": tuple(_waiting(stage.depth - 1 - t) for t in range(stage.turns))
        if stage.early
        else (_waiting(stage.depth - stage.turns),),
        "RESERVED": reserved,
        "PERSISTENT": stage.clusters > 0,
    }
    lanes = emit_lanes(program, stage.unroll, interpret)
    source = f"{rows_source(program, row, interpret, wide=True)}\n\n{lanes}"
    clusters = min(stripes, stage.clusters or stripes)
    grid = launchable(clusters * stage.splits, problem.outputs, "reduce_map", "map")
    return Call(
        step.kernel, source, arguments, tuple(constants.items()), grid, stage.num_warps, 1, False,
        shared_bytes=reserved + stage.shared_bytes, cluster=stage.splits, persistent=stage.clusters > 0,
        registers=stage.registers,
    )  # fmt: skip


def _results(rows: RowArguments) -> Results:
    """The results as what a row's first element is found by."""
    return Results(rows.y.pointers, rows.y.outer, rows.y.output)


def _walk(rows: RowArguments) -> Walk:
    return Walk(rows.sizes.outer, rows.sizes.output)


def _ring_constants(stage: Rings, problem: Problem, words: int) -> dict[str, Any]:
    """Constants of a launch over rings. `words`: of a state.

    Where no warps exchange states, Triton uses no shared memory, and the ring is declared beside it.
    """
    ends = _parts(stage)
    masked, share = _share(stage, problem.length)
    return {
        "RING": Ring(
            LANES=stage.lanes,
            ROWS=stage.block_outputs,
            RUN=stage.run,
            UNROLL=stage.unroll,
            TURNS=stage.turns,
            DEPTH=stage.depth,
            ALIGN=stage.align,
            MASKED=masked,
            SHARE=share,
        ),
        "MASK_ROWS": problem.outputs % stage.block_outputs != 0,
        "HELD": stage.held,
        "CLUSTER": stage.splits,
        "EXCHANGE": exchange(stage.splits, words, again=True) if stage.splits > 1 else "",
        "OWN": ring_of(stage.shared_bytes) if stage.block_outputs > 1 else "",
        "FIRST": _waiting(stage.depth),
        "WAITING": tuple(map(_waiting, _pending(stage, ends))),
        "PARTS": ends,
        "PERSISTENT": stage.clusters > 0 or not stage.parted,
        "RESERVED": RESERVED_BYTES,
        "AHEAD": stage.ahead,
    }


def offset_call(step: Launch, plan: Plan, problem: Problem, row: Row, interpret: bool) -> Call:
    """Arguments and constants of `map_offset`."""
    stage: OffsetRows = step.settings
    program = narrowed(row.program, problem.length)
    rows = row_arguments(stage, problem, row, plan.guarantee)
    arguments = (rows.inputs, rows.extras, _results(rows), _walk(rows), rows.sizes.length)
    constants = {
        "LANES": stage.lanes,
        "RUN": stage.run,
        "UNROLL": stage.unroll,
        "TURNS": stage.turns,
        "VECTORS": tuple(stage.vectors(d.itemsize) for d in problem.dtypes[: len(rows.inputs)]),
        "Y_VECTORS": tuple(stage.vectors(d.itemsize) for d in row.results),
        "AREAS": stage.areas,
        "Y_AREAS": stage.result_areas,
        "CLUSTER": stage.splits,
        "EXCHANGE": exchange(stage.splits, len(program.state)) if stage.splits > 1 else "",
        "SHARE": stage.share,
        "WAITING": "cp.async.wait_all; mov.u32 $0, 0;",
        "RESERVED": RESERVED_BYTES,
    }
    lanes = emit_lanes(program, stage.run * stage.unroll, interpret)
    source = f"{rows_source(program, row, interpret, wide=True)}\n\n{lanes}"
    grid = launchable(problem.outputs * stage.splits, problem.outputs, "reduce_map", "map")
    return Call(
        step.kernel, source, arguments, tuple(constants.items()), grid, stage.num_warps, 1, False,
        shared_bytes=RESERVED_BYTES + stage.shared_bytes, cluster=stage.splits, registers=stage.registers,
    )  # fmt: skip


def spans_call(step: Launch, plan: Plan, problem: Problem, row: Row, interpret: bool) -> Call:
    """Arguments and constants of `map_spans`."""
    stage: Spans = step.settings
    program = narrowed(row.program, problem.length)
    rows = row_arguments(stage, problem, row, plan.guarantee)
    constants = _span_constants(stage, problem, row)
    if stage.across:
        lanes = emit_across(program, stage.each, constants["MASKED"], interpret)
    else:
        lanes = emit_lanes(program, stage.each, interpret, last=True)
    source = f"{rows_source(program, row, interpret, wide=True)}\n\n{lanes}"
    grid = launchable(stage.programs(problem.outputs), problem.outputs, "reduce_map", "map")
    pointers = tuple(x.pointer for x in rows.inputs)
    arguments = (pointers, rows.extras, rows.y.pointers, _walk(rows), rows.sizes.length, problem.outputs)
    return Call(step.kernel, source, arguments, tuple(constants.items()), grid, stage.num_warps, 1, False)


def _span_constants(stage: Spans, problem: Problem, row: Row) -> dict[str, Any]:
    """Constants of a launch over spans, from its plan and from the sizes."""
    n, threads = row.program.algebra.inputs, stage.num_warps * WARP
    dense, every = dense_tensors(problem), problem.outputs * problem.length

    def turns(dtype: torch.dtype) -> int:
        return math.ceil(stage.vectors(problem.length, dtype.itemsize) / threads)

    whole = all(every * d.itemsize % VECTOR_BYTES == 0 for d in row.results)
    return {
        "SPAN": Span(
            ROWS=power_above(stage.block_outputs),
            TAKEN=stage.block_outputs,
            INNER=1 if stage.pieces else stage.inner,
            LANES=stage.lanes,
            EACH=stage.each,
            THREADS=threads,
        ),
        "MASKED": problem.length != stage.step,
        "ACROSS": stage.across,
        "ALIGNED": stage.aligned,
        "EDGES": not (stage.aligned and whole),
        "DENSE": sum(1 << i for i, flat in enumerate(dense[n:]) if flat),
        "OVER": functools.reduce(operator.or_, map(bits_of, problem.output_dims), 0) >> n,
        "TURNS": tuple(turns(d) if flat else 0 for d, flat in zip(problem.dtypes, dense, strict=True)),
        "Y_TURNS": tuple(map(turns, row.results)),
        "AREAS": stage.areas,
        "Y_AREAS": stage.result_areas,
        "OWN": ring_of(stage.shared_bytes),
        "WAITING": "cp.async.wait_all; mov.u32 $0, 0;",
        "PIECES": tuple(
            stage.piece(d.itemsize) if flat else 0 for d, flat in zip(problem.dtypes, dense, strict=True)
        ),
        "Y_PIECES": tuple(stage.piece(d.itemsize) for d in row.results),
    }


def _share(stage: Rings, length: int) -> tuple[int, int]:
    """How turns are masked, as `map_rings` has it, and how many elements of a row a program has.

    Programs have equal shares, of whole lines of 128 bytes, where none of theirs ends before its last turn.
    """
    step, turn = stage.step, stage.run * stage.lanes * stage.unroll
    cut = stage.align > 1 or length % stage.run > 0  # vectors that are partly another row's
    if length == step * stage.splits and not cut:
        return 0, step
    if not stage.parted:
        return 3, step
    line = stage.run * (LINE_VECTORS if stage.align == 1 else 1)
    share = min(step, math.ceil((length + stage.align - 1) / (stage.splits * line)) * line)
    last = length - (stage.splits - 1) * share
    return (1 + cut, share) if min(share, last) > step - turn else (3, step)


def _parts(stage: Rings) -> tuple[int, ...]:
    """Where the parts end in which a row's turns are waited for: where they are `parted`, all but the last turn."""
    if not stage.parted:
        return (stage.turns,)
    whole = stage.turns - 1
    number = min(whole, WAITS if stage.clusters and stage.depth < 2 * stage.turns else 1)
    return tuple(whole * (i + 1) // number for i in range(number)) or (1,)


def _pending(stage: Rings, ends: tuple[int, ...]) -> list[int]:
    """How many turns may be on their way where a part of a row is folded; where a ring holds less than one, where a turn is.

    There the last is where a turn has come again.
    """
    again = stage.turns - stage.depth
    if again <= 0:
        return [stage.depth - turn for turn in sorted({*ends, stage.turns})]
    whole = [stage.depth - 1 if turn < again else stage.turns - 1 - turn for turn in range(stage.turns)]
    return [*whole, stage.depth - 1]


def _waiting(turns: int) -> str:
    """PTX that waits until all but so many turns have come."""
    return f"cp.async.wait_group {turns}; mov.u32 $0, 0;"

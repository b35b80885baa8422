"""Launches of rows' folds and of maps of their elements, as kernel calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from tilefold.algebra.program import Program
from tilefold.backends.triton.call import Call, Pointer, dims_of, fold_call, launchable, output_dims
from tilefold.backends.triton.emit import emit, emit_apply, emit_blocks, emit_rebase, emit_rows
from tilefold.backends.triton.kernels.clusters import exchange
from tilefold.backends.triton.prelude import prelude
from tilefold.backends.triton.records import (
    Block,
    Extras,
    Mapped,
    Operand,
    Plane,
    Position,
    Results,
    Sizes,
    Tile,
    Way,
)
from tilefold.planner.folds import NARROW, narrowed, partial_dtypes
from tilefold.planner.plan import Launch, Plan, Stage
from tilefold.planner.problem.canonical import Dim, Problem
from tilefold.planner.products.row import Row, row_of_elements
from tilefold.planner.programs import chunk_of, edges
from tilefold.planner.sizes import VECTOR_BYTES, power_above
from tilefold.planner.stages.maps import (
    Elements,
    Windows,
    elements_of,
    extras_beside,
    extras_of_rows,
    folding,
    row_blocks,
    row_step,
)
from tilefold.planner.stages.rows import Blocks, OffsetRows, Rings, Spans, Stripes

# Of single elements, tiles of a block that are one load and one store where it has more of them than MANY_TILES: Triton's
# compiler takes long for many loads (docs/experiments/scans.md#compiled).
TOGETHER, MANY_TILES = 4, 16
PARTS_TOGETHER = 4096  # states that a program combines at once: a few a thread (not measured)


def folding_call(
    step: Launch, plan: Plan, problem: Problem, computation: Program | Row, interpret: bool
) -> Call:
    """One launch of a fold, of a plan's own or of its rows."""
    if isinstance(computation, Row):
        problem = folding(problem, computation.program, plan.guarantee)
        computation = computation.program
    return fold_call(step, plan, problem, computation, interpret)


def elements_call(
    step: Launch, plan: Plan, problem: Problem, computation: Row | Program, interpret: bool
) -> Call:
    """Arguments and constants of `map_elements`."""
    stage: Elements = step.settings
    row = computation if isinstance(computation, Row) else row_of_elements(computation)
    inputs = row.program.algebra.inputs
    problem = elements_of(problem, inputs, row.program.outputs)
    none = Dim("map", 1, (0,) * len(problem.dtypes))
    *outer, rows, columns = (none, none, *problem.dims)
    outer = outer[max(0, 2 - len(problem.dims)) :]
    row_blocks, column_blocks = math.ceil(rows.size / stage.rows), math.ceil(columns.size / stage.columns)
    arguments = (
        tuple(
            Plane(Pointer(dtype, _promised(dtype, aligned, stage)), tuple(d.strides[i] for d in outer), rows.strides[i],
                  columns.strides[i])
            for i, (dtype, aligned) in enumerate(zip(problem.dtypes, problem.aligned, strict=True))
        ),
        tuple(Pointer(dtype, _promised(dtype, VECTOR_BYTES, stage)) for dtype in row.results),
        tuple(d.output for d in outer),
        rows.output,
        columns.output,
        tuple(d.size for d in outer),
        rows.size,
        columns.size,
        row_blocks,
        column_blocks,
    )  # fmt: skip
    constants: dict[str, Any] = {
        "ROWS": stage.rows,
        "COLUMNS": stage.columns,
        "MASK": bool(rows.size % stage.rows or columns.size % stage.columns),
        "BY_ROW": bits_of(rows),
        "BY_COLUMN": bits_of(columns),
        "WIDE": _reach(rows, columns, stage) > NARROW,
        "EVICT": "evict_first" if stage.evict_first else "",
    }
    programs = math.prod(d.size for d in outer) * row_blocks * column_blocks
    source = f"{emit_apply(row.apply, row.taken, row.results, interpret)}\n\n{prelude()}"
    grid = launchable(programs, programs, "reduce_map", "map")
    return Call("map_elements", source, arguments, tuple(constants.items()), grid, stage.num_warps, 1, False)


def _promised(dtype: torch.dtype, aligned: int, stage: Elements) -> int:
    """The promised alignment of an address: of a wider vector than the stage's Triton would give a thread more."""
    return min(aligned, stage.run * dtype.itemsize) if stage.run else aligned


def blocks_call(step: Launch, plan: Plan, problem: Problem, row: Row, interpret: bool) -> Call:
    """Arguments and constants of `map_blocks`: of a block, or of a `Stage`'s tile, which lanes fold."""
    stage: Blocks | Stage = step.settings
    program = narrowed(row.program, problem.length)
    arguments = (*row_arguments(stage, problem, row, plan.guarantee), of_rows(problem, row))
    extras = extras_apart(problem, program.algebra.inputs)
    words = len(program.state) * stage.block_outputs
    last = output_dims(problem)[-1]
    constants: dict[str, Any] = {
        "MASK_OUTPUTS": last.size % stage.block_outputs != 0,
        "ALIGN": stage.align,
        "WIDE": _is_wide(stage, problem, last),
        "OVER": _over(problem, row),
        "VECTORS": problem.length % stage.run == 0,
        "CLUSTER": stage.splits,
        "EXCHANGE": exchange(stage.splits, words) if stage.splits > 1 else "",
        "EVICT": "evict_first" if stage.evict_first else "",
        "EXTRAS": extras,
    }
    sources = [rows_source(program, row, interpret, order=extras.order)]
    if isinstance(stage, Stage):
        constants |= _lanes_constants(stage, problem)
    else:
        constants |= _block_constants(stage, problem, row)
        masks = [t for t in range(stage.tiles) if stage.masks >> t & 1]
        sources.append(emit_blocks(program, stage.tiles, masks, interpret))
        sources.append(emit_rebase(row.rebase, row.program.outputs, interpret))
    programs = row_blocks(problem, stage.block_outputs) * stage.splits
    grid = launchable(programs, problem.outputs, "reduce_map", "map")
    return Call(
        step.kernel, "\n\n".join(sources), arguments, tuple(constants.items()), grid, stage.num_warps, 1, False,
        cluster=stage.splits, registers=0 if isinstance(stage, Stage) else stage.registers,
    )  # fmt: skip


def _lanes_constants(stage: Stage, problem: Problem) -> dict[str, Any]:
    """What `map_blocks` is told of one tensor that lanes fold."""
    masked = stage.step * stage.splits != problem.length or stage.align > 1
    return {
        "BLOCK": Block(
            stage.block_outputs, stage.lanes, stage.run, stage.unroll, stage.unroll, BY_LANES=True
        ),
        "MASKS": int(masked),
        "REBASED": False,
        "NEIGHBOURS": 0,
        "STEPS": (),
        "USE_ABSORB": stage.absorb,
        "IN_ORDER": stage.in_order,
    }


def _block_constants(stage: Blocks, problem: Problem, row: Row) -> dict[str, Any]:
    """What `map_blocks` is told of tiles that are one block."""
    alone = stage.splits == 1 and stage.align == 1
    steps = _steps(problem, row.program.algebra.inputs) if stage.neighbours else ()
    many = stage.run == 1 and stage.tiles > MANY_TILES and not steps
    return {
        "BLOCK": Block(
            stage.block_outputs, stage.lanes, stage.run, stage.tiles, TOGETHER if many else 1, BY_LANES=False
        ),
        "MASKS": stage.masks,
        "REBASED": row.rebase is not None
        and not alone
        and (stage.block_outputs == 1 or stage.neighbours > 0),
        "NEIGHBOURS": stage.neighbours,
        "STEPS": steps,
        "USE_ABSORB": True,
        "IN_ORDER": False,
    }


def windows_call(step: Launch, plan: Plan, problem: Problem, row: Row, interpret: bool) -> Call:
    """Arguments and constants of `map_windows`."""
    windows: Windows = step.settings
    stage = windows.stage
    program = narrowed(row.program, problem.length)
    rows = row_arguments(stage, problem, row, plan.guarantee)
    last = output_dims(problem)[-1]
    groups = problem.outputs // last.size * rows.blocks
    window = min(windows.groups, groups)
    states = tuple(Pointer(d, 16) for d in partial_dtypes(program))
    outer = ((0,) * (len(problem.output_dims[:-1])), (), ())
    arguments = (
        rows.inputs, rows.extras, states, Pointer(torch.int32, 16), rows.y, rows.position._replace(outer=outer), rows.sizes,
        rows.blocks, chunk_of(stage, problem.length), stage.splits, groups, problem.outputs, window,
    )  # fmt: skip
    head, has_full, tail = edges(stage, problem.length)
    constants: dict[str, Any] = {
        "TILE": Tile(stage.block_outputs, stage.lanes, stage.run, stage.unroll),
        "WAY": Way(
            MASK_OUTPUTS=last.size % stage.block_outputs != 0,
            ALIGN=stage.align,
            HEAD=head,
            HAS_FULL=has_full,
            TAIL=tail,
            WIDE=_is_wide(stage, problem, last),
            EVICT="",
            LENGTH=0,
            PREFETCH=stage.prefetch,
            USE_ABSORB=stage.absorb,
            IN_ORDER=stage.in_order,
        ),
        "OVER": bits_of(last) >> row.program.algebra.inputs,
        "PARTS": min(power_above(stage.splits), PARTS_TOGETHER),
        "WAIT": step.early,
    }
    source = rows_source(program, row, interpret)
    programs = math.ceil(groups / window) * 2 * window * stage.splits
    grid = launchable(programs, problem.outputs, "reduce_map", "map")
    return Call(
        step.kernel, source, arguments, tuple(constants.items()), grid, stage.num_warps, 1, step.early
    )


def clear_call(step: Launch, plan: Plan, problem: Problem, row: Row, interpret: bool) -> Call:
    """Arguments and constants of `clear`."""
    block: int = step.settings.block
    (length,) = plan.shape_of(step.writes[0])
    arguments = ((Pointer(torch.int32, 16),), length)
    constants = (("BLOCK", block), ("RELEASE", step.releases))
    return Call("clear", prelude(), arguments, constants, math.ceil(length / block), 4, 1, False)


def rows_source(
    program: Program, row: Row, interpret: bool, wide: bool = False, order: Sequence[int] = ()
) -> str:
    """The generated functions of a fold of rows and of the map of their elements, which takes its extras in this `order`."""
    index = program.lift.input_dtypes[-1] if program.algebra.index else torch.int32
    applied = emit_apply(row.apply, row.taken, row.results, interpret, wide, order)
    made = [emit(program, index=index, interpret=interpret), applied]
    if row.rows is not None:
        made.append(emit_rows(row.rows, row.program.outputs, interpret))
    return "\n\n".join(made)


def _steps(problem: Problem, inputs: int) -> tuple[int, ...]:
    """From one element of a row to the next: the inputs' steps, then the results'; none where rows have several dims."""
    if len(problem.reduced_dims) != 1:
        return ()
    (inner,) = problem.reduced_dims
    return (*inner.strides[:inputs], inner.output)


def extras_apart(problem: Problem, inputs: int) -> Extras:
    """Which extra tensors have one value a row, and which have others."""
    return Extras(tuple(extras_of_rows(problem, inputs)), tuple(extras_beside(problem, inputs)))


def _over(problem: Problem, row: Row) -> int:
    """A bit for each extra tensor, but those of one value a row, whose rows are its own."""
    n = row.program.algebra.inputs
    last = output_dims(problem)[-1]
    return sum(1 << bit for bit, i in enumerate(extras_beside(problem, n)) if last.strides[n + i])


def of_rows(problem: Problem, row: Row) -> Results:
    """Results that have one value a row, and their steps along the output dims."""
    *outer, last = output_dims(problem)
    steps = [row_step(problem, d) for d in (*outer, last)]
    return Results(tuple(Pointer(d, VECTOR_BYTES) for d in row.of_rows), tuple(steps[:-1]), steps[-1])


class RowArguments(NamedTuple):
    """What kernels are given of whole rows: tensors that are folded, extra tensors, results; `blocks` along the last dim."""

    inputs: tuple[Operand, ...]
    extras: tuple[Operand, ...]
    y: Mapped
    position: Position
    sizes: Sizes
    blocks: int


def row_arguments(
    stage: Stage | Blocks | OffsetRows | Rings | Spans | Stripes, problem: Problem, row: Row, guarantee: str
) -> RowArguments:
    """Whole rows of a problem as arguments.

    With "batch_invariant" results are aligned as rows end to end are, as `Problem.alone` has the inputs: of a single row the
    compiler would see vectors of results, give threads other elements, and combine them in another order.
    """
    invariant = guarantee == "batch_invariant"
    aligned = [math.gcd(VECTOR_BYTES, problem.length * d.itemsize if invariant else 0) for d in row.results]
    records = operands(problem)
    n = row.program.algebra.inputs
    pointers = tuple(Pointer(dtype, a) for dtype, a in zip(row.results, aligned, strict=True))
    _, last, deep, inner = dims_of(problem)
    return RowArguments(
        records[:n],
        records[n:],
        mapped(problem, pointers),
        Position((), tuple(d.position for d in deep), inner.position),
        sizes_of(problem),
        math.ceil(last.size / stage.block_outputs),
    )


def operands(problem: Problem) -> tuple[Operand, ...]:
    """Every tensor that is read."""
    outer, last, deep, inner = dims_of(problem)
    return tuple(
        Operand(
            Pointer(dtype, aligned),
            0,
            tuple(d.strides[i] for d in outer),
            last.strides[i],
            tuple(d.strides[i] for d in deep),
            inner.strides[i],
        )
        for i, (dtype, aligned) in enumerate(zip(problem.dtypes, problem.aligned, strict=True))
    )


def mapped(problem: Problem, pointers: tuple[Pointer, ...]) -> Mapped:
    """Results of elements."""
    outer, last, deep, inner = dims_of(problem)
    return Mapped(
        pointers, tuple(d.output for d in outer), last.output, tuple(d.output for d in deep), inner.output
    )


def sizes_of(problem: Problem) -> Sizes:
    """Sizes of all dims."""
    outer, last, deep, inner = dims_of(problem)
    return Sizes(
        tuple(d.size for d in outer), tuple(d.size for d in deep), last.size, inner.size, problem.length
    )


def _is_wide(stage: Stage | Blocks, problem: Problem, last: Dim) -> bool:
    """Whether places in a row need more than 32 bits."""
    spans = [sum((d.size - 1) * d.steps[i] for d in problem.reduced_dims) for i in range(len(last.steps))]
    return max(*spans, problem.length) * 2 + 2 * stage.step > NARROW


def bits_of(dim: Dim) -> int:
    """The operands that have elements of their own along a dim, a bit each."""
    return sum(1 << i for i, step in enumerate(dim.strides) if step)


def _reach(rows: Dim, columns: Dim, stage: Elements) -> int:
    """The farthest offset, in elements, of a place in the last two dims, beyond their ends too."""
    last = rows.size + stage.rows, columns.size + stage.columns
    return max(last[0] * a + last[1] * b for a, b in zip(rows.steps, columns.steps, strict=True))

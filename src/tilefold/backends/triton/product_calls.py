"""A launch of a product as a kernel call: source, arguments, constants, grid."""

from __future__ import annotations

import math
from typing import Any

from tilefold.backends.triton.call import Call, Pointer, launchable
from tilefold.backends.triton.emit import emit_epilogue, emit_products, emit_row
from tilefold.backends.triton.records import PackedLines, Plane, ProductTile
from tilefold.planner.folds import NARROW, narrowed
from tilefold.planner.plan import Launch, Plan
from tilefold.planner.problem.canonical import Dim
from tilefold.planner.products.epilogue import Epilogue, sums_dtype
from tilefold.planner.products.operands import Contraction
from tilefold.planner.products.packing import lines_of, packed_problem, packed_shape, padded
from tilefold.planner.products.plan import Finish, Packing, Tiling
from tilefold.planner.products.steps import pitch_of

# Tiles of results below each other: each number up to here has a kernel of its own (not measured).
COUNTED_DOWN = 8


def product_call(step: Launch, plan: Plan, problem: Contraction, epilogue: Epilogue, interpret: bool) -> Call:
    """Arguments and constants of one launch of a product. Pointers stand as `Pointer` until launch."""
    if step.kernel.startswith("finish_"):
        return _finish_call(step, plan, problem, epilogue, _ending_source(problem, epilogue, interpret))
    if step.kernel == "pack_operands":
        return _packing_call(step, problem)
    operand = problem.dtypes[0]
    source = emit_products(operand, sums_dtype(operand), interpret)
    if step.kernel == "product_partials":
        return _partials_call(step, problem, source)
    ending = _ending_source(problem, epilogue, interpret)
    return _whole_call(step, plan, problem, epilogue, f"{source}\n\n{ending}")


def _ending_source(problem: Contraction, epilogue: Epilogue, interpret: bool) -> str:
    """The end of a product: the epilogue, the row's fold, and the values stored after it."""
    row = epilogue.row
    result = epilogue.result if row is None else epilogue.value
    source = emit_epilogue(epilogue.typed, epilogue.elements, result, interpret)
    if row is None:
        return source
    folding = narrowed(row.program, problem.columns.size)
    return f"{source}\n\n{emit_row(folding, row.apply, epilogue.result, interpret=interpret)}"


def _whole_call(step: Launch, plan: Plan, problem: Contraction, epilogue: Epilogue, source: str) -> Call:
    seen = packed_problem(problem, step.settings.packed)
    arguments = (
        *_factors(seen),
        *_ends(problem, epilogue),
        *_sizes(problem),
        _batch_sizes(problem),
    )
    constants = _tile_constants(step.settings, problem)
    constants |= {"CHAINED": step.early, "RELEASE": step.releases}
    constants |= _row_constants(plan, epilogue, step.settings.tile.block_n)
    return _tile_call(step, source, arguments, constants, problem)


def _partials_call(step: Launch, problem: Contraction, source: str) -> Call:
    tiling: Tiling = step.settings
    steps = math.ceil(problem.depth.size / tiling.tile.block_k)
    arguments = (
        *_factors(packed_problem(problem, tiling.packed)),
        Pointer(sums_dtype(problem.dtypes[0]), 16),
        *_sizes(problem),
        _batch_sizes(problem),
        math.ceil(steps / tiling.splits) * tiling.tile.block_k,
        tiling.splits,
        pitch_of(problem),
    )
    constants = _tile_constants(tiling, problem) | {"WAIT": step.early, "RELEASE": step.releases}
    return _tile_call(step, source, arguments, constants, problem)


def _tile_call(
    step: Launch, source: str, arguments: tuple[Any, ...], constants: dict[str, Any], problem: Contraction
) -> Call:
    """A launch of tiles: a program for each tile of each matrix and each split."""
    tiling: Tiling = step.settings
    tile = tiling.tile
    rows, columns, _ = _sizes(problem)
    tiles = math.ceil(rows / tile.block_m) * math.ceil(columns / tile.block_n)
    grid = launchable(tiles * problem.batches * tiling.splits, problem.outputs, "matmul", "multiply")
    return Call(
        step.kernel, source, arguments, tuple(constants.items()), grid, tile.num_warps, tile.num_stages, step.early,
        tiling.reserved_bytes,
    )  # fmt: skip


def _packing_call(step: Launch, problem: Contraction) -> Call:
    """A launch that copies operands: the programs of a, then those of b."""
    packing: Packing = step.settings
    which = [n for n in (0, 1) if packing.packed[n]]
    operands = tuple(_lines(problem, n, packing) for n in which)
    programs = [
        math.ceil(own.lines / packing.lines(n)) * own.blocks for n, own in zip(which, operands, strict=True)
    ]
    pointers = tuple(Pointer(problem.dtypes[n], 16) for n in which)
    reaches = [math.prod(packed_shape(problem, n)) for n in which]
    constants = {
        "ELEMENTS": packing.elements,
        "BLOCKS": tuple(packing.blocks[n] for n in which),
        "WIDE": max(*_reaches(problem), *reaches) + packing.elements > NARROW,
        "RELEASE": step.releases,
    }
    grid = launchable(sum(programs), problem.outputs, "matmul", "multiply")
    arguments = (operands, pointers, programs[0])
    return Call(step.kernel, "", arguments, tuple(constants.items()), grid, packing.num_warps, 1, step.early)


def _lines(problem: Contraction, operand: int, packing: Packing) -> PackedLines:
    """An operand's rows in memory."""
    lines, along, _ = lines_of(problem, operand)
    pointer = Pointer(problem.dtypes[operand], problem.aligned[operand])
    blocks = math.ceil(padded(along.size) / packing.blocks[operand])
    return PackedLines(
        pointer, lines.strides[operand], along.strides[operand], lines.size, along.size, blocks
    )


def _finish_call(step: Launch, plan: Plan, problem: Contraction, epilogue: Epilogue, source: str) -> Call:
    finish: Finish = step.settings
    rows, columns, _ = _sizes(problem)
    arguments = (
        Pointer(sums_dtype(problem.dtypes[0]), 16),
        *_ends(problem, epilogue),
        rows,
        columns,
        _batch_sizes(problem),
    )
    # A library's product leaves one sum a result. Of one split no pitch is read: one kernel for all shapes.
    splits, pitch = (
        plan.shape_of("partial0") if any(b.name == "partial0" for b in plan.workspaces) else (1, 1)
    )
    shared = {
        "LANES": finish.lanes,
        "SPLITS": splits,
        "PITCH": pitch if splits > 1 else 1,
        "WIDE": max(problem.outputs, *_reaches(problem)) + finish.block > NARROW,
        "WAIT": step.early,
        "RELEASE": step.releases,
    }
    if epilogue.row is None:
        own = {"BLOCK": finish.block}
        arguments += (problem.outputs,)
        programs = math.ceil(problem.outputs / finish.block)
    else:
        height = finish.block // finish.row
        own = {"ROWS": height, "COLUMNS": finish.row}
        programs = problem.batches * math.ceil(rows / height)
    constants = own | shared | _row_constants(plan, epilogue, finish.row)
    grid = launchable(programs, problem.outputs, "matmul", "multiply")
    return Call(
        step.kernel, source, arguments, tuple(constants.items()), grid, finish.num_warps, 1, step.early
    )


def _row_constants(plan: Plan, epilogue: Epilogue, columns: int) -> dict[str, Any]:
    """How a row of so many (padded) columns is folded; nothing where rows mean nothing.

    In a tree of neighbours where order matters: to the monoid, or to bits that must not follow from how registers are shared.
    """
    if epilogue.row is None:
        return {}
    ordered = not epilogue.row.program.algebra.commutative or plan.guarantee == "batch_invariant"
    return {"LEVELS": columns.bit_length() - 1, "ORDERED": ordered}


def _factors(problem: Contraction) -> tuple[Plane, Plane]:
    """The two tensors that are multiplied."""
    left = _plane(problem, 0, problem.rows, problem.depth)
    return left, _plane(problem, 1, problem.depth, problem.columns)


def _ends(problem: Contraction, epilogue: Epilogue) -> tuple[Any, ...]:
    """Extra tensors, the result, and the folds of rows."""
    extras = tuple(_plane(problem, i, problem.rows, problem.columns) for i in range(2, len(problem.dtypes)))
    ends: tuple[Any, ...] = (extras, Pointer(epilogue.result, 16))
    if epilogue.row is not None:
        ends += (tuple(Pointer(dtype, 16) for dtype in epilogue.row.program.outputs),)
    return ends


def _plane(problem: Contraction, tensor: int, rows: Dim, columns: Dim) -> Plane:
    """One tensor among a kernel's arguments."""
    steps = tuple(d.strides[tensor] for d in problem.batch)
    pointer = Pointer(problem.dtypes[tensor], problem.aligned[tensor])
    return Plane(pointer, steps, rows.strides[tensor], columns.strides[tensor])


def _sizes(problem: Contraction) -> tuple[int, int, int]:
    return problem.rows.size, problem.columns.size, problem.depth.size


def _batch_sizes(problem: Contraction) -> tuple[int, ...]:
    return tuple(d.size for d in problem.batch)


def _tile_constants(tiling: Tiling, problem: Contraction) -> dict[str, Any]:
    tile = tiling.tile
    rows, columns, depth = _sizes(problem)
    down = math.ceil(rows / tile.block_m)
    seen = packed_problem(problem, tiling.packed)
    along = [1 if lines_of(problem, n)[2] else 2 for n in (0, 1)]
    made = ProductTile(
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        ACROSS=math.ceil(columns / tile.block_n),
        DOWN=down if down <= COUNTED_DOWN else 0,
        BATCHED=problem.batches > 1,
        STEP_B=seen.depth.strides[1],
        MASK_M=rows % tile.block_m != 0,
        MASK_N=columns % tile.block_n != 0,
        MASK_K=depth % tile.block_k != 0,
        WIDE=max(*_reaches(seen), depth + tile.block_k * tiling.splits, rows * columns) > NARROW,
        PRECISION=tiling.precision,
        PACKED_A=along[0] * tiling.packed[0],
        PACKED_B=along[1] * tiling.packed[1],
    )
    return {"TILE": made}


def _reaches(problem: Contraction) -> list[int]:
    """The farthest offset, in elements, inside one matrix of each tensor."""
    dims = (problem.rows, problem.columns, problem.depth)
    return [sum((d.size - 1) * d.strides[i] for d in dims if d.size) for i in range(len(problem.dtypes))]

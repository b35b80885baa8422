"""A product's plan as kernel calls: sources, arguments, constants, grids."""

from __future__ import annotations

import math
from typing import Any

from tilefold.backends.triton import call as calls
from tilefold.backends.triton.call import Call, Pointer, launchable
from tilefold.backends.triton.emit import emit_epilogue, emit_products, emit_row
from tilefold.contract.epilogue import Epilogue, accumulator_dtype
from tilefold.contract.operands import Contraction
from tilefold.contract.plan import ContractPlan
from tilefold.planner.view import power_above
from tilefold.problem import Dim

COUNTED_DOWN = 8  # tiles of results below each other: each number up to here has a kernel of its own
LARGE_PITCH = 1 << 18  # results: a power of two, 1 MB of float32 a split, is left beyond


def product_calls(
    plan: ContractPlan, problem: Contraction, epilogue: Epilogue, *, interpret: bool
) -> list[Call]:
    """The kernel calls of a plan, in order."""
    operand = problem.dtypes[0]
    factors = emit_products(operand, accumulator_dtype(operand), interpret)
    source = _ending_source(problem, epilogue, interpret)
    overlap, chained = plan.overlap and not interpret, plan.chained and not interpret
    if plan.strategy == "whole":
        return [_whole_call(plan, problem, epilogue, f"{factors}\n\n{source}", chained)]
    made = [] if plan.strategy == "cublas" else [_partials_call(plan, problem, factors, overlap, chained)]
    if plan.finish is not None:
        made.append(_finish_call(plan, problem, epilogue, source, overlap, chained))
    return made


def _ending_source(problem: Contraction, epilogue: Epilogue, interpret: bool) -> str:
    """What happens to an accumulator: the epilogue, and the row's fold with what is stored after it."""
    row = epilogue.row
    result = epilogue.result if row is None else epilogue.value
    source = emit_epilogue(epilogue.typed, epilogue.elements, result, interpret)
    if row is None:
        return source
    folding = calls.narrowed(row.program, problem.columns.size)
    return f"{source}\n\n{emit_row(folding, row.apply, epilogue.result, interpret=interpret)}"


def _whole_call(
    plan: ContractPlan, problem: Contraction, epilogue: Epilogue, source: str, chained: bool
) -> Call:
    assert plan.tile is not None
    arguments = (
        *_factors(problem),
        *_ends(problem, epilogue),
        *_sizes(problem),
        _batch_sizes(problem),
    )
    constants = _tile_constants(plan, problem) | {"CHAINED": chained}
    constants |= _row_constants(plan, epilogue, plan.tile.block_n)
    name = "product_whole" if epilogue.row is None else "product_rows"
    return _tile_call(name, source, arguments, constants, plan, problem, chained)


def _partials_call(
    plan: ContractPlan, problem: Contraction, source: str, overlap: bool, chained: bool
) -> Call:
    assert plan.tile is not None
    steps = math.ceil(problem.depth.size / plan.tile.block_k)
    arguments = (
        *_factors(problem),
        Pointer(accumulator_dtype(problem.dtypes[0]), 16),
        *_sizes(problem),
        _batch_sizes(problem),
        math.ceil(steps / plan.splits) * plan.tile.block_k,
        plan.splits,
        pitch_of(problem),
    )
    constants = _tile_constants(plan, problem) | {"WAIT": chained, "RELEASE": overlap}
    return _tile_call("product_partials", source, arguments, constants, plan, problem, chained)


def _tile_call(
    name: str,
    source: str,
    arguments: tuple[Any, ...],
    constants: dict[str, Any],
    plan: ContractPlan,
    problem: Contraction,
    dependent: bool,
) -> Call:
    """A launch of tiles: a program for each tile of each matrix and each split."""
    tile = plan.tile
    assert tile is not None
    rows, columns, _ = _sizes(problem)
    tiles = math.ceil(rows / tile.block_m) * math.ceil(columns / tile.block_n)
    grid = launchable(tiles * problem.batches * plan.splits, problem.outputs, "matmul", "multiply")
    return Call(
        name, source, arguments, tuple(constants.items()), grid, tile.num_warps, tile.num_stages, dependent,
        plan.reserved_bytes,
    )  # fmt: skip


def _finish_call(
    plan: ContractPlan, problem: Contraction, epilogue: Epilogue, source: str, overlap: bool, chained: bool
) -> Call:
    finish = plan.finish
    assert finish is not None
    rows, columns, _ = _sizes(problem)
    arguments = (
        Pointer(accumulator_dtype(problem.dtypes[0]), 16),
        *_ends(problem, epilogue),
        rows,
        columns,
        _batch_sizes(problem),
    )
    wide = max(problem.outputs, *_reaches(problem)) + finish.block > calls.NARROW
    pitch = (
        pitch_of(problem) if plan.splits > 1 else 1
    )  # of one split none is read: one kernel for all shapes
    shared = {
        "LANES": finish.lanes,
        "SPLITS": plan.splits,
        "PITCH": pitch,
        "WIDE": wide,
        "WAIT": overlap,
        "RELEASE": chained,
    }
    if epilogue.row is None:
        name, own = "finish_products", {"BLOCK": finish.block}
        arguments += (problem.outputs,)
        programs = math.ceil(problem.outputs / finish.block)
    else:
        height = finish.block // finish.row
        name, own = "finish_rows", {"ROWS": height, "COLUMNS": finish.row}
        programs = problem.batches * math.ceil(rows / height)
    constants = own | shared | _row_constants(plan, epilogue, finish.row)
    grid = launchable(programs, problem.outputs, "matmul", "multiply")
    return Call(name, source, arguments, tuple(constants.items()), grid, finish.num_warps, 1, overlap)


def pitch_of(problem: Contraction) -> int:
    """Elements from one split's partial products to the next's: few numbers for many shapes, less than twice the results."""
    outputs = max(1, problem.outputs)
    step = power_above(outputs) if outputs <= LARGE_PITCH else power_above(outputs) // 16
    return math.ceil(outputs / step) * step


def _row_constants(plan: ContractPlan, epilogue: Epilogue, columns: int) -> dict[str, Any]:
    """How a row of so many (padded) columns is folded; nothing where rows mean nothing.

    In a tree of neighbours where order matters: to the monoid, or to bits that must not follow from how registers are shared.
    """
    if epilogue.row is None:
        return {}
    ordered = not epilogue.row.program.algebra.commutative or plan.guarantee == "batch_invariant"
    return {"LEVELS": columns.bit_length() - 1, "ORDERED": ordered}


def _factors(problem: Contraction) -> tuple[Any, Any]:
    """The records of a and b."""
    left = _record(problem, 0, problem.rows, problem.depth)
    return left, _record(problem, 1, problem.columns, problem.depth)


def _ends(problem: Contraction, epilogue: Epilogue) -> tuple[Any, ...]:
    """Extra tensors, the result, and what rows fold to."""
    extras = tuple(_record(problem, i, problem.rows, problem.columns) for i in range(2, len(problem.dtypes)))
    ends: tuple[Any, ...] = (extras, Pointer(epilogue.result, 16))
    if epilogue.row is not None:
        ends += (tuple(Pointer(dtype, 16) for dtype in epilogue.row.program.outputs),)
    return ends


def _record(problem: Contraction, tensor: int, *dims: Dim) -> tuple[Any, ...]:
    """One tensor among a kernel's arguments: (pointer, batch steps, the step along each of `dims`)."""
    steps = tuple(d.strides[tensor] for d in problem.batch)
    pointer = Pointer(problem.dtypes[tensor], problem.aligned[tensor])
    return (pointer, steps, *(d.strides[tensor] for d in dims))


def _sizes(problem: Contraction) -> tuple[int, int, int]:
    return problem.rows.size, problem.columns.size, problem.depth.size


def _batch_sizes(problem: Contraction) -> tuple[int, ...]:
    return tuple(d.size for d in problem.batch)


def _tile_constants(plan: ContractPlan, problem: Contraction) -> dict[str, Any]:
    tile = plan.tile
    assert tile is not None
    rows, columns, depth = _sizes(problem)
    down = math.ceil(rows / tile.block_m)
    return {
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "ACROSS": math.ceil(columns / tile.block_n),
        "DOWN": down if down <= COUNTED_DOWN else 0,
        "BATCHED": problem.batches > 1,
        "STEP_B": problem.depth.strides[1],
        "MASK_M": rows % tile.block_m != 0,
        "MASK_N": columns % tile.block_n != 0,
        "MASK_K": depth % tile.block_k != 0,
        "WIDE": max(*_reaches(problem), depth + tile.block_k * plan.splits, rows * columns) > calls.NARROW,
        "PRECISION": plan.precision,
    }


def _reaches(problem: Contraction) -> list[int]:
    """The farthest offset, in elements, inside one matrix of each tensor."""
    dims = (problem.rows, problem.columns, problem.depth)
    return [sum((d.size - 1) * d.strides[i] for d in dims if d.size) for i in range(len(problem.dtypes))]

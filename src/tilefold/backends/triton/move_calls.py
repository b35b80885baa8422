"""A launch that copies between layouts, as a kernel call: arguments, constants, grid."""

from __future__ import annotations

from typing import Any

from tilefold.backends.triton.call import Call, Pointer, launchable
from tilefold.backends.triton.records import MoveTile, Strided
from tilefold.planner.plan import Launch, Plan
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.sizes import power_above
from tilefold.planner.stages.moves import Move


def move_call(step: Launch, plan: Plan, problem: Problem, computation: Any, interpret: bool) -> Call:
    """Arguments and constants of `move_tiles`. Pointers stand as `Pointer` until launch."""
    move: Move = step.settings
    outer = move.outer
    arguments = (
        Pointer(move.dtype, move.aligned),
        Pointer(move.dtype, 16),
        tuple(d.size for d in outer[1:]),
        tuple(d.strides[0] for d in outer),
        tuple(d.output for d in outer),
        *(Strided(*w) for side in (move.rows, move.columns) for w in (side.inputs, side.outputs)),
        move.rows.size,
        move.columns.size,
        move.row_blocks,
        move.column_blocks,
    )
    call = "transpose" if computation is None else "a copy of an input"
    elements = move.places * move.rows.size * move.columns.size * move.run
    programs = launchable(move.programs, elements, call, "transpose" if computation is None else "pass")
    return Call(
        kernel=step.kernel,
        source="",
        arguments=arguments,
        constants=tuple(_constants(move).items()),
        grid=move.row_blocks if move.spread else programs,
        num_warps=move.num_warps,
        num_stages=1,
        dependent=False,
        across=(move.column_blocks, move.places) if move.spread else (1, 1),
    )


def _constants(move: Move) -> dict[str, Any]:
    return {
        "TILE": MoveTile(
            BLOCK_M=move.block_rows,
            BLOCK_N=move.block_columns,
            MASK_M=move.rows.size % move.block_rows != 0,
            MASK_N=move.columns.size % move.block_columns != 0,
            RUN=move.run,
            SLOTS=power_above(move.run),
        ),
        "SPREAD": move.spread,
        "GROUP": move.group,
        "OUTER": bool(move.outer),
        "WIDE": move.wide,
        "KEEP": "evict_last" if move.keep else "",
        "LOADS": move.loads_along,
        "STORES": move.stores_along,
        "SPLIT": move.split,
    }

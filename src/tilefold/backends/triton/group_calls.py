"""Launches of rows that are mapped one after another, and of the sums over them, as kernel calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from tilefold.backends.triton.call import Call, Pointer, fold_call, launchable
from tilefold.backends.triton.emit import emit, emit_apply, emit_rows
from tilefold.backends.triton.kernels.clusters import exchange
from tilefold.backends.triton.map_calls import mapped, of_rows, operands, sizes_of
from tilefold.planner.folds import NARROW, narrowed
from tilefold.planner.plan import Launch, Plan
from tilefold.planner.problem.canonical import Dim, Problem
from tilefold.planner.products.row import Row
from tilefold.planner.sizes import VECTOR_BYTES
from tilefold.planner.stages.groups import Groups, problem_of_groups, summing
from tilefold.planner.stages.maps import row_steps


def groups_call(step: Launch, plan: Plan, problem: Problem, row: Row, interpret: bool) -> Call:
    """Arguments and constants of `map_groups`."""
    stage: Groups = step.settings
    program = narrowed(row.program, problem.length)
    problem = problem if stage.folds else _with_results(problem, row)
    rows = problem.outputs
    blocks = math.ceil(rows / stage.rows)
    arguments = (
        operands(problem),
        mapped(problem, tuple(Pointer(dtype, VECTOR_BYTES) for dtype in row.results)),
        of_rows(problem, row),
        tuple(Pointer(dtype, VECTOR_BYTES) for dtype in row.sums),
        sizes_of(problem),
        rows,
        math.ceil(blocks / stage.groups),
        stage.groups,
        stage.parts,
    )
    constants: dict[str, Any] = {
        "ROWS": stage.rows,
        "COLUMNS": stage.columns,
        "FOLDED": row.program.algebra.inputs,
        "FOLDS": stage.folds,
        "RESULTS": 0 if stage.folds else len(row.program.outputs),
        "BY_ROW": _bits(problem.output_dims),
        "BY_COLUMN": _bits(problem.reduced_dims),
        "MASK_COLUMNS": not problem.length or problem.length % stage.columns != 0,
        "WIDE": _reach(problem, stage) > NARROW,
        "CLUSTER": stage.cluster,
        "STAGES": stage.stages,
        "EXCHANGE": exchange(stage.cluster, len(program.state), again=True) if stage.cluster > 1 else "",
    }
    index = program.lift.input_dtypes[-1] if program.algebra.index else torch.int32
    source = "\n\n".join(
        (
            emit(program, index=index, interpret=interpret),
            emit_apply(row.apply, row.taken, row.made, interpret),
            emit_rows(row.rows, row.program.outputs, interpret),
        )
    )
    grid = launchable(stage.groups * stage.parts, rows, "reduce_map", "map")
    return Call(
        step.kernel, source, arguments, tuple(constants.items()), grid, stage.num_warps, 1, False,
        cluster=stage.cluster,
    )  # fmt: skip


def summing_call(step: Launch, plan: Plan, problem: Problem, row: Row, interpret: bool) -> Call:
    """One launch of the fold of the groups' sums."""
    groups = plan.shape_of("group0")[0]
    folded = replace(step, kernel=step.kernel.removeprefix("sum_"))
    return fold_call(folded, plan, problem_of_groups(problem, row, groups), summing(row.sums), interpret)


def _with_results(problem: Problem, row: Row) -> Problem:
    """The problem with what rows folded to as operands behind those that were folded."""
    inputs, folded = row.program.algebra.inputs, row.program.outputs
    steps, n = row_steps(problem), len(row.program.outputs)
    dims = tuple(
        replace(d, strides=(*d.strides[:inputs], *(steps.get(d, 0),) * n, *d.strides[inputs:]))
        for d in problem.dims
    )  # fmt: skip

    def among(own: tuple[Any, ...], others: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*own[:inputs], *others, *own[inputs:])

    return Problem(
        dims,
        among(problem.dtypes, folded),
        among(problem.aligned, (VECTOR_BYTES,) * n),
        among(problem.residues, (0,) * n),
    )


def _bits(dims: Sequence[Dim]) -> int:
    """The operands that vary along some dims, a bit each."""
    found: set[int] = {1 << i for d in dims for i, step in enumerate(d.strides) if step}
    return sum(found)


def _reach(problem: Problem, stage: Groups) -> int:
    """The farthest offset of a place in a row, in elements."""
    dims = problem.reduced_dims
    steps = [(*d.strides, d.output) for d in dims]
    most: list[int] = [
        sum(d.size * s for d, s in zip(dims, own, strict=True)) for own in zip(*steps, strict=True)
    ]
    return 2 * max([*most, problem.length]) + stage.columns

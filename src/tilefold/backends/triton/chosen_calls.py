"""A launch that maps rows and the element of each that its index chooses, as a kernel call."""

from __future__ import annotations

import math

from tilefold.algebra.program import Program
from tilefold.backends.triton.call import Call, Pointer, launchable, output_dims
from tilefold.backends.triton.emit import emit_apply
from tilefold.backends.triton.prelude import prelude
from tilefold.backends.triton.records import ClassValues
from tilefold.planner.folds import NARROW
from tilefold.planner.plan import Launch, Plan
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.products.row import row_of_elements
from tilefold.planner.stages.chosen import Choosing


def chosen_call(step: Launch, plan: Plan, problem: Problem, computation: Program, interpret: bool) -> Call:
    """Arguments and constants of `map_chosen`. Pointers stand as `Pointer` until launch."""
    stage: Choosing = step.settings
    row = row_of_elements(computation)
    dims = output_dims(problem)
    along = (*(0 for _ in problem.dtypes[: stage.index + 1]), *stage.steps)
    tensors = [
        ClassValues((Pointer(dtype, dtype.itemsize),), tuple(d.strides[i] for d in dims), along[i])
        for i, dtype in enumerate(problem.dtypes)
    ]
    results = tuple(Pointer(dtype, 16) for dtype in row.results)
    y = tensors.pop() if stage.stored else ClassValues(results, tuple(d.output for d in dims), 0)
    arguments = (
        tuple(tensors[: stage.index]), tensors[stage.index], tuple(tensors[stage.index + 1 :]), y,
        tuple(d.size for d in dims[1:]), problem.outputs, stage.classes,
    )  # fmt: skip
    programs = math.ceil(problem.outputs / stage.rows)
    constants = {"ROWS": stage.rows, "WIDE": programs * stage.rows > NARROW}
    source = f"{emit_apply(row.apply, row.taken, row.results, interpret)}\n\n{prelude()}"
    grid = launchable(programs, problem.outputs, "cross_entropy", "map")
    return Call("map_chosen", source, arguments, tuple(constants.items()), grid, stage.num_warps, 1, False)

"""Launches over tables of addresses as kernel calls: arguments, constants, grid."""

from __future__ import annotations

import torch

from tilefold.algebra.program import Program
from tilefold.backends.triton.call import Call, Pointer, launchable
from tilefold.backends.triton.emit import emit
from tilefold.backends.triton.words import STORED_DTYPES
from tilefold.planner.folds import partial_dtypes
from tilefold.planner.plan import Launch, Plan
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.sizes import VECTOR_BYTES
from tilefold.planner.stages.tables import Blocks


def table_call(step: Launch, plan: Plan, problem: Problem, program: Program, interpret: bool) -> Call:
    """Arguments and constants of a launch that folds the blocks of one table. Pointers stand as `Pointer` until launch."""
    stage: Blocks = step.settings
    index = program.lift.input_dtypes[-1] if program.algebra.index else torch.int32
    at = (
        f"def AT(pointer, address):\n    base = pointer.to(tl.pointer_type({STORED_DTYPES[stage.dtype]}))\n"
        f"    return base, (address - base.to(tl.int64)) // {stage.dtype.itemsize}\n"
    )
    return Call(
        kernel=step.kernel,
        source=f"{emit(program, index=index, interpret=interpret)}\n\n{at}",
        arguments=(
            Pointer(torch.int64, VECTOR_BYTES),
            Pointer(stage.dtype, VECTOR_BYTES),
            tuple(Pointer(d, 16) for d in partial_dtypes(program)),
            stage.blocks,
        ),
        constants=(
            ("LANES", stage.lanes),
            ("RUN", stage.run),
            ("UNROLL", stage.unroll),
            ("LEVELS", stage.run.bit_length() - 1),
            ("ORDERED", stage.ordered),
            ("USE_ABSORB", stage.absorb),
        ),
        grid=launchable(stage.blocks, stage.blocks, "reduce_many", "fold"),
        num_warps=stage.num_warps,
        num_stages=stage.num_stages,
        dependent=step.early,
    )

"""A launch of a fold by atomics as a kernel call: a fold's in lanes, into one place for all splits."""

from __future__ import annotations

from dataclasses import replace

from tilefold.algebra.program import Program
from tilefold.backends.triton.call import Call, fold_call
from tilefold.planner.atomics import atomic_of
from tilefold.planner.plan import Launch, Plan
from tilefold.planner.problem.canonical import Problem


def atomic_call(step: Launch, plan: Plan, problem: Problem, program: Program, interpret: bool) -> Call:
    """As `fold_call`, and with the program's atomic operation."""
    call = fold_call(step, plan, problem, program, interpret)
    # Relaxed: a result is read after the launch, and nothing else is ordered by it.
    text = f"def COMBINE_IN_MEMORY(ptr, x, mask):\n    tl.atomic_{atomic_of(program)}(ptr, x, mask=mask, sem='relaxed')\n"
    return replace(call, kernel="fold_lanes", source=f"{call.source}\n\n{text}")

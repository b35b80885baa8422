"""Which steps a fold's plan has: one launch, or one that stores partial states and one that folds them."""

from __future__ import annotations

from dataclasses import replace

import torch

from tilefold.algebra.program import Program, with_index_dtype
from tilefold.planner.kept_dims import states_count, states_problem
from tilefold.planner.plan import Buffer, Fill, Launch, Plan, Stage, names
from tilefold.planner.problem.canonical import Dim, Problem
from tilefold.runtime.caching import kept_outside_modes

NARROW = 2**31 - 1  # by definition the greatest offset, size or number of programs that 32 bits hold


def fold_plan(
    problem: Problem,
    program: Program,
    stages: tuple[Stage, ...],
    *,
    overlaps: bool,
    guarantee: str,
    reason: str,
) -> Plan:
    """The steps of a fold in one or two stages; of none where there is nothing to fold."""
    inputs, results = names("input", len(problem.dtypes)), names("output", len(program.outputs))
    outputs = _buffers(results, (problem.outputs,), program.outputs)
    if not stages:
        return Plan("triton", (Fill(results),), outputs, (), guarantee, "nothing", reason)
    first = stages[0]
    if len(stages) == 1:
        steps: tuple[Launch, ...] = (Launch(kernel_of(first), first, inputs, results),)
        return Plan("triton", steps, outputs, (), guarantee, "whole", reason)
    dtypes = partial_dtypes(narrowed(program, problem.length))
    partials = names("partial", len(dtypes))
    steps = (
        Launch(kernel_of(first), first, inputs, partials, releases=overlaps),
        Launch(kernel_of(stages[1]), stages[1], partials, results, early=overlaps),
    )
    between = _buffers(partials, (first.splits, states_count(problem, first.kept_dims)), dtypes)
    return Plan("triton", steps, outputs, between, guarantee, "split", reason)


def _buffers(
    named: tuple[str, ...], shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]
) -> tuple[Buffer, ...]:
    return tuple(Buffer(name, shape, dtype) for name, dtype in zip(named, dtypes, strict=True))


def kernel_of(stage: Stage) -> str:
    """The kernel family that a stage is a launch of."""
    if stage.gathered:
        return "fold_gathered"
    return "fold_in_order" if stage.ordered else "fold_lanes"


def narrowed(program: Program, length: int) -> Program:
    """The program with positions in 32 bits, where they are only compared and moved and elements, if any, all have one."""
    labels = program.algebra.index and program.algebra.index_is_label
    return _narrow(program) if labels and 0 < length <= NARROW else program


@kept_outside_modes(1024)
def _narrow(program: Program) -> Program:
    return with_index_dtype(program, torch.int32)


def partial_dtypes(program: Program) -> tuple[torch.dtype, ...]:
    """How state fields are stored between stages: as carried, bool as 32-bit words."""
    return tuple(torch.int32 if d == torch.bool else d for d in program.state)


def problem_of_partials(problem: Problem, program: Program, splits: int) -> Problem:
    """The fold of `splits` partial states a result: each field is a [splits, results] array."""
    fields, n = len(program.state), problem.outputs
    results = (Dim("map", n, (1,) * fields, 1),) if n > 1 else ()
    states = Dim("reduce", splits, (n,) * fields, position=1)
    return Problem((*results, states), partial_dtypes(program), (16,) * fields)


def problem_of_states(problem: Problem, program: Program, first: Stage) -> Problem:
    """The fold of the states that a first launch leaves."""
    if first.kept_dims is None:
        return problem_of_partials(problem, program, first.splits)
    ordered = not program.algebra.commutative
    return states_problem(problem, partial_dtypes(program), first.kept_dims, first.splits, ordered)


def without_overlap(plan: Plan) -> Plan:
    """The same plan with every launch after the end of the one before, as Triton's interpreter runs it."""
    steps = tuple(replace(s, early=False, releases=False) if isinstance(s, Launch) else s for s in plan.steps)
    return replace(plan, steps=steps)

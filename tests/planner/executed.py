"""Launches of drawn plans, compiled without a GPU and executed, beside what their layouts say they move."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any
from unittest import mock

from problems import Drawn, at

from planner.requests_made import Laid, Moved, program_loads, program_stores
from tilefold.backends.triton import call as calls
from tilefold.backends.triton.call import Call, Pointer
from tilefold.backends.triton.lower import calls_of
from tilefold.planner import choose
from tilefold.planner.candidates import Wanted
from tilefold.planner.choose import plan_of
from tilefold.planner.device import H200
from tilefold.planner.first_launch import FirstLaunch as Walked
from tilefold.planner.first_tile import first_tile
from tilefold.planner.folds import partial_dtypes, problem_of_states
from tilefold.planner.geometry import Geometry, Steps, geometry_of
from tilefold.planner.plan import Plan, Stage
from tilefold.planner.problem.canonical import Dim, Problem
from tilefold.xray.machine import Memory, execute, load
from tilefold.xray.machine.counts import GlobalCost, global_cost
from tilefold.xray.ptx import parse

# Of the bench, and whether floats alone can be folded by it.
OPERATIONS = {
    "sum": False, "amax": False, "argmax": False, "logsumexp": True, "var": True, "softmax_pair": True, "top2": False,
    "max_subarray": True, "max": False, "aminmax": False, "vector_norm": True,
}  # fmt: skip
RANDOM_PLANS = int(os.environ.get("TILEFOLD_RANDOM_PLANS", "3"))


@dataclass(frozen=True)
class Launched:
    """One launch of a plan: its call, its geometry, how its results lie and what they are, and where its inputs begin modulo
    32."""

    call: Call
    stage: Stage
    geometry: Geometry
    laid: Laid
    stored: Steps
    partial: bool
    residues: tuple[int, ...]

    def programs(self) -> list[int]:
        """The first, a middle and the last program."""
        return sorted({0, self.call.grid // 2, self.call.grid - 1})

    def modelled(self, program: int) -> tuple[Moved, Moved]:
        """What the model says that a program loads and stores."""
        loads = program_loads(self.geometry, self.stage, program)
        return loads, program_stores(self.geometry, self.stage, self.laid, program, self.stored, self.partial)


def wanted_of(drawn: Drawn) -> Wanted:
    """A drawn problem, around whose rule candidates are wanted."""
    launch = Walked.keeping(drawn.problem, drawn.program, None)
    rule = first_tile(launch, launch.reading, H200, False)
    return Wanted(rule, launch.reading, drawn.problem, drawn.geometry, drawn.program, H200)


def planned_as(stage: Stage) -> Any:
    """Folds are planned with this first launch, whatever the problem."""

    def planned(problem: Problem, program: Any, device: Any, guarantee: str, *_: Any) -> Any:
        return plan_of(stage, problem, program, device)

    return mock.patch.object(choose, "plan_fold", planned)


def launches_of(drawn: Drawn, plan: Plan) -> list[Launched]:
    """The launches of a plan for a drawn problem."""
    made = calls_of(plan, drawn.problem, drawn.program)
    program = drawn.program
    fields = tuple(d.itemsize for d in partial_dtypes(program))
    results = tuple(d.itemsize for d in program.outputs)
    first = plan.stages[0]
    begins = [operand.residue - first.shift * operand.itemsize for operand in drawn.geometry.operands]
    walked = Walked.of(drawn.problem, program, first)
    own = Walked.keeping(drawn.problem, program, first.kept_dims).problem.output_dims
    laid = laid_of(walked.problem, first.shift, own[-1].size if own else 1)
    seen = [(at(walked.geometry, begins), laid)]
    if len(made) > 1:
        states = problem_of_states(drawn.problem, program, first)
        seen.append((geometry_of(states), laid_of(states)))
    found = []
    for number, (call, stage, (geometry, laid)) in enumerate(zip(made, plan.stages, seen, strict=True)):
        last = number == len(made) - 1
        residues = tuple(o.residue + stage.shift * o.itemsize for o in geometry.operands)
        found.append(Launched(call, stage, geometry, laid, results if last else fields, not last, residues))
    return found


def laid_of(problem: Problem, shift: int = 0, results: int = 0) -> Laid:
    """How a launch's results lie; those with a `shift` have so many `results` along the last dim."""
    *outer, last = problem.output_dims or (Dim("map", 1, ()),)
    beyond = last.size - results - shift if shift else 0
    return Laid(tuple(d.output for d in outer), last.output, shift, beyond)


def executed(launched: Launched, ptx: str, shared: int) -> list[tuple[GlobalCost, GlobalCost]]:
    """What the machine counts of the programs' loads and stores, at addresses that begin where the model has them."""
    memory, values = Memory(), list[int | bytes]()
    residues = iter(launched.residues)
    for number, leaf in enumerate(calls.leaves(launched.call.arguments)):
        if isinstance(leaf, Pointer):
            values.append(memory.place_open(f"{number}", "bytes") + next(residues, 0) - leaf.before)
        elif leaf != 1:
            values.append(leaf)
    grid = (launched.call.grid, 1, 1)
    chosen = [(program, 0, 0) for program in launched.programs()]
    kernel, cluster = load(parse(ptx), shared=shared), launched.call.cluster
    outcomes = execute(kernel, memory, values, grid=grid, programs=chosen, cluster=cluster)
    return [
        (
            global_cost(a for a in outcome.accesses if a.kind != "store"),
            global_cost(a for a in outcome.accesses if a.kind == "store"),
        )
        for outcome in outcomes
    ]

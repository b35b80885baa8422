"""Whether a fold's programs combine results in memory by atomic operations: only with the guarantee "none".

A combine that a chip has as an atomic operation is known by its graph. Floats are added so, and never compared: the
instructions for maxima drop NaN.
"""

from __future__ import annotations

import torch

from tilefold.algebra.dtypes import is_float
from tilefold.algebra.operations import values_of
from tilefold.algebra.program import Program
from tilefold.planner.plan import Buffer, Fill, Launch, Plan, Stage, names
from tilefold.planner.problem.canonical import Problem


def atomic_of(program: Program) -> str | None:
    """The atomic operation that combines states in place of `combine`; None where there is none.

    The state must be one field that is the result as it stands.
    """
    graph, last = program.combine.graph, program.project.graph
    if program.state != program.outputs or len(program.state) != 1 or program.state[0] == torch.bool:
        return None
    if last.nodes[last.outputs[0]].op != "input":
        return None
    node = graph.nodes[graph.outputs[0]]
    operation = values_of(node.op).atomic
    sides = sorted(graph.nodes[a].value for a in node.args if graph.nodes[a].op == "input")
    if operation is None or sides != [0, 1] or (is_float(program.state[0]) and operation != "add"):
        return None
    return operation


def atomic_plan(problem: Problem, program: Program, stage: Stage, reason: str) -> Plan:
    """The steps of a fold whose splits each combine their state with the result, which begins as the identity."""
    results = names("output", 1)
    steps = (Fill(results), Launch("fold_atomically", stage, names("input", len(problem.dtypes)), results))
    outputs = (Buffer(results[0], (problem.outputs,), program.outputs[0]),)
    return Plan("triton", steps, outputs, (), "none", "atomics", f"{reason}, atomic {atomic_of(program)}")

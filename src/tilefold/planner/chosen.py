"""How a function of rows and of one chosen element of each runs: from tensors and device to a plan. Pure, as `choose` is."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilefold.planner.plan import Buffer, Launch, Plan, count, names
from tilefold.planner.problem.canonical import Problem, canonical
from tilefold.planner.stages.chosen import Choosing

# A thread has a row, and 16,384 of them nearly one program for each SM: others took as long (docs/experiments/losses.md).
ROWS, WARPS = 128, 4


def chosen_problem(tensors: Sequence[torch.Tensor], dim: int, shape: tuple[int, ...]) -> Problem:
    """The rows' dims, with the steps of all tensors; those with several elements a row begin at the first."""
    return canonical([t if t.shape == shape else t.narrow(dim, 0, 1) for t in tensors], (), ordered=False)


def plan_chosen(
    problem: Problem,
    index: int,
    classes: int,
    steps: tuple[int, ...],
    stored: bool,
    results: Sequence[torch.dtype],
    guarantee: str,
) -> Plan:
    """One launch; where a result is `stored` in the last input, that is what it writes."""
    inputs = names("input", len(problem.dtypes))
    outputs = tuple(Buffer(f"output{i}", (problem.outputs,), dtype) for i, dtype in enumerate(results))
    settings = Choosing(ROWS, WARPS, index, classes, steps, stored)
    reads, writes = (inputs[:-1], inputs[-1:]) if stored else (inputs, names("output", len(results)))
    step = Launch("map_chosen", settings, reads, writes)
    reason = f"{count(problem.outputs, 'row')} of {classes}"
    return Plan("triton", (step,), outputs, (), guarantee, "chosen", reason)

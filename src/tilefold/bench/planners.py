"""Other planners of folds as variants of a suite, so that one run compares two of them on the same problems.

`PLANNERS` names the functions; each is a variant "ours, NAME" of the suites of folds that runs only where it is asked for:

    tilefold bench shapes --seed 7 --count 60 --variant "ours, rules" --variant "ours, model" --against none

The model takes other constants than the library's from a file of JSON that TILEFOLD_BENCH_CONSTANTS names, such as
benchmarks/planner/fit.py writes: what was fitted is compared before it is committed.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import tilefold
from tilefold.algebra.program import Program
from tilefold.api import dispatch
from tilefold.api.requests import Reduction
from tilefold.bench.cases import Case, Choice, PlanNote, Variant
from tilefold.bench.operations import OPERATIONS, in_tilefold
from tilefold.bench.ours import OURS
from tilefold.planner.choose import plan_fold
from tilefold.planner.cost import Constants
from tilefold.planner.device import Device, device_of
from tilefold.planner.plan import Plan
from tilefold.problem.canonical import Problem

# As `planner.choose.plan_fold`: how to fold a problem with a program on a chip, under a guarantee.
Planner = Callable[[Problem, Program, Device, str], Plan]
CONSTANTS = "TILEFOLD_BENCH_CONSTANTS"


@functools.cache
def constants_of(path: str | None) -> Constants:
    """The constants in a file of JSON, by name; what it does not name, and all without a file, are the library's."""
    return Constants(**json.loads(Path(path).read_text())) if path else Constants()


def by_model(problem: Problem, program: Program, device: Device, guarantee: str) -> Plan:
    """The plan that the model expects to be fastest, with the constants of this run."""
    constants = constants_of(os.environ.get(CONSTANTS))
    return plan_fold(problem, program, device, guarantee, planner="model", constants=constants)


PLANNERS: dict[str, Planner] = {"rules": functools.partial(plan_fold, planner="rules"), "model": by_model}


def variant_of(name: str, planner: Planner) -> Variant:
    """A variant that folds as the planner says, through the same executables as any call."""
    latest: list[PlanNote] = []

    def build(case: Case, x: torch.Tensor) -> Sequence[Choice]:
        if case.operation not in OPERATIONS and case.monoid is None:
            return []
        request, tensors = requested(case, x)
        device = device_of(x.device.index or 0)
        problem, plan = planned(request, tensors, device, planner)
        executable = dispatch.compiled(request, tensors, (problem, plan))
        latest[:] = [PlanNote(plan.note, max(plan.launches, 1), plan.overlap)]
        return [Choice(name, executable.call)]

    return Variant(
        f"{OURS.name}, {name}",
        build,
        gpu_only=True,
        warms=True,
        graphs=True,
        plan=lambda: latest[0] if latest else None,
        asked_only=True,
    )


class _SeenError(Exception):
    """Carries a request out of the call that made it, before anything runs."""


def requested(case: Case, x: torch.Tensor) -> tuple[Reduction, Sequence[torch.Tensor]]:
    """What tilefold's function of a case asks of the dispatcher, and the tensors that it hands over; nothing is run."""

    def seen(request: Any, tensors: Sequence[torch.Tensor], *_: Any) -> None:
        raise _SeenError(request, tensors)

    # A forced backend is asked every time: a repeated call would not pass by the dispatcher.
    forced = tilefold.backend("triton" if x.is_cuda else "interpret")
    with mock.patch.object(dispatch, "run", seen), forced:
        try:
            in_tilefold(case)(x)
        except _SeenError as found:
            request, tensors = found.args
            return request, tensors
    raise AssertionError("a fold asks the dispatcher")


def planned(
    request: Reduction, tensors: Sequence[torch.Tensor], device: Device, planner: Planner
) -> tuple[Problem, Plan]:
    """The problem as the library makes it, and the plan as the planner does."""
    problem, _ = request.plan(tensors, device, library=True)
    return problem, planner(problem, request.program, device, request.guarantee)


PLANNED = tuple(variant_of(name, planner) for name, planner in PLANNERS.items())

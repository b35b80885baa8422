"""From problem, program and device to a plan. Pure: equal arguments give equal plans, nothing is measured or searched.

The tile is always [run, lanes, outputs, unroll]; what differs is which axis is contiguous and how many elements each takes:

    family       contiguous axis   a program owns
    small_axis   reduced           many whole rows, a thread or a few a row
    rows         reduced           one or several whole rows, read at once
    long_rows    reduced           one row (or a split of it), read tile by tile
    columns      output            neighbouring results, read down tile by tile
    ordered      either            a row, a part of one or several, or neighbouring results, in the elements' order
    partials     output            the second stage: states of several splits
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from tilefold.algebra.program import Program
from tilefold.errors import ArgumentError
from tilefold.planner.atomics import atomic_of, atomic_plan
from tilefold.planner.cost import FITTED, Constants
from tilefold.planner.device import NOMINAL, Device
from tilefold.planner.folds import fold_plan
from tilefold.planner.forms import forms
from tilefold.planner.geometry import without_positions
from tilefold.planner.launched import Launched
from tilefold.planner.plan import Plan, Stage, count
from tilefold.planner.settled import keeps_positions
from tilefold.planner.weigh import Weighed
from tilefold.problem.canonical import Problem, canonical

PLANNERS = ("rules", "model")
DEFAULT = "model"  # docs/experiments/planning.md#model
BEST_FORMS = 2  # of which tiles are weighed (not measured: how far the search goes)


def plan_tensors(
    tensors: Sequence[torch.Tensor], program: Program, dims: tuple[int, ...], device: Device, guarantee: str
) -> tuple[Problem, Plan]:
    """The canonical problem of folding `dims` of validated tensors of one shape, and its plan (no stages for nothing)."""
    invariant = guarantee == "batch_invariant"
    problem = canonical(tensors, dims, ordered=not program.algebra.commutative, batches=invariant)
    if program.algebra.commutative and not program.algebra.index:
        problem = without_positions(problem)
    if invariant:
        problem = problem.alone()
    if problem.length == 0 or problem.outputs == 0:
        nothing = fold_plan(
            problem, program, (), overlaps=False, guarantee=guarantee, reason="nothing to fold"
        )
        return problem, nothing
    return problem, plan_fold(problem, program, device, guarantee)


def plan_fold(
    problem: Problem,
    program: Program,
    device: Device,
    guarantee: str,
    planner: str = DEFAULT,
    constants: Constants = FITTED,
) -> Plan:
    """How to fold `problem` on `device`. With "batch_invariant" neither the count of results nor the device matter.

    `planner`: "rules" takes what thresholds say, "model" the cheapest of the candidates around it by `cost` with
    `constants`, whose time the plan then tells (0 with "batch_invariant", whose choice knows no size).

    Raises:
        ArgumentError: there is no such planner.
    """
    if planner not in PLANNERS:
        raise ArgumentError(
            f"plan_fold: `planner` must be one of {', '.join(PLANNERS)}, got {planner!r}; leave it out for the model"
        )
    invariant = guarantee == "batch_invariant"
    weighed = Weighed(
        Launched.keeping(problem, program, None), NOMINAL if invariant else device, constants, invariant
    )
    first, time_us = (weighed.rule, 0.0) if planner == "rules" else weighed.chosen()
    if planner == "model" and guarantee == "run_to_run":
        weighed, first, time_us = _other_form(weighed, first, time_us)
    launch, time_us = weighed.launch, 0.0 if invariant else time_us
    sizes = f"{count(problem.outputs, 'result')} of {count(problem.length, 'element')}"
    reason = f"{sizes}, {'rows' if launch.view.by_rows else 'columns'} contiguous"
    if first.splits == 1 and first.apart is None:
        plan = fold_plan(problem, program, (first,), overlaps=False, guarantee=guarantee, reason=reason)
        return replace(plan, time_us=time_us)
    if guarantee == "none" and not first.ordered and atomic_of(program) is not None:
        return replace(atomic_plan(problem, program, first, reason), time_us=time_us)
    second = launch.second(first.splits)
    if invariant and not second.ordered:
        in_order = not program.algebra.index or keeps_positions(problem, first)
        second = Stage("partials", 128, 1, 1, 1, 1, 4, in_order=in_order, evict_first=False)
    stages = (first, second)
    plan = fold_plan(problem, program, stages, overlaps=device.overlaps, guarantee=guarantee, reason=reason)
    return replace(plan, time_us=time_us)


def _other_form(weighed: Weighed, first: Stage, time_us: float) -> tuple[Weighed, Stage, float]:
    """A first launch that keeps reduced dims apart, or takes its results in another order, where the model expects that to be
    faster: by `apart_doubt`, or by anything where it makes vectors whole that were not."""
    launch, least_us, doubt = weighed.launch, weighed.least_us, weighed.constants.apart_doubt
    full = launch.view.full_vector
    some_narrow = launch.view.vector < full
    if (1.0 if some_narrow else 1 - doubt) * time_us <= least_us:
        return weighed, first, time_us
    whole, program = launch.whole, launch.program
    kept = [Launched.keeping(whole, program, apart) for apart in forms(whole, program)]
    reordered = [other for one in (launch, *kept) for other in one.orders()]
    best = (*_best(kept, weighed), *_best(reordered, weighed)[:1])

    def widens(other: Weighed) -> bool:
        return some_narrow and other.view.vector == full

    for other in sorted(best, key=widens, reverse=True):
        wanted_us = time_us if widens(other) else (1 - doubt) * time_us
        if wanted_us > max(least_us, other.bound_us):
            stage, expected_us = other.chosen(wanted_us)
            if expected_us < wanted_us:
                weighed, first, time_us = other, stage, expected_us
    return weighed, first, time_us


def _best(tried: list[Launched], weighed: Weighed) -> list[Weighed]:
    """Those of whose rules' plans the model expects most."""
    found = [Weighed(one, weighed.chip, weighed.constants) for one in tried]
    return sorted(found, key=lambda one: one.time_us(one.rule))[:BEST_FORMS]


def plan_of(first: Stage, problem: Problem, program: Program, device: Device) -> Plan:
    """The plan whose first launch is `first`: with splits, a second one combines their states."""
    stages = Launched.of(problem, program, first).stages(first)
    overlaps = device.overlaps and len(stages) > 1
    return fold_plan(
        problem, program, stages, overlaps=overlaps, guarantee="run_to_run", reason="a candidate"
    )

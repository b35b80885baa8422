"""How a fold runs: from problem, program and device to a plan. Pure: equal arguments give equal plans, nothing is measured.

The steps of the sequence decide, in this order:

    reading         along which axis the problem is read, and in what vectors
    first_launch    which forms the first launch may have: dims kept apart (`dims_to_keep`), results in other orders
    first_tile      the tile of each form, by rule (`rows`, `columns`, `in_order`, `gathered`)
    form_choice     which form is taken
    second_launch   how partial states are folded, if there are any

Other operations are planned in the same order: maps in `choose_map`, scans in `scans`, segments in `segments`, top-k in
`selections`, copies in `moves`, products in `products/choose`; the first lines of these modules say which steps they have.

A fold's tile is always [run, lanes, outputs, unroll]. Families differ in the contiguous axis and in the sizes along each:

    family       contiguous axis   a program owns
    small_axis   reduced           many whole rows, a thread or a few a row
    rows         reduced           one or several whole rows, read at once
    long_rows    reduced           one row (or a split of it), read tile by tile
    columns      output            neighbouring results, read down tile by tile
    ordered      either            a row, a part of one or several, or neighbouring results, in the elements' order
    partials     output            the second stage: states of several splits
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from tilefold.algebra.dtypes import is_float
from tilefold.algebra.program import Program
from tilefold.planner.atomics import atomic_of, atomic_plan
from tilefold.planner.device import NOMINAL, Device
from tilefold.planner.dims_to_keep import dims_to_keep
from tilefold.planner.few_programs import with_more_at_work
from tilefold.planner.first_launch import FirstLaunch
from tilefold.planner.first_tile import first_tile
from tilefold.planner.folds import fold_plan
from tilefold.planner.form_choice import least_needed
from tilefold.planner.geometry import without_positions
from tilefold.planner.maps import elements_stage
from tilefold.planner.plan import Buffer, Launch, Plan, Stage, count, names
from tilefold.planner.problem.canonical import Problem, canonical
from tilefold.planner.reading import alone
from tilefold.planner.stages.maps import elements_of
from tilefold.planner.thread_order import keeps_positions

# Bytes: rules of splits were timed from here on; of smaller folds it is counted whether a second launch saves what it takes
# (docs/experiments/planning.md#counts).
SMALL = 4 << 20


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
    if not dims and _is_of_rows(problem, program):
        return problem, _each_element(problem, program, guarantee)
    return problem, plan_fold(problem, program, device, guarantee)


def _is_of_rows(problem: Problem, program: Program) -> bool:
    """Whether a function of every element takes some inputs that do not vary along all dims, as values of rows do.

    A map loads each of these once a row; a fold would load it beside every element.
    """
    algebra = program.algebra
    plain = algebra.project is None and not algebra.index and set(algebra.dtypes) == {"compute"}
    varies = {tuple(bool(d.strides[i]) for d in problem.dims) for i in range(len(problem.dtypes))}
    return plain and len(varies) > 1 and all(map(is_float, program.outputs))


def _each_element(problem: Problem, program: Program, guarantee: str) -> Plan:
    """One launch that makes something of every element."""
    outputs = names("output", len(program.outputs))
    buffers = tuple(
        Buffer(name, (problem.outputs,), d) for name, d in zip(outputs, program.outputs, strict=True)
    )
    stage = elements_stage(elements_of(problem, len(problem.dtypes), ()), program.outputs)
    launch = Launch("map_elements", stage, names("input", len(problem.dtypes)), outputs)
    reason = f"{count(problem.outputs, 'element')}, each by itself"
    return Plan("triton", (launch,), buffers, (), guarantee, "whole", reason)


def plan_fold(problem: Problem, program: Program, device: Device, guarantee: str) -> Plan:
    """How to fold `problem` on `device`. With "batch_invariant" neither the count of results nor the device matter."""
    launch, first = _first_launch(problem, program, device, guarantee)
    sizes = f"{count(problem.outputs, 'result')} of {count(problem.length, 'element')}"
    reason = f"{sizes}, {'rows' if launch.reading.by_rows else 'columns'} contiguous"
    if first.splits == 1 and first.kept_dims is None:
        return fold_plan(problem, program, (first,), overlaps=False, guarantee=guarantee, reason=reason)
    if guarantee == "none" and not first.ordered and atomic_of(program) is not None:
        return atomic_plan(problem, program, first, reason)
    second = launch.second(first.splits)
    if guarantee == "batch_invariant" and not second.ordered:
        in_order = keeps_positions(problem, first, program)
        second = Stage("partials", 128, 1, 1, 1, 1, 4, in_order=in_order, evict_first=False)
    stages = (first, second)
    return fold_plan(problem, program, stages, overlaps=device.overlaps, guarantee=guarantee, reason=reason)


def _first_launch(
    problem: Problem, program: Program, device: Device, guarantee: str
) -> tuple[FirstLaunch, Stage]:
    """The problem of the first launch and its tile: of all its forms, each with the tile of its rule, the best by counts."""
    if guarantee != "run_to_run":
        launch = FirstLaunch.keeping(problem, program, None)
        if guarantee == "none":
            return launch, first_tile(launch, launch.reading, device, False)
        return launch, first_tile(launch, alone(launch.reading, problem), NOMINAL, True)
    forms = list(first_launches(problem, program))
    tried = [(form, first_tile(form, form.reading, device, False)) for form in forms]
    if problem.bytes_read < SMALL:
        tried += [(form, stage.but(splits=1)) for form, stage in tried if stage.splits > 1]
    launch, first = tried[least_needed(tried, device)] if len(tried) > 1 else tried[0]
    return launch, with_more_at_work(launch, first, device) if problem.bytes_read < SMALL else first


def first_launches(problem: Problem, program: Program) -> Iterator[FirstLaunch]:
    """The forms of a first launch: the problem as it is, with dims kept apart, and each with its results in other orders.

    Not along all output dims as one where rows are taken together: programs would own columns of several groups.
    """
    whole = FirstLaunch.keeping(problem, program, None)
    kept = [FirstLaunch.keeping(problem, program, dims) for dims in dims_to_keep(problem, program)]
    yield from (whole, *kept)
    for launch in (whole, *kept):
        groups = launch.kept_dims is None or (launch.kept_dims.together == 1 and launch.kept_dims.dims)
        yield from (order for order in launch.orders() if groups or not order.flat)


def plan_of(first: Stage, problem: Problem, program: Program, device: Device) -> Plan:
    """The plan whose first launch is `first`: with splits, a second one combines their states."""
    stages = FirstLaunch.of(problem, program, first).stages(first)
    overlaps = device.overlaps and len(stages) > 1
    return fold_plan(
        problem, program, stages, overlaps=overlaps, guarantee="run_to_run", reason="a candidate"
    )

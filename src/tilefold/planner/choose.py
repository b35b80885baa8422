"""From problem, program and device to a plan. Pure: equal arguments give equal plans, nothing is measured or searched.

The tile is always [run, lanes, outputs, unroll]; what differs is which axis is contiguous and how many elements each takes:

    family       contiguous axis   a program owns
    small_axis   reduced           many whole rows, a thread or a few a row
    rows         reduced           one or several whole rows, read at once
    long_rows    reduced           one row (or a split of it), walked tile by tile
    columns      output            neighbouring results, walked down tile by tile
    ordered      either            a row, a part of one or several, or neighbouring results, in the elements' order
    partials     output            the second stage: states of several splits
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from tilefold.algebra.program import Program
from tilefold.errors import ArgumentError
from tilefold.planner.atomics import atomic_of, atomic_plan
from tilefold.planner.candidates import Wanted, base_tiles, variants_of
from tilefold.planner.columns import column_programs, columns_stage, one_lane
from tilefold.planner.cost import FITTED, Constants, cost, least_us
from tilefold.planner.device import NOMINAL, Device
from tilefold.planner.folds import fold_plan
from tilefold.planner.forms import forms
from tilefold.planner.gathered import gathered_stage, gathers
from tilefold.planner.geometry import nominal, without_positions
from tilefold.planner.in_order import ordered_stage
from tilefold.planner.launched import Launched
from tilefold.planner.plan import Plan, Stage, count
from tilefold.planner.rows import (
    WALKED,
    is_row_of_a_thread,
    row_of_a_thread,
    rows_stage,
    walked_rows_stage,
)
from tilefold.planner.settled import (
    MANY_FIELDS,
    first_stage,
    keeps_positions,
    settled,
    state_words,
    whole_splits,
)
from tilefold.planner.view import EVICT_FIRST_BELOW, LARGE, ONE_WAVE, View, alone
from tilefold.problem import Problem, canonical

WARPS_WANTED = 8192  # for a large fold of few results: about 62 warps an SM on 132 SMs
PLANNERS = ("rules", "model")
DEFAULT = "model"  # docs/experiments/planner-model.md
BEST_FORMS = 2  # of which tiles are weighed
BEST_TILES = 5  # of which every variant is weighed
NOMINAL_RESULTS = 64  # whose plan every batch gets with "batch_invariant"
SHARING_SM_WARPS = 16  # of one SM, where lanes of ordered columns meet once
INVARIANT_SPLITS = 64  # at most, where splits may not follow the number of results


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
            f"plan_fold: `planner` must be one of {', '.join(PLANNERS)}, got {planner!r}; leave it out for the rules"
        )
    invariant = guarantee == "batch_invariant"
    launch = Launched.keeping(problem, program, None)
    chip = NOMINAL if invariant else device
    first, time_us = _first_launch(launch, chip, invariant, planner, constants)
    if planner == "model" and guarantee == "run_to_run":
        launch, first, time_us = _other_form(launch, first, time_us, chip, constants)
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


def _first_launch(
    launch: Launched, chip: Device, invariant: bool, planner: str, constants: Constants
) -> tuple[Stage, float]:
    """The first launch, and the time that the model expects of the whole fold (0 by the rules)."""
    problem, program = launch.problem, launch.program
    view = alone(launch.view, problem) if invariant else launch.view
    first = _stage(view, program)
    if not invariant and gathers(problem, view, state_words(program)):
        first = settled(gathered_stage(problem, first.ordered), view, program)
    if invariant and not view.by_rows and not first.ordered:
        first = one_lane(first, view)
    first = launch.stage(first_stage(first, problem, program))
    ragged = problem.ragged > 0
    first = replace(first, splits=_splits(view, first, chip, invariant, ragged))
    if planner == "rules":
        return first, 0.0
    return _modelled(first, view, launch, chip, invariant, constants)


def _other_form(
    launch: Launched, first: Stage, time_us: float, chip: Device, constants: Constants
) -> tuple[Launched, Stage, float]:
    """A first launch that keeps reduced dims apart, or walks its results otherwise, where the model expects that to be
    faster: by `apart_doubt`, or by anything where it makes vectors whole that were not."""
    narrow = launch.view
    least = least_us(launch.known(launch.geometry), chip, constants)
    some_narrow = narrow.vector < narrow.full_vector
    if (1.0 if some_narrow else 1 - constants.apart_doubt) * time_us <= least:
        return launch, first, time_us
    whole, program = launch.whole, launch.program
    kept = [Launched.keeping(whole, program, apart) for apart in forms(whole, program)]
    walked = [walks for one in (launch, *kept) for walks in one.walks()]
    best = (*_best(kept, chip, constants), *_best(walked, chip, constants)[:1])

    def widens(other: Launched) -> bool:
        return some_narrow and other.view.vector == narrow.full_vector

    for other in sorted(best, key=widens, reverse=True):
        wanted_us = time_us if widens(other) else (1 - constants.apart_doubt) * time_us
        if wanted_us > least:
            stage, expected_us = _first_launch(other, chip, False, "model", constants)
            if expected_us < wanted_us:
                launch, first, time_us = other, stage, expected_us
    return launch, first, time_us


def _best(tried: list[Launched], chip: Device, constants: Constants) -> list[Launched]:
    """Those of whose rules' plans the model expects most."""
    return sorted(tried, key=lambda one: _ruled_us(one, chip, constants))[:BEST_FORMS]


def _ruled_us(launch: Launched, chip: Device, constants: Constants) -> float:
    """The time that the model expects of what the rules take."""
    rule, _ = _first_launch(launch, chip, False, "rules", constants)
    known = launch.known(launch.geometry)
    return cost(known, launch.stages(rule), chip, constants).time_us


def _modelled(
    rule: Stage, view: View, launch: Launched, chip: Device, invariant: bool, constants: Constants
) -> tuple[Stage, float]:
    """The first launch that the model expects to be fastest, of all tiles the best few and of these every variant; its time.

    The rules' own where it is expected to be nearly as fast. A fold whose bits may not depend on the batch is chosen as one
    of the nominal number of results, on the nominal chip.
    """
    problem, geometry = launch.problem, launch.geometry
    if invariant:
        geometry = nominal(geometry, view.by_rows, view.vector, NOMINAL_RESULTS)
    known = launch.known(geometry)
    wanted = Wanted(rule, view, problem, geometry, known.program, chip)
    outputs = geometry.outputs if invariant else launch.whole.outputs

    def time_us(stage: Stage) -> float:
        return cost(known, launch.stages(stage, outputs), chip, constants).time_us

    def allowed(stage: Stage) -> bool:
        if invariant and stage.gathered:
            return False
        # Columns' lanes are shared among threads by how neighbours lie, and loads through shared memory likewise.
        return not invariant or view.by_rows or stage.ordered or (stage.lanes == 1 and stage.num_stages == 1)

    expected_us = {rule: time_us(rule)}
    wanted_us = (1 - constants.doubt) * expected_us[rule]
    if wanted_us > least_us(known, chip, constants):
        tiles = sorted((tile for tile in base_tiles(wanted) if allowed(tile)), key=time_us)[:BEST_TILES]
        variants = [stage for tile in tiles for stage in variants_of(tile, wanted) if allowed(stage)]
        expected_us |= {stage: time_us(stage) for stage in variants}
    chosen = min(expected_us, key=expected_us.__getitem__)
    if expected_us[chosen] > wanted_us:
        chosen = rule
    return launch.stage(chosen), 0.0 if invariant else expected_us[chosen]


def _stage(view: View, program: Program) -> Stage:
    if not program.algebra.commutative:
        return ordered_stage(view)
    absorbs = program.absorb is not None
    fields = len(program.state)
    if is_row_of_a_thread(view):
        stage = row_of_a_thread(view)
    elif view.by_rows and WALKED[0] <= view.length <= WALKED[1] and view.length & (view.length - 1):
        stage = walked_rows_stage(view)
    elif view.aligns and view.vector < view.full_vector <= view.length:
        reach = view.length + view.full_vector - 1
        stage = rows_stage(replace(view, vector=view.full_vector, length=reach), fields, absorbs, masked=True)
        stage = replace(stage, align=view.full_vector)
    else:
        stage = (rows_stage if view.by_rows else columns_stage)(view, fields, absorbs)
    if fields >= MANY_FIELDS and not view.by_rows:
        stage = replace(stage, unroll=min(stage.unroll, 2))
    return settled(stage, view, program)


def _splits(view: View, stage: Stage, chip: Device, invariant: bool, ragged: bool) -> int:
    """How many programs share one result, so that every SM has work."""
    programs = 1 if invariant else math.ceil(view.inner / stage.block_outputs) * view.outer
    tiles = (view.length - ragged) // stage.step - (stage.align > 1)
    if view.by_rows:
        warps = WARPS_WANTED * (2 if stage.num_warps > 8 else 1) // (2 if stage.ordered else 1)
        wanted = warps * chip.sms // 132 // stage.num_warps
        light = stage.num_warps == 2 and stage.align == 1 and not stage.ordered
        if view.bytes < (LARGE if light else EVICT_FIRST_BELOW):
            wanted = ONE_WAVE * chip.sms // stage.num_warps
    else:
        wanted = chip.sms * column_programs(view, stage)
    if stage.shares and not invariant:
        splits = max(1, min(chip.sms * SHARING_SM_WARPS // stage.num_warps // programs, tiles))
    elif invariant and tiles:
        splits = max(1, min(INVARIANT_SPLITS, tiles // 16))
    elif (
        tiles < 2
        or programs >= chip.sms * 4 - chip.sms // 4
        or (view.by_rows and not view.few and not stage.ordered)
    ):
        return 1
    else:
        splits = max(1, min(wanted // programs, tiles))
    return whole_splits(tiles, splits)


def plan_of(first: Stage, problem: Problem, program: Program, device: Device) -> Plan:
    """The plan whose first launch is `first`: with splits, a second one combines their states."""
    stages = Launched.of(problem, program, first).stages(first)
    overlaps = device.overlaps and len(stages) > 1
    return fold_plan(
        problem, program, stages, overlaps=overlaps, guarantee="run_to_run", reason="a candidate"
    )

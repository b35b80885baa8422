"""The rules: a first launch by thresholds that measurements set, without any expected time. The model begins with it."""

from __future__ import annotations

import math
from dataclasses import replace

from tilefold.algebra.program import Program
from tilefold.planner.columns import (
    GROUP_LANES,
    column_programs,
    columns_stage,
    group_columns,
    one_lane,
)
from tilefold.planner.device import Device
from tilefold.planner.gathered import gathered_stage, gathers
from tilefold.planner.in_order import ordered_stage
from tilefold.planner.launched import Launched
from tilefold.planner.plan import Stage
from tilefold.planner.rows import (
    WALKED,
    has_few_halves,
    has_no_whole_tile,
    is_row_of_a_program,
    is_row_of_a_thread,
    row_of_a_thread,
    rows_stage,
    walked_rows_stage,
    with_half_the_lanes,
)
from tilefold.planner.settled import (
    MANY_FIELDS,
    fields_of,
    first_stage,
    leaner,
    settled,
    state_words,
    whole_splits,
)
from tilefold.planner.view import EVICT_FIRST_BELOW, LARGE, ONE_WAVE, View

# For a large fold of few results: about 62 warps an SM on 132 SMs (docs/experiments/walks-of-results.md).
WARPS_WANTED = 8192
# docs/experiments/forms-by-counts.md:
UNSPLIT_COLUMN = (
    128  # elements: a second launch takes longer than such columns do, where every SM has a program
)
ROW_WARPS = 16  # of an SM where rows are folded in order, a warp each

# Not measured:
SHARING_SM_WARPS = 16  # of one SM, where lanes of ordered columns are combined once
INVARIANT_SPLITS = 64  # at most, where splits may not follow the number of results


def ruled(launch: Launched, view: View, chip: Device, invariant: bool) -> Stage:
    """The first launch that the rules take of what they see as `view`."""
    problem, program = launch.problem, launch.program
    first = _stage(view, program)
    if not invariant and gathers(problem, view, state_words(program)):
        first = settled(gathered_stage(problem, first.ordered), view, program)
    elif _are_groups(launch, view) and not first.ordered:
        first = settled(group_columns(view), view, program)
    if invariant and not view.by_rows and not first.ordered:
        first = one_lane(first, view)
    first = launch.stage(leaner(first_stage(first, problem, program), program))
    return replace(first, splits=_splits(view, first, chip, invariant, problem.ragged > 0))


def _are_enough(programs: int, view: View, stage: Stage, chip: Device) -> bool:
    """Whether so many programs keep the chip at work, or a second launch takes longer than more of them save."""
    if view.by_rows and not stage.ordered and (not view.few or is_row_of_a_program(view)):
        return True
    if not view.by_rows and view.length <= UNSPLIT_COLUMN:
        return programs >= chip.sms
    each = ROW_WARPS // stage.num_warps if view.by_rows and stage.ordered else 4
    return programs >= chip.sms * each - chip.sms // 4


def _are_groups(launch: Launched, view: View) -> bool:
    """Whether results are walked over groups so close that lanes read their rows together, and eight rows each at least."""
    whole = launch.flat and launch.geometry.close_groups and not view.by_rows
    return whole and view.vector == 1 and view.length >= 8 * GROUP_LANES


def _stage(view: View, program: Program) -> Stage:
    if not program.algebra.commutative:
        return ordered_stage(view)
    absorbs = program.absorb is not None
    fields = fields_of(program)
    if is_row_of_a_thread(view):
        stage = row_of_a_thread(view)
    elif view.by_rows and WALKED[0] <= view.length <= WALKED[1] and view.length & (view.length - 1):
        stage = walked_rows_stage(view)
    elif view.aligns and view.vector < view.full_vector <= view.length and not has_few_halves(view):
        reach = view.length + view.full_vector - 1
        stage = rows_stage(replace(view, vector=view.full_vector, length=reach), fields, absorbs, masked=True)
        stage = replace(stage, align=view.full_vector)
    else:
        stage = (rows_stage if view.by_rows else columns_stage)(view, fields, absorbs)
    if fields >= MANY_FIELDS and not view.by_rows:
        stage = replace(stage, unroll=min(stage.unroll, 2))
    stage = settled(stage, view, program)
    while stage.absorb and has_no_whole_tile(stage, view):
        stage = settled(with_half_the_lanes(stage), view, program)
    return stage


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
    elif tiles < 2 or _are_enough(programs, view, stage, chip):
        return 1
    else:
        splits = max(1, min(wanted // programs, tiles))
    return whole_splits(tiles, splits)

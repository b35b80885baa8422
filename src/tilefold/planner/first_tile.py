"""Which tile a fold's first launch has, and how many programs share a result: by thresholds that measurements set."""

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
from tilefold.planner.first_launch import FirstLaunch
from tilefold.planner.gathered import gathered_stage, gathers
from tilefold.planner.in_order import ordered_stage
from tilefold.planner.plan import Stage
from tilefold.planner.reading import Reading
from tilefold.planner.registers import MANY_FIELDS, fields_of, state_words, within_registers
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
from tilefold.planner.sizes import EVICT_FIRST_BELOW, LARGE, ONE_WAVE, whole_splits
from tilefold.planner.thread_order import as_first_launch, kept_in_threads

# For a large fold of few results: about 62 warps an SM on 132 SMs (docs/experiments/folds.md#walks).
WARPS_WANTED = 8192
# docs/experiments/planning.md#counts:
UNSPLIT_COLUMN = (
    128  # elements: a second launch takes longer than such columns do, where every SM has a program
)
ROW_WARPS = 16  # of an SM where rows are folded in order, a warp each

# Not measured:
SHARING_SM_WARPS = 16  # of one SM, where lanes of ordered columns are combined once
INVARIANT_SPLITS = 64  # at most, where splits may not follow the number of results


def first_tile(launch: FirstLaunch, reading: Reading, chip: Device, invariant: bool) -> Stage:
    """The first launch with its tile, of a problem that is read as `reading` says."""
    problem, program = launch.problem, launch.program
    first = _stage(reading, program)
    if not invariant and gathers(problem, reading, state_words(program)):
        first = kept_in_threads(gathered_stage(problem, first.ordered), reading, program)
    elif _are_groups(launch, reading) and not first.ordered:
        first = kept_in_threads(group_columns(reading), reading, program)
    if invariant and not reading.by_rows and not first.ordered:
        first = one_lane(first, reading)
    first = launch.stage(within_registers(as_first_launch(first, problem, program), program))
    return replace(first, splits=_splits(reading, first, chip, invariant, problem.ragged > 0))


def _are_enough(programs: int, reading: Reading, stage: Stage, chip: Device) -> bool:
    """Whether so many programs keep the chip at work, or a second launch takes longer than more of them save."""
    if reading.by_rows and not stage.ordered and (not reading.few or is_row_of_a_program(reading)):
        return True
    if not reading.by_rows and reading.length <= UNSPLIT_COLUMN:
        return programs >= chip.sms
    each = ROW_WARPS // stage.num_warps if reading.by_rows and stage.ordered else 4
    return programs >= chip.sms * each - chip.sms // 4


def _are_groups(launch: FirstLaunch, reading: Reading) -> bool:
    """Whether results are walked over groups so close that lanes read their rows together, and eight rows each at least."""
    whole = launch.flat and launch.geometry.close_groups and not reading.by_rows
    return whole and reading.vector == 1 and reading.length >= 8 * GROUP_LANES


def _stage(reading: Reading, program: Program) -> Stage:
    if not program.algebra.commutative:
        return ordered_stage(reading)
    absorbs = program.absorb is not None
    fields = fields_of(program)
    if is_row_of_a_thread(reading):
        stage = row_of_a_thread(reading)
    elif (
        reading.by_rows and WALKED[0] <= reading.length <= WALKED[1] and reading.length & (reading.length - 1)
    ):
        stage = walked_rows_stage(reading)
    elif (
        reading.aligns
        and reading.vector < reading.full_vector <= reading.length
        and not has_few_halves(reading)
    ):
        reach = reading.length + reading.full_vector - 1
        stage = rows_stage(
            replace(reading, vector=reading.full_vector, length=reach), fields, absorbs, masked=True
        )
        stage = replace(stage, align=reading.full_vector)
    else:
        stage = (rows_stage if reading.by_rows else columns_stage)(reading, fields, absorbs)
    if fields >= MANY_FIELDS and not reading.by_rows:
        stage = replace(stage, unroll=min(stage.unroll, 2))
    stage = kept_in_threads(stage, reading, program)
    while stage.absorb and has_no_whole_tile(stage, reading):
        stage = kept_in_threads(with_half_the_lanes(stage), reading, program)
    return stage


def _splits(reading: Reading, stage: Stage, chip: Device, invariant: bool, ragged: bool) -> int:
    """How many programs share one result, so that every SM has work."""
    programs = 1 if invariant else math.ceil(reading.inner / stage.block_outputs) * reading.outer
    tiles = (reading.length - ragged) // stage.step - (stage.align > 1)
    if reading.by_rows:
        warps = WARPS_WANTED * (2 if stage.num_warps > 8 else 1) // (2 if stage.ordered else 1)
        wanted = warps * chip.sms // 132 // stage.num_warps
        light = stage.num_warps == 2 and stage.align == 1 and not stage.ordered
        if reading.bytes < (LARGE if light else EVICT_FIRST_BELOW):
            wanted = ONE_WAVE * chip.sms // stage.num_warps
    else:
        wanted = chip.sms * column_programs(reading, stage)
    if stage.shares and not invariant:
        splits = max(1, min(chip.sms * SHARING_SM_WARPS // stage.num_warps // programs, tiles))
    elif invariant and tiles:
        splits = max(1, min(INVARIANT_SPLITS, tiles // 16))
    elif tiles < 2 or _are_enough(programs, reading, stage, chip):
        return 1
    else:
        splits = max(1, min(wanted // programs, tiles))
    return whole_splits(tiles, splits)

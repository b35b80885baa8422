"""A launch of less than one program an SM takes as long as one of its programs: rows are read by more warps, or in parts.

A program whose part of a row is one tile has all loads on their way at once, and reads as fast as an SM does. One that walks
reads as fast as its warps do, tile after tile. With parts a second launch combines their states.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilefold.planner.candidates import fits_registers
from tilefold.planner.device import Device
from tilefold.planner.first_launch import FirstLaunch
from tilefold.planner.plan import Stage
from tilefold.planner.programs import programs_of
from tilefold.planner.rows import has_no_whole_tile
from tilefold.planner.sizes import MAX_WARPS, WARP, power_above, whole_splits
from tilefold.planner.thread_order import as_first_launch, kept_in_threads

# docs/experiments/planning.md#few-programs:
SM_BYTES, WARP_BYTES = 140e3, 4.2e3  # that an SM, or a warp that walks, reads in a microsecond
EMPTY_US = 1.94  # a launch of programs that read nothing
SECOND_US = 0.65  # a second launch that begins early
ROW_BYTES = 1 << 15  # of the inputs of one result, read in whole vectors: the least that was timed

# Not measured:
GAIN = 0.9  # of the time of the rules' tile: others are taken where they promise so much
PART_WARPS = 4  # of a program that reads a part


def with_more_at_work(launch: FirstLaunch, stage: Stage, device: Device) -> Stage:
    """The stage, or one whose programs take less where most SMs have none."""
    reading, problem = launch.reading, launch.problem
    if not reading.by_rows or stage.run < reading.full_vector or stage.ordered or stage.gathered:
        return stage
    if launch.kept_dims is not None or problem.bytes_read < ROW_BYTES * problem.outputs:
        return stage
    if programs_of(launch.geometry, stage).count(launch.geometry) >= device.sms:
        return stage
    others = [
        tile
        for tile in _tiles(launch, stage, device)
        if fits_registers(tile, reading, launch.program)
        and not (tile.absorb and has_no_whole_tile(tile, reading))
    ]
    least = min(others, key=lambda tile: program_us(launch, tile, device), default=stage)
    now, then = (program_us(launch, tile, device) for tile in (stage, least))
    return least if then <= GAIN * now else stage


def program_us(launch: FirstLaunch, stage: Stage, device: Device) -> float:
    """About what a launch takes whose programs each have an SM of their own, with the second one."""
    length, problem = launch.geometry.length, launch.problem
    part = math.ceil(length / stage.splits)
    size = part * stage.block_outputs * problem.bytes_read / (length * problem.outputs)
    rate = SM_BYTES if part <= stage.step else min(SM_BYTES, WARP_BYTES * stage.num_warps)
    second = SECOND_US if device.overlaps else EMPTY_US
    return EMPTY_US + size / rate + second * (stage.splits > 1)


def _tiles(launch: FirstLaunch, stage: Stage, device: Device) -> Iterator[Stage]:
    """A row by one program in one tile; then in parts of one tile each, as many as there are SMs for."""
    length, rows = launch.geometry.length, launch.geometry.outputs
    vectors = math.ceil((length + stage.align - 1) / stage.run)
    if stage.num_warps >= MAX_WARPS:  # else combining takes longer than reading, on one SM
        unroll = power_above(math.ceil(vectors / (stage.num_warps * WARP)))
        yield _tile(launch, stage, "rows", stage.num_warps, unroll)
    tile = _tile(launch, stage, "long_rows", PART_WARPS, launch.reading.loads)
    tiles = (length - (launch.geometry.ragged > 0)) // tile.step - (tile.align > 1)
    parts = whole_splits(tiles, max(1, min(tiles, device.sms // rows)))
    if parts > 1:
        yield tile.but(splits=parts)


def _tile(launch: FirstLaunch, stage: Stage, family: str, warps: int, unroll: int) -> Stage:
    lanes = warps * WARP
    made = Stage(family, 1, lanes, stage.run, unroll, 1, warps, align=stage.align)
    made = kept_in_threads(made, launch.reading, launch.program)
    return launch.stage(as_first_launch(made, launch.problem, launch.program))

"""Which first launch of a fold is taken: the one whose counted needs are least. Nothing is fitted, nothing is searched.

A launch needs

    memory   sectors that hold its inputs, each once, and its results; a piece in one row of memory costs some bytes more
    lanes    places of all tiles, masked ones too, some instructions each; a division a load where reduced dims do not merge
    turns    tiles of a program one after another, each a way to memory and back, in as many waves as its programs make

and takes about the root of the sum of their squares: they overlap, but not perfectly. A second launch adds its own turns.
Forms that make vectors whole come before others: a warp then asks for a quarter or an eighth as many pieces of memory.
docs/experiments/planning.md#counts has the choices timed on a GPU, and what other numbers would choose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilefold.planner.device import Device
from tilefold.planner.first_launch import FirstLaunch
from tilefold.planner.geometry import Geometry, unique_sectors
from tilefold.planner.plan import Stage
from tilefold.planner.programs import programs_of, tiling_of
from tilefold.planner.sizes import ONE_WAVE, SECTOR, WARP

ISSUED = (
    4 * 1980.0
)  # instructions of an SM in a microsecond: a limit of the hardware, four a clock at an H200's 1,980 MHz
COPIED = 0.89  # an H200's memory copies at this share of its data sheet (docs/experiments/folds.md#suite)

# docs/experiments/planning.md#counts:
ROW_BYTES = 32  # as a piece of memory costs more than its own bytes
PLACE, DIVISION = 12, 80  # instructions for a place of a lane, and to take a place among several dims apart
TURN_US = 0.7  # a way to memory and back, under load
# A form without whole vectors beside one that makes them whole, and rows together that make none whole.
NARROW = 1.25


def least_needed(tried: Sequence[tuple[FirstLaunch, Stage]], device: Device) -> int:
    """Which of these first launches with their tiles is taken: by number; the first one is the problem as it is."""
    whole = tried[0][0]

    def widens(launch: FirstLaunch) -> bool:
        return launch.reading.vector == launch.reading.full_vector > whole.reading.vector

    some = any(widens(launch) for launch, _ in tried)

    def factor(launch: FirstLaunch) -> float:
        together = launch.kept_dims is not None and launch.kept_dims.together > 1
        alike = len(launch.problem.reduced_dims) == len(whole.problem.reduced_dims)
        return (
            NARROW if launch is not whole and not widens(launch) and (some or (together and alike)) else 1.0
        )

    needed = [factor(launch) * needed_us(launch, stage, device) for launch, stage in tried]
    return needed.index(min(needed))


def needed_us(launch: FirstLaunch, stage: Stage, device: Device) -> float:
    """About what the plan that begins with this launch takes, beyond an empty launch."""
    geometry = launch.geometry
    grid = programs_of(geometry, stage)
    tiling = tiling_of(stage, grid, geometry.length, 1 if grid.splits > 2 else 0, geometry.ragged > 0)
    programs = grid.count(geometry)
    runs = tiling.full * stage.unroll + tiling.tail * tiling.tail_runs + tiling.head
    places = programs * stage.block_outputs * stage.run * stage.lanes * runs
    loads = places / (
        launch.reading.full_vector if stage.gathered or stage.align > 1 else launch.reading.vector
    )
    instructions = places * PLACE + (loads * DIVISION if geometry.deep else 0)
    states = 0 if stage.splits == 1 and launch.kept_dims is None else geometry.outputs * stage.splits
    state_bytes, result_bytes = launch.sizes
    written = states * state_bytes if states else geometry.outputs * result_bytes
    piece = max(SECTOR, piece_bytes(geometry, stage))
    memory = (SECTOR * unique_sectors(geometry) + written) * (1 + ROW_BYTES / piece)
    first_us = math.hypot(
        memory / (COPIED * device.gb_per_s * 1e3),
        instructions / WARP / (ISSUED * device.sms),
        TURN_US * _turns(programs, stage, tiling.full + tiling.tail + (tiling.head > 0), device),
    )
    return first_us + (TURN_US * _second_turns(launch, stage, states, device) if states else 0.0)


def _second_turns(launch: FirstLaunch, first: Stage, states: int, device: Device) -> float:
    """Turns of the launch that folds the states, and its begin."""
    second, results = launch.second(first.splits), launch.whole.outputs
    programs = math.ceil(results / second.block_outputs)
    return 1 + _turns(programs, second, math.ceil(states / results / second.step), device)


def _turns(programs: int, stage: Stage, tiles: int, device: Device) -> float:
    """Tiles one after another, those that are on their way together as one, and the begin of a program, of all waves."""
    at_once = max(1, ONE_WAVE // stage.num_warps) * device.sms
    together = 2 if stage.prefetch else max(1, stage.num_stages - 1)
    return max(1.0, programs / at_once) * (tiles / together + 1)


def piece_bytes(geometry: Geometry, stage: Stage) -> int:
    """Bytes in one piece that a tile of one program reads."""
    operand = geometry.operands[0]
    elements, results = min(stage.step, geometry.length), min(stage.block_outputs, geometry.width)
    if len(geometry.flat) > 1 and operand.outer[-1] != geometry.flat[-1]:
        results = min(results, geometry.flat[-1])  # groups of results lie apart
    if geometry.close_groups and not (stage.gathered or stage.ordered):
        row = elements * operand.inner  # all sectors of a group's elements are read
    elif operand.inner == 1:
        row = elements * results if operand.along == elements else elements
    elif operand.along == 1:
        row = elements * results if operand.inner == results else results
    else:
        row = 1
    return row * operand.itemsize

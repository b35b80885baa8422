"""Which tile folds columns: results that are neighbours in memory."""

from __future__ import annotations

import math
from dataclasses import replace

from tilefold.planner.plan import Stage
from tilefold.planner.reading import Reading
from tilefold.planner.sizes import (
    BLOCKS,
    LARGE,
    MAX_WARPS,
    ONE_WAVE,
    SHORT_COLUMN,
    WARP,
    power_above,
    power_below,
)

NARROW_COLUMNS = 8  # vectors: 128 bytes of neighbouring results, an L2 line by definition
GROUP_LANES = 4  # down the columns of a group (docs/experiments/folds.md#drawn)


def columns_stage(reading: Reading, fields: int, absorbs: bool) -> Stage:
    """Results are contiguous: a thread takes a vector of neighbouring results and walks down their columns."""
    narrow = reading.vector < reading.full_vector
    wide = reading.outer * math.ceil(reading.inner / (4 * WARP * reading.vector))
    if reading.length <= 8:
        # A thread has its columns to itself (docs/experiments/planning.md#counts).
        warps = max(1, min(4, power_above(reading.inner) // (WARP * reading.vector)))
        return replace(_column_tile(reading, warps, 4 * WARP, 8), unroll=power_above(reading.length))
    if reading.length <= SHORT_COLUMN and wide >= 8 * BLOCKS:
        return _column_tile(reading, 4, 4 * WARP, 16) if narrow else _short_columns(reading, fields)
    if narrow:
        return _narrow_columns(reading)
    blocks = reading.outer * math.ceil(reading.inner / (NARROW_COLUMNS * reading.full_vector))
    if blocks >= 8 * BLOCKS and reading.length <= SHORT_COLUMN:
        return _fewer_short_columns(reading)
    if reading.bytes >= LARGE and reading.operands == 1:
        piped = _piped_columns(reading, absorbs)
        if piped is not None:
            return piped
    if blocks >= 8 * BLOCKS:
        width = NARROW_COLUMNS if blocks >= 16 * BLOCKS else 2 * NARROW_COLUMNS
        return replace(_column_tile(reading, 4, width, 8), prefetch=True)
    if (
        blocks <= 2
        and reading.bytes >= LARGE
        and (reading.full_vector <= 4 or reading.inner < 4 * reading.full_vector)
    ):
        # Masks and a second field take registers: eight loads of four words then spill.
        cut = blocks > 1 and reading.inner % (NARROW_COLUMNS * reading.vector) > 0
        most = 4 if fields > 1 and cut and reading.full_vector <= 4 else 8
        return _column_tile(reading, MAX_WARPS if reading.full_vector > 4 else 8, NARROW_COLUMNS, most)
    if reading.bytes < LARGE // 2 and blocks * reading.element <= 32:
        return _small_columns(reading, fields, absorbs)
    if reading.full_vector <= 4:
        width = 2 * NARROW_COLUMNS if reading.bytes >= LARGE // 2 else NARROW_COLUMNS
        return replace(_column_tile(reading, 4, width, 16 if fields > 2 else 8), prefetch=fields <= 2)
    width = NARROW_COLUMNS if reading.lines or reading.bytes < LARGE // 2 else 2 * NARROW_COLUMNS
    exponentials = absorbs and fields == 2
    if exponentials and reading.bytes >= LARGE:
        return _column_tile(reading, 4, width, 4)
    return replace(_column_tile(reading, 2, width, 8), prefetch=not exponentials)


def group_columns(reading: Reading) -> Stage:
    """Groups of columns whose rows lie close (`Geometry.close_groups`): four lanes walk a column, and what they read at a
    time is a line or two. So a load of a warp reads eight columns' lines, not thirty-two's."""
    return _column_tile(reading, GROUP_LANES, WARP, 16)


def _short_columns(reading: Reading, fields: int) -> Stage:
    """So many short columns that a thread walks its own: a few loads on their way, more only where states are heavy."""
    words = reading.full_vector <= 4
    if fields > 2:
        return _column_tile(reading, 4, 4 * WARP, 16)
    most = 4 if not words else 8 if fields == 1 else 2
    return replace(_column_tile(reading, 4, 4 * WARP, most), prefetch=fields == 2 and not words)


def _fewer_short_columns(reading: Reading) -> Stage:
    """About a thousand programs of two warps; lanes share a column only where there are too few columns for that."""
    lanes = power_below(max(1, 8 * BLOCKS * 2 * WARP * reading.vector // (reading.inner * reading.outer)))
    lanes = lanes if lanes > 2 else 1
    most = min(16 if lanes == 1 else 8, power_below(max(1, reading.length // (3 * lanes))))
    return replace(_column_tile(reading, 2, 2 * WARP // min(lanes, NARROW_COLUMNS), most), prefetch=True)


def _piped_columns(reading: Reading, absorbs: bool) -> Stage | None:
    """Tiles of 4 KB a warp that arrive through shared memory while others are folded, about 96 KB on their way an SM."""
    blocks = reading.outer * math.ceil(reading.inner / (2 * NARROW_COLUMNS * reading.vector))
    words = reading.full_vector <= 4
    if blocks < BLOCKS // 4:  # few columns: four warps down each
        if not words or reading.inner < 2 * NARROW_COLUMNS * reading.vector or (blocks > 2 and reading.lines):
            return None
        return replace(_column_tile(reading, 4, 2 * NARROW_COLUMNS, 8), num_stages=3)
    if not (words or reading.lines or absorbs):
        return None
    whole = 4 * BLOCKS <= blocks < 8 * BLOCKS  # not split: two warps do what two programs would
    stages = 3 if words or reading.lines else 4
    return replace(_column_tile(reading, 2 if whole else 1, 2 * NARROW_COLUMNS, 8), num_stages=stages)


def _narrow_columns(reading: Reading) -> Stage:
    """Addresses that no vector divides: four warps read 64 loads of results side by side, sixteen down each column.

    Short columns that are few are one launch: more lanes read a column, in place of a second launch.
    """
    blocks = reading.outer * math.ceil(reading.inner / (2 * WARP * reading.vector))
    if reading.length <= SHORT_COLUMN and blocks < 4 * BLOCKS:
        return _column_tile(reading, 8, WARP if blocks < 2 * BLOCKS else 2 * WARP, 16)
    return _column_tile(reading, 4, 2 * WARP, 8 if reading.inner < 4 * WARP else 16)


def _small_columns(reading: Reading, fields: int, absorbs: bool) -> Stage:
    """A fold that is over in microseconds, over few columns: programs of one warp, many of them."""
    tile = _column_tile(reading, 1, NARROW_COLUMNS, 8)
    if reading.full_vector > 4 and absorbs and fields == 2:
        return replace(tile, num_stages=3)
    return replace(tile, prefetch=absorbs or reading.full_vector <= 4)


def _column_tile(reading: Reading, warps: int, width: int, most: int) -> Stage:
    """`width` loads of neighbouring results side by side, the other threads down the columns, `most` elements each."""
    threads = warps * WARP
    outputs = min(power_above(reading.inner), width * reading.vector)
    lanes = max(1, min(threads * reading.vector // outputs, power_below(reading.length)))
    unroll = max(1, min(most, power_below(reading.length // lanes)))
    return Stage("columns", outputs, lanes, 1, unroll, 1, warps)


def column_programs(reading: Reading, stage: Stage) -> int:
    """Programs an SM when columns are split: as many as keep its loads in flight, in one wave."""
    if stage.num_warps > 8:
        return 1 if stage.absorb else 2
    if reading.vector < reading.full_vector:
        return 16 if reading.inner < 4 * WARP else ONE_WAVE // stage.num_warps
    if reading.bytes >= LARGE and stage.num_stages > 1:
        return 8 // stage.num_warps if stage.num_stages == 3 else 4
    if reading.bytes < LARGE // 2 and stage.num_warps == 1:
        return 8 if stage.absorb and reading.full_vector > 4 else 16
    return 4 if stage.num_warps == 8 or (reading.full_vector <= 4 and reading.bytes < LARGE // 2) else 8


def one_lane(stage: Stage, reading: Reading) -> Stage:
    """Each column walked by one lane, so that threads' layout, which neighbours decide, cannot change the order."""
    return replace(
        stage,
        block_outputs=stage.num_warps * WARP * reading.vector,
        lanes=1,
        unroll=min(16, power_below(reading.length)),
        in_order=True,
        num_stages=1,
    )

"""Tiles for folds whose results are neighbours in memory."""

from __future__ import annotations

import math
from dataclasses import replace

from tilefold.planner.plan import Stage
from tilefold.planner.view import (
    BLOCKS,
    LARGE,
    MAX_WARPS,
    ONE_WAVE,
    SHORT_COLUMN,
    WARP,
    View,
    power_above,
    power_below,
)

NARROW_COLUMNS = 8  # vectors: 128 bytes of neighbouring results, an L2 line by definition
GROUP_LANES = 4  # down the columns of a group (docs/experiments/folds-drawn.md)


def columns_stage(view: View, fields: int, absorbs: bool) -> Stage:
    """Results are contiguous: a thread takes a vector of neighbouring results and walks down their columns."""
    narrow = view.vector < view.full_vector
    wide = view.outer * math.ceil(view.inner / (4 * WARP * view.vector))
    if view.length <= 8:
        # A thread has its columns to itself (docs/experiments/forms-by-counts.md).
        warps = max(1, min(4, power_above(view.inner) // (WARP * view.vector)))
        return replace(_column_tile(view, warps, 4 * WARP, 8), unroll=power_above(view.length))
    if view.length <= SHORT_COLUMN and wide >= 8 * BLOCKS:
        return _column_tile(view, 4, 4 * WARP, 16) if narrow else _short_columns(view, fields)
    if narrow:
        return _narrow_columns(view)
    blocks = view.outer * math.ceil(view.inner / (NARROW_COLUMNS * view.full_vector))
    if blocks >= 8 * BLOCKS and view.length <= SHORT_COLUMN:
        return _fewer_short_columns(view)
    if view.bytes >= LARGE and view.operands == 1:
        piped = _piped_columns(view, absorbs)
        if piped is not None:
            return piped
    if blocks >= 8 * BLOCKS:
        width = NARROW_COLUMNS if blocks >= 16 * BLOCKS else 2 * NARROW_COLUMNS
        return replace(_column_tile(view, 4, width, 8), prefetch=True)
    if blocks <= 2 and view.bytes >= LARGE and (view.full_vector <= 4 or view.inner < 4 * view.full_vector):
        # Masks and a second field take registers: eight loads of four words then spill.
        cut = blocks > 1 and view.inner % (NARROW_COLUMNS * view.vector) > 0
        most = 4 if fields > 1 and cut and view.full_vector <= 4 else 8
        return _column_tile(view, MAX_WARPS if view.full_vector > 4 else 8, NARROW_COLUMNS, most)
    if view.bytes < LARGE // 2 and blocks * view.element <= 32:
        return _small_columns(view, fields, absorbs)
    if view.full_vector <= 4:
        width = 2 * NARROW_COLUMNS if view.bytes >= LARGE // 2 else NARROW_COLUMNS
        return replace(_column_tile(view, 4, width, 16 if fields > 2 else 8), prefetch=fields <= 2)
    width = NARROW_COLUMNS if view.lines or view.bytes < LARGE // 2 else 2 * NARROW_COLUMNS
    exponentials = absorbs and fields == 2
    if exponentials and view.bytes >= LARGE:
        return _column_tile(view, 4, width, 4)
    return replace(_column_tile(view, 2, width, 8), prefetch=not exponentials)


def group_columns(view: View) -> Stage:
    """Groups of columns whose rows lie close (`Geometry.close_groups`): four lanes walk a column, and what they read at a
    time is a line or two. So a load of a warp reads eight columns' lines, not thirty-two's."""
    return _column_tile(view, GROUP_LANES, WARP, 16)


def _short_columns(view: View, fields: int) -> Stage:
    """So many short columns that a thread walks its own: a few loads on their way, more only where states are heavy."""
    words = view.full_vector <= 4
    if fields > 2:
        return _column_tile(view, 4, 4 * WARP, 16)
    most = 4 if not words else 8 if fields == 1 else 2
    return replace(_column_tile(view, 4, 4 * WARP, most), prefetch=fields == 2 and not words)


def _fewer_short_columns(view: View) -> Stage:
    """About a thousand programs of two warps; lanes share a column only where there are too few columns for that."""
    lanes = power_below(max(1, 8 * BLOCKS * 2 * WARP * view.vector // (view.inner * view.outer)))
    lanes = lanes if lanes > 2 else 1
    most = min(16 if lanes == 1 else 8, power_below(max(1, view.length // (3 * lanes))))
    return replace(_column_tile(view, 2, 2 * WARP // min(lanes, NARROW_COLUMNS), most), prefetch=True)


def _piped_columns(view: View, absorbs: bool) -> Stage | None:
    """Tiles of 4 KB a warp that arrive through shared memory while others are folded, about 96 KB on their way an SM."""
    blocks = view.outer * math.ceil(view.inner / (2 * NARROW_COLUMNS * view.vector))
    words = view.full_vector <= 4
    if blocks < BLOCKS // 4:  # few columns: four warps down each
        if not words or view.inner < 2 * NARROW_COLUMNS * view.vector or (blocks > 2 and view.lines):
            return None
        return replace(_column_tile(view, 4, 2 * NARROW_COLUMNS, 8), num_stages=3)
    if not (words or view.lines or absorbs):
        return None
    whole = 4 * BLOCKS <= blocks < 8 * BLOCKS  # not split: two warps do what two programs would
    stages = 3 if words or view.lines else 4
    return replace(_column_tile(view, 2 if whole else 1, 2 * NARROW_COLUMNS, 8), num_stages=stages)


def _narrow_columns(view: View) -> Stage:
    """Addresses that no vector divides: four warps read 64 loads of results side by side, sixteen down each column.

    Short columns that are few are one launch: more lanes read a column, in place of a second launch.
    """
    blocks = view.outer * math.ceil(view.inner / (2 * WARP * view.vector))
    if view.length <= SHORT_COLUMN and blocks < 4 * BLOCKS:
        return _column_tile(view, 8, WARP if blocks < 2 * BLOCKS else 2 * WARP, 16)
    return _column_tile(view, 4, 2 * WARP, 8 if view.inner < 4 * WARP else 16)


def _small_columns(view: View, fields: int, absorbs: bool) -> Stage:
    """A fold that is over in microseconds, over few columns: programs of one warp, many of them."""
    tile = _column_tile(view, 1, NARROW_COLUMNS, 8)
    if view.full_vector > 4 and absorbs and fields == 2:
        return replace(tile, num_stages=3)
    return replace(tile, prefetch=absorbs or view.full_vector <= 4)


def _column_tile(view: View, warps: int, width: int, most: int) -> Stage:
    """`width` loads of neighbouring results side by side, the other threads down the columns, `most` elements each."""
    threads = warps * WARP
    outputs = min(power_above(view.inner), width * view.vector)
    lanes = max(1, min(threads * view.vector // outputs, power_below(view.length)))
    unroll = max(1, min(most, power_below(view.length // lanes)))
    return Stage("columns", outputs, lanes, 1, unroll, 1, warps)


def column_programs(view: View, stage: Stage) -> int:
    """Programs an SM when columns are split: as many as keep its loads in flight, in one wave."""
    if stage.num_warps > 8:
        return 1 if stage.absorb else 2
    if view.vector < view.full_vector:
        return 16 if view.inner < 4 * WARP else ONE_WAVE // stage.num_warps
    if view.bytes >= LARGE and stage.num_stages > 1:
        return 8 // stage.num_warps if stage.num_stages == 3 else 4
    if view.bytes < LARGE // 2 and stage.num_warps == 1:
        return 8 if stage.absorb and view.full_vector > 4 else 16
    return 4 if stage.num_warps == 8 or (view.full_vector <= 4 and view.bytes < LARGE // 2) else 8


def one_lane(stage: Stage, view: View) -> Stage:
    """Each column walked by one lane, so that threads' layout, which neighbours decide, cannot change the order."""
    return replace(
        stage,
        block_outputs=stage.num_warps * WARP * view.vector,
        lanes=1,
        unroll=min(16, power_below(view.length)),
        in_order=True,
        num_stages=1,
    )

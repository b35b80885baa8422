"""Tiles for folds whose results are neighbours in memory."""

from __future__ import annotations

import math
from dataclasses import replace

from tilefold.planner.plan import Stage
from tilefold.planner.view import (
    BLOCKS,
    LARGE,
    MAX_WARPS,
    SHORT_COLUMN,
    SMALL_AXIS,
    WARP,
    View,
    power_above,
    power_below,
)

NARROW_COLUMNS = 8  # vectors: 128 bytes of neighbouring results, an L2 line


def columns_stage(view: View, fields: int, absorbs: bool) -> Stage:
    """Results are contiguous: a thread takes a vector of neighbouring results and walks down their columns."""
    narrow = view.vector < view.full_vector
    wide = view.outer * math.ceil(view.kept / (4 * WARP * view.vector))
    if view.length <= SHORT_COLUMN and (wide >= 8 * BLOCKS or view.length <= 8 or narrow):
        if view.length <= 8:
            return replace(_column_tile(view, 4, 4 * WARP, 8), unroll=power_above(view.length))
        if narrow:
            return (
                _column_tile(view, 4, 4 * WARP, 16)
                if wide >= 8 * BLOCKS
                else _column_tile(view, 4, 2 * WARP, 8)
            )
        return _column_tile(view, 4, 4 * WARP, 4 if absorbs and view.length <= SMALL_AXIS else 16)
    if narrow:
        return _column_tile(view, 4, 2 * WARP, 8)
    blocks = view.outer * math.ceil(view.kept / (NARROW_COLUMNS * view.full_vector))
    if blocks >= 8 * BLOCKS:
        if view.length <= SHORT_COLUMN:
            return _column_tile(
                view, 4, NARROW_COLUMNS if absorbs else 2 * NARROW_COLUMNS, 16 if absorbs else 8
            )
        width = NARROW_COLUMNS if blocks >= 16 * BLOCKS else 2 * NARROW_COLUMNS
        return replace(_column_tile(view, 4, width, 8), prefetch=True)
    if blocks <= 2 and view.bytes >= LARGE and (view.full_vector <= 4 or view.kept < 4 * view.full_vector):
        return _column_tile(view, MAX_WARPS if view.full_vector > 4 else 8, NARROW_COLUMNS, 8)
    if view.full_vector <= 4:
        width = 2 * NARROW_COLUMNS if view.bytes >= LARGE // 2 else NARROW_COLUMNS
        return replace(_column_tile(view, 4, width, 16 if fields > 2 else 8), prefetch=fields <= 2)
    width = NARROW_COLUMNS if view.lines or view.bytes < LARGE // 2 else 2 * NARROW_COLUMNS
    small_exponentials = absorbs and fields == 2
    if small_exponentials and view.bytes >= LARGE:
        return _column_tile(view, 4, width, 4)
    tile = _column_tile(view, 1 if view.bytes < LARGE // 2 and blocks < 8 else 2, width, 8)
    return replace(tile, prefetch=not small_exponentials)


def _column_tile(view: View, warps: int, width: int, most: int) -> Stage:
    """`width` loads of neighbouring results side by side, the other threads down the columns, `most` elements each."""
    threads = warps * WARP
    kept = min(power_above(view.kept), width * view.vector)
    lanes = max(1, min(threads * view.vector // kept, power_below(view.length)))
    unroll = max(1, min(most, power_below(view.length // lanes)))
    return Stage("columns", kept, lanes, 1, unroll, 1, warps)


def column_programs(view: View, stage: Stage) -> int:
    """Programs a core when columns are split: as many as keep its loads in flight, in one wave."""
    if stage.num_warps > 8:
        return 1 if stage.absorb else 2
    if view.vector < view.full_vector:
        return 16
    return 4 if stage.num_warps == 8 or (view.full_vector <= 4 and view.bytes < LARGE // 2) else 8


def one_lane(stage: Stage, view: View) -> Stage:
    """Each column walked by one lane, so that threads' layout, which neighbours decide, cannot change the order."""
    return replace(
        stage,
        block_kept=stage.num_warps * WARP * view.vector,
        lanes=1,
        unroll=min(16, power_below(view.length)),
        in_order=True,
    )

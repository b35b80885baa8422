"""Tiles for folds in the elements' order: a lane's elements are neighbours, lanes are combined in order, once a tile."""

from __future__ import annotations

import math

from tilefold.planner.plan import Stage
from tilefold.planner.view import SMALL_AXIS, WARP, View, power_above, power_below
from tilefold.planner.walk import edges

# docs/experiments/ordered-folds.md:
LANE_BYTES = 64  # neighbours of a lane in a tile
WARPS = 4  # of programs whose lanes need not be combined
SHARING_WARPS, SHARED_RUNS = 8, 8  # of a program whose warps share columns; rows of a lane at a time
NARROW_RUNS = 16  # rows of a lane at a time, where a row of columns is less than a warp's loads
KNOWN_LOADS = 9  # of a row that a thread reads by loads of less than a vector
KNOWN_ROW = 17  # elements of a row that it reads so one by one
KNOWN_RUNS = 8  # of such a row in a tile
MORE_PLACES = 1.2  # than a thread by itself has: with more, mostly masked, lanes that share a row are slower

# 32-bit words of partial states that a thread holds at a time (not measured: so nothing spills).
PARTIAL_WORDS = 64


def ordered_stage(view: View) -> Stage:
    """Rows: a warp a row, a part of one, or several. Columns: threads side by side, others down the columns.

    Programs of rows have one warp: of more, Triton shares lanes that are combined among warps, which then wait for each other
    in every tile. A row is more than one tile, so that only its ends are masked.
    """
    if not view.by_rows:
        return _columns_in_order(view)
    run, align = min(view.vector, power_below(view.length)), 1
    if is_known_row(view):
        warps, runs = WARPS, power_below(min(KNOWN_RUNS, math.ceil(view.length / run)))
        return Stage(
            "ordered", min(warps * WARP, power_above(view.inner)), 1, run, runs, 1, warps, ordered=True
        )
    if view.aligns and view.vector < view.full_vector <= view.length:
        run = align = view.full_vector
    runs = power_below(view.length // (run if align == 1 else 2 * run))
    steps = min(max(1, LANE_BYTES // (view.element * run)), 1 << (runs.bit_length() // 2))
    if align == 1 and run * runs == view.length and view.length * view.element <= LANE_BYTES:
        steps = runs  # a lane has the whole row (docs/experiments/forms-by-counts.md)
    lanes = min(WARP, max(1, runs // steps))
    tile, alone = (
        Stage("", 1, n, run, min(steps, m), 1, 1, align=align) for n, m in ((lanes, steps), (1, 2))
    )
    if align > 1 and _places(tile, view.length) > MORE_PLACES * _places(alone, view.length):
        lanes, steps = 1, alone.unroll
    if run == align == view.vector == 1 and 0 < view.piece < lanes:
        lanes = power_above(view.piece)  # rows of pieces apart: a load takes several rows' pieces
    warps = WARPS if lanes == 1 else 1
    rows = min(warps * WARP // lanes, power_above(view.inner))
    return Stage("ordered", rows, lanes, run, steps, 1, warps, ordered=True, align=align)


def _places(tile: Stage, length: int) -> int:
    """Places of all tiles of a row, masked ones too."""
    runs = tile.run * tile.lanes
    head, has_full, tail = edges(tile, length)
    whole = runs * head + max(0, length - runs * head) // tile.step * tile.step * (has_full > 0)
    rest = length + tile.align - 1 - whole
    return whole + (math.ceil(rest / (runs * tail)) * runs * tail if tail else 0)


def is_known_row(view: View) -> bool:
    """Whether a row is so few loads of less than a vector that a thread reads it by these: no element is masked then."""
    loads = math.ceil(view.length / view.vector)
    narrow = view.by_rows and view.vector < view.full_vector and view.length <= SMALL_AXIS
    return narrow and (loads <= KNOWN_LOADS or view.length <= KNOWN_ROW)


def _columns_in_order(view: View) -> Stage:
    """Results are neighbours. Where vectors are whole, a program's warps share its columns' elements, combined once."""
    steps = SHARED_RUNS if view.operands == 1 else SHARED_RUNS // 2
    if view.vector == view.full_vector and view.length >= 2 * SHARING_WARPS * steps:
        outputs = min(power_above(view.inner), WARP * view.vector)
        lanes = min(SHARING_WARPS * WARP * view.vector // outputs, power_below(view.length // (2 * steps)))
        warps = max(1, outputs * lanes // (WARP * view.vector))
        return Stage("ordered", outputs, lanes, 1, steps, 1, warps, ordered=True, shares=lanes > 1)
    warps = 1 if view.inner <= WARP * view.vector else 2
    outputs = min(power_above(view.inner), warps * WARP * view.vector)
    lanes = max(1, warps * WARP * view.vector // outputs)
    lanes = min(lanes, power_below(max(1, view.length // 4)))
    if lanes > 1 and view.operands == 1 and view.length >= 2 * lanes * NARROW_RUNS:
        return Stage("ordered", outputs, lanes, 1, NARROW_RUNS, 1, warps, ordered=True, shares=True)
    steps = max(1, min(8, power_below(view.length // lanes)))
    return Stage("ordered", outputs, lanes, 1, steps, 1, warps, ordered=True)


def partials_in_order(outputs: int, splits: int, words: int) -> Stage:
    """The second launch: all splits of some results in one tile where they fit. `words` are 32-bit words of a state."""
    lanes = min(power_above(splits), 256)
    steps = power_above(math.ceil(splits / lanes))
    together = min(8, power_above(outputs))
    held = words * lanes * steps // WARP  # of one result, were there one warp
    warps = WARPS if held * together <= WARPS * PARTIAL_WORDS else 2 * WARPS
    together = min(together, power_below(max(1, warps * PARTIAL_WORDS // held)) if held else together)
    steps = min(steps, max(1, power_below(warps * WARP * PARTIAL_WORDS // (words * lanes))))
    return Stage("partials", together, lanes, 1, steps, 1, warps, ordered=True, evict_first=False)

"""Tiles for folds in the elements' order: a lane's elements are neighbours, lanes meet in order, once a tile."""

from __future__ import annotations

import math

from tilefold.planner.plan import Stage
from tilefold.planner.view import WARP, View, power_above, power_below

LANE_BYTES = 64  # neighbours of a lane in a tile
WARPS = 4  # of programs whose lanes need not meet
SHARING_WARPS, SHARED_RUNS = 8, 4  # of a program whose warps share columns; rows of a lane at a time
PARTIAL_WORDS = 64  # 32-bit words of partial states that a thread holds at a time


def ordered_stage(view: View) -> Stage:
    """Rows: a warp a row, a part of one, or several. Columns: threads side by side, others down the columns.

    Programs of rows have one warp: of more, Triton shares lanes that meet among warps, which then wait for each other in
    every tile.
    """
    if not view.by_rows:
        return _columns_in_order(view)
    run, align = min(view.vector, power_below(view.length)), 1
    if view.aligns and view.vector < view.full_vector <= view.length:
        run = align = view.full_vector
    steps = max(1, min(LANE_BYTES // (view.element * run), power_below(math.ceil(view.length / run))))
    lanes = min(WARP, power_above(math.ceil(view.length / (run * steps))))
    warps = WARPS if lanes == 1 else 1
    rows = min(warps * WARP // lanes, power_above(view.inner))
    return Stage("ordered", rows, lanes, run, steps, 1, warps, ordered=True, align=align)


def _columns_in_order(view: View) -> Stage:
    """Results are neighbours. Where vectors are whole, warps share the elements of one program's columns and meet once."""
    whole = view.vector == view.full_vector
    warps = SHARING_WARPS if whole and view.length >= SHARING_WARPS * SHARED_RUNS else 2
    if view.inner <= WARP * view.vector and not whole:
        warps = 1
    outputs = min(power_above(view.inner), (1 if warps == SHARING_WARPS else warps) * WARP * view.vector)
    lanes = max(1, warps * WARP * view.vector // outputs)
    lanes = min(lanes, power_below(max(1, view.length // 4)))
    steps = max(1, min(SHARED_RUNS if warps == SHARING_WARPS else 8, power_below(view.length // lanes)))
    shares = lanes > 1 and view.length >= 2 * lanes * steps
    return Stage("ordered", outputs, lanes, 1, steps, 1, warps, ordered=True, shares=shares)


def partials_in_order(outputs: int, splits: int, words: int) -> Stage:
    """The second launch: all splits of some results in one tile where they fit. `words` are 32-bit words of a state."""
    lanes = min(power_above(splits), 256)
    steps = power_above(math.ceil(splits / lanes))
    together = min(8, power_above(outputs))
    held = words * lanes * steps // WARP  # of one result, were there one warp
    warps = WARPS if held * together <= WARPS * PARTIAL_WORDS else 2 * WARPS
    together = min(together, power_below(warps * PARTIAL_WORDS // held) if held else together)
    return Stage("partials", together, lanes, 1, steps, 1, warps, ordered=True, evict_first=False)

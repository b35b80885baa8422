"""Which tile folds in the elements' order: a lane's elements are neighbours, lanes are combined in order, once a tile."""

from __future__ import annotations

import math

from tilefold.planner.plan import Stage
from tilefold.planner.programs import edges
from tilefold.planner.reading import Reading
from tilefold.planner.sizes import SMALL_AXIS, WARP, power_above, power_below

# docs/experiments/folds.md#ordered:
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


def ordered_stage(reading: Reading) -> Stage:
    """Rows: a warp a row, a part of one, or several. Columns: threads side by side, others down the columns.

    Programs of rows have one warp: of more, Triton shares lanes that are combined among warps, which then wait for each other
    in every tile. A row is more than one tile, so that only its ends are masked.
    """
    if not reading.by_rows:
        return _columns_in_order(reading)
    run, align = min(reading.vector, power_below(reading.length)), 1
    if is_known_row(reading):
        warps, runs = WARPS, power_below(min(KNOWN_RUNS, math.ceil(reading.length / run)))
        return Stage(
            "ordered", min(warps * WARP, power_above(reading.inner)), 1, run, runs, 1, warps, ordered=True
        )
    if reading.aligns and reading.vector < reading.full_vector <= reading.length:
        run = align = reading.full_vector
    runs = power_below(reading.length // (run if align == 1 else 2 * run))
    steps = min(max(1, LANE_BYTES // (reading.element * run)), 1 << (runs.bit_length() // 2))
    if align == 1 and run * runs == reading.length and reading.length * reading.element <= LANE_BYTES:
        steps = runs  # a lane has the whole row (docs/experiments/planning.md#counts)
    lanes = min(WARP, max(1, runs // steps))
    tile, alone = (
        Stage("", 1, n, run, min(steps, m), 1, 1, align=align) for n, m in ((lanes, steps), (1, 2))
    )
    if align > 1 and _places(tile, reading.length) > MORE_PLACES * _places(alone, reading.length):
        lanes, steps = 1, alone.unroll
    if run == align == reading.vector == 1 and 0 < reading.piece < lanes:
        lanes = power_above(reading.piece)  # rows of pieces apart: a load takes several rows' pieces
    warps = WARPS if lanes == 1 else 1
    rows = min(warps * WARP // lanes, power_above(reading.inner))
    return Stage("ordered", rows, lanes, run, steps, 1, warps, ordered=True, align=align)


def _places(tile: Stage, length: int) -> int:
    """Places of all tiles of a row, masked ones too."""
    runs = tile.run * tile.lanes
    head, has_full, tail = edges(tile, length)
    whole = runs * head + max(0, length - runs * head) // tile.step * tile.step * (has_full > 0)
    rest = length + tile.align - 1 - whole
    return whole + (math.ceil(rest / (runs * tail)) * runs * tail if tail else 0)


def is_known_row(reading: Reading) -> bool:
    """Whether a row is so few loads of less than a vector that a thread reads it by these: no element is masked then."""
    loads = math.ceil(reading.length / reading.vector)
    narrow = reading.by_rows and reading.vector < reading.full_vector and reading.length <= SMALL_AXIS
    return narrow and (loads <= KNOWN_LOADS or reading.length <= KNOWN_ROW)


def _columns_in_order(reading: Reading) -> Stage:
    """Results are neighbours. Where vectors are whole, a program's warps share its columns' elements, combined once."""
    steps = SHARED_RUNS if reading.operands == 1 else SHARED_RUNS // 2
    if reading.vector == reading.full_vector and reading.length >= 2 * SHARING_WARPS * steps:
        outputs = min(power_above(reading.inner), WARP * reading.vector)
        lanes = min(
            SHARING_WARPS * WARP * reading.vector // outputs, power_below(reading.length // (2 * steps))
        )
        warps = max(1, outputs * lanes // (WARP * reading.vector))
        return Stage("ordered", outputs, lanes, 1, steps, 1, warps, ordered=True, shares=lanes > 1)
    warps = 1 if reading.inner <= WARP * reading.vector else 2
    outputs = min(power_above(reading.inner), warps * WARP * reading.vector)
    lanes = max(1, warps * WARP * reading.vector // outputs)
    lanes = min(lanes, power_below(max(1, reading.length // 4)))
    if lanes > 1 and reading.operands == 1 and reading.length >= 2 * lanes * NARROW_RUNS:
        return Stage("ordered", outputs, lanes, 1, NARROW_RUNS, 1, warps, ordered=True, shares=True)
    steps = max(1, min(8, power_below(reading.length // lanes)))
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

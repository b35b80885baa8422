"""Tiles for folds whose elements are neighbours in memory, and for folds in the elements' order."""

from __future__ import annotations

import math

from tilefold.planner.plan import Stage
from tilefold.planner.settled import HEAVY_FIELDS
from tilefold.planner.view import (
    BLOCKS,
    EVICT_FIRST_BELOW,
    LINE_BYTES,
    LOADS,
    MAX_WARPS,
    SHORT_COLUMN,
    SMALL_AXIS,
    WARP,
    View,
    power_above,
    power_below,
)
from tilefold.planner.walk import edges

# docs/experiments/walks-of-results.md:
WALKED = (9, 2048)  # elements: rows between, no power of two long, are walked in small tiles
ALIGNED_ROW = 32  # words: from here on whole vectors from anywhere read such rows faster than single words do
LONG_ROW = 1024  # elements: from here on a warp walks such a row by itself

ROW_LOADS = 4  # of a row that one thread reads (docs/experiments/constant-lengths.md)
# Vectors: up to here a warp or two read a row at once, of whole rows below (docs/experiments/rows-in-one-tile.md).
MEDIUM_ROW = 256

# Bytes of a row, and of all rows: one program reads each in one launch (docs/experiments/second-launches.md and
# docs/experiments/forms-by-counts.md).
WHOLE_ROW, FEW_BYTES = 1 << 17, 24_000_000

# No record: set by sweeps on an H200, 2026-11-21, that were not kept.
NARROW_ROW = 128  # elements: up to here such rows are read an element at a time where no vector divides them
SHORT_ROW = 64  # vectors: up to here a program reads several rows
ONE_TILE_ROW = 2048  # vectors: up to here a row whose length is a power of two is one tile


def rows_stage(view: View, fields: int, absorbs: bool, masked: bool = False) -> Stage:
    """The reduced dim is contiguous: a run of neighbours is one vector load."""
    run = min(view.vector, power_below(view.length))
    needed = math.ceil(view.length / run)
    vectors = power_above(needed)
    narrow = view.full_vector // view.vector
    if vectors == 1:
        return Stage("small_axis", 256, 1, run, 1, 1, 2)
    if vectors == 2 and absorbs:
        return Stage("small_axis", 128, 1, run, 2, 1, 4)
    if run == 1 and view.length < WALKED[0]:
        return Stage("small_axis", 256, 1, 1, 1, 1, 2)
    if run == 1 and vectors <= SMALL_AXIS:
        return Stage("small_axis", 1024 // vectors, vectors, 1, 1, 1, 4)
    if vectors <= SHORT_ROW * min(4, narrow):
        return _short_rows(view, run, vectors, 4 if absorbs or masked else 2)
    if vectors == needed and MEDIUM_ROW <= vectors <= ONE_TILE_ROW:
        return _row_in_one_tile(view, run, vectors, fields, absorbs)
    if vectors <= MEDIUM_ROW:
        lanes = WARP // 2 if fields > 2 and run == 8 else WARP
        return Stage("rows", 2, lanes, run, vectors // lanes, 1, 2 * lanes // WARP)
    if view.few and is_row_of_a_program(view):
        warps = MAX_WARPS if fields < HEAVY_FIELDS else MAX_WARPS // 2
        return Stage("long_rows", 1, warps * WARP, run, 2 * LOADS, 1, warps)
    if view.few:
        # Wide programs where results are few, so that one program can fold all partial states at once.
        several = view.inner * view.outer >= 16 and view.bytes < EVICT_FIRST_BELOW
        warps = 2 if several else MAX_WARPS
        return Stage("long_rows", 1, warps * WARP, run, view.loads, 1, warps)
    if view.inner * view.outer < 4 * BLOCKS or vectors == needed:
        fewer = 1 if fields == 1 else 2  # states of several fields cost registers: half the threads
        warps = MAX_WARPS // fewer
        return Stage("long_rows", 1, warps * WARP, run, fewer * view.loads, 1, warps)
    warps = 1 if vectors <= 1024 else 4  # walk the row: only its last tile is masked
    return Stage("long_rows", 1, warps * WARP, run, view.loads, 1, warps, prefetch=True)


def is_row_of_a_program(view: View) -> bool:
    """Whether one program reads a long row faster than several do with a second launch."""
    fit = view.length * view.element <= WHOLE_ROW and view.bytes < FEW_BYTES
    return fit and 2 * view.inner * view.outer >= BLOCKS


def has_no_whole_tile(stage: Stage, view: View) -> bool:
    """Whether masks touch every tile of rows that begin between two vectors, and blocks must be absorbed under them."""
    walked = stage.align > 1 and stage.family == "rows" and view.length > NARROW_ROW and stage.lanes > 1
    return walked and not edges(stage, view.length)[1]


def with_half_the_lanes(stage: Stage) -> Stage:
    """The stage with shorter tiles, of which some are whole, and as many threads on twice the rows."""
    return stage.but(lanes=stage.lanes // 2, block_outputs=2 * stage.block_outputs)


def is_row_of_a_thread(view: View) -> bool:
    """Whether a thread reads a whole row in a few loads: of an odd number of them, so that no other tile fits it."""
    if not view.by_rows or view.length > SMALL_AXIS or view.length & (view.length - 1) == 0:
        return False
    run = min(view.vector, power_below(view.length))
    # Of single elements Triton would give a row to several threads: they are neighbours.
    return run > 1 and view.length <= ROW_LOADS * run


def has_few_halves(view: View) -> bool:
    """Whether rows are a few halves of vectors that begin where half a vector may: they are read as they are."""
    few = view.length in (2 * view.vector, 4 * view.vector)
    return view.by_rows and few and 2 * view.vector == view.full_vector


def row_of_a_thread(view: View) -> Stage:
    """Rows side by side on threads, two a thread, read by a known number of loads (`constant_length`).

    Neighbouring threads' loads are a row apart: a load of a warp touches a quarter of the row's bytes in lines, which its SM
    delivers one a clock. Up to `ROW_LOADS` loads a row that is twice as fast as memory.
    """
    run = min(view.vector, power_below(view.length))
    return Stage("small_axis", 256, 1, run, power_above(math.ceil(view.length / run)), 1, 4)


def _row_in_one_tile(view: View, run: int, vectors: int, fields: int, absorbs: bool) -> Stage:
    """A row a program, read at once. Few loads a thread are all on their way soon; yet a thread more is a state more to
    exchange and combine, so states of several fields, and narrow elements to absorb, want fewer and busier threads."""
    loads = LOADS // 2 if fields <= (2 if absorbs else 1) else LOADS
    if absorbs and run > 4:
        loads *= 2
    loads *= view.loads // LOADS
    warps = min(MAX_WARPS // 2 if absorbs else MAX_WARPS, vectors // (WARP * loads)) or 1
    return Stage("rows", 1, warps * WARP, run, vectors // (warps * WARP), 1, warps)


def walked_rows_stage(view: View) -> Stage:
    """Short rows whose length is no power of two: small tiles walked by a few threads, so that only the ends are masked."""
    family = "small_axis" if view.length <= SMALL_AXIS else "rows"
    if view.full_vector == 4 and view.vector == 2 and ALIGNED_ROW <= view.length <= NARROW_ROW:
        return Stage(family, 16, 8, 2, power_below(view.length) // 16, 1, 4)
    if view.vector < view.full_vector <= 4 and view.aligns and ALIGNED_ROW <= view.length <= NARROW_ROW:
        vectors = power_above(math.ceil((view.length + view.full_vector - 1) / view.full_vector))
        lanes = LINE_BYTES // (view.full_vector * view.element)  # docs/experiments/straddling-rows.md
        return Stage(
            family,
            4 * WARP // lanes,
            lanes,
            view.full_vector,
            max(1, vectors // lanes),
            1,
            4,
            align=view.full_vector,
        )
    if view.length <= NARROW_ROW:
        each = 16 if view.length > WARP else 8 if view.length >= 16 else 4
        run = min(view.vector, each)
        lanes = max(1 if run > 1 else 2, power_below(view.length) // each)
        unroll = max(1, power_below(view.length) // (lanes * run))
        threads = 64 if each == 16 else 128
        return Stage(family, threads // lanes, lanes, run, unroll, 1, threads // WARP)
    run, align = view.vector, 1
    if view.vector < view.full_vector // 2 and view.aligns:
        run = align = view.full_vector
    if view.length >= LONG_ROW:
        return Stage(family, 1, WARP, run, LOADS if align > 1 else view.loads, 1, 1, align=align)
    lanes = (64 if view.length < SHORT_COLUMN else 128) // view.full_vector
    tile = 128 if view.length < 256 else 256
    outputs = 8 if view.inner * view.outer >= 32 * BLOCKS else max(1, WARP // lanes)
    threads = outputs * lanes
    return Stage(family, outputs, lanes, run, max(1, tile // (lanes * run)), 1, threads // WARP, align=align)


def _short_rows(view: View, run: int, vectors: int, most: int) -> Stage:
    """Several rows a program, each by a few threads that take `most` vectors."""
    unroll = min(vectors, most * max(1, view.loads // LOADS))
    lanes = max(1, vectors // unroll)
    threads = 64 if most > 2 and lanes > 1 else 256 if vectors >= WARP else 128
    family = "small_axis" if view.length <= SMALL_AXIS else "rows"
    return Stage(family, max(1, threads // lanes), lanes, run, vectors // lanes, 1, threads // WARP)

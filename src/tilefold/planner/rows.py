"""Which tile folds rows: elements of a result that are neighbours in memory."""

from __future__ import annotations

import math

from tilefold.planner.plan import Stage
from tilefold.planner.programs import edges
from tilefold.planner.reading import Reading
from tilefold.planner.registers import HEAVY_FIELDS
from tilefold.planner.sizes import (
    BLOCKS,
    EVICT_FIRST_BELOW,
    LINE_BYTES,
    LOADS,
    MAX_WARPS,
    SHORT_COLUMN,
    SMALL_AXIS,
    WARP,
    power_above,
    power_below,
)

# docs/experiments/folds.md#walks:
WALKED = (9, 2048)  # elements: rows between, no power of two long, are walked in small tiles
ALIGNED_ROW = 32  # words: from here on whole vectors from anywhere read such rows faster than single words do
LONG_ROW = 1024  # elements: from here on a warp walks such a row by itself

ROW_LOADS = 4  # of a row that one thread reads (docs/experiments/tiles.md#lengths)
# Vectors: up to here a warp or two read a row at once, of whole rows below (docs/experiments/tiles.md#one-tile).
MEDIUM_ROW = 256

# Bytes of a row, and of all rows: one program reads each in one launch (docs/experiments/folds.md#launches and
# docs/experiments/planning.md#counts).
WHOLE_ROW, FEW_BYTES = 1 << 17, 24_000_000

# No record: set by sweeps on an H200, 2026-11-21, that were not kept.
NARROW_ROW = 128  # elements: up to here such rows are read an element at a time where no vector divides them
SHORT_ROW = 64  # vectors: up to here a program reads several rows
ONE_TILE_ROW = 2048  # vectors: up to here a row whose length is a power of two is one tile


def rows_stage(reading: Reading, fields: int, absorbs: bool, masked: bool = False) -> Stage:
    """The reduced dim is contiguous: a run of neighbours is one vector load."""
    run = min(reading.vector, power_below(reading.length))
    needed = math.ceil(reading.length / run)
    vectors = power_above(needed)
    narrow = reading.full_vector // reading.vector
    if vectors == 1:
        return Stage("small_axis", 256, 1, run, 1, 1, 2)
    if vectors == 2 and absorbs:
        return Stage("small_axis", 128, 1, run, 2, 1, 4)
    if run == 1 and reading.length < WALKED[0]:
        return Stage("small_axis", 256, 1, 1, 1, 1, 2)
    if run == 1 and vectors <= SMALL_AXIS:
        return Stage("small_axis", 1024 // vectors, vectors, 1, 1, 1, 4)
    if vectors <= SHORT_ROW * min(4, narrow):
        return _short_rows(reading, run, vectors, 4 if absorbs or masked else 2)
    if vectors == needed and MEDIUM_ROW <= vectors <= ONE_TILE_ROW:
        return _row_in_one_tile(reading, run, vectors, fields, absorbs)
    if vectors <= MEDIUM_ROW:
        lanes = WARP // 2 if fields > 2 and run == 8 else WARP
        return Stage("rows", 2, lanes, run, vectors // lanes, 1, 2 * lanes // WARP)
    if reading.few and is_row_of_a_program(reading):
        warps = MAX_WARPS if fields < HEAVY_FIELDS else MAX_WARPS // 2
        return Stage("long_rows", 1, warps * WARP, run, 2 * LOADS, 1, warps)
    if reading.few:
        # Wide programs where results are few, so that one program can fold all partial states at once.
        several = reading.inner * reading.outer >= 16 and reading.bytes < EVICT_FIRST_BELOW
        warps = 2 if several else MAX_WARPS
        return Stage("long_rows", 1, warps * WARP, run, reading.loads, 1, warps)
    if reading.inner * reading.outer < 4 * BLOCKS or vectors == needed:
        fewer = 1 if fields == 1 else 2  # states of several fields cost registers: half the threads
        warps = MAX_WARPS // fewer
        return Stage("long_rows", 1, warps * WARP, run, fewer * reading.loads, 1, warps)
    warps = 1 if vectors <= 1024 else 4  # walk the row: only its last tile is masked
    return Stage("long_rows", 1, warps * WARP, run, reading.loads, 1, warps, prefetch=True)


def is_row_of_a_program(reading: Reading) -> bool:
    """Whether one program reads a long row faster than several do with a second launch."""
    fit = reading.length * reading.element <= WHOLE_ROW and reading.bytes < FEW_BYTES
    return fit and 2 * reading.inner * reading.outer >= BLOCKS


def has_no_whole_tile(stage: Stage, reading: Reading) -> bool:
    """Whether masks touch every tile of rows that begin between two vectors, and blocks must be absorbed under them."""
    walked = stage.align > 1 and stage.family == "rows" and reading.length > NARROW_ROW and stage.lanes > 1
    return walked and not edges(stage, reading.length)[1]


def with_half_the_lanes(stage: Stage) -> Stage:
    """The stage with shorter tiles, of which some are whole, and as many threads on twice the rows."""
    return stage.but(lanes=stage.lanes // 2, block_outputs=2 * stage.block_outputs)


def is_row_of_a_thread(reading: Reading) -> bool:
    """Whether a thread reads a whole row in a few loads: of an odd number of them, so that no other tile fits it."""
    if not reading.by_rows or reading.length > SMALL_AXIS or reading.length & (reading.length - 1) == 0:
        return False
    run = min(reading.vector, power_below(reading.length))
    # Of single elements Triton would give a row to several threads: they are neighbours.
    return run > 1 and reading.length <= ROW_LOADS * run


def has_few_halves(reading: Reading) -> bool:
    """Whether rows are a few halves of vectors that begin where half a vector may: they are read as they are."""
    few = reading.length in (2 * reading.vector, 4 * reading.vector)
    return reading.by_rows and few and 2 * reading.vector == reading.full_vector


def row_of_a_thread(reading: Reading) -> Stage:
    """Rows side by side on threads, two a thread, read by a known number of loads (`constant_length`).

    Neighbouring threads' loads are a row apart: a load of a warp touches a quarter of the row's bytes in lines, which its SM
    delivers one a clock. Up to `ROW_LOADS` loads a row that is twice as fast as memory.
    """
    run = min(reading.vector, power_below(reading.length))
    return Stage("small_axis", 256, 1, run, power_above(math.ceil(reading.length / run)), 1, 4)


def _row_in_one_tile(reading: Reading, run: int, vectors: int, fields: int, absorbs: bool) -> Stage:
    """A row a program, read at once. Few loads a thread are all on their way soon; yet a thread more is a state more to
    exchange and combine, so states of several fields, and narrow elements to absorb, want fewer and busier threads."""
    loads = LOADS // 2 if fields <= (2 if absorbs else 1) else LOADS
    if absorbs and run > 4:
        loads *= 2
    loads *= reading.loads // LOADS
    warps = min(MAX_WARPS // 2 if absorbs else MAX_WARPS, vectors // (WARP * loads)) or 1
    return Stage("rows", 1, warps * WARP, run, vectors // (warps * WARP), 1, warps)


def walked_rows_stage(reading: Reading) -> Stage:
    """Short rows whose length is no power of two: small tiles walked by a few threads, so that only the ends are masked."""
    family = "small_axis" if reading.length <= SMALL_AXIS else "rows"
    if reading.full_vector == 4 and reading.vector == 2 and ALIGNED_ROW <= reading.length <= NARROW_ROW:
        return Stage(family, 16, 8, 2, power_below(reading.length) // 16, 1, 4)
    if (
        reading.vector < reading.full_vector <= 4
        and reading.aligns
        and ALIGNED_ROW <= reading.length <= NARROW_ROW
    ):
        vectors = power_above(math.ceil((reading.length + reading.full_vector - 1) / reading.full_vector))
        lanes = LINE_BYTES // (reading.full_vector * reading.element)  # docs/experiments/tiles.md#straddling
        return Stage(
            family,
            4 * WARP // lanes,
            lanes,
            reading.full_vector,
            max(1, vectors // lanes),
            1,
            4,
            align=reading.full_vector,
        )
    if reading.length <= NARROW_ROW:
        each = 16 if reading.length > WARP else 8 if reading.length >= 16 else 4
        run = min(reading.vector, each)
        lanes = max(1 if run > 1 else 2, power_below(reading.length) // each)
        unroll = max(1, power_below(reading.length) // (lanes * run))
        threads = 64 if each == 16 else 128
        return Stage(family, threads // lanes, lanes, run, unroll, 1, threads // WARP)
    run, align = reading.vector, 1
    if reading.vector < reading.full_vector // 2 and reading.aligns:
        run = align = reading.full_vector
    if reading.length >= LONG_ROW:
        return Stage(family, 1, WARP, run, LOADS if align > 1 else reading.loads, 1, 1, align=align)
    lanes = (64 if reading.length < SHORT_COLUMN else 128) // reading.full_vector
    tile = 128 if reading.length < 256 else 256
    outputs = 8 if reading.inner * reading.outer >= 32 * BLOCKS else max(1, WARP // lanes)
    threads = outputs * lanes
    return Stage(family, outputs, lanes, run, max(1, tile // (lanes * run)), 1, threads // WARP, align=align)


def _short_rows(reading: Reading, run: int, vectors: int, most: int) -> Stage:
    """Several rows a program, each by a few threads that take `most` vectors."""
    unroll = min(vectors, most * max(1, reading.loads // LOADS))
    lanes = max(1, vectors // unroll)
    threads = 64 if most > 2 and lanes > 1 else 256 if vectors >= WARP else 128
    family = "small_axis" if reading.length <= SMALL_AXIS else "rows"
    return Stage(family, max(1, threads // lanes), lanes, run, vectors // lanes, 1, threads // WARP)

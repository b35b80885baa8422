"""Which tiles hold whole rows of a map, which windows of rows the L2 holds, and which tiles map elements after a fold.

All tensors make one problem: the inputs that are folded, then the extras that are not, with results of the same shape.
`row0` ... hold the results of the rows' fold, a place for each of the problem's output dims.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from tilefold.algebra.program import Program
from tilefold.planner.folds import narrowed, partial_dtypes
from tilefold.planner.odd_columns import columns_together, narrow_run
from tilefold.planner.plan import Stage
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.reading import Reading, alone, reading_of, widest_vector
from tilefold.planner.registers import MANY_FIELDS, fields_of
from tilefold.planner.sizes import (
    EVICT_FIRST_BELOW,
    MAX_WARPS,
    VECTOR_BYTES,
    WARP,
    power_above,
    power_below,
    whole_splits,
)
from tilefold.planner.stages.maps import Dtypes, Elements, Windows, extras_beside
from tilefold.planner.thread_order import asks_for_first, in_threads, keeps_positions, kept_in_threads

VECTORS = 2  # that a thread of `map_elements` takes of the widest operand (docs/experiments/maps.md#blocks)

# docs/experiments/maps.md#clusters:
THREAD_WORDS = 64  # registers of a thread that hold elements, at most
ALONE_WORDS = 32  # that a thread of a program holds, where a cluster could share the row
# Warps of a program, and a thread's registers that hold elements, where a cluster holds a row: the first pair that does.
SHARED_TILES = ((8, 16), (16, 16), (16, 32))
MASKED_PARTS = 8  # programs at most that share a row of 16-bit elements which is not whole tiles
COLUMN_BYTES = 128  # of neighbouring columns
WINDOW_BYTES = 8 << 20  # of elements that are folded, and read again while they are in the L2
PART_BYTES = 32 << 10  # that a program folds or maps
NARROW_PARTS = 2  # times as many, of elements of 16 bits
MOST_PARTS = 512  # of a row: a program combines the states of all
WINDOW_WARPS = 8

# Threads of a row at least, if it has as many vectors: a warp's load of vectors then touches four lines, as few as can be.
# With one to four threads rows of 3 to 40 vectors took up to five times as long (docs/experiments/maps.md#short-rows).
LINE_LANES = 8
FEW_ROWS = 64  # along the last output dim: fewer fill no program of short rows
ROWS_BYTES = 64  # of the inputs' elements that a thread has, where it takes several rows to have them

# Not measured:
FEW_VECTORS = 4  # of 16 bytes that a thread takes of a row, where the row has no more threads to use
ROW_WARPS = 4  # of a program that holds several rows
LEAST_PART_BYTES = 8 << 10
TRANSPOSED = 32  # results beside each other, at least, where inputs are contiguous along another dim


def elements_stage(problem: Problem, results: Dtypes) -> Elements:
    """Tiles of a few KB: along the last dim, then over the one before it."""
    sizes = [1, 1, *(d.size for d in problem.dims)]
    widest = max(d.itemsize for d in (*problem.dtypes, *results))
    warps = 4
    most = warps * WARP * VECTORS * max(1, VECTOR_BYTES // widest)
    apart = bool(problem.dims) and problem.dims[-1].strides[0] > 1
    run = 0 if apart else _elements_run(problem, results)
    columns = min(power_above(sizes[-1]), TRANSPOSED if apart else most)
    if run:
        columns = columns_together(sizes[-1], run, warps * WARP * run)
    rows = min(power_above(sizes[-2]), max(1, most // columns))
    moved = problem.bytes_read + math.prod(sizes) * sum(d.itemsize for d in results)
    return Elements(rows, columns, warps, moved <= EVICT_FIRST_BELOW, run)


def _elements_run(problem: Problem, results: Dtypes) -> int:
    """`narrow_run` of operands and results whose columns are neighbours; 0 of a single dim."""
    if len(problem.dims) < 2:
        return 0
    *over, last = problem.dims
    operands = [
        (dtype.itemsize, aligned, [d.strides[i] for d in over])
        for i, (dtype, aligned) in enumerate(zip(problem.dtypes, problem.aligned, strict=True))
        if last.strides[i] == 1
    ]
    if last.output == 1:
        operands += [(dtype.itemsize, VECTOR_BYTES, [d.output for d in over]) for dtype in results]
    return narrow_run(operands, last.size)


def rows_of(problem: Problem, inputs: int) -> Problem:
    """The inputs alone, along the very dims of a problem."""
    return Problem(
        tuple(replace(d, strides=d.strides[:inputs]) for d in problem.dims),
        problem.dtypes[:inputs],
        problem.aligned[:inputs],
        problem.residues[:inputs],
    )


def rows_along(problem: Problem, inputs: int) -> Problem:
    """Short rows that are read along, counted along the longest of their dims, not along a short last one.

    A program takes several such rows, of neighbours along the last dim: with three of them 125 of 128 would be no rows.
    """
    rows = rows_of(problem, inputs)
    size = problem.length * sum(d.itemsize for d in rows.dtypes)
    *outer, last = problem.output_dims or (None,)
    if last is None or not outer or last.size >= FEW_ROWS or size >= ROW_WARPS * WARP * ROWS_BYTES:
        return problem
    longest = max(outer, key=lambda d: d.size)
    if longest.size <= last.size or not reading_of(rows).by_rows:
        return problem
    others = tuple(d for d in problem.output_dims if d is not longest)
    return replace(problem, dims=(*others, longest, *problem.reduced_dims))


def widens(problem: Problem, program: Program) -> bool:
    """Whether inputs' elements may be seen as float32 at once: none is first rounded to a dtype that is not its own."""
    seen = zip(problem.dtypes, program.elements, strict=False)
    return all(element in (dtype, torch.float32) for dtype, element in seen)


def whole_stage(
    problem: Problem, program: Program, results: Dtypes, invariant: bool, cluster: int = 1
) -> Stage | None:
    """Rows held whole in the tiles of a program, or of a cluster of them; None where they are too long for that.

    With `invariant` nothing follows from the number of rows, or from how many lie side by side.
    """
    rows = rows_of(problem, program.algebra.inputs)
    reading = alone(reading_of(rows), rows) if invariant else reading_of(rows)
    if not program.algebra.commutative or (invariant and not reading.by_rows):
        return None
    held = power_below(THREAD_WORDS // max(1, sum(math.ceil(d.itemsize / 4) for d in rows.dtypes)))
    held //= 2 if fields_of(program) >= MANY_FIELDS else 1
    if reading.by_rows:
        stage = _whole_rows(reading, rows, results, min(held, ALONE_WORDS))
    else:
        stage = _whole_columns(reading, held)
    narrow = all(d.itemsize == 4 for d in partial_dtypes(narrowed(program, problem.length)))
    if stage is None and reading.by_rows and cluster > 1 and narrow and fields_of(program) < MANY_FIELDS:
        stage = _shared_rows(reading, rows, results, cluster)
        beside = bool(extras_beside(problem, len(rows.dtypes)))
        if stage is not None and stage.align > 1 and beside:  # extra tensors' elements would come one by one
            stage = None
    if stage is None and reading.by_rows:
        stage = _whole_rows(reading, rows, results, held)
    if stage is None:
        return None
    in_order = keeps_positions(rows, stage, program)
    stage = _settled(stage, reading, problem, program, results, invariant)
    moved = problem.bytes_read + problem.outputs * problem.length * sum(d.itemsize for d in results)
    return replace(
        stage, in_order=stage.in_order and in_order, evict_first=not invariant and moved <= EVICT_FIRST_BELOW
    )


def _settled(
    stage: Stage, reading: Reading, problem: Problem, program: Program, results: Dtypes, invariant: bool
) -> Stage:
    """The stage with what its tile allows.

    Where threads have neighbours of other lanes or results, Triton gives them as many as any load or store of the kernel has
    in a vector: extra tensors and results count as well, where it matters that a lane's elements are one thread's.
    """
    matters = program.algebra.index or asks_for_first(program)
    if matters and (stage.run == 1 or not reading.by_rows):
        sizes = [d.itemsize for d in (*problem.dtypes, *results)]
        widest = VECTOR_BYTES // min(sizes) if invariant else widest_vector(problem, results, reading.by_rows)
        reading = replace(reading, vector=max(reading.vector, widest))
    return in_threads(
        kept_in_threads(stage, reading, program), rows_of(problem, program.algebra.inputs), program
    )


def _whole_rows(reading: Reading, rows: Problem, results: Dtypes, held: int) -> Stage | None:
    """A thread takes a few vectors; short rows share a program, longer ones have up to sixteen warps each."""
    run, align = long_vectors(reading, rows, results)
    vectors = power_above(math.ceil((reading.length + align - 1) / run))
    few = max(1, min(FEW_VECTORS * reading.full_vector // run, held // run))
    unroll = min(few, vectors // least_lanes(vectors))
    lanes = vectors // unroll
    if lanes > MAX_WARPS * WARP:
        unroll, lanes = vectors // (MAX_WARPS * WARP), MAX_WARPS * WARP
    if unroll * run > held:
        return None
    together, warps = rows_together(lanes, unroll * run * sum(d.itemsize for d in rows.dtypes), reading)
    return Stage("whole_rows", together, lanes, run, unroll, 1, warps, align=align)


def least_lanes(vectors: int) -> int:
    """Threads that a row of so many vectors has at least."""
    return min(LINE_LANES, power_above(vectors))


def rows_together(lanes: int, size: int, reading: Reading) -> tuple[int, int]:
    """(rows of a program, its warps) where a thread has `size` bytes of a row: several rows a thread if that is little."""
    warps = max(ROW_WARPS, lanes // WARP)
    each = max(1, ROWS_BYTES // size) if lanes <= LINE_LANES else 1
    together = max(1, warps * WARP // lanes) * each
    together = min(power_below(together), power_above(reading.inner))
    return together, max(1, min(warps, power_below(together * lanes // (WARP * each))))


def _shared_rows(reading: Reading, rows: Problem, results: Dtypes, cluster: int) -> Stage | None:
    """The fewest warps, then elements a thread, with which a cluster holds a row."""
    run, align = long_vectors(reading, rows, results)
    length = reading.length + align - 1
    for warps, words in SHARED_TILES:
        unroll = max(1, words * 4 // (run * sum(d.itemsize for d in rows.dtypes)))
        tile = run * unroll * warps * WARP
        parts = math.ceil(length / tile)
        # Masks of 16-bit elements in large clusters cost more than a second read from the L2, if that is of whole vectors.
        costly = align == 1 and rows.dtypes[0].itemsize <= 2 and parts > MASKED_PARTS and length % tile
        if parts <= cluster and not costly:
            return Stage("shared_rows", 1, warps * WARP, run, unroll, parts, warps, align=align)
    return None


def long_vectors(reading: Reading, rows: Problem, results: Dtypes) -> tuple[int, int]:
    """(neighbours that a thread loads at once, of which multiple the first is) of a row.

    Where rows begin between two vectors, `edge_places` of the kernels relies on two of them at least.
    """
    narrow = reading.vector < reading.full_vector and reading.length >= 2 * reading.full_vector
    if narrow and reading.aligns and _aligned_alike(rows, results, reading.full_vector):
        return reading.full_vector, reading.full_vector
    return min(reading.vector, power_below(reading.length)), 1


def _aligned_alike(rows: Problem, results: Dtypes, vector: int) -> bool:
    """Whether results begin at the same place between two multiples of a vector as the elements that they are made of."""
    size = rows.dtypes[0].itemsize
    alike = all((d.output - d.strides[0]) % vector == 0 for d in rows.output_dims)
    contiguous = all(d.output == d.strides[0] for d in rows.reduced_dims)
    return alike and contiguous and not any(rows.residues) and all(d.itemsize == size for d in results)


def _stores_singly(reading: Reading, rows: Problem, results: Dtypes, run: int) -> bool:
    """Whether a row's last vector is not whole, so that threads store each of their elements by itself, and nothing else is
    amiss: with the edges apart they store vectors."""
    return run == reading.full_vector and reading.length % run > 0 and _aligned_alike(rows, results, run)


def _whole_columns(reading: Reading, held: int) -> Stage | None:
    """Neighbouring columns, `COLUMN_BYTES` of each row of them, as many threads down as they need."""
    length = power_above(reading.length)
    outputs = min(power_above(reading.inner), max(reading.vector, COLUMN_BYTES // reading.element))
    unroll = min(length, max(1, held // reading.vector // 2))
    lanes = length // unroll
    threads = max(1, outputs * lanes // reading.vector)
    if threads > MAX_WARPS * WARP:
        unroll, lanes = unroll * 2, lanes // 2
        threads = max(1, threads // 2)
    if threads > MAX_WARPS * WARP or lanes == 0 or unroll * reading.vector > held:
        return None
    if threads < ROW_WARPS * WARP:  # short columns: more of them
        outputs = min(power_above(reading.inner), outputs * (ROW_WARPS * WARP // threads))
        threads = max(1, outputs * lanes // reading.vector)
    warps = max(1, min(MAX_WARPS, threads // WARP))
    return Stage("whole_columns", outputs, lanes, 1, unroll, 1, warps)


def windows_stage(
    problem: Problem, program: Program, results: Dtypes, sms: int, invariant: bool
) -> Windows | None:
    """Rows in windows that the L2 holds, cut into parts; None where order matters, and for columns.

    Columns' fold, then every element's map, is as fast as windows of them were (docs/experiments/maps.md#clusters).
    """
    rows = rows_of(problem, program.algebra.inputs)
    reading = alone(reading_of(rows), rows) if invariant else reading_of(rows)
    if not program.algebra.commutative or not reading.by_rows:
        return None
    stage = replace(_long_rows(reading, rows, results), prefetch=True)
    stage = _settled(stage, reading, problem, program, results, invariant)
    in_order = keeps_positions(rows, stage, program)
    size = stage.block_outputs * sum(
        d.itemsize for d in rows.dtypes
    )  # bytes of a position of a block of rows
    part = PART_BYTES * (NARROW_PARTS if max(d.itemsize for d in rows.dtypes) <= 2 else 1)
    if not invariant:  # a part a program twice over, where all is little
        part = max(LEAST_PART_BYTES, min(part, problem.outputs * problem.length * size // (2 * sms)))
    tiles = problem.length // stage.step - (stage.align > 1)  # whole ones, as `chunk_of` counts them
    each = max(1, part // (stage.step * size), math.ceil(tiles / MOST_PARTS))
    splits = whole_splits(tiles, math.ceil(tiles / each)) if tiles > 1 else 1
    stage = replace(stage, splits=splits, in_order=stage.in_order and in_order)
    return Windows(stage, max(1, WINDOW_BYTES // (problem.length * size)))


def _long_rows(reading: Reading, rows: Problem, results: Dtypes) -> Stage:
    run, align = long_vectors(reading, rows, results)
    if align == 1 and reading.aligns and _stores_singly(reading, rows, results, run):
        align = run
    unroll = FEW_VECTORS * max(1, min(2, reading.full_vector // run))
    return Stage("window_rows", 1, WINDOW_WARPS * WARP, run, unroll, 1, WINDOW_WARPS, align=align)

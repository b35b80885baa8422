"""Which threads take which rows of a flat span: short rows that follow each other in memory, read and written together.

Measured (docs/experiments/maps.md#spans): vectors of 16 bytes read such rows even if no vector divides a row, since a
program's rows are one piece of memory. The same holds for groups of short columns (docs/experiments/maps.md#groups).
"""

from __future__ import annotations

import math

import torch

from tilefold.algebra.program import Program
from tilefold.planner.device import Device
from tilefold.planner.maps import LINE_LANES, widens
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.sizes import VECTOR_BYTES, WARP, power_above
from tilefold.planner.stages.maps import Dtypes
from tilefold.planner.stages.rows import BANK_BYTES, BANKS, Spans, dense_tensors, piece_vectors, span_vectors

ELEMENTS = (torch.bfloat16, torch.float16, torch.float32)

# Limits of the hardware:
SHARED_BYTES = 46 << 10  # that a program declares at most, beside what Triton uses: 48 KB are any program's

# docs/experiments/maps.md#spans:
THREADS = 128  # of a program at least
# Elements of a row that a thread takes: at least where others share the row, at best (of all inputs where elements have so
# many bytes: docs/experiments/maps.md#short-rows), and of all inputs at most.
EACH, NARROW = (6, 20, 32), 2
# Elements of its rows that a thread takes, at least: the second where rows share extra tensors, which it reads once.
HELD = (16, 20)
LONGEST_BYTES = 8 << 10  # of a row
WHOLE = 300  # elements of a row of whole vectors, at most: longer ones fill the tiles of other plans as well
# Words of a bank that a warp's load may take: it is as fast as memory then, with more it is not.
CONFLICTS = 2

# docs/experiments/maps.md#groups:
SPAN_BYTES = 24 << 10  # that a program has of its inputs, at most where it could have fewer
# Of rows beside a weight: eight lanes with vectors of their own are faster then.
SHARING_BYTES = {2: 384, 4: 640}
# Of columns whose group is no span: how many a program has, how many of a row's are among them, and bytes of an element.
PIECE_COLUMNS, PIECE_FILLED, PIECE_ELEMENT = (256, 128, 64, 32), 0.85, 4
GROUP_LANES = 8  # threads that share a column of a group, at most

# Of a program's threads that have columns of groups: more is not better than fewer bytes (not measured).
GROUPED = 0.95


def is_flat(problem: Problem, program: Program, results: Dtypes) -> bool:
    """Whether the inputs' rows and the results' are one piece of memory each: row after row, or groups of columns."""
    n = program.algebra.inputs
    if len(problem.reduced_dims) != 1 or not program.algebra.commutative or program.algebra.index:
        return False
    if not {*problem.dtypes, *results} <= set(ELEMENTS) or not widens(problem, program):
        return False
    sizes, inner = [d.size for d in problem.output_dims], problem.reduced_dims[0].output
    steps = [problem.length * math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    if inner > 1:
        if not sizes or sizes[-1] != inner:
            return False
        steps[-1] = 1
    in_order = [d.output for d in problem.output_dims] == steps
    return in_order and all(dense_tensors(problem)[:n])


def spans_stage(
    problem: Problem, program: Program, results: Dtypes, device: Device, invariant: bool
) -> Spans | None:
    """Rows as spans; None where other plans are as fast, or there is no such form.

    With `invariant` nothing that bits depend on follows from the number of rows, or from how extra tensors lie: these may be
    rows of their own where there is one row.
    """
    if device.cluster == 1 or not is_flat(problem, program, results):
        return None
    if problem.reduced_dims[0].output > 1:
        return None if invariant else groups_stage(problem, program, results)
    length, inputs = problem.length, program.algebra.inputs
    widest = max(d.itemsize for d in problem.dtypes[:inputs])
    fills = fills_tiles(problem, program) or (not invariant and _fills_eight(problem, program))
    if length == 1 or length * widest > LONGEST_BYTES or fills:
        return None
    lanes = lanes_of(length, widest, inputs, len(problem.dtypes) > inputs)
    threads = max(THREADS, lanes)
    rows = threads // lanes
    if invariant and rows * length * sum(d.itemsize for d in (*problem.dtypes, *results)) > SHARED_BYTES // 2:
        return None  # in none of its layouts
    held = HELD[not all(dense_tensors(problem))]
    size = length * sum(d.itemsize for d in problem.dtypes[:inputs])
    while rows * math.ceil(length / lanes) * lanes < threads * held and 2 * rows * size <= SPAN_BYTES:
        rows *= 2
    return spans_of(problem, program, results, rows, lanes, threads // WARP)


def groups_stage(problem: Problem, program: Program, results: Dtypes) -> Spans | None:
    """Groups of short columns as spans, or some columns of a larger group in pieces; None for longer ones.

    Rows of a program's tensors are a power of two: as many as hold whole groups with the fewest left over.
    """
    length, inner, inputs = problem.length, problem.reduced_dims[0].output, program.algebra.inputs
    size = length * sum(d.itemsize for d in problem.dtypes[:inputs])
    lanes = power_above(math.ceil(length * inputs / EACH[2]))
    if length == 1 or lanes > GROUP_LANES:
        return None
    slots, found = max(1, THREADS // lanes), list[tuple[float, int]]()
    while slots * size <= 2 * SPAN_BYTES:
        rows = slots // inner * inner
        if rows and rows * size <= SPAN_BYTES:
            held = min(1.0, slots * lanes * math.ceil(length / lanes) / (THREADS * HELD[0]))
            found.append((-min(GROUPED, rows / slots) * held, rows))
        slots *= 2
    for _, rows in sorted(found):
        stage = spans_of(problem, program, results, rows, lanes, THREADS // WARP)
        if stage is not None:
            return stage
    return None if found else pieces_stage(problem, program, results, lanes)


def pieces_stage(problem: Problem, program: Program, results: Dtypes, lanes: int) -> Spans | None:
    """Some columns of a group at a time: the most that a program's threads hold, where few of its columns are none."""
    inner, sizes = problem.reduced_dims[0].output, [d.itemsize for d in problem.dtypes]
    if min(sizes) < PIECE_ELEMENT or lanes == GROUP_LANES:
        return None
    for columns in PIECE_COLUMNS:
        filled = inner / (math.ceil(inner / columns) * columns)
        if (
            columns * lanes <= 2 * THREADS
            and filled >= PIECE_FILLED
            and columns * problem.length * sum(sizes) <= SPAN_BYTES
        ):
            return spans_of(problem, program, results, columns, lanes, THREADS // WARP, pieces=True)
    return None


def fills_tiles(problem: Problem, program: Program) -> bool:
    """Whether tiles of whole vectors have few lanes beyond a row's end: other plans are as fast then."""
    vectors, rest = _vectors(problem, program)
    return rest == 0 and (problem.length > WHOLE or vectors == power_above(vectors))


def _fills_eight(problem: Problem, program: Program) -> bool:
    """Whether eight lanes have whole vectors of rows that share a tensor, such as a weight: it is read once then."""
    vectors, rest = _vectors(problem, program)
    shared = program.algebra.inputs == 1 and not all(dense_tensors(problem))
    size = vectors * VECTOR_BYTES
    return (
        shared
        and rest == 0
        and vectors % LINE_LANES == 0
        and size >= SHARING_BYTES[problem.dtypes[0].itemsize]
    )


def _vectors(problem: Problem, program: Program) -> tuple[int, int]:
    """Vectors of a row, and bytes beside them."""
    size = max(d.itemsize for d in problem.dtypes[: program.algebra.inputs])
    return divmod(problem.length * size, VECTOR_BYTES)


def lanes_of(length: int, size: int, inputs: int, beside: bool) -> int:
    """Threads of a row: few, so that each has many elements, unless a warp's loads would then take many words of one bank.

    More than a warp exchange what they have through shared memory: there are no more of those than must be, but
    `beside` extra tensors, whose elements need registers too.
    """
    least, best, most = EACH
    found = []
    for lanes in (1 << n for n in range(LONGEST_BYTES.bit_length())):
        each = math.ceil(length / lanes)
        if each * inputs <= most and (each >= least or lanes == 1):
            conflicts = max(CONFLICTS, conflicts_of(length, lanes, size))
            several = inputs if size <= NARROW and lanes < WARP else 1
            found.append((conflicts, each * several > best and (beside or lanes < WARP), lanes))
    return min(found)[2] if found else power_above(math.ceil(length * inputs / most))


def conflicts_of(length: int, lanes: int, size: int) -> int:
    """How many words of one bank a warp's load of an element takes at most: as many turns it is."""
    words: dict[int, set[int]] = {}
    for thread in range(WARP):
        row, lane = divmod(thread, lanes)
        word = (row * length + lane) * size // BANK_BYTES
        words.setdefault(word % BANKS, set()).add(word)
    return max(map(len, words.values()))


def spans_of(
    problem: Problem,
    program: Program,
    results: Dtypes,
    rows: int,
    lanes: int,
    warps: int,
    pieces: bool = False,
) -> Spans | None:
    """So many rows a program, and lanes a row; None where the rows need more shared memory than a program declares."""
    dense, inner = dense_tensors(problem), problem.reduced_dims[0].output
    elements = rows * (1 if pieces else problem.length)  # of one piece of memory
    every = (*problem.dtypes, *results)
    alike = [a % VECTOR_BYTES == 0 for a in problem.aligned]  # as the results are
    aligned = all(begins for begins, flat in zip(alike, dense, strict=True) if flat)
    aligned = aligned and all(elements * d.itemsize % VECTOR_BYTES == 0 for d in every)
    aligned = aligned and not (pieces and any(inner * d.itemsize % VECTOR_BYTES for d in every))

    def room(dtype: torch.dtype) -> int:
        size = elements * dtype.itemsize
        vectors = (
            problem.length * piece_vectors(size, lanes, aligned) if pieces else span_vectors(size, aligned)
        )
        return vectors * VECTOR_BYTES

    areas, result_areas = list[int](), list[int]()
    total, free = 0, list[tuple[int, int]]()
    for dtype, flat, begins in zip(problem.dtypes, dense, alike, strict=True):
        areas.append(total if flat else -1)
        if flat and begins:
            free.append((dtype.itemsize, total))
        total += room(dtype) * flat
    for dtype in results:
        # Where both begin alike, a result's elements take the places of elements that they are made of.
        place = next((p for p in free if p[0] == dtype.itemsize), None)
        result_areas.append(place[1] if place else total)
        if place:
            free.remove(place)
        else:
            total += room(dtype)
    if total > SHARED_BYTES:
        return None
    each, across = math.ceil(problem.length / lanes), lanes > 1 and program.begin is not None
    return Spans(
        rows, lanes, each, warps, aligned, tuple(areas), tuple(result_areas), total, across, inner, pieces
    )

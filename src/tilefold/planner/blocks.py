"""Which tiles hold a map's rows as one absorbed block each, so that an SM has enough bytes in flight.

Measured (docs/experiments/maps.md#blocks): the bytes that an SM's programs hold together decide the time, then the number of
instructions for each element, with those of masked lanes.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilefold.algebra.program import Program
from tilefold.planner.folds import narrowed, partial_dtypes
from tilefold.planner.maps import ROW_WARPS, least_lanes, long_vectors, rows_of, rows_together
from tilefold.planner.plan import Stage
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.reading import Reading, alone, reading_of
from tilefold.planner.registers import MANY_FIELDS, fields_of
from tilefold.planner.sizes import EVICT_FIRST_BELOW, SM_REGISTERS, WARP, power_above
from tilefold.planner.stages.maps import Dtypes, extras_beside
from tilefold.planner.stages.rows import Blocks
from tilefold.planner.thread_order import keeps_runs

# docs/experiments/maps.md#blocks:
ELEMENTS = 80  # of a block that a thread holds, at most, in as many registers: with what is computed of them for the fold
SOME_ELEMENTS = 40  # of each input, where extra tensors' elements stand beside them in a cluster
OTHER_REGISTERS = 16  # of a thread, beside its elements
MANY_REGISTERS = 128  # that the compiler takes for more elements than these
MANY_ELEMENTS, ALIGNED_ELEMENTS = 64, 56  # the second where rows begin between two vectors
# Warps of a row of several inputs, by their bytes: with more, lanes that fold their own were faster.
SEVERAL_WARPS = {4: 64, 2: 128}
LANES_TILE = 8192  # elements of a program of a cluster whose lanes fold their own
FEW_ELEMENTS = 32  # of a row that one program holds: more of them take longer than they save
FEW_BYTES = 64  # of such a row whose threads are less than a warp: the same
HELD_BYTES = 72 << 10  # of elements, by an SM's programs together: with fewer, memory waits
FULL_SPEED = 27  # instructions an element of 2 bytes, read and written, in the time that memory takes
SHARED_LANES = 128  # at least, of each program that shares one; twice as many beside extra tensors
COLUMN_BYTES = {2: 64, 4: 128}  # of neighbouring columns, by their elements' bytes
COLUMN_WARPS = 4
COLUMN_WORDS = 64  # of elements that a thread holds of columns
COLUMN_PROGRAMS = {2: 4, 4: 16}  # of a cluster at most: with more of narrow ones, two reads are faster

# Limits of the hardware; lanes are powers of two by definition.
THREADS = 2048  # of an SM
LANES = tuple(1 << n for n in range(10))  # threads that hold a row

# Columns of 16 bits, two a thread (docs/experiments/maps.md#columns): a warp has a line of each of its rows and
# exchanges nothing, or half a line of two; and the times of a place.
NARROW_COLUMNS = {64: 1.0, 32: 1.03}
NARROW_TILES = 32  # elements of each of its columns that a thread holds
NARROW_PROGRAMS = {4: 8, 8: 16}  # of a cluster, by their warps: small programs where few share a column
NARROW_REGISTERS = 80  # of a thread of three programs of 8 warps
NARROW_LENGTH = 128  # of a column at least
NARROW_FIELDS = 2  # of a state: with more there are not enough registers

# Short columns are a thread's alone, or shared by as few threads as have no more elements than this each; a thread has more
# neighbours of them until an SM has enough bytes on their way (docs/experiments/maps.md#short-rows).
SHORT_LANES, SHORT_EACH, SHORT_MOST, SHORT_BYTES = 4, 48, 64, 36
# Of a column at most, by their elements' bytes; the second where rows are of odd width (docs/experiments/maps.md#groups).
SHORT_LENGTHS = {2: 64, 4: 48}


def blocks_stage(
    problem: Problem, program: Program, results: Dtypes, invariant: bool, cluster: int = 1
) -> Blocks | None:
    """Rows held whole, each absorbed as one block; None where they are too long, or there is no such form.

    With `invariant` nothing follows from the number of rows, or from how many lie side by side.
    """
    rows = rows_of(problem, program.algebra.inputs)
    reading = alone(reading_of(rows), rows) if invariant else reading_of(rows)
    if program.begin is None or not program.algebra.commutative or program.algebra.index:
        return None
    if invariant and not reading.by_rows:
        return None
    most = cluster if _meets(problem, program) else 1
    beside = bool(extras_beside(problem, len(rows.dtypes)))
    small = rows.dtypes[0].itemsize <= 2
    if beside and reading.by_rows and small and len(rows.dtypes) == 1 and _fits(reading):
        return None
    stage = _rows(reading, rows, results, most, beside) if reading.by_rows else None
    if not reading.by_rows:
        narrow = None if beside else _narrow_columns(reading, rows, program, most)
        stage = narrow or _short_columns(reading, rows) or _columns(reading, rows, most)
    if stage is None or not _has_firsts(stage, reading, rows, program):
        return None
    if stage.splits > 1 and stage.block_outputs > 1 and not _announces(program):
        return None
    if len(rows.dtypes) > 1 and stage.splits * stage.num_warps > SEVERAL_WARPS[2 if small else 4]:
        return None
    if stage.splits > 1 and stage.align > 1 and beside:
        return None  # extra tensors' elements would come one by one
    moved = problem.bytes_read + problem.outputs * problem.length * sum(d.itemsize for d in results)
    evict = not invariant and moved <= EVICT_FIRST_BELOW
    return replace(stage, masks=_masks(stage, problem.length), evict_first=evict)


def _fits(reading: Reading) -> bool:
    """Whether tiles of powers of two fit rows exactly.

    Then 16-bit elements beside extra tensors' are as fast or faster where each lane folds its own: it waits less for others.
    """
    return reading.length % min(LANES_TILE, power_above(reading.length)) == 0


def _meets(problem: Problem, program: Program) -> bool:
    """Whether a cluster's programs can send each other their states: a few words of 32 bits."""
    narrow = all(d.itemsize == 4 for d in partial_dtypes(narrowed(program, problem.length)))
    return narrow and fields_of(program) < MANY_FIELDS


def _announces(program: Program) -> bool:
    """Whether what columns fold to fits where their states were."""
    few = len(program.outputs) <= len(program.state)
    return few and all(d.itemsize == 4 for d in program.outputs)


def _has_firsts(stage: Blocks, reading: Reading, rows: Problem, program: Program) -> bool:
    """Whether a block's first element can be told, if it is asked for: a lane's elements are then one thread's."""
    assert program.begin is not None
    if not any(n.op == "block_first" for n in program.begin.graph.nodes):
        return True
    tile = Stage("", stage.block_outputs, stage.lanes, stage.run, 1, 1, stage.num_warps)
    threads = stage.num_warps * WARP * (1 if reading.by_rows else stage.neighbours or reading.vector)
    return stage.block_outputs * stage.lanes >= threads and keeps_runs(rows, tile)


def _masks(stage: Blocks, length: int) -> int:
    """The tiles of a program in which a row's ends may be, a bit each."""
    left = length - (stage.splits - 1) * stage.step  # of the last program
    whole = max(0, left // (stage.run * stage.lanes))
    bits = sum(1 << t for t in range(stage.tiles) if t >= whole)
    return bits | (1 if stage.align > 1 else 0)


def _rows(reading: Reading, rows: Problem, results: Dtypes, most: int, beside: bool) -> Blocks | None:
    """The lanes, programs and tiles of the least time."""
    run, align = long_vectors(reading, rows, results)
    vectors = math.ceil((reading.length + align - 1) / run)
    words = sum(math.ceil(d.itemsize / 4) for d in rows.dtypes)
    size = sum(d.itemsize for d in rows.dtypes)
    found: list[tuple[float, int, int, int]] = []
    for lanes in (n for n in LANES if n >= least_lanes(vectors)):
        for programs in range(1, most + 1 if lanes >= SHARED_LANES * (1 + beside) else 2):
            tiles = math.ceil(vectors / (programs * lanes))
            few = tiles * run <= SOME_ELEMENTS or not beside or programs == 1
            if few and tiles * run * words <= ELEMENTS and (programs - 1) * tiles * lanes < vectors:
                time = _time(vectors, run, lanes, programs, tiles, words, size, align > 1)
                found.append((time, lanes, programs, tiles))
    if not found:
        return None
    _, lanes, programs, tiles = min(found)
    together, warps = rows_together(lanes, tiles * run * size, reading)
    return Blocks("block_rows", together, lanes, run, tiles, programs, warps, align=align)


def _time(
    vectors: int, run: int, lanes: int, programs: int, tiles: int, words: int, size: int, aligned: bool
) -> float:
    """The time of an element over that of its bytes, about: waiting for too few of them, then instructions beside these."""
    threads, places = max(ROW_WARPS * WARP, lanes), programs * lanes * tiles
    elements = tiles * run
    registers = elements * words + OTHER_REGISTERS
    if elements * words > (ALIGNED_ELEMENTS if aligned else MANY_ELEMENTS):
        registers = MANY_REGISTERS
    resident = min(THREADS // threads, SM_REGISTERS // (threads * 8 * math.ceil(registers / 8)))
    held = resident * threads * elements * size * vectors / places
    once = 30 + 10 * min(5, lanes.bit_length()) + 40 * (lanes > WARP) + 70 * (programs > 1)
    each = (8 + 2 * (places != vectors)) * elements * words + once
    few = min(FEW_ELEMENTS, FEW_BYTES // size) if lanes < WARP else FEW_ELEMENTS
    late = 0.25 * (programs == 1) * max(0, elements / few - 1)
    return late + max(1.0, HELD_BYTES / held) + programs * lanes * each / (vectors * run * words) / FULL_SPEED


def _narrow_columns(reading: Reading, rows: Problem, program: Program, most: int) -> Blocks | None:
    """A line of each row, two columns of 16 bits a thread, by small programs; None where that is no form, or no faster."""
    many = fields_of(program) > NARROW_FIELDS or len(rows.dtypes) > 1 or len(rows.reduced_dims) > 1
    small = reading.inner < max(NARROW_COLUMNS) or reading.length < NARROW_LENGTH
    if reading.element != 2 or reading.vector < 2 or many or small:
        return None
    columns = min(NARROW_COLUMNS, key=lambda k: math.ceil(reading.inner / k) * k * NARROW_COLUMNS[k])
    for warps, shared in NARROW_PROGRAMS.items():
        lanes = warps * WARP * 2 // columns
        programs = math.ceil(reading.length / (lanes * NARROW_TILES))
        if programs <= min(most, shared):
            tiles = math.ceil(reading.length / (lanes * programs))
            stage = Blocks("block_columns", columns, lanes, 1, tiles, programs, warps)
            return replace(stage, neighbours=2, registers=NARROW_REGISTERS)
    return None


def _short_columns(reading: Reading, rows: Problem) -> Blocks | None:
    """Columns that one to four threads hold; None for longer ones, and where fewer are neighbours than a warp loads."""
    if (
        reading.element not in COLUMN_BYTES
        or reading.length > SHORT_LENGTHS[reading.element if reading.vector > 1 else 4]
    ):
        return None
    size, inputs = sum(d.itemsize for d in rows.dtypes), len(rows.dtypes)
    neighbours = least = min(reading.vector, max(1, 4 // reading.element))
    while 2 * neighbours <= reading.vector and neighbours * reading.length * size < SHORT_BYTES:
        neighbours *= 2
    while neighbours >= least:
        lanes = 1
        while lanes < SHORT_LANES and math.ceil(reading.length / lanes) * neighbours * inputs > SHORT_EACH:
            lanes *= 2
        tiles = math.ceil(reading.length / lanes)
        forms = [(neighbours * WARP * warps // lanes, warps) for warps in (COLUMN_WARPS, 2, 1)]
        forms = [
            form
            for form in forms
            if COLUMN_BYTES[reading.element] // reading.element <= form[0] < 2 * reading.inner
        ]
        if forms and tiles * neighbours * inputs <= SHORT_MOST:
            outputs, warps = min(forms, key=lambda form: math.ceil(reading.inner / form[0]) * form[0])
            return Blocks("block_columns", outputs, lanes, 1, tiles, 1, warps, neighbours=neighbours)
        neighbours //= 2
    return None


def _columns(reading: Reading, rows: Problem, most: int) -> Blocks | None:
    """Neighbouring columns, a line or half of one of each of their rows, by the fewest programs."""
    if reading.element not in COLUMN_BYTES:
        return None
    outputs = min(
        power_above(reading.inner), max(reading.vector, COLUMN_BYTES[reading.element] // reading.element)
    )
    beside = max(1, outputs // reading.vector)  # threads
    lanes = min(COLUMN_WARPS * WARP // beside, max(WARP // beside, power_above(reading.length)))
    warps = max(1, lanes * beside // WARP)
    for programs in range(1, min(most, COLUMN_PROGRAMS[reading.element]) + 1):
        tiles = math.ceil(reading.length / (programs * lanes))
        words = tiles * reading.vector * len(rows.dtypes)
        if words <= COLUMN_WORDS and (programs - 1) * tiles * lanes < reading.length:
            return Blocks("block_columns", outputs, lanes, 1, tiles, programs, warps)
    return None

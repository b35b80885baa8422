"""Which rings of shared memory hold rows while programs fold and map them: turns, threads and programs of each.

Measured (docs/experiments/rings.md#rows): the bytes that an SM's programs have in flight decide the time of long rows. Shared
memory holds more of them than registers, which also hold computed values.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from tilefold.algebra.program import Program
from tilefold.planner.blocks import LANES_TILE
from tilefold.planner.device import Device
from tilefold.planner.maps import LINE_LANES, long_vectors, rows_of, widens
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.reading import Reading, reading_of
from tilefold.planner.registers import MANY_FIELDS, fields_of
from tilefold.planner.ring_forms import (
    SLICE_BYTES,
    WALKING_LANES,
    again,
    few,
    fewest,
    is_busy,
    keeping,
    one,
    several,
)
from tilefold.planner.sizes import VECTOR_BYTES
from tilefold.planner.stages.maps import Dtypes, extras_beside
from tilefold.planner.stages.rows import Rings

ELEMENTS = (torch.bfloat16, torch.float16, torch.float32)
LONGEST = 1 << 30  # elements, by definition: places in a row have 32 bits
WALKED_PROGRAMS = 1 << 16  # by definition as many as run at once: the launch knows

# Of a row, from which number on several share a program, up to which they do, up to which a program has one; and from which
# on programs walk over long rows without extra tensors, too long for registers (docs/experiments/rings.md#rows).
SOME_VECTORS, SHORT_VECTORS, ALONE_VECTORS, LONGEST_BLOCKS = 32, 256, 4096, 65536
SHORT_ELEMENTS = 32  # of all inputs that a thread holds of a short row
SHORT_THREADS = 128  # of a program that holds several rows
WALKED_VECTORS = 64  # of a row's inputs: programs walk over rows as short as this
# Threads of a program that has one row, and their vectors.
ALONE_LANES, ALONE_EACH = (64, 128, 256, 512), (5, 8)
TURN_ELEMENTS = 16  # of a thread and turn there
RING_BYTES = 192 << 10  # of its shared memory
# Threads that share an odd row, and their vectors, by elements' bytes.
ODD_TILES = {2: (128, 10), 4: (256, 8)}

# docs/experiments/maps.md#odd-rows:
SHORT_LANES = (32, 16)  # of a row beside extra tensors whose vectors are no power of two
SHORT_FILLED = 0.75  # of their places that have elements, at least
SHORT_BESIDE = 8  # elements of extra tensors beside a vector, at most

# docs/experiments/rings.md#long-rows:
NARROW_BLOCKS = 8192  # of 16-bit rows without extra tensors: as `LONGEST_BLOCKS` of others
ODD_VECTORS = 1024  # of an odd row of several inputs: from which number on rings hold it

# Of a row of two inputs whose states have one field: registers of a cluster hold so many as well
# (docs/experiments/rings.md#walking).
REGISTERS_BYTES = 1 << 19
ROWS_AN_SM = 2  # at least, where a program has one row alone (not measured)

# Threads that have such a row where its vectors are no product of theirs, by vectors at most, vectors of a thread's turn, and
# rows an SM below which short rows have a program each as well (docs/experiments/rings.md#parted).
PARTED_LANES, PARTED_UNROLL = ((384, 64), (768, 128), (ALONE_VECTORS, 256)), 2
FEW_ROWS_AN_SM = 4


def vectors_of(
    problem: Problem, program: Program, results: Dtypes, reading: Reading, rows: Problem
) -> tuple[int, int] | None:
    """(elements of a vector of 16 bytes, the multiple that rows begin at) if vectors can be held and stored; else None."""
    if not are_copied(problem, program, results, reading, rows):
        return None
    full = VECTOR_BYTES // rows.dtypes[0].itemsize
    if reading.vector == full and all(d.output % full == 0 for d in problem.output_dims):
        return full, 1
    run, align = long_vectors(reading, rows, results)
    return (run, align) if align == full else None


def are_copied(problem: Problem, program: Program, results: Dtypes, reading: Reading, rows: Problem) -> bool:
    """Whether rows can be copied to shared memory in vectors, wherever they begin, and their results from there.

    All tensors have elements of one size, 2 or 4 bytes, contiguous along the one reduced dim; extra tensors, which may be
    twice as wide, are shared by all rows and all of one size.
    """
    n, size = len(rows.dtypes), rows.dtypes[0].itemsize
    if (
        not reading.by_rows
        or not program.algebra.commutative
        or program.algebra.index
        or not widens(rows, program)
    ):
        return False
    if len(rows.reduced_dims) != 1 or not 0 < problem.length < LONGEST:
        return False
    if {*rows.reduced_dims[0].strides, problem.reduced_dims[0].output} != {1}:
        return False
    if not {*rows.dtypes, *results} <= set(ELEMENTS) or {d.itemsize for d in (*rows.dtypes, *results)} != {
        size
    }:
        return False
    if fields_of(program) >= MANY_FIELDS or any(d.itemsize != 4 for d in program.state):
        return False
    return _shared_by_rows(problem, n, size)


def _shared_by_rows(problem: Problem, inputs: int, size: int) -> bool:
    """Whether each extra tensor that has more than one value a row is one row, contiguous and aligned, that all share."""
    others = [inputs + i for i in extras_beside(problem, inputs)]
    for i in others:
        dtype = problem.dtypes[i]
        own = any(d.strides[i] for d in problem.output_dims)
        fits = (
            dtype in ELEMENTS
            and dtype.itemsize in (size, 2 * size)
            and problem.aligned[i] % VECTOR_BYTES == 0
        )
        if own or not fits or problem.reduced_dims[0].strides[i] != 1:
            return False
    return len({problem.dtypes[i].itemsize for i in others}) <= 1


def rings_stage(problem: Problem, program: Program, results: Dtypes, device: Device) -> Rings | None:
    """Rows in rings; None where registers hold them as well, or where there is no such form.

    Whether there is one may depend on the number of rows: a single row's extra tensors are always shared. So plans of
    "batch_invariant" have none.
    """
    rows, cluster = rows_of(problem, program.algebra.inputs), device.cluster
    found = vectors_of(problem, program, results, reading_of(rows), rows)
    if found is None or cluster == 1:
        return None
    run, align = found
    inputs = len(rows.dtypes)
    extras = extras_beside(problem, inputs)
    base = Rings("ring_rows", 0, run, 1, 1, 1, 1, align=align, inputs=inputs, extras=len(extras))
    vectors, fields = math.ceil((problem.length + align - 1) / run), fields_of(program)
    if align > 1:
        shared = inputs > 1 and extras and vectors > ODD_VECTORS
        return several(base, vectors, problem.outputs, device) if shared else None
    if vectors <= SHORT_VECTORS:
        few = vectors < SOME_VECTORS or (not extras and vectors <= WALKED_VECTORS)
        if extras and vectors > WALKED_VECTORS and problem.outputs < FEW_ROWS_AN_SM * device.sms:
            return _parted(base, vectors)
        return None if few else _short(base, vectors)
    if vectors <= ALONE_VECTORS:
        many = inputs == 1 and problem.outputs >= ROWS_AN_SM * device.sms
        alone = _alone(base, vectors) if extras and many else None
        return alone or (_parted(base, vectors) if extras else None)
    if extras:
        each = sum(problem.dtypes[inputs + i].itemsize for i in extras)
        words = VECTOR_BYTES // 4 * each // rows.dtypes[0].itemsize
        return _beside(base, vectors, words, fields, problem.outputs, device)
    if inputs > 1:
        return several(base, vectors, problem.outputs, device) if run == 8 else None
    if vectors <= (NARROW_BLOCKS if run == 8 else LONGEST_BLOCKS):
        return None
    if vectors > LONGEST_BLOCKS:
        stage = _walking(base, vectors, (2, 1), device, lanes=WALKING_LANES // 2)
        if stage is not None:
            return stage if is_busy(stage, problem.outputs) else None
    return several(base, vectors, problem.outputs, device) or one(base, vectors, problem.outputs, device)


def last_rings(problem: Problem, program: Program, results: Dtypes, device: Device) -> Rings | None:
    """Long rows that no registers hold, by a cluster of programs; None where they would be read twice as fast.

    Odd ones, which begin between two vectors, beside extra tensors; others where states have one field, or where a ring
    holds less than a row.
    """
    rows, cluster = rows_of(problem, program.algebra.inputs), device.cluster
    found = vectors_of(problem, program, results, reading_of(rows), rows)
    inputs = len(rows.dtypes)
    extras = extras_beside(problem, inputs)
    if found is None or cluster == 1:
        return None
    run, align = found
    vectors = math.ceil((problem.length + align - 1) / run)
    base = Rings("ring_rows", 0, run, 1, 1, 1, 1, align=align, inputs=inputs, extras=len(extras))
    if align == 1:
        if vectors <= ALONE_VECTORS:
            return None
        alone = fields_of(program) == 1
        return (
            several(base, vectors, problem.outputs, device)
            or (one(base, vectors, problem.outputs, device) if alone else None)
            or again(base, vectors, problem.outputs, device)
            or few(base, vectors, problem.outputs, device)
        )
    if not extras:
        return few(base, vectors, problem.outputs, device)
    lanes, most = ODD_TILES[rows.dtypes[0].itemsize]
    stage = fewest(replace(base, lanes=lanes), vectors, most, cluster) if inputs == 1 else None
    return (
        stage
        or several(base, vectors, problem.outputs, device)
        or few(base, vectors, problem.outputs, device)
    )


def _beside(base: Rings, vectors: int, words: int, fields: int, rows: int, device: Device) -> Rings | None:
    """Long rows beside extra tensors, of so many words a vector."""
    size = vectors * base.inputs * VECTOR_BYTES
    if _in_registers(base, vectors, fields):
        return None
    kept = keeping(base, vectors, words, fields, rows, device)
    if kept is not None:
        return kept
    stage = _long(base, vectors, fields, device)
    if stage is not None:
        crowded = base.extras > 1 and size > 3 * SLICE_BYTES  # programs that walk wait for extra tensors
        other = several(base, vectors, rows, device) if crowded else None
        return other or (stage if is_busy(stage, rows) else None)
    if base.inputs > 1 and fields == 1:
        return None  # blocks are as fast, on the whole
    if base.inputs == 1 and base.run == 4 and base.extras == 1:
        return None
    return several(base, vectors, rows, device)


def _in_registers(base: Rings, vectors: int, fields: int) -> bool:
    """Whether tiles of powers of two that registers hold are as fast."""
    size = vectors * base.inputs * VECTOR_BYTES
    if vectors * base.run % LANES_TILE:
        return False
    if base.inputs > 1 and fields == 1:
        return size <= REGISTERS_BYTES
    return base.run == 4 and size <= 2 * base.inputs * SLICE_BYTES and (fields == 1 or base.inputs > 1)


def _short(base: Rings, vectors: int) -> Rings | None:
    """Several rows a program, each held by a few threads: of the shortest, programs walk over many."""
    unroll = max(1, min(SHORT_ELEMENTS // (base.run * base.inputs), vectors // LINE_LANES))
    lanes = max(1, vectors // unroll)
    if lanes * unroll != vectors or lanes & (lanes - 1) or lanes > SHORT_THREADS // 2:
        return _masked(base, vectors) if base.extras and base.inputs == 1 else None
    base = replace(base, lanes=lanes, unroll=unroll, block_outputs=SHORT_THREADS // lanes)
    if vectors * base.inputs > WALKED_VECTORS:
        return base
    return replace(base, depth=4 - base.inputs, clusters=WALKED_PROGRAMS)


def _masked(base: Rings, vectors: int) -> Rings | None:
    """As `_short`, of as few places as lanes allow where not all have elements."""
    found = [(lanes, math.ceil(vectors / lanes)) for lanes in SHORT_LANES]
    held = [each for each in found if each[1] * base.run <= SHORT_ELEMENTS]
    lanes, unroll = min(held or found, key=math.prod)
    if not held or vectors < SHORT_FILLED * lanes * unroll or base.extras * base.run > SHORT_BESIDE:
        return None
    return replace(base, lanes=lanes, unroll=unroll, block_outputs=SHORT_THREADS // lanes, parted=True)


def _alone(base: Rings, vectors: int) -> Rings | None:
    """One program a row, whose threads hold about eight vectors each."""
    for lanes in ALONE_LANES:
        each = vectors // lanes
        if each * lanes == vectors and ALONE_EACH[0] <= each <= ALONE_EACH[1]:
            unroll = next(u for u in (TURN_ELEMENTS // base.run, 2, 1) if each % u == 0)
            return replace(base, lanes=lanes, unroll=unroll, turns=each // unroll, depth=each // unroll)
    return None


def _parted(base: Rings, vectors: int) -> Rings | None:
    """One program a row of any number of vectors; None where an SM would hold few such rows."""
    if vectors * base.inputs > ALONE_VECTORS:
        return None
    lanes = next(lanes for most, lanes in PARTED_LANES if vectors <= most)
    turns = math.ceil(vectors / (lanes * PARTED_UNROLL))
    return replace(base, lanes=lanes, unroll=PARTED_UNROLL, turns=turns, depth=turns, parted=True)


def _long(base: Rings, vectors: int, fields: int, device: Device) -> Rings | None:
    """Programs that walk over the rows, one an SM. Where states have one field, more programs share a row."""
    size = vectors * base.inputs * VECTOR_BYTES
    if fields > 1:
        return _walking(base, vectors, (2 // base.inputs, 1), device)
    if base.inputs > 1:
        return None
    if SLICE_BYTES < size <= 4 * SLICE_BYTES:
        return _walking(base, vectors, (2, 1), device, slice_bytes=SLICE_BYTES // 2)
    return _walking(base, vectors, (4, 2, 1), device)


def _walking(
    base: Rings,
    vectors: int,
    unrolls: tuple[int, ...],
    device: Device,
    slice_bytes: int = SLICE_BYTES,
    lanes: int = WALKING_LANES,
) -> Rings | None:
    """Clusters of programs of so many bytes a row each, at most; the ring takes what is left of an SM's shared memory."""
    splits = math.ceil(vectors * base.inputs * VECTOR_BYTES / slice_bytes)
    for unroll in unrolls:
        turns = vectors // (splits * lanes * unroll)
        depth = RING_BYTES // (unroll * lanes * base.inputs * VECTOR_BYTES)
        if splits <= device.cluster and turns * splits * lanes * unroll == vectors and depth > turns:
            clusters = max(1, device.sms // splits)
            return replace(
                base, lanes=lanes, unroll=unroll, turns=turns, depth=depth, splits=splits, clusters=clusters
            )
    return None

"""Rows that programs hold in their shared memory while they are folded and mapped: rings of turns.

Measured (docs/experiments/maps-rings.md): how many bytes the programs of an SM have on their way decides the time of long
rows, and shared memory holds more of them than registers do beside what is computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from tilefold.algebra.program import Program
from tilefold.planner.blocks import LANES_TILE
from tilefold.planner.device import Device
from tilefold.planner.maps import Dtypes, long_vectors, rows_of
from tilefold.planner.plan import count
from tilefold.planner.settled import MANY_FIELDS
from tilefold.planner.view import VECTOR_BYTES, WARP, View, view_of
from tilefold.problem import Problem

RESERVED_BYTES = 2048  # of a program's dynamic shared memory, for what Triton uses of it
PROGRAM_BYTES = (
    RESERVED_BYTES + 1024 + 512
)  # of an SM's shared memory beside a ring: the driver's, and states that meet
ELEMENTS = (torch.bfloat16, torch.float16, torch.float32)
LONGEST = 1 << 30  # elements: places in a row have 32 bits
# Of a row, from which number on several share a program, up to which they do, up to which a program has one; and from which
# on programs walk over long rows without extra tensors, too long for registers.
SOME_VECTORS, SHORT_VECTORS, ALONE_VECTORS, LONGEST_BLOCKS = 32, 256, 4096, 65536
SHORT_ELEMENTS = 32  # of all inputs that a thread holds of a short row
SHORT_THREADS = 128  # of a program that holds several rows
WALKED_VECTORS = 64  # of a row's inputs: programs walk over rows as short as this
WALKED_PROGRAMS = 1 << 16  # as many as run at once: the launch knows
ALONE_LANES, ALONE_EACH = (
    (64, 128, 256, 512),
    (5, 8),
)  # threads of a program that has one row, and their vectors
TURN_ELEMENTS = 16  # of a thread and turn there
REGISTERS_BYTES = 1 << 20  # of a row of two inputs whose states have one field: registers of a cluster hold so many as well
SLICE_BYTES = 128 << 10  # that a walking program holds of a row, at most
RING_BYTES = 192 << 10  # of its shared memory
WALKING_LANES = 1024  # its threads
ODD_TILES = {
    2: (128, 10),
    4: (256, 8),
}  # threads that share an odd row, and their vectors, by elements' bytes
# Where rows are long and programs walk over none: programs of an SM and their threads, and by how much of the time these
# lose; and what each program beyond so many that share a row does.
SEVERAL, MANY_SPLITS, LATE = {(4, 256): 0.0, (3, 256): 0.02, (2, 512): 0.05}, 8, 0.012
SM_REGISTERS = 65536
ODD_VECTORS = 512  # of a row of several inputs that begins between two vectors: from which number on rings hold it
LINE_VECTORS = 8  # of 128 bytes
ROWS_AN_SM = 2  # at least, where a program has one row alone
BUSY = 0.85  # of the clusters' time, at least


@dataclass(frozen=True)
class Rings:
    """What a launch of `map_rings` decides: each of `splits` programs holds `turns` of [unroll, lanes, run] of each row.

    Or a program holds `block_outputs` rows. Its ring has room for `depth` turns, of `inputs` inputs; `held`: and for its
    share of `extras` extra tensors. `clusters` walk over the rows; where it is 0, there are as many as rows.
    """

    family: str
    lanes: int
    run: int
    unroll: int
    turns: int
    depth: int
    splits: int
    clusters: int = 0
    align: int = 1
    held: bool = False
    inputs: int = 1
    extras: int = 0
    block_outputs: int = 1
    pair: int = 1
    registers: int = 0

    @property
    def num_warps(self) -> int:
        """Warps of a program."""
        return self.lanes * self.block_outputs // WARP

    @property
    def step(self) -> int:
        """Elements of one row that a program holds."""
        return self.run * self.lanes * self.unroll * self.turns

    @property
    def shared_bytes(self) -> int:
        """Bytes of the ring, and of the extra tensors behind it."""
        turns = self.depth * self.inputs * self.block_outputs * self.pair + self.turns * self.extras * self.held
        return turns * self.unroll * self.lanes * VECTOR_BYTES

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        tile = f"k{self.block_outputs},l{self.lanes},r{self.run}x{self.unroll},t{self.turns}/{self.depth}"
        tile += f"x{self.pair}" * (self.pair > 1)
        return f"{self.family}:{tile},s{self.splits},c{self.clusters}" + ",held" * self.held

    def __str__(self) -> str:
        elements = count(self.run * self.unroll, "element")
        tile = f"{count(self.block_outputs, 'result')} x {count(self.lanes, 'lane')} x {elements}"
        words = [tile, f"{self.turns} of {count(self.depth, 'turn')} a row", count(self.splits, "split")]
        words += [count(self.num_warps, "warp")]
        words += [f"{count(self.clusters, 'cluster')} for all rows"] * (self.clusters > 0)
        words += ["extra tensors held"] * self.held + ["aligned"] * (self.align > 1)
        return f"{self.family}: {', '.join(words)}"


def vectors_of(
    problem: Problem, program: Program, results: Dtypes, view: View, rows: Problem
) -> tuple[int, int] | None:
    """(elements of a vector of 16 bytes, the multiple that rows begin at) if whole vectors can be held and stored; else None.

    All tensors have elements of one size, 2 or 4 bytes, contiguous along the one reduced dim; extra tensors, which may be
    twice as wide, are shared by all rows and all of one size.
    """
    n, size = len(rows.dtypes), rows.dtypes[0].itemsize
    if not view.by_rows or not program.algebra.commutative or program.algebra.index:
        return None
    if (
        len(rows.reduced_dims) != 1
        or not 0 < problem.length < LONGEST
        or set(rows.reduced_dims[0].strides) != {1}
    ):
        return None
    if not {*rows.dtypes, *results} <= set(ELEMENTS) or {d.itemsize for d in (*rows.dtypes, *results)} != {
        size
    }:
        return None
    if len(program.state) >= MANY_FIELDS or any(d.itemsize != 4 for d in program.state):
        return None
    if not _shared_by_rows(problem, n, size):
        return None
    full = VECTOR_BYTES // size
    stored = all(d.output % full == 0 for d in problem.output_dims) and problem.reduced_dims[0].output == 1
    if view.vector == full and stored:
        return full, 1
    run, align = long_vectors(view, rows, results)
    return (run, align) if align == full else None


def _shared_by_rows(problem: Problem, inputs: int, size: int) -> bool:
    """Whether each extra tensor is one row, contiguous and aligned, that all rows share."""
    for i, dtype in enumerate(problem.dtypes[inputs:], start=inputs):
        own = any(d.strides[i] for d in problem.output_dims)
        fits = (
            dtype in ELEMENTS
            and dtype.itemsize in (size, 2 * size)
            and problem.aligned[i] % VECTOR_BYTES == 0
        )
        if own or not fits or problem.reduced_dims[0].strides[i] != 1:
            return False
    return len({d.itemsize for d in problem.dtypes[inputs:]}) <= 1


def rings_stage(problem: Problem, program: Program, results: Dtypes, device: Device) -> Rings | None:
    """Rows in rings; None where registers hold them as well, or where there is no such form.

    Whether there is one may depend on the number of rows: a single row's extra tensors are always shared. So plans of
    "batch_invariant" have none.
    """
    rows, cluster = rows_of(problem, program.algebra.inputs), device.cluster
    found = vectors_of(problem, program, results, view_of(rows), rows)
    if found is None or cluster == 1:
        return None
    run, align = found
    inputs, extras = len(rows.dtypes), len(problem.dtypes) - len(rows.dtypes)
    base = Rings("ring_rows", 0, run, 1, 1, 1, 1, align=align, inputs=inputs, extras=extras)
    vectors, fields = math.ceil((problem.length + align - 1) / run), len(program.state)
    if align > 1:
        several = inputs > 1 and vectors > ODD_VECTORS
        return _several(base, vectors, problem.outputs, device) if several else None
    if vectors <= SHORT_VECTORS:
        few = vectors < SOME_VECTORS or (not extras and vectors <= WALKED_VECTORS)
        return None if few else _short(base, vectors)
    if vectors <= ALONE_VECTORS:
        some = extras and inputs == 1 and problem.outputs >= ROWS_AN_SM * device.sms
        return _alone(base, vectors) if some else None
    if extras:
        if _in_registers(base, vectors, fields):
            return None
        stage = _long(base, vectors, fields, device)
        if stage is None:
            return _several(base, vectors, problem.outputs, device)
    else:
        too_long = vectors > LONGEST_BLOCKS
        stage = _walking(base, vectors, (2, 1), device, lanes=WALKING_LANES // 2) if too_long else None
    return stage if stage is not None and _is_busy(stage, problem.outputs) else None


def _is_busy(stage: Rings, rows: int) -> bool:
    """Whether nearly all clusters walk over as many rows as any does."""
    return rows >= BUSY * stage.clusters * math.ceil(rows / stage.clusters)


def odd_rings(problem: Problem, program: Program, results: Dtypes, device: Device) -> Rings | None:
    """Long rows beside extra tensors that begin between two vectors, by a cluster of small programs; else None."""
    rows, cluster = rows_of(problem, program.algebra.inputs), device.cluster
    found = vectors_of(problem, program, results, view_of(rows), rows)
    extras = len(problem.dtypes) - len(rows.dtypes)
    if found is None or found[1] == 1 or not extras or cluster == 1:
        return None
    run, align = found
    vectors = math.ceil((problem.length + align - 1) / run)
    if len(rows.dtypes) > 1:
        return None
    lanes, most = ODD_TILES[rows.dtypes[0].itemsize]
    base = Rings("ring_rows", lanes, run, 1, 1, 1, 1, align=align, extras=extras)
    return _fewest(base, vectors, most, cluster) or _several(base, vectors, problem.outputs, device)


def _in_registers(base: Rings, vectors: int, fields: int) -> bool:
    """Whether tiles of powers of two that registers hold are as fast."""
    size = vectors * base.inputs * VECTOR_BYTES
    if vectors * base.run % LANES_TILE:
        return False
    if base.inputs > 1 and fields == 1:
        return size <= REGISTERS_BYTES
    return base.run == 4 and size <= 2 * base.inputs * SLICE_BYTES and (fields == 1 or base.inputs > 1)


def _several(base: Rings, vectors: int, rows: int, device: Device) -> Rings | None:
    """Programs that share a row, several an SM: while one waits, others work."""
    found: list[tuple[float, int, Rings]] = []
    for (programs, lanes), loss in SEVERAL.items():
        room = device.shared_bytes // programs - PROGRAM_BYTES
        registers = SM_REGISTERS // (programs * lanes) // 8 * 8
        for unroll in (2, 1) if base.inputs == 1 and base.align == 1 else (1,):
            most = room // (lanes * unroll * VECTOR_BYTES * base.inputs)
            stage = _fewest(replace(base, lanes=lanes, unroll=unroll, registers=registers), vectors, most, device.cluster)
            if stage is not None and rows * stage.splits >= device.sms * programs:
                found.append((loss + LATE * max(0, stage.splits - MANY_SPLITS), len(found), stage))
    return min(found)[2] if found else None


def _fewest(base: Rings, vectors: int, most: int, cluster: int) -> Rings | None:
    """The fewest programs that hold a row in so many turns each, none of them ending before its last turn."""
    turn, line = base.lanes * base.unroll, LINE_VECTORS if base.align == 1 else 1
    for splits in range(1, cluster + 1):
        share = math.ceil(vectors / splits / line) * line
        turns = math.ceil(share / turn)
        last = vectors - (base.align > 1) - (splits - 1) * share
        if turns <= most and (turns - 1) * turn < last:
            return replace(base, turns=turns, depth=turns, splits=splits)
    return None


def _short(base: Rings, vectors: int) -> Rings | None:
    """Several rows a program, each held by a few threads: of the shortest, programs walk over many."""
    unroll = max(1, SHORT_ELEMENTS // (base.run * base.inputs))
    lanes = max(1, vectors // unroll)
    if lanes * unroll != vectors or lanes & (lanes - 1) or lanes > SHORT_THREADS // 2:
        return None
    base = replace(base, lanes=lanes, unroll=unroll, block_outputs=SHORT_THREADS // lanes)
    if vectors * base.inputs > WALKED_VECTORS:
        return base
    return replace(base, depth=4 - base.inputs, clusters=WALKED_PROGRAMS)


def _alone(base: Rings, vectors: int) -> Rings | None:
    """One program a row, whose threads hold about eight vectors each."""
    for lanes in ALONE_LANES:
        each = vectors // lanes
        if each * lanes == vectors and ALONE_EACH[0] <= each <= ALONE_EACH[1]:
            unroll = next(u for u in (TURN_ELEMENTS // base.run, 2, 1) if each % u == 0)
            return replace(base, lanes=lanes, unroll=unroll, turns=each // unroll, depth=each // unroll)
    return None


def _long(base: Rings, vectors: int, fields: int, device: Device) -> Rings | None:
    """Programs that walk over the rows, one an SM. States of one field meet at little cost, so more programs share a row."""
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

"""Rows that programs hold in their shared memory while they are folded and mapped: rings of turns.

Measured (docs/experiments/maps-rings.md): how many bytes the programs of an SM have on their way decides the time of long
rows, and shared memory holds more of them than registers do beside what is computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from tilefold.algebra.program import Program
from tilefold.planner.device import Device
from tilefold.planner.maps import Dtypes, long_vectors, rows_of
from tilefold.planner.plan import count
from tilefold.planner.settled import MANY_FIELDS
from tilefold.planner.view import VECTOR_BYTES, WARP, View, alone, power_above, view_of
from tilefold.problem import Problem

RESERVED_BYTES = 2048  # of a program's dynamic shared memory, for what Triton uses of it
PROGRAM_BYTES = (
    RESERVED_BYTES + 1024 + 512
)  # of an SM's shared memory beside a ring: the driver's, and states that meet
ELEMENTS = (torch.bfloat16, torch.float16, torch.float32)
LONGEST = 1 << 30  # elements: places in a row have 32 bits


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
        turns = self.depth * self.inputs * self.block_outputs + self.turns * self.extras * self.held
        return turns * self.unroll * self.lanes * VECTOR_BYTES

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        tile = f"k{self.block_outputs},l{self.lanes},r{self.run}x{self.unroll},t{self.turns}/{self.depth}"
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


SHORT_VECTORS = 256  # of a row: up to here a warp or less holds it
SHORT_LANES_VECTORS = 8  # that a thread holds of a short row, of all inputs together
SHORT_THREADS = 128  # of a program that holds several rows
LONG_BYTES = 64 << 10  # of a row beside extra tensors, from here on
SLICE_BYTES = 128 << 10  # that a program holds of a row, at most
RING_BYTES = 216 << 10  # of shared memory, of the one program of an SM
LANES = (1024, 512)  # threads of that program
UNROLLS = (4, 2, 1)  # vectors a thread of a turn


def rings_stage(
    problem: Problem, program: Program, results: Dtypes, device: Device, invariant: bool, cluster: int
) -> Rings | None:
    """Rows in rings; None where registers hold them as well, or where there is no such form."""
    rows = rows_of(problem, program.algebra.inputs)
    view = alone(view_of(rows), rows) if invariant else view_of(rows)
    found = vectors_of(problem, program, results, view, rows)
    if found is None or cluster == 1:
        return None
    run, align = found
    inputs, extras = len(rows.dtypes), len(problem.dtypes) - len(rows.dtypes)
    vectors = math.ceil((problem.length + align - 1) / run)
    base = Rings("ring_rows", 0, run, 1, 1, 1, 1, align=align, inputs=inputs, extras=extras)
    if vectors <= SHORT_VECTORS:
        return _short(base, vectors)
    if vectors * inputs * VECTOR_BYTES < LONG_BYTES:
        return None
    return _long(base, vectors, cluster, device)


def _short(base: Rings, vectors: int) -> Rings:
    """Several rows a program, each held by a warp or part of one."""
    most = max(1, SHORT_LANES_VECTORS // base.inputs)
    lanes = min(WARP, power_above(math.ceil(vectors / most)))
    each = math.ceil(vectors / lanes)
    unroll = min(each, most) if base.align == 1 else 1
    turns = math.ceil(each / unroll)
    return replace(
        base, lanes=lanes, unroll=unroll, turns=turns, depth=turns, block_outputs=SHORT_THREADS // lanes
    )


def _long(base: Rings, vectors: int, cluster: int, device: Device) -> Rings | None:
    """One program an SM that walks over rows, or a cluster of them, with the fewest places beyond a row's end."""
    size = VECTOR_BYTES * base.inputs
    splits = math.ceil(vectors * size / SLICE_BYTES)
    if splits > cluster:
        return None
    share = math.ceil(vectors / splits)
    found: list[tuple[int, int, Rings]] = []
    for lanes in LANES:
        for unroll in UNROLLS:
            turns, depth = math.ceil(share / (lanes * unroll)), RING_BYTES // (lanes * unroll * size)
            if turns < 2 or depth <= turns:
                continue
            clusters = device.sms // splits
            stage = replace(
                base, lanes=lanes, unroll=unroll, turns=turns, depth=depth, splits=splits, clusters=clusters
            )
            found.append((turns * lanes * unroll, len(found), stage))
    return min(found)[2] if found else None

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
from tilefold.planner.view import VECTOR_BYTES, WARP, View, alone, view_of
from tilefold.problem import Problem

RESERVED_BYTES = 2048  # of a program's dynamic shared memory, for what Triton uses of it
PROGRAM_BYTES = RESERVED_BYTES + 1024 + 512  # of an SM's shared memory beside a ring: the driver's, and states that meet
ELEMENTS = (torch.bfloat16, torch.float16, torch.float32)
LONGEST = 1 << 30  # elements: places in a row have 32 bits


@dataclass(frozen=True)
class Rings:
    """What a launch of `map_rings` decides: each of `splits` programs holds `turns` of [unroll, lanes, run] elements of a row.

    Or a program holds `block_outputs` rows. Its ring has room for `depth` turns, of `inputs` inputs; `held`: and for its share
    of `extras` extra tensors. `clusters` walk over the rows, as many as there are rows where it is 0.
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
    if len(rows.reduced_dims) != 1 or not 0 < problem.length < LONGEST or not set(rows.reduced_dims[0].strides) == {1}:
        return None
    if not {*rows.dtypes, *results} <= set(ELEMENTS) or {d.itemsize for d in (*rows.dtypes, *results)} != {size}:
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
        fits = dtype in ELEMENTS and dtype.itemsize in (size, 2 * size) and problem.aligned[i] % VECTOR_BYTES == 0
        if own or not fits or problem.reduced_dims[0].strides[i] != 1:
            return False
    return len({d.itemsize for d in problem.dtypes[inputs:]}) <= 1

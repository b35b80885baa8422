"""Columns that programs hold in their shared memory while they are folded and mapped: rings of turns, as `rings` has of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilefold.algebra.program import Program
from tilefold.planner.device import Device
from tilefold.planner.folds import narrowed, partial_dtypes
from tilefold.planner.maps import Dtypes, rows_of
from tilefold.planner.plan import count
from tilefold.planner.rings import ELEMENTS
from tilefold.planner.settled import MANY_FIELDS
from tilefold.planner.view import VECTOR_BYTES, WARP, view_of
from tilefold.problem import Problem


@dataclass(frozen=True)
class Stripes:
    """What a launch of `map_stripes` decides: each of `splits` programs holds `turns` of [unroll, lanes] rows of a stripe.

    A stripe is `vectors` vectors of `run` columns wide. A program's ring has room for `depth` turns. `clusters` walk over the
    stripes; where it is 0, there are as many as stripes. A thread has `registers` at most (0: as the compiler has it).
    """

    lanes: int
    vectors: int
    run: int
    unroll: int
    turns: int
    depth: int
    splits: int
    clusters: int = 0
    registers: int = 0
    early: bool = False
    loads: str = ""
    stores: str = ""

    @property
    def block_outputs(self) -> int:
        """Columns of a stripe."""
        return self.vectors * self.run

    @property
    def num_warps(self) -> int:
        """Warps of a program."""
        return self.lanes * self.vectors // WARP

    @property
    def step(self) -> int:
        """Elements of a column that a program holds."""
        return self.lanes * self.unroll * self.turns

    @property
    def shared_bytes(self) -> int:
        """Bytes of the ring."""
        return self.depth * self.unroll * self.lanes * self.vectors * VECTOR_BYTES

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        tile = f"k{self.block_outputs},l{self.lanes},r{self.unroll},t{self.turns}/{self.depth}"
        return f"stripe_columns:{tile},s{self.splits},c{self.clusters}"

    def __str__(self) -> str:
        tile = f"{count(self.block_outputs, 'result')} x {count(self.lanes, 'lane')} x {count(self.unroll, 'element')}"
        words = [tile, f"{self.turns} of {count(self.depth, 'turn')} a stripe", count(self.splits, "split")]
        words += [count(self.num_warps, "warp")]
        words += [f"{count(self.clusters, 'cluster')} for all stripes"] * (self.clusters > 0)
        return f"stripe_columns: {', '.join(words)}"


def fits(problem: Problem, program: Program, results: Dtypes) -> bool:
    """Whether columns can be held and stored as whole vectors: one input and nothing beside it, of 2 or 4 bytes.

    States and results of a fold are few, of 32 bits each.
    """
    rows = rows_of(problem, program.algebra.inputs)
    view = view_of(rows)
    if view.by_rows or len(problem.dtypes) != 1 or not program.algebra.commutative or program.algebra.index:
        return False
    if len(rows.reduced_dims) != 1 or not {*rows.dtypes, *results} <= set(ELEMENTS):
        return False
    states = partial_dtypes(narrowed(program, problem.length))
    if len(states) >= MANY_FIELDS or len(program.outputs) > len(states):
        return False
    if any(d.itemsize != 4 for d in (*states, *program.outputs)) or {d.itemsize for d in results} != {
        rows.dtypes[0].itemsize
    }:
        return False
    *outer, last = problem.output_dims
    steps = [d.output for d in (*outer, *problem.reduced_dims)]
    return view.vector == view.full_vector and last.output == 1 and not any(s % view.vector for s in steps)

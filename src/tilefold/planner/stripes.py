"""Columns that programs hold in their shared memory while they are folded and mapped: rings of turns, as `rings` has of rows."""

from __future__ import annotations

from dataclasses import dataclass

from tilefold.planner.plan import count
from tilefold.planner.view import VECTOR_BYTES, WARP


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

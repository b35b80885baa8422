"""Rows that programs hold in their shared memory while they are folded and mapped: rings of turns."""

from __future__ import annotations

from dataclasses import dataclass

from tilefold.planner.plan import count
from tilefold.planner.view import VECTOR_BYTES, WARP

RESERVED_BYTES = 2048  # of a program's dynamic shared memory, for what Triton uses of it


@dataclass(frozen=True)
class Rings:
    """What a launch of `map_rings` decides: each of `splits` programs holds `turns` of [unroll, lanes, run] elements of a row.

    Its ring has room for `depth` turns, of `inputs` inputs; `held`: and for its share of `extras` extra tensors. `clusters` walk over the rows, all of them at
    once where it is 0.
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
        words = [f"{count(self.lanes, 'lane')} x {elements}", f"{self.turns} of {count(self.depth, 'turn')} a row"]
        words += [count(self.splits, "split"), count(self.num_warps, "warp")]
        words += [f"{count(self.clusters, 'cluster')} over all rows"] * (self.clusters > 0)
        words += ["extra tensors kept"] * self.held + ["aligned"] * (self.align > 1)
        return f"{self.family}: {', '.join(words)}"

"""The decisions of launches that fold tensors at addresses of a table."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tilefold.planner.plan import count


@dataclass(frozen=True)
class Blocks:
    """A launch with a program a block of some tensor: it reads tiles of `lanes` x `unroll` runs of `run` neighbours.

    `dtype` is that of the tensors, which have `elements` elements in all. `ordered`: elements are combined in their order,
    and a lane takes neighbours; `absorb`: a lane takes its elements of a tile as one block.
    """

    dtype: torch.dtype
    elements: int
    blocks: int
    lanes: int
    run: int
    unroll: int
    ordered: bool
    absorb: bool
    num_warps: int
    num_stages: int = 1

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        return f"table:l{self.lanes},r{self.run}x{self.unroll},b{self.blocks},w{self.num_warps}"

    def __str__(self) -> str:
        tile = f"{count(self.lanes, 'lane')} x {count(self.run * self.unroll, 'element')}"
        order = "in order" if self.ordered else "lanes first"
        return f"{count(self.blocks, 'block')} at addresses, tiles of {tile}, {count(self.num_warps, 'warp')}, {order}"

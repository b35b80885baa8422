"""The decisions of a launch that copies between layouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tilefold.planner.plan import count
from tilefold.planner.problem.canonical import Dim


@dataclass(frozen=True)
class Side:
    """One side of a tile: `size` places along several dims (the last one fastest) in the input and in the result.

    `inputs` and `outputs` are (sizes, steps): the sizes of all dims but the first, and the step along each dim. Dims that one
    step can walk are one dim.
    """

    size: int
    inputs: tuple[tuple[int, ...], tuple[int, ...]]
    outputs: tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Move:
    """The decisions of a launch that copies between layouts: the tile's sides, and the dims that programs walk.

    `group`: so many tiles below each other run before those beside them; 0, all of them. `spread`: the grid has three axes.
    `keep`: the L2 is asked to keep the results, since tiles share lines of them and a next kernel reads them first.
    `aligned`: the largest power of two up to 16 that divides the input's address in bytes. `wide`: offsets need 64 bits.
    `run`: a tile has no single elements but runs of so many neighbours, which stay neighbours.
    """

    rows: Side
    columns: Side
    outer: tuple[Dim, ...]
    block_rows: int
    block_columns: int
    group: int
    num_warps: int
    dtype: torch.dtype
    aligned: int
    wide: bool = False
    keep: bool = True
    spread: bool = False
    run: int = 1

    @property
    def row_blocks(self) -> int:
        """Tiles below each other."""
        return math.ceil(self.rows.size / self.block_rows)

    @property
    def column_blocks(self) -> int:
        """Tiles beside each other."""
        return math.ceil(self.columns.size / self.block_columns)

    @property
    def places(self) -> int:
        """Places of the outer dims."""
        return math.prod(d.size for d in self.outer)

    @property
    def programs(self) -> int:
        """One for each tile of each place of the outer dims."""
        return self.places * self.row_blocks * self.column_blocks

    @property
    def split(self) -> bool:
        """Whether only the last tile has a mask. So it is for one run of memory, whose whole tiles begin and end at
        vectors."""
        part = self.columns.size > self.block_columns and self.columns.size % self.block_columns != 0
        return part and self.places * self.rows.size * self.block_rows == 1

    @property
    def loads_along(self) -> str:
        """The side along which elements are neighbours in the input, "" for none."""
        return "columns" if self.columns.inputs[1][-1] == 1 else ""

    @property
    def stores_along(self) -> str:
        """The side along which elements are neighbours in the result, "" for none."""
        if self.columns.outputs[1][-1] == 1:
            return "columns"
        return "rows" if self.rows.outputs[1][-1] == 1 else ""

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        runs = f"x{self.run}" * (self.run > 1)
        return f"move:{self.block_rows}x{self.block_columns}{runs},w{self.num_warps}"

    def __str__(self) -> str:
        what = f"runs of {self.run} elements" if self.run > 1 else "elements"
        tile = f"tiles of {self.block_rows} x {self.block_columns} {what}"
        return f"move: {tile}, {count(self.num_warps, 'warp')}"


def sizes_and_steps(
    dims: Sequence[Dim], step: Callable[[Dim], int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sizes but the first, and the steps, of the fewest dims that walk the same places."""
    sizes, steps = [1], [0]
    for d in dims:
        if sizes == [1]:
            sizes, steps = [d.size], [step(d)]
        elif steps[-1] == step(d) * d.size:
            sizes[-1], steps[-1] = sizes[-1] * d.size, step(d)
        else:
            sizes.append(d.size)
            steps.append(step(d))
    return tuple(sizes[1:]), tuple(steps)

"""How many programs a launch has, and each one's head, whole tiles and tail.

The kernels' constants `HEAD`, `HAS_FULL`, `TAIL` and the argument `chunk` come from here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilefold.planner.geometry import Geometry
from tilefold.planner.plan import Stage
from tilefold.planner.sizes import SMALL_AXIS

# Of a fold whose length is a constant: sixteen of a log-sum-exp took 49 us for 41 (64x2^20 bf16, dim 0;
# docs/experiments/tiles.md#lengths).
CONSTANT_TILES = 8


@dataclass(frozen=True)
class Programs:
    """The programs of one launch. `blocks` share the last output dim, `splits` a result, of `chunk` elements each.

    `head` runs of all lanes are masked at the beginning; then come whole tiles (`has_full`: 0 none, 1 one, 2 any number); a
    masked tail takes `tail` runs at a time.
    """

    blocks: int
    splits: int
    chunk: int
    head: int
    has_full: int
    tail: int

    def count(self, geometry: Geometry) -> int:
        """How many there are."""
        return geometry.rows * self.blocks * self.splits


def programs_of(geometry: Geometry, stage: Stage) -> Programs:
    """The programs of `stage` over a problem."""
    length = geometry.length
    ragged = geometry.ragged > 0
    head, has_full, tail = edges(stage, length, ragged)
    return Programs(
        blocks=math.ceil(geometry.width / stage.block_outputs),
        splits=stage.splits,
        chunk=chunk_of(stage, length, ragged),
        head=head,
        has_full=has_full,
        tail=tail,
    )


def chunk_of(stage: Stage, length: int, ragged: bool = False) -> int:
    """Elements that each split but the last folds: whole tiles, one of them the head where rows are read aligned."""
    if stage.splits == 1:
        return length
    tiles = (length - ragged) // stage.step - (stage.align > 1)
    return math.ceil(tiles / stage.splits) * stage.step


def edges(stage: Stage, length: int, ragged: bool = False) -> tuple[int, int, int]:
    """A masked head, whole tiles (0 none, 1 one, 2 any number), a masked tail: head and tail in runs of all lanes.

    `ragged`: not every result has the last element, so that it is masked.
    """
    runs = stage.run * stage.lanes
    head = 0 if stage.align == 1 else stage.unroll if stage.splits > 1 else 1
    full = (length - ragged - head * runs) // stage.step
    if head and full < 1 and stage.splits == 1:
        head, full = 0, 0  # one tile is masked on both ends
    rest = length - head * runs - full * stage.step + stage.align - 1
    tail = 1 << max(0, (math.ceil(rest / runs) - 1).bit_length()) if rest else 0
    has_full = 0 if full < 1 else 1 if full == stage.splits and not head else 2
    return head, has_full, min(tail, stage.unroll) if full else tail


def constant_length(stage: Stage, length: int, ragged: bool = False) -> int:
    """The length where it is a constant of the kernel, so that masks cost nothing: of short folds by one program; else 0.

    Not of partial states, whose number follows that of results. Not of many tiles either: the compiler writes their loop out.
    """
    constant = length <= SMALL_AXIS and stage.splits == 1 and stage.align == 1 and stage.family != "partials"
    few = length <= CONSTANT_TILES * stage.step
    return length if constant and few and not ragged else 0


def has_one_tail(stage: Stage, length: int, ragged: bool = False) -> bool:
    """Whether every program masks exactly one tile at its end: one by itself has as many as its length leaves."""
    head, has_full, tail = edges(stage, length, ragged)
    if not tail or stage.splits > 1:
        return False
    runs = stage.run * stage.lanes
    begin = runs * head
    end = begin + (max(0, (length - ragged - begin) // stage.step) * stage.step if has_full else 0)
    return math.ceil((length + stage.align - 1 - end) / (runs * tail)) == 1


@dataclass(frozen=True)
class Tiling:
    """The work of one program (or the mean one): elements of a result where each part begins, and how often it is done."""

    start: int
    head: int  # masked runs of all lanes
    full: int  # whole tiles
    tail: int  # masked tiles
    tail_runs: int  # of all lanes, in each of them


def tiling_of(stage: Stage, grid: Programs, length: int, split: int, ragged: bool = False) -> Tiling:
    """The parts of the program with this split."""
    runs = stage.run * stage.lanes
    start = split * grid.chunk
    stop = length + stage.align - 1 if split == grid.splits - 1 else start + grid.chunk
    begin = start + runs * grid.head
    full = max(0, (min(stop, length - ragged) - begin) // stage.step) if grid.has_full else 0
    end = begin + full * stage.step
    if not grid.tail:
        tails = 0
    elif not grid.head and not grid.has_full and not stage.ordered:
        tails = 1
    else:
        tails = max(0, math.ceil((stop - end) / (runs * grid.tail)))
    return Tiling(start, grid.head, full, tails, grid.tail)


def shared_inputs(stage: Stage, steps: Sequence[int], ragged: int = 0) -> tuple[int, ...]:
    """The inputs whose elements a launch of columns loads once for all of a program's results: those without a step along
    the results, of inputs with these `steps`, where another input's results are neighbours.

    A whole tile of such an input would lie on other threads than its neighbours do, and pass through shared memory.
    """
    columns = stage.run == stage.align == 1 and stage.block_outputs > 1 and 1 in steps
    if not columns or ragged or stage.flat or stage.shift or stage.ordered or stage.gathered:
        return ()
    return tuple(i for i, step in enumerate(steps) if step == 0)

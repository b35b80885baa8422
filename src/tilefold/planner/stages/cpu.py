"""The decisions of loops on a CPU: tiles of folds and scans, the dims that they walk, and the parts of a long fold."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tilefold.planner.plan import count
from tilefold.planner.problem.canonical import Dim, Problem, split

# No record of other sizes: docs/experiments/cpu.md#folds has the times with these.
SHORT = 64  # elements of a reduced dim up to which results are walked next to each other

# Sharing parts among threads takes 0.7 of the time of sharing operations at 2 threads of an idle machine, half at 4 and a
# quarter at 16; on two cores that others use too it took up to ten times as long (docs/experiments/cpu.md#folds).
FEW = 4


@dataclass(frozen=True)
class Tiles:
    """The decisions of one loop over tiles: the operation on a tile, its length along each dim, output dims first.

    `order`: the dims as a tile is laid out, far strides first. `threads` take tiles of results each.
    """

    form: str
    tile: tuple[int, ...]
    order: tuple[int, ...]
    threads: int = 1

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        return f"{self.form}:{'x'.join(map(str, self.tile)) or 1},t{self.threads}"

    def __str__(self) -> str:
        return f"{self.form}: tiles of {' x '.join(map(str, self.tile)) or 1} elements"


@dataclass(frozen=True)
class CombineParts:
    """The states of `parts` of each result are combined in a tree of neighbours."""

    parts: int

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        return f"combine:{self.parts}"

    def __str__(self) -> str:
        return f"states of {count(self.parts, 'part')} combined"


def in_parts(problem: Problem, parts: int, commutative: bool) -> tuple[Problem, Problem | None]:
    """The longest reduced dim (the farthest, where order matters) cut into equal parts, and what is left at its end.

    The first has an output dim more, the parts, ahead of the others: its results are states to combine in that order.
    """
    which = cut_dim(problem, commutative)
    dim, outer = problem.reduced_dims[which], problem.output_dims
    length = dim.size // parts
    ahead = replace(split(dim, length)[0], role="map", output=problem.outputs)

    def with_size(size: int) -> tuple[Dim, ...]:
        return tuple(replace(d, size=size) if i == which else d for i, d in enumerate(problem.reduced_dims))

    main = replace(problem, dims=(ahead, *outer, *with_size(length)))
    left = dim.size - length * parts
    return main, replace(problem, dims=(*outer, *with_size(left))) if left else None


def cut_dim(problem: Problem, commutative: bool) -> int:
    """Which reduced dim is cut into parts."""
    sizes = [dim.size for dim in problem.reduced_dims]
    return sizes.index(max(sizes)) if commutative else 0


class Geometry:
    """A problem's dims as memory has them. `order` walks far strides first, but short reduced rows are turned to columns."""

    def __init__(self, problem: Problem) -> None:
        self.dims, self.outputs, self.length = problem.dims, len(problem.output_dims), problem.length

    @functools.cached_property
    def order(self) -> tuple[int, ...]:
        """The dims as a tile is laid out."""
        order = self._by_memory
        return tuple(sorted(order, key=lambda d: d < self.outputs) if self.short else order)

    @functools.cached_property
    def _by_memory(self) -> list[int]:
        return sorted(range(len(self.dims)), key=lambda d: -max(map(abs, self.dims[d].strides)))

    @functools.cached_property
    def short(self) -> bool:
        """Whether reduced neighbours are too few for torch to run along: results then go next to each other instead."""
        return self.outputs > 0 and 1 < self.length <= SHORT and self._by_memory[-1] >= self.outputs

    @property
    def ones(self) -> list[int]:
        """A tile of one element."""
        return [1] * len(self.dims)

    def near(self, reduced: bool) -> list[int]:
        """The reduced or the output dims, near strides first."""
        return [d for d in self.order[::-1] if (d >= self.outputs) == reduced]

    def grown(self, tile: Sequence[int], dims: Iterable[int], factor: int) -> list[int]:
        """The lengths of a tile made up to `factor` times larger, along the first of `dims` before the next."""
        tile = list(tile)
        for d in dims:
            length = min(self.dims[d].size, tile[d] * max(1, factor))
            factor //= -(-length // tile[d])
            tile[d] = length
        return tile


@dataclass(frozen=True)
class CpuTile:
    """A CPU's tile: `lanes` lanes of `steps` neighbours of a row each, `rows` rows at a time; `threads` take tiles each.

    A lane is scanned step after step, or `by_levels` of 2, 4, 8 ... neighbours.
    """

    steps: int
    lanes: int
    rows: int
    threads: int = 1
    by_levels: bool = False

    def __str__(self) -> str:
        lanes, way = count(self.lanes, "lane"), " by levels" if self.by_levels else ""
        return f"scan: {lanes} of {count(self.steps, 'element')}{way}, {count(self.rows, 'row')} at a time"

    @property
    def note(self) -> str:
        """In the shortest form."""
        return f"scan:{self.steps}x{self.lanes}{'l' if self.by_levels else ''},k{self.rows}"

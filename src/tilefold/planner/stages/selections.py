"""The decisions of launches that select the k best, and how they walk rows."""

from __future__ import annotations

from dataclasses import dataclass

from tilefold.planner.folds import NARROW
from tilefold.planner.plan import count
from tilefold.planner.problem.canonical import Problem

AT_ONCE = 256  # elements of a thread that are loaded without a loop (not measured)


@dataclass(frozen=True)
class Selection:
    """The decisions of a launch that selects.

    A program owns `rows` rows, or of one of them one of `splits` parts of `part` places. Its tile is [lanes, rows, unroll,
    run]; a group is the vectors at one lane and unroll of `turns` tiles. `direct`: no groups are made. `pack`,
    `pack_groups`: an entry is one integer of 32 bits ("short"), of 64 bits ("long"), or a pair. `align`: vectors are read
    from the multiple of `run` before a row. `looped`: tiles are read in a loop, however few.
    """

    k: int
    largest: bool
    rows: int
    lanes: int
    unroll: int
    run: int
    turns: int
    splits: int
    part: int
    num_warps: int
    pack: str
    pack_groups: str
    direct: bool
    align: bool
    evict_first: bool
    looped: bool = False

    @property
    def scattered(self) -> bool:
        """Whether threads load elements one by one, neighbouring threads neighbours: a thread holds whole columns.

        With vectors of several columns' elements a column's would lie in several threads.
        """
        return self.run == 1

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        tile = f"k{self.rows},l{self.lanes},u{self.unroll},r{self.run}x{self.turns}"
        return (
            f"select:{tile},s{self.splits},w{self.num_warps}{',direct' * self.direct}{',loop' * self.looped}"
        )

    def __str__(self) -> str:
        groups = "all elements" if self.direct else f"{self.lanes * self.unroll} groups"
        parts = f", {count(self.splits, 'split')}" if self.splits > 1 else ""
        return f"select: {count(self.rows, 'row')} x {groups}{parts}, {count(self.num_warps, 'warp')}"


@dataclass(frozen=True)
class Gathering:
    """The decisions of the second launch: it holds `entries` of a row, the candidates that all parts have left."""

    k: int
    entries: int
    num_warps: int

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        return f"gather:{self.entries},w{self.num_warps}"

    def __str__(self) -> str:
        return f"gather: {self.entries} entries a row, {count(self.num_warps, 'warp')}"


def reaches_far(problem: Problem, settings: Selection) -> bool:
    """Whether a place's offset in a part needs 64 bits."""
    (along,) = problem.reduced_dims
    places = settings.part + (settings.turns + 2) * settings.lanes * settings.unroll * settings.run
    return places * max(along.strides[0], 1) > NARROW

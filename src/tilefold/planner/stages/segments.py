"""The decisions of launches of ragged folds."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tilefold.planner.plan import count
from tilefold.planner.sizes import WARP

# docs/experiments/selections.md#segments:
SHORT = 48  # elements: segments of LANES neighbours that are all as short are read once more, without what is folded
LOOKED = 128  # offsets that a program's search looks at at a time
NEAR = 4  # pieces of a segment that a lane combines by itself
TAILS = 16  # pieces of a longer one that a lane loads at a time


@dataclass(frozen=True)
class Chunks:
    """A launch that shares rows by elements: `tiles` tiles a chunk, `lanes` windows of `steps` runs of `run` neighbours.

    `whole_runs`: runs are aligned in memory, so that one which is a row's last may be read whole. `lead`: elements between
    the vector that rows are read from and their first element. `short`, `looked`: as SHORT and LOOKED.
    """

    lanes: int
    run: int
    steps: int
    tiles: int
    chunks: int
    segments: int
    offsets: torch.dtype
    whole_runs: bool = True
    lead: int = 0
    looked: int = LOOKED
    short: int = SHORT
    num_warps: int = 1
    num_stages: int = 1

    @property
    def chunk(self) -> int:
        """Elements of a chunk."""
        return self.lanes * self.run * self.steps * self.tiles

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        return f"chunks:l{self.lanes},r{self.run}x{self.steps},t{self.tiles},c{self.chunks},w{self.num_warps}"

    def __str__(self) -> str:
        tile = f"{count(self.lanes, 'lane')} x {count(self.run * self.steps, 'element')}"
        return f"{count(self.chunks, 'chunk')} of {count(self.tiles, 'tile')} of {tile}, {count(self.num_warps, 'warp')}"


@dataclass(frozen=True)
class Columns:
    """A launch that shares columns by rows: `chunk` rows of `columns` neighbours, in tiles of `lanes` x `steps` rows.

    `run`: neighbours that a thread can load at once, where those are no whole vectors; else 0. `across`: a lane's rows are
    `lanes` apart, so that lanes load neighbouring ones; else a lane's are neighbours.
    """

    columns: int
    lanes: int
    steps: int
    chunk: int
    chunks: int
    segments: int
    offsets: torch.dtype
    run: int = 0
    across: bool = False
    num_warps: int = 1
    num_stages: int = 1

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        run = f",r{self.run}" if self.run else ""
        return f"columns:k{self.columns}{run},l{self.lanes}x{self.steps},c{self.chunks},w{self.num_warps}"

    def __str__(self) -> str:
        tile = f"{count(self.lanes * self.steps, 'row')} x {count(self.columns, 'column')}"
        tile += f", {count(self.run, 'neighbour')} a thread" if self.run else ""
        tile += ", lanes across rows" if self.across else ""
        chunks = f"{count(self.chunks, 'chunk')} of {count(self.chunk, 'row')}"
        return f"{chunks}, tiles of {tile}, {count(self.num_warps, 'warp')}"


@dataclass(frozen=True)
class Pieces:
    """A launch that combines the pieces of segments which cross chunks; a program has `together` chunks of `outputs` folds.

    Segments of at most `near` pieces are combined side by side, longer ones one after another: `lanes` times `tails` pieces
    at a time.
    """

    chunks: int
    chunk: int
    offsets: torch.dtype
    lead: int = 0
    together: int = WARP
    outputs: int = 1
    lanes: int = WARP
    tails: int = TAILS
    near: int = NEAR
    num_warps: int = 1
    num_stages: int = 1

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        return f"pieces:c{self.together},k{self.outputs},l{self.lanes}x{self.tails}"

    def __str__(self) -> str:
        at_once = count(self.lanes * self.tails, "piece")
        return f"pieces of segments that cross {count(self.chunks, 'chunk')}, {at_once} at a time"


@dataclass(frozen=True)
class Alone:
    """A launch with a program a segment, which walks it in tiles of `lanes` runs of `run` neighbours."""

    lanes: int
    run: int
    segments: int
    offsets: torch.dtype
    num_warps: int = 1
    num_stages: int = 1

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        return f"alone:l{self.lanes},r{self.run}"

    def __str__(self) -> str:
        tile = f"{count(self.lanes, 'lane')} x {count(self.run, 'element')}"
        return f"{count(self.segments, 'segment')}, a program each, tiles of {tile}"

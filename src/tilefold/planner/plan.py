"""The frozen answer to "how": one or two launches of the fold's tiles."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """One launch. A program instance owns `block_kept` results and reads tiles of [run, lanes, block_kept, unroll].

    `ordered` combines in the elements' order (a tree of neighbours inside registers); otherwise each of the `lanes` folds
    its own elements, `unroll` runs of `run` neighbours a tile, and lanes meet once, at the end. `in_order`: a lane's
    elements stay in one thread and come in order, their positions too where the monoid sees them. `align`: rows start
    anywhere and are read from the multiple of so many elements before. `prefetch`: a tile is loaded while the one before it
    is folded. `num_stages`: with more than one, so many tiles are on their way at a time, through shared memory
    (asynchronous copies). `evict_first`: what was read leaves the L2 first. `splits` programs share one result; each leaves
    a partial state.
    """

    family: str
    block_kept: int
    lanes: int
    run: int
    unroll: int
    splits: int
    num_warps: int
    ordered: bool = False
    absorb: bool = False
    in_order: bool = False
    evict_first: bool = True
    align: int = 1
    prefetch: bool = False
    num_stages: int = 1

    @property
    def step(self) -> int:
        """Elements of one result in one tile."""
        return self.run * self.lanes * self.unroll


@dataclass(frozen=True)
class Plan:
    """How one fold runs. Equal plans for equal problems: a plan is a pure function of problem, program and device.

    `overlap` launches the second stage early (programmatic dependent launch). `epilogue` names what rides on the last
    store besides the projection; `saved_state` keeps the final state as a second output. Both are off for plain folds.
    """

    backend: str
    stages: tuple[Stage, ...]
    overlap: bool = False
    guarantee: str = "run_to_run"
    epilogue: str | None = None
    saved_state: bool = False
    reason: str = ""

    @property
    def launches(self) -> int:
        """How many kernels one call launches."""
        return len(self.stages)

    def __str__(self) -> str:
        lines = [f"{self.backend}: {self.reason}" if self.reason else self.backend]
        for number, s in enumerate(self.stages, 1):
            order = "in order" if s.ordered else "lanes first"
            lines.append(
                f"  {number}. {s.family}: {count(s.block_kept, 'result')} x {count(s.lanes, 'lane')} x "
                f"{count(s.run * s.unroll, 'element')} a step, {count(s.splits, 'split')}, "
                f"{count(s.num_warps, 'warp')}, {order}{', absorbing blocks' if s.absorb else ''}"
                f"{', reading ahead' if s.prefetch else ''}"
                f"{f', {s.num_stages} tiles on their way' if s.num_stages > 1 else ''}{', aligned' if s.align > 1 else ''}"
            )
        if self.overlap:
            lines.append("  stage 2 starts early (programmatic dependent launch)")
        return "\n".join(lines)


def count(n: int, thing: str) -> str:
    """A number and what it counts: "1 split", "4 splits"."""
    return f"{n} {thing}{'s' * (n != 1)}"

"""Barriers that no data needs, shown from the log of shared accesses between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tilefold.xray.machine import Access, Outcome
from tilefold.xray.machine.types import Array
from tilefold.xray.report.model import Observation, Report
from tilefold.xray.report.static import kind_of

if TYPE_CHECKING:
    from tilefold.xray.report.build import Evidence

# With these in a kernel something beside its threads touches shared memory, and the log of threads does not say enough.
_ASYNCHRONOUS = ("wgmma", "mbarrier", "tcgen05")


def needless_barrier(report: Report, evidence: Evidence) -> Iterator[Observation]:
    """Barriers of the text that no execution of any program needed.

    A barrier is needed if, were it not there, two warps could touch the same byte of shared memory, one of them writing,
    with no other barrier between.
    """
    if evidence.execution is None or _asynchronous(evidence):
        return
    needed: dict[int, list[bool]] = defaultdict(list)
    for outcome in evidence.execution.outcomes:
        order = released(evidence, outcome)
        if order is None:
            return
        for number, crossing in zip(order, crossings(outcome.accesses, len(order)), strict=True):
            needed[number].append(crossing)
    idle = [n for n, found in needed.items() if not any(found)]
    for number in idle:
        place = evidence.places.line(evidence.entry.instructions[number]) or ("", 0)
        yield Observation(
            "needless-barrier",
            "note",
            *place,
            f"the barrier in PTX line {evidence.entry.instructions[number].line} was met {len(needed[number])} times, and no "
            "byte of shared memory that one warp wrote before it was touched by another behind it",
            "the compiler guards the next use of shared memory, whether there is one or not",
            "nothing to do in Triton; with num_warps=1 the warp needs none, and fewer reductions a program need fewer",
            cycles_at_stake=len(needed[number]) * 8 * report.num_warps,
            numbers=(("met", len(needed[number])), ("barriers", len(needed))),
        )


def _asynchronous(evidence: Evidence) -> bool:
    return any(
        i.opcode in _ASYNCHRONOUS or i.name.startswith("cp.async") for i in evidence.entry.instructions
    )


def released(evidence: Evidence, outcome: Outcome) -> Sequence[int] | None:
    """The barrier instructions in the order in which they let go; None where the log does not tell."""
    releases = getattr(outcome, "releases", None)
    if releases is not None:
        return [r.instruction for r in releases]
    barriers = [n for n, i in enumerate(evidence.entry.instructions) if kind_of(i) == "barriers"]
    met = [n for n in barriers if outcome.warps[n]]
    # Without loops each is met once, in the order of the text.
    return met if len(met) == outcome.barriers else None


def crossings(accesses: Sequence[Access], barriers: int) -> list[bool]:
    """For each barrier, whether bytes cross warps between what is before it and what is behind it.

    Barrier k stands between the accesses of step k and of step k + 1.
    """
    steps: list[list[Access]] = [[] for _ in range(barriers + 1)]
    for access in accesses:
        if access.space == "shared":
            steps[access.step].append(access)
    touched = [(_words(s, False), _words(s, True)) for s in steps]
    return [_cross(touched[k], touched[k + 1]) for k in range(barriers)]


def _words(accesses: Sequence[Access], writes: bool) -> dict[int, Array]:
    """Bytes touched (or written), by warp; sorted, each once."""
    by_warp: dict[int, list[Array]] = defaultdict(list)
    for access in accesses:
        if writes and access.kind == "load":
            continue
        for warp in range(len(access.active) // 32):
            lanes = slice(32 * warp, 32 * warp + 32)
            at = access.addresses[lanes][access.active[lanes]].astype(np.int64)
            if len(at):
                by_warp[warp].append((at[:, None] + np.arange(access.bytes)).ravel())
    return {warp: np.unique(np.concatenate(parts)) for warp, parts in by_warp.items()}


def _cross(
    before: tuple[dict[int, Array], dict[int, Array]], behind: tuple[dict[int, Array], dict[int, Array]]
) -> bool:
    """Whether a warp writes what another touches on the other side."""
    return any(
        len(np.intersect1d(mine, theirs, assume_unique=True))
        for left, right in ((before[1], behind[0]), (before[0], behind[1]))
        for one, mine in left.items()
        for other, theirs in right.items()
        if one != other
    )

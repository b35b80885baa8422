"""Where the elements of single threads lie that a line loads or stores: side by side, apart, or in another order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from tilefold.xray.evidence import Evidence
from tilefold.xray.ir import element_bytes
from tilefold.xray.machine.log import Access as Logged
from tilefold.xray.machine.types import Array
from tilefold.xray.ptx import Location
from tilefold.xray.report.model import Access, Line
from tilefold.xray.report.static import access_of

_SOME = 64  # threads of a program that are asked for their runs


def run_of(line: Line, access: Access, evidence: Evidence) -> int:
    """Bytes of the usual run that one thread's elements make, where all these instructions are executed once."""
    sizes = [len(run) for run in runs_of(line, access, evidence)]
    return int(np.median(sizes)) * access.bytes if sizes else 0


def runs_of(line: Line, access: Access, evidence: Evidence) -> list[Array]:
    """Runs of neighbouring addresses that one thread touches, for some threads of each program: what may go together."""
    each = by_thread(line, access, evidence)
    return [run for at in each for run in _split_runs(np.unique(at), access.bytes)]


def asked(line: Line, access: Access, evidence: Evidence) -> tuple[int, int]:
    """Places that threads ask for, and different ones of each thread."""
    each = by_thread(line, access, evidence)
    return sum(map(len, each)), sum(len(np.unique(at)) for at in each)


def asked_by_all(line: Line, access: Access, evidence: Evidence) -> float:
    """How often each place is asked for by some threads of all programs together."""
    at = np.concatenate([np.zeros(0, np.int64), *by_thread(line, access, evidence)])
    return len(at) / max(len(np.unique(at)), 1)


def in_equal_runs(line: Line, access: Access, evidence: Evidence) -> bool:
    """Whether each thread asks for every place as often, one after the other, as those of k // 8 do."""
    each = [
        np.flatnonzero(np.r_[True, at[1:] != at[:-1], True])
        for at in by_thread(line, access, evidence)
        if len(at)
    ]
    return len({int(length) for ends in each for length in np.diff(ends)}) <= 1


def by_thread(line: Line, access: Access, evidence: Evidence) -> list[Array]:
    """The addresses of some threads of each program, where all instructions of one load or store of the line are executed
    once."""
    first = [
        _first([a for a in accesses if a.space == access.space]).values()
        for accesses in _each(line, access, evidence)
    ]
    return [
        np.array([int(a.addresses[thread]) for a in executed if a.active[thread]], np.int64)
        for executed in first
        for thread in _some_threads(executed)
    ]


def in_whole_tiles(line: Line, access: Access, evidence: Evidence) -> float:
    """Of the requests of a line's loads or stores, the part that is for tiles of which every element is on."""
    kind = {"copy": "load"}.get(access.kind, access.kind)
    tiles = [x for x in line.layouts if kind in x.operation]
    largest = max(tiles, key=lambda x: math.prod(x.shape) * element_bytes(x.element), default=None)
    if largest is None:
        return 0.0
    size = math.prod(largest.shape) * element_bytes(largest.element)
    copies = 1 if kind == "store" else largest.copies or 1  # of what several threads hold, one stores
    every = whole = 0
    for parts in rounds_of(line, access, evidence):
        requests = sum(int(a.active.reshape(-1, 32).any(1).sum()) for a in parts)
        lanes = sum(int(a.active.sum()) for a in parts)
        every += requests
        whole += requests * (lanes * access.bytes >= size * copies)
    return whole / max(every, 1)


def rounds_of(line: Line, access: Access, evidence: Evidence) -> list[list[Logged]]:
    """The accesses that belong to one tile: of each load or store of a line, in each program, those of one round."""
    found: list[list[Logged]] = []
    for accesses in _each(line, access, evidence):
        rounds, came = dict[int, list[Logged]](), Counter[int]()
        for a in accesses:
            if a.space == access.space:
                rounds.setdefault(came[a.instruction], []).append(a)
                came[a.instruction] += 1
        found += rounds.values()
    return found


def numbers_of(line: Line, access: Access, evidence: Evidence) -> list[int]:
    """The instructions that a line's access is made of, by their numbers."""
    wanted = (access.kind, access.space, access.bytes)
    return [
        n for n in evidence.at((line.file, line.line)) if access_of(evidence.entry.instructions[n]) == wanted
    ]


def _each(line: Line, access: Access, evidence: Evidence) -> list[list[Logged]]:
    """The accesses of each load or store of a line (two of a line stand at different columns) in each program."""
    assert evidence.execution is not None
    numbers: dict[Location | None, set[int]] = {}
    for n in numbers_of(line, access, evidence):
        numbers.setdefault(evidence.entry.instructions[n].location, set()).add(n)
    return [
        [a for a in outcome.accesses if a.instruction in alike]
        for outcome in evidence.execution.outcomes
        for alike in numbers.values()
    ]


def _first(accesses: Sequence[Logged]) -> dict[int, Logged]:
    """The first execution of each instruction."""
    found: dict[int, Logged] = {}
    for logged in accesses:
        found.setdefault(logged.instruction, logged)
    return found


def _some_threads(accesses: Iterable[Logged]) -> range:
    threads = max((len(a.active) for a in accesses), default=0)
    return range(0, threads, max(1, threads // _SOME))


def order_of(line: Line, access: Access, evidence: Evidence) -> int:
    """The order in which elements of a thread come that are neighbours in memory: 1 as they lie, -1 all of them in the
    opposite order, 0 any other (pairs exchanged, say)."""
    steps: set[int] = set()
    for at in by_thread(line, access, evidence):
        came = np.argsort(at, kind="stable")
        steps |= set(np.diff(came)[np.diff(at[came]) == access.bytes].tolist())
    return next((way for way in (1, -1) if steps == {way}), 0)


def reachable(line: Line, access: Access, evidence: Evidence, width: int) -> int:
    """The most bytes, `width` at most, that all executed threads could move at once from where their runs begin."""
    begins = [
        int(run[0])
        for parts in rounds_of(line, access, evidence)
        for thread in range(max(len(a.active) for a in parts))
        for run in _split_runs(
            np.unique(np.array([int(a.addresses[thread]) for a in parts if a.active[thread]], np.int64)),
            access.bytes,
        )
        if len(run) * access.bytes >= width
    ]
    return math.gcd(width, *begins)


def turned(line: Line, access: Access, evidence: Evidence) -> bool:
    """Whether most of what a thread copies to neighbours in global memory does not become neighbours in shared memory."""
    apart = together = 0
    for accesses in _each(line, access, evidence):
        sources, targets = (
            _first([a for a in accesses if a.space == space]) for space in ("global", "shared")
        )
        both = [(sources[n], targets[n]) for n in sources if n in targets]
        for thread in _some_threads(sources.values()):
            pairs = [
                (a.addresses[thread], b.addresses[thread])
                for a, b in both
                if a.active[thread] and b.active[thread]
            ]
            at, to = np.array(sorted(pairs), np.int64).reshape(-1, 2).T
            near = np.diff(at) == access.bytes
            together += int(near.sum())
            apart += int((near & (np.diff(to) != access.bytes)).sum())
    return 2 * apart > together > 0


def _split_runs(addresses: Array, size: int) -> list[Array]:
    """Sorted addresses, cut where the next one is not the neighbour."""
    return np.split(addresses, np.flatnonzero(np.diff(addresses) != size) + 1) if len(addresses) else []

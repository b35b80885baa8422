"""Ways through a kernel's blocks, and how often a warp passes each of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilefold.xray.machine.order import components
from tilefold.xray.machine.types import Array
from tilefold.xray.report.machine_code import END, Code

_MOST_WAYS = 4096
_MOST_STEPS = 100_000  # jumps followed while ways are listed
_MOST_WORK = 1e8  # numbers in the equations of all ways


@dataclass(frozen=True, eq=False)
class _Way:
    """A way from the first block to the end: jumps between regions are taken (1) or not (0), or lie in a region (free)."""

    taken: Array
    free: Array


class Ways:
    """All ways through the code. A region is a loop, or a block in none."""

    def __init__(self, code: Code) -> None:
        at = {name: i for i, name in enumerate(code.blocks)}
        self._edges = [(at[a], at[b]) for a, block in code.blocks.items() for b in block.next]
        self._end = at[END]
        self._into = np.zeros((len(at), len(self._edges)))
        flow = np.zeros_like(self._into)
        for j, (a, b) in enumerate(self._edges):
            self._into[b, j] += 1
            flow[b, j] += 1
            flow[a, j] -= 1
        self._start = np.array([1.0] + [0.0] * (len(at) - 1))
        self._flow = np.delete(flow, self._end, 0)
        self._ways = self._all()

    @property
    def too_many(self) -> bool:
        """Whether there are more ways than are tried: nothing is known then."""
        return self._ways is None

    def passed(self, known: Sequence[tuple[Array, int]]) -> list[tuple[int, ...]]:
        """How often a warp passes each block, for every way that agrees with what is known of it; nothing where one of these
        leaves it open.

        `known` are sums over blocks: their weights, and what they must come to.
        """
        if self._ways is None:
            return []
        weights = np.array([w for w, _ in known]).reshape(len(known), len(self._start))
        matrix = np.concatenate([self._flow, weights @ self._into])
        first = np.delete(self._start, self._end)
        right = np.concatenate([-first, np.array([n for _, n in known]) - weights @ self._start])
        found: set[tuple[int, ...]] = set()
        for way in self._ways:
            passed = self._along(way, matrix, right)
            if passed is None:
                continue
            if not passed:
                return []
            found.add(passed)
        return sorted(found)

    def _along(self, way: _Way, matrix: Array, right: Array) -> tuple[int, ...] | None:
        """Passes of each block on one way: None where it contradicts what is known, () where it leaves it open."""
        free, rest = matrix[:, way.free], right - matrix @ way.taken
        if (rest[len(self._flow) :] < -1e-6).any():  # more than is known already, without any turn of a loop
            return None
        inner, _, rank, _ = (
            np.linalg.lstsq(free, rest, rcond=None) if way.free.any() else (np.zeros(0), 0, 0, 0)
        )
        if not np.allclose(free @ inner, rest, atol=1e-6):
            return None
        into = self._into[:, way.free]
        if rank < free.shape[1]:
            *_, directions = np.linalg.svd(free)
            if not np.allclose(into @ directions[rank:].T, 0, atol=1e-6):
                return ()
        passed = self._start + self._into @ way.taken + into @ inner
        whole = np.rint(passed)
        # A loop on the way is passed at least as often as it is entered.
        if not np.allclose(whole, passed, atol=1e-6) or (whole < self._start + self._into @ way.taken).any():
            return None
        return tuple(int(n) for n in whole)

    def _all(self) -> list[_Way] | None:
        """Every way; None if there are too many."""
        region = self._regions()
        inside = np.array([region[a] == region[b] for a, b in self._edges])
        leaving: dict[int, list[int]] = defaultdict(list)
        for j, (a, _) in enumerate(self._edges):
            if not inside[j]:
                leaving[region[a]].append(j)
        ways: list[_Way] = []
        open_: list[tuple[int, tuple[int, ...]]] = [(region[0], ())]
        most, steps = min(_MOST_WAYS, _MOST_WORK / self._flow.size), 0
        while open_:
            at, jumps = open_.pop()
            steps += 1
            if at == region[self._end]:
                ways.append(self._way(jumps, region, inside))
            if len(ways) > most or steps > _MOST_STEPS:
                return None
            open_ += [(region[self._edges[j][1]], (*jumps, j)) for j in leaving[at]]
        return ways

    def _way(self, jumps: tuple[int, ...], region: list[int], inside: Array) -> _Way:
        taken = np.zeros(len(self._edges))
        taken[list(jumps)] = 1
        on = {region[0]} | {region[self._edges[j][1]] for j in jumps}
        free = inside & np.array([region[a] in on for a, _ in self._edges], bool)
        return _Way(taken, free)

    def _regions(self) -> list[int]:
        """A number for each block, the same for blocks that lead to each other."""
        follow: list[list[int]] = [[] for _ in self._start]
        for a, b in self._edges:
            follow[a].append(b)
        found = [0] * len(follow)
        for together in components(range(len(follow)), dict(enumerate(follow))):
            for block in together:
                found[block] = min(together)
        return found

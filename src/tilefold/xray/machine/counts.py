"""Costs of the log's accesses: sectors of global memory, passes through the banks of shared memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tilefold.xray.machine.log import Access
from tilefold.xray.machine.types import Array

SECTOR = 32  # bytes that global memory moves at least
NARROW = 2  # bytes of an atomic for which the machine has no instruction
BANKS, BANK = 32, 4  # of shared memory: how many, and bytes of each


@dataclass(frozen=True)
class GlobalCost:
    """Accesses to global memory. A request is one instruction of one warp with an active lane.

    `asked` counts bytes lane by lane, `needed` each byte of a request once; `sectors` go to L2, `ideal` would hold the
    needed bytes. Lanes of an atomic that meet at one place go one after the other, and each turn sends its sectors again:
    a sector as often as lanes meet at one of its places. `again` are those beyond the first of each sector.
    """

    requests: int = 0
    sectors: int = 0
    ideal: int = 0
    asked: int = 0
    needed: int = 0
    again: int = 0

    @property
    def moved(self) -> int:
        """Bytes of all sectors."""
        return self.sectors * SECTOR


@dataclass(frozen=True)
class SharedCost:
    """Accesses to shared memory. `passes` are made, `ideal` would do if no two words of a pass shared a bank."""

    requests: int = 0
    passes: int = 0
    ideal: int = 0

    @property
    def conflicts(self) -> int:
        """Passes that only conflicts cost."""
        return self.passes - self.ideal


def global_cost(accesses: Iterable[Access]) -> GlobalCost:
    """The cost of the accesses to global memory among these."""
    total = GlobalCost()
    for access in accesses:
        if access.space == "global":
            for addresses in _requests(access):
                total = _with_request(total, addresses, access)
    return total


def _with_request(total: GlobalCost, addresses: Array, access: Access) -> GlobalCost:
    # An access is aligned to its own size: up to 32 bytes it lies in one sector, and lanes overlap whole or not at all.
    needed = len(np.unique(addresses)) * access.bytes
    turns = _turns(addresses, access) if access.kind == "atomic" else [addresses]
    sent = [_sectors(turn, access) for turn in turns]
    return GlobalCost(
        total.requests + len(turns),
        total.sectors + sum(sent),
        total.ideal - (-needed // SECTOR),
        total.asked + len(addresses) * access.bytes,
        total.needed + needed,
        total.again + sum(sent) - len(np.unique(addresses // SECTOR)),
    )


def _turns(addresses: Array, access: Access) -> list[Array]:
    """The requests that an atomic is on the machine: one; but of 16 bits a loop that compares and swaps words of 32, in each
    round of which one lane of those that meet in a word succeeds."""
    if access.bytes != NARROW:
        return [addresses]
    words = np.sort(addresses // BANK * BANK)
    rank = np.arange(len(words)) - np.searchsorted(words, words)
    return [words[rank >= turn] for turn in range(int(rank.max()) + 1)]


def _sectors(addresses: Array, access: Access) -> int:
    """Sectors that a request sends or asks for; of an atomic as often as lanes meet at one place of each."""
    places, lanes = np.unique(addresses, return_counts=True)
    begins = np.flatnonzero(np.diff(places // SECTOR, prepend=-1))
    return int(np.maximum.reduceat(lanes, begins).sum()) if access.kind == "atomic" else len(begins)


def shared_cost(accesses: Iterable[Access]) -> SharedCost:
    """The cost of the accesses to shared memory among these."""
    requests = passes = ideal = 0
    for access in accesses:
        if access.space != "shared":
            continue
        for lanes, active in _warps(access):
            if active.any():
                requests += 1
                made, least = bank_passes(lanes, active, access.bytes, pairs=access.kind == "load")
                passes, ideal = passes + made, ideal + least
    return SharedCost(requests, passes, ideal)


def bank_passes(addresses: Array, active: Array, size: int, *, pairs: bool = False) -> tuple[int, int]:
    """Passes of one warp's access, and the fewest it could have.

    Wider accesses go in parts of as many lanes as fill all banks once: 32 lanes of 4 bytes, 16 of 8, 8 of 16. Lanes that
    ask for the same word share it. Of a load (`pairs`) two parts may go as one, where all their lanes ask for the same as
    a neighbour.
    """
    words = max(1, size // BANK)
    part = 32 // words
    made = least = 0
    for first in range(0, 32, 2 * part):
        where, on = addresses[first : first + 2 * part].astype(np.int64), active[first : first + 2 * part]
        each = [_passes(where[half][on[half]], words) for half in (slice(part), slice(part, None))]
        parts = [n for n in each if n]
        if pairs and len(parts) == 2 and _in_pairs(where, on):
            parts = min(parts, [_passes(where[on], words)], key=sum)
        made, least = made + sum(parts), least + len(parts)
    return made, least


def _passes(addresses: Array, words: int) -> int:
    """Passes of lanes that go together: as many as the words asked of one bank."""
    if not len(addresses):
        return 0
    touched = np.unique(addresses[:, None] // BANK + np.arange(words))
    return int(np.bincount(touched % BANKS).max())


def _in_pairs(addresses: Array, active: Array) -> bool:
    """Whether each lane's neighbour, or each lane's next but one, asks for the same or for nothing."""
    lanes = np.arange(len(addresses))
    return any(
        bool((~active | ~active[lanes ^ step] | (addresses == addresses[lanes ^ step])).all())
        for step in (1, 2)
    )


def _warps(access: Access) -> Iterator[tuple[Array, Array]]:
    for first in range(0, len(access.active), 32):
        yield access.addresses[first : first + 32], access.active[first : first + 32]


def _requests(access: Access) -> Iterator[Array]:
    """The addresses of active lanes, warp by warp."""
    for addresses, active in _warps(access):
        if active.any():
            yield addresses[active]

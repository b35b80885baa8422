"""Bytes of shared or global memory that several threads write between two barriers, with values that differ.

Threads that hold one value may all write it: whoever is last, the byte is the same. Where their values differ, the chip
decides which of them stays, and may decide otherwise the next time.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from tilefold.xray.machine.log import Access, Outcome
from tilefold.xray.machine.types import Array


@dataclass(frozen=True)
class Race:
    """What different threads wrote to the same places between two barriers: the `step`-th span, by `instructions`.

    `shared` counts the bytes that more than one of them wrote, `differing` those that did not get the same from all. The
    first such byte lies at `place`, and `threads` are the lowest and the highest that wrote it. `in_turn`: they are of one
    warp, and each instruction wrote the same from all of them, so that the last one stays as long as a warp's instructions
    take effect in their order.
    """

    step: int
    instructions: tuple[int, ...]
    shared: int
    differing: int
    place: int = -1
    threads: tuple[int, int] = (-1, -1)
    in_turn: bool = False


def races(outcome: Outcome, space: str = "shared") -> tuple[Race, ...]:
    """The spans of a program in which several threads wrote one byte of shared (or global) memory, in order.

    What stores of matrices and asynchronous copies write is not in the log: they are left out.
    """
    stores = [a for a in outcome.accesses if a.written is not None and a.space == space]
    spans = itertools.groupby(stores, key=lambda a: a.step)
    found = [_race(step, list(accesses)) for step, accesses in spans]
    return tuple(race for race in found if race is not None)


def _race(step: int, accesses: list[Access]) -> Race | None:
    parts = [_bytes(access) for access in accesses]
    writes = _Writes(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    within, across = _met(writes, writes.spans), _met(writes.last(), None)
    found = [race for race in (within, across) if race is not None]
    if not found:
        return None
    worst = max(found, key=lambda race: (race.differing and not race.in_turn, race.differing))
    return replace(worst, step=step, shared=max(race.shared for race in found))


@dataclass(frozen=True, eq=False)
class _Writes:
    """Bytes written: place, thread, value and instruction of each, and the barriers of warps before it."""

    places: Array
    threads: Array
    values: Array
    instructions: Array
    syncs: Array

    @property
    def spans(self) -> Array:
        """A number for each warp and span between barriers of warps."""
        numbers: Array = self.syncs * 64 + self.threads // 32
        return numbers

    def chosen(self, which: Array) -> _Writes:
        """Some of them, in the order given."""
        columns = (self.places, self.threads, self.values, self.instructions, self.syncs)
        return _Writes(*(column[which] for column in columns))

    def last(self) -> _Writes:
        """Of what one warp wrote to a place, in spans that a barrier of warps orders, only the last span's."""
        order = np.lexsort((self.syncs, self.threads // 32, self.places))
        held = self.chosen(order)
        keys = np.stack([held.places, held.threads // 32])
        starts = np.flatnonzero(np.r_[True, (keys[:, 1:] != keys[:, :-1]).any(0)])
        counts = np.diff(np.r_[starts, len(order)])
        latest = np.repeat(np.maximum.reduceat(held.syncs, starts), counts)
        return held.chosen(held.syncs == latest)


def _met(writes: _Writes, spans: Array | None) -> Race | None:
    """Places that several threads wrote in one span (`spans` tells them apart; None: there is one)."""
    order = np.lexsort(
        (writes.threads, writes.places, np.zeros_like(writes.places) if spans is None else spans)
    )
    held = writes.chosen(order)
    new = held.places[1:] != held.places[:-1]
    if spans is not None:
        new = new | (spans[order][1:] != spans[order][:-1])
    starts = np.flatnonzero(np.r_[True, new])
    threads, values = held.threads, held.values
    # A thread's own stores are in order among themselves: of a place that only one thread writes nothing is said.
    several = np.minimum.reduceat(threads, starts) != np.maximum.reduceat(threads, starts)
    differ = several & (np.minimum.reduceat(values, starts) != np.maximum.reduceat(values, starts))
    if not several.any():
        return None
    ends = np.r_[starts, len(threads)]
    involved = np.repeat(several, np.diff(ends))
    numbers = tuple(int(n) for n in np.unique(held.instructions[involved]))
    shared, differing = (len(np.unique(held.places[starts[which]])) for which in (several, differ))
    found = Race(0, numbers, shared, differing)
    if not found.differing:
        return found
    # Of one place: what several warps wrote, or one instruction, no order decides.
    at = np.flatnonzero(np.repeat(differ, np.diff(ends)))
    at = at[np.lexsort((held.instructions[at], held.places[at]))]
    places, warps, turns = held.places[at], threads[at] // 32, held.instructions[at]
    same = places[1:] == places[:-1]
    mixed = (warps[1:] != warps[:-1]) | ((turns[1:] == turns[:-1]) & (values[at][1:] != values[at][:-1]))
    in_turn = not (same & mixed).any()
    first = int(differ.argmax())
    between = (int(threads[ends[first]]), int(threads[ends[first + 1] - 1]))
    return replace(found, place=int(held.places[ends[first]]), threads=between, in_turn=in_turn)


def _bytes(access: Access) -> tuple[Array, Array, Array, Array, Array]:
    """Every byte of a store: its place, its thread, its value, its instruction, the barriers of warps before it."""
    assert access.written is not None
    threads = np.flatnonzero(access.active)
    places = access.addresses[threads].astype(np.int64)[:, None] + np.arange(access.bytes)
    values = access.written.ravel()
    numbers = (np.full(values.shape, access.instruction), np.full(values.shape, access.sync))
    return places.ravel(), np.repeat(threads, access.bytes), values, *numbers

"""Bytes of shared memory that several threads write between two barriers, with values that differ.

Threads that hold one value may all write it: whoever is last, the byte is the same. Where their values differ, the chip
decides which of them stays, and may decide otherwise the next time.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from tilefold.xray.machine.cta import Outcome
from tilefold.xray.machine.log import Access
from tilefold.xray.machine.types import Array


@dataclass(frozen=True)
class Race:
    """What different threads wrote to the same places between two barriers: the `step`-th span, by `instructions`.

    `shared` counts the bytes that more than one of them wrote, `differing` those that did not get the same from all.
    """

    step: int
    instructions: tuple[int, ...]
    shared: int
    differing: int


def races(outcome: Outcome) -> tuple[Race, ...]:
    """The spans of a program in which several threads wrote one byte of shared memory, in order.

    What stores of matrices and asynchronous copies write is not in the log: they are left out.
    """
    stores = [a for a in outcome.accesses if a.written is not None]
    spans = itertools.groupby(stores, key=lambda a: a.step)
    found = [_race(step, list(accesses)) for step, accesses in spans]
    return tuple(race for race in found if race is not None)


def _race(step: int, accesses: list[Access]) -> Race | None:
    parts = [_bytes(access) for access in accesses]
    places, threads, values, instructions = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((threads, places))
    places, threads, values, instructions = (x[order] for x in (places, threads, values, instructions))
    starts = np.flatnonzero(np.r_[True, places[1:] != places[:-1]])
    # A thread's own stores are in order among themselves: of a place that only one thread writes nothing is said.
    several = np.minimum.reduceat(threads, starts) != np.maximum.reduceat(threads, starts)
    differ = several & (np.minimum.reduceat(values, starts) != np.maximum.reduceat(values, starts))
    if not several.any():
        return None
    involved = np.repeat(several, np.diff(np.r_[starts, len(places)]))
    numbers = tuple(int(n) for n in np.unique(instructions[involved]))
    return Race(step, numbers, int(several.sum()), int(differ.sum()))


def _bytes(access: Access) -> tuple[Array, Array, Array, Array]:
    """Every byte of a store: its place, its thread, its value, its instruction."""
    assert access.written is not None
    threads = np.flatnonzero(access.active)
    places = access.addresses[threads].astype(np.int64)[:, None] + np.arange(access.bytes)
    values = access.written.ravel()
    return places.ravel(), np.repeat(threads, access.bytes), values, np.full(values.shape, access.instruction)

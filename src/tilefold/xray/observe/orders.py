"""`race`: what one warp of a program reads and another writes, with no barrier between.

Triton puts barriers around shared memory, and none around global memory: a tile stored and loaded again by other threads, or
loaded and stored shifted, may come out either way. Such places are looked for in the log; whether the order of warps changes
what is stored is then tried, with each warp as far as it comes, from the first and from the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tilefold.xray.evidence import Evidence
from tilefold.xray.execution import Program
from tilefold.xray.machine import Outcome
from tilefold.xray.machine.log import Access
from tilefold.xray.machine.run import Turns
from tilefold.xray.machine.types import Array
from tilefold.xray.observe.racing import lines_by_chance
from tilefold.xray.observe.trials import Difference, Trials, UntriedError, difference
from tilefold.xray.report.model import Observation, Report
from tilefold.xray.report.static import line_of

_ORDERS: tuple[Turns, ...] = ("together", "first", "last")
_BARRIER = "gpu.barrier"
_SPAN = 48  # bits of an address; the span's number stands above
Place = tuple[str, int]


@dataclass(frozen=True)
class Race:
    """A byte of global memory that one warp reads and another writes between the same two barriers: the lines of both, and
    which of them stands first."""

    read: Place
    written: Place
    reads_first: bool
    address: int
    reader: int
    writer: int


def race_of_reads(report: Report, evidence: Evidence, trials: Trials) -> Iterator[Observation]:
    """One observation a kernel: the first place at which the order of warps decides what is stored."""
    if evidence.execution is None:
        return
    by_chance = lines_by_chance(evidence, ("tt.store", "tt.load"))
    for program, outcome in zip(evidence.execution.programs, evidence.execution.outcomes, strict=True):
        race = _race(outcome, evidence)
        if race is None or {race.read, race.written} & by_chance:
            continue
        try:
            found = _decided_by_order(trials, evidence.compiled.ttir, program)
        except UntriedError:
            return
        if found is not None:
            yield _observed(race, found, program, evidence, trials)
            return


def _decided_by_order(trials: Trials, ttir: str, program: Program) -> Difference | None:
    """Where warps in another order store something else.

    Raises:
        UntriedError: it cannot be executed so.
    """
    compiled = trials.compiled if ttir == trials.compiled.ttir else trials.compile(ttir)
    together, *others = (trials.memory(compiled, [program], turns=turns) for turns in _ORDERS)
    found = (difference(compiled, other, together) for other in others)
    return next((d for d in found if d is not None), None)


def _observed(
    race: Race, found: Difference, program: Program, evidence: Evidence, trials: Trials
) -> Observation:
    assert evidence.execution is not None
    name, element = evidence.execution.named(race.address)
    place, other = (race.written, race.read) if race.reads_first else (race.read, race.written)
    return Observation(
        "race",
        "error",
        *place,
        f"thread {race.reader} reads {name}[{element}] in line {race.read[1]}, thread {race.writer} of another warp "
        f"writes it in line {race.written[1]}, and no barrier is between: with warps in another order program {program} "
        f"stores {found}",
        "Triton puts no barriers around global memory: which of the threads comes first is decided by the chip",
        _change(race, program, evidence, trials),
        numbers=(("threads", f"{race.reader} and {race.writer}"),),
        also=() if other == place else (other,),
    )


def _change(race: Race, program: Program, evidence: Evidence, trials: Trials) -> str:
    """A barrier in front of the later of the two, tried."""
    advised = "put tl.debug_barrier() between the two"
    otherwise = "keep the values in registers, or write to memory that this program does not read"
    name, place = ("tt.store", race.written) if race.reads_first else ("tt.load", race.read)
    rows = evidence.compiled.ttir.splitlines()
    at = {o.row for o in evidence.ttir.walk() if o.name == name and line_of(o.place) == place}
    guarded = "\n".join(
        text for n, row in enumerate(rows) for text in ([_BARRIER] if n in at else []) + [row]
    )
    try:
        left = _decided_by_order(trials, guarded, program)
    except UntriedError as reason:
        return f"{otherwise}; or {advised} (not tried: {reason})"
    if left is not None:
        return f"{otherwise}; a barrier in front of line {place[1]} is not enough: tried, and {left}"
    return f"{advised} (tried: then every order stores the same), or {otherwise}"


def _race(outcome: Outcome, evidence: Evidence) -> Race | None:
    """The first place where one warp reads what another writes, in the order of loads."""
    touched = _of_both(outcome, evidence)
    if not touched:
        return None
    loads, stores = (
        [n for n, a in enumerate(touched) if (a.kind == "store") == wanted] for wanted in (False, True)
    )
    size = min(a.bytes for a in touched)
    read, written = (_Units.of(touched, numbers, size) for numbers in (loads, stores))
    # Units of memory between two barriers, with the first and the last warp that writes each.
    order = np.lexsort((written.threads, written.keys))
    keys, threads = written.keys[order], written.threads[order]
    starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    first, last = threads[starts] // 32, threads[np.r_[starts[1:], len(keys)] - 1] // 32
    at = np.minimum(np.searchsorted(keys[starts], read.keys), len(starts) - 1)
    warps = read.threads // 32
    found = np.flatnonzero((keys[starts][at] == read.keys) & ((first[at] != warps) | (last[at] != warps)))
    if not len(found):
        return None
    one = int(found[0])
    others = np.flatnonzero((written.keys == read.keys[one]) & (written.threads // 32 != warps[one]))
    other = int(others[0])
    places = [
        evidence.places.line(evidence.entry.instructions[touched[n].instruction])
        for n in (read.accesses[one], written.accesses[other])
    ]
    if places[0] is None or places[1] is None:
        return None
    return Race(
        places[0],
        places[1],
        bool(read.accesses[one] < written.accesses[other]),
        int(read.places[one]) * size,
        int(read.threads[one]),
        int(written.threads[other]),
    )


def _of_both(outcome: Outcome, evidence: Evidence) -> list[Access]:
    """Accesses to arguments that a program loads from and stores to; arguments have memory of their own."""
    assert evidence.execution is not None
    kinds = ("load", "copy", "store")
    found = [a for a in outcome.accesses if a.space == "global" and a.kind in kinds and a.active.any()]
    first = np.array([a.addresses[a.active][0] for a in found], np.int64)
    owners = evidence.execution.owners(first).tolist()
    stored = {o for o, a in zip(owners, found, strict=True) if a.kind == "store"}
    both = {o for o, a in zip(owners, found, strict=True) if a.kind != "store"} & stored
    return [a for o, a in zip(owners, found, strict=True) if o in both]


@dataclass(frozen=True, eq=False)
class _Units:
    """Units of memory of one size that accesses touch: the unit, the thread, the access; and the unit with its span."""

    places: Array
    threads: Array
    accesses: Array
    keys: Array

    @classmethod
    def of(cls, accesses: Sequence[Access], numbers: Sequence[int], size: int) -> _Units:
        """Those of some of the accesses, one after the other."""
        columns = []
        for number in numbers:
            access = accesses[number]
            threads = np.flatnonzero(access.active)
            first = access.addresses[threads].astype(np.int64) // size
            places = first[:, None] + np.arange(access.bytes // size)
            # A span is told apart by what no address reaches: the highest bits.
            keys = places + (access.step << _SPAN)
            columns.append((places.ravel(), np.repeat(threads, places.shape[1]),
                            np.full(places.size, number), keys.ravel()))  # fmt: skip
        return cls(*(np.concatenate(column) for column in zip(*columns, strict=True)))

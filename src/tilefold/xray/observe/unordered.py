"""`race`: programs of which one writes what another one writes, reads or updates, with no atomic between.

Programs run in any order, and at once. Two that write different bits to one place leave either. That one reads what another
writes is tried: it stores something else where the other ran before it. A store takes away what another program's atomic
has added: both orders are tried. Where both write the same bits, the same stays
whichever program comes last: that is a note.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tilefold.xray.evidence import Evidence, integer_arguments
from tilefold.xray.execution import Program
from tilefold.xray.ir.programs import ENDS, Programs
from tilefold.xray.machine import Access, Outcome
from tilefold.xray.machine.types import Array
from tilefold.xray.observe.racing import lines_by_chance
from tilefold.xray.observe.trials import Trials, UntriedError, difference, numbers
from tilefold.xray.ptx import Instruction
from tilefold.xray.report.model import Observation, Report

_ORDERS = ("acquire", "release", "acq_rel", "volatile", "cas", "exch")
_READS = ("load", "copy")
_PAIRS = 4  # of programs that are executed together because their stores may meet
_LOOKED = 1 << 16  # programs of a grid, up to which all are looked at
Line = tuple[str, int]


def race_of_programs(report: Report, evidence: Evidence, trials: Trials) -> Iterator[Observation]:
    """One observation a line of stores, of the executed programs that no atomic orders."""
    execution = evidence.execution
    if execution is None or evidence.compiled.job.cluster > 1:
        return
    by_chance = lines_by_chance(evidence, ("tt.store", "tt.load"), masks=True)
    seen: set[Line] = set()
    sides = [_Side(p, o, evidence) for p, o in zip(execution.programs, execution.outcomes, strict=True)]
    for one, other in itertools.chain(
        itertools.combinations(sides, 2), _neighbours(report, evidence, trials, execution.programs)
    ):
        for meeting in _meetings(one, other):
            lines = {meeting.ours.line, meeting.theirs.line}
            if lines & (seen | by_chance):
                continue
            try:
                found = _observed(meeting, evidence, trials)
            except UntriedError:
                return
            if found is not None:
                seen |= lines
                yield found


def _neighbours(
    report: Report, evidence: Evidence, trials: Trials, executed: Sequence[Program]
) -> Iterator[tuple[_Side, _Side]]:
    """Programs that follow each other whose stores may meet by what is known of them before an execution, executed as pairs;
    one pair of those whose tiles begin equally far apart."""
    for pair in itertools.islice(dict.fromkeys(_close(report, evidence, executed)), _PAIRS):
        try:
            ran = trials.run(evidence.compiled, pair)
        except UntriedError:
            return
        if len(ran.outcomes) == len(pair):
            one, other = (_Side(p, o, evidence) for p, o in zip(pair, ran.outcomes, strict=True))
            yield one, other


def _close(
    report: Report, evidence: Evidence, executed: Sequence[Program]
) -> Iterator[tuple[Program, Program]]:
    """Pairs of programs that may store to one place: neighbours along a dim of the grid, and any two whose stores begin next
    to each other; none of a grid that is too large to be looked at whole."""
    x, y, z = report.grid
    if x * y * z > _LOOKED:
        return
    known = integer_arguments(evidence)
    worlds = [Programs(evidence.ttir, known, report.grid, ends=ends) for ends in ENDS]
    reached: dict[str, list[Array]] = {}
    off = np.ones(worlds[0].count, bool)  # programs of which every store is known to be masked off
    for operation in evidence.ttir.walk():
        for world in worlds if operation.name == "tt.store" else ():
            place = world.places.get(operation.operands[0])
            if place is not None:
                reached.setdefault(place.argument, []).append(np.broadcast_to(place.offset, (world.count,)))
            on = world.truth(operation.operands[2]) if len(operation.operands) > 2 else None
            off &= on is not None and ~on
    ends = [(np.min(columns, 0), np.max(columns, 0)) for columns in reached.values()]
    for step in dict.fromkeys((1, x, x * y)) if ends else ():
        if step >= x * y * z:
            continue
        meet = np.any(
            [(low[step:] <= high[:-step]) & (low[:-step] <= high[step:]) for low, high in ends], axis=0
        )
        apart = np.stack([low[step:] - low[:-step] for low, _ in ends], 1)
        for first in sorted(np.unique(apart, axis=0, return_index=True)[1].tolist()):
            pair = worlds[0].program(first), worlds[0].program(first + step)
            if meet[first] and not set(pair) <= set(executed):
                yield pair
    for low, high in ends:
        for one, other in _overlapping(low, high, ~off):
            pair = worlds[0].program(one), worlds[0].program(other)
            if not set(pair) <= set(executed):
                yield pair


def _overlapping(low: Array, high: Array, on: Array) -> list[tuple[int, int]]:
    """Of programs whose stores reach from `low` to `high`, those that overlap the one that begins next before them: of all
    pairs that are as far apart in the grid the one that shares most, and those first that share most."""
    order = np.flatnonzero(on)[np.argsort(low[on], kind="stable")]
    one, other = order[:-1], order[1:]
    shared = np.minimum(high[one], high[other]) - low[other] + 1
    found: dict[int, int] = {}
    for n in np.argsort(-shared, kind="stable").tolist():
        if shared[n] > 0:
            found.setdefault(int(other[n] - one[n]), n)
    return [(min(int(one[n]), int(other[n])), max(int(one[n]), int(other[n]))) for n in found.values()]


def _meetings(one: _Side, other: _Side) -> Iterator[_Meeting]:
    # What a store takes away from atomics is said before that both store there, too.
    yield from _met(one, other, "atomic")
    yield from _met(other, one, "atomic")
    yield from _met(one, other, "store")
    yield from _met(one, other, "load")
    yield from _met(other, one, "load")


@dataclass(frozen=True, eq=False)
class _Touch:
    """One access of a program: where in its log, in which line."""

    side: _Side
    access: int
    line: Line
    atomic: bool = False


@dataclass(frozen=True, eq=False)
class _Meeting:
    """A byte that one program stores (`ours`), and another stores, reads or updates by an atomic (`kind`); `differing` of
    `shared` bytes got other bits."""

    place: int
    ours: _Touch
    theirs: _Touch
    kind: str
    shared: int
    differing: int = 0


class _Side:
    """A program and what it did to global memory."""

    def __init__(self, program: Program, outcome: Outcome, evidence: Evidence) -> None:
        self.program, self.evidence, self._outcome = program, evidence, outcome
        touched = [(n, a) for n, a in enumerate(outcome.accesses) if a.space == "global" and a.active.any()]
        self._of: dict[str, list[tuple[int, Access]]] = {
            "store": [(n, a) for n, a in touched if a.kind == "store" and a.written is not None],
            "load": [(n, a) for n, a in touched if a.kind in _READS],
            "atomic": [(n, a) for n, a in touched if a.kind == "atomic"],
        }
        instructions = evidence.entry.instructions
        ordering = [n for n, a in touched if _orders(instructions[a.instruction])]
        self.first_order, self.last_order = (min(ordering, default=1 << 62), max(ordering, default=-1))
        self.reach = {kind: _reach(accesses, evidence) for kind, accesses in self._of.items()}

    def written(self, low: int, high: int) -> _Bytes:
        """The bytes that the program writes there: each with its last value."""
        return _Bytes.of(self._of["store"], low, high).last()

    def updated(self, low: int, high: int) -> _Bytes:
        """The bytes that it reaches by atomics there, each by its first."""
        return _Bytes.of(self._of["atomic"], low, high).first()

    def read(self, low: int, high: int) -> _Bytes:
        """The bytes that it reads there and did not write before, each by its first access."""
        loaded = _Bytes.of(self._of["load"], low, high)
        stored = _Bytes.of(self._of["store"], low, high).first()
        at = np.minimum(np.searchsorted(stored.places, loaded.places), max(len(stored.places) - 1, 0))
        if not len(stored.places):
            return loaded.first()
        before = (stored.places[at] == loaded.places) & (stored.accesses[at] < loaded.accesses)
        return loaded.chosen(np.flatnonzero(~before)).first()

    def touch(self, found: _Bytes, at: int) -> _Touch:
        """One of these bytes' accesses."""
        number = int(found.accesses[at])
        access = self._outcome.accesses[number]
        return _Touch(self, number, self.evidence.line(access.instruction), access.kind == "atomic")


def _reach(accesses: list[tuple[int, Access]], evidence: Evidence) -> dict[int, tuple[int, int]]:
    """The lowest and the highest byte that some accesses touch of each argument."""
    assert evidence.execution is not None
    ends = np.array(
        [[a.addresses[a.active].min(), a.addresses[a.active].max()] for _, a in accesses], np.int64
    )
    if not len(ends):
        return {}
    owners, sizes = evidence.execution.owners(ends[:, 0]), np.array([a.bytes for _, a in accesses])
    return {
        int(owner): (int(ends[owners == owner, 0].min()), int((ends[:, 1] + sizes)[owners == owner].max()))
        for owner in np.unique(owners)
        if owner >= 0
    }


def _orders(instruction: Instruction) -> bool:
    """Whether an access may make a program wait for another, or tell another to go on."""
    return instruction.opcode == "atom" or any(instruction.has(word) for word in _ORDERS)


@dataclass(frozen=True, eq=False)
class _Bytes:
    """Bytes that accesses touch: place, access (its number in the log), value; sorted by place, then by access."""

    places: Array
    accesses: Array
    values: Array

    @classmethod
    def of(cls, accesses: list[tuple[int, Access]], low: int, high: int) -> _Bytes:
        """Those of accesses between two addresses."""
        columns = [np.zeros((3, 0), np.int64)]
        for number, access in accesses:
            first = access.addresses[access.active].astype(np.int64)
            inside = (first + access.bytes > low) & (first < high)
            places = first[inside][:, None] + np.arange(access.bytes)
            values = (
                np.zeros_like(places) if access.written is None else access.written[inside].astype(np.int64)
            )
            columns.append(np.stack([places.ravel(), np.full(places.size, number), values.ravel()]))
        found = np.concatenate(columns, axis=1)
        return cls(*found[:, np.lexsort((found[1], found[0]))])

    def chosen(self, which: Array) -> _Bytes:
        """Some of them."""
        return _Bytes(self.places[which], self.accesses[which], self.values[which])

    def first(self) -> _Bytes:
        """Of each place the first access."""
        return self.chosen(
            np.flatnonzero(np.r_[True, self.places[1:] != self.places[:-1]][: len(self.places)])
        )

    def last(self) -> _Bytes:
        """Of each place the last access."""
        return self.chosen(
            np.flatnonzero(np.r_[self.places[1:] != self.places[:-1], True][: len(self.places)])
        )


def _common(one: _Side, other: _Side, kind: str) -> Iterator[tuple[int, int]]:
    """The spans of addresses that one program stores to and the other stores to (or loads from), too."""
    ours, theirs = one.reach["store"], other.reach[kind]
    for owner in ours.keys() & theirs.keys():
        low, high = max(ours[owner][0], theirs[owner][0]), min(ours[owner][1], theirs[owner][1])
        if low < high:
            yield low, high


def _met(one: _Side, other: _Side, kind: str) -> Iterator[_Meeting]:
    """Places that one program stores to and the other stores to, reads or updates: a meeting for each pair of accesses, of
    the first byte that they disagree about, or just the first."""
    for span in _common(one, other, kind):
        ours = one.written(*span)
        theirs = {"store": other.written, "load": other.read, "atomic": other.updated}[kind](*span)
        _, a, b = np.intersect1d(ours.places, theirs.places, assume_unique=True, return_indices=True)
        yield from _by_accesses(one, ours.chosen(a), other, theirs.chosen(b), kind)


def _by_accesses(one: _Side, ours: _Bytes, other: _Side, theirs: _Bytes, kind: str) -> Iterator[_Meeting]:
    differ = (kind != "store") | (ours.values != theirs.values)
    pairs: dict[tuple[int, int], list[int]] = {}
    for at, pair in enumerate(zip(ours.accesses.tolist(), theirs.accesses.tolist(), strict=True)):
        pairs.setdefault(pair, []).append(at)
    for which in pairs.values():
        some = np.array(which)
        apart = some[differ[some]]
        at = int((apart if len(apart) else some)[0])
        a, b = one.touch(ours, at), other.touch(theirs, at)
        if not _ordered(a, b) and not _ordered(b, a):
            yield _Meeting(int(ours.places[at]), a, b, kind, len(some), len(apart))


def _ordered(one: _Touch, other: _Touch) -> bool:
    """Whether one program may have told the other to go on, behind its own access (or by it) and ahead of the other's."""
    told = one.side.last_order >= one.access if one.atomic else one.side.last_order > one.access
    return told and other.side.first_order < other.access


def _observed(meeting: _Meeting, evidence: Evidence, trials: Trials) -> Observation | None:
    """The race, tried where one reads; the note where both write the same bits; None where nothing depends on it.

    Raises:
        UntriedError: the programs cannot be executed again.
    """
    assert evidence.execution is not None
    name, element = evidence.execution.named(meeting.place)
    ours, theirs = meeting.ours, meeting.theirs
    programs = f"programs {ours.side.program} and {theirs.side.program}"
    severity, reason, change = (
        "error",
        "programs of a grid run in any order and at once: what stays, or is read, is decided by the chip",
        "let one program own each place, use an atomic, or leave the second step to another launch",
    )
    if meeting.kind == "atomic":
        lost = _lost(meeting, evidence, trials)
        if lost is None:
            return None
        said = (
            f"program {theirs.side.program} updates {name}[{element}] by an atomic in line {theirs.line[1]}, where program "
            f"{ours.side.program} stores in line {ours.line[1]}: {lost} if the one that stores comes first"
        )
        change = (
            "set the place in a launch before this one (or from the host), and let programs only update it"
        )
    elif meeting.kind == "load":
        changed = _decided_by_order(meeting, evidence, trials)
        if changed is None:
            return None
        said = (
            f"program {theirs.side.program} reads {name}[{element}] in line {theirs.line[1]}, which program "
            f"{ours.side.program} writes in line {ours.line[1]}, and no atomic is between: {changed}"
        )
    elif meeting.differing:
        values = [_value(meeting.place, touch.side, evidence) for touch in (ours, theirs)]
        said = f"{programs} write {name}[{element}] without an atomic: {values[0]} and {values[1]}"
    else:
        said = f"{programs} write {name}[{element}] without an atomic, the same bits"
        severity, reason = "note", "the same value stays, whichever program comes last"
        change = "nothing to do where that is meant; else let one program write it"
    return Observation(
        "race",
        severity,
        *ours.line,
        said,
        reason,
        change,
        numbers=(("bytes", meeting.differing or meeting.shared),),
        also=() if theirs.line == ours.line else (theirs.line,),
    )


def _lost(meeting: _Meeting, evidence: Evidence, trials: Trials) -> str | None:
    """What is left where the program that stores comes last, if that is not what is left where it comes first.

    Raises:
        UntriedError: they cannot be executed so.
    """
    assert evidence.execution is not None
    both = [meeting.theirs.side.program, meeting.ours.side.program]
    last, first = (trials.memory(evidence.compiled, programs) for programs in (both, both[::-1]))
    found = difference(evidence.compiled, last, first)
    return None if found is None or found.name != evidence.execution.named(meeting.place)[0] else str(found)


def _value(place: int, side: _Side, evidence: Evidence) -> str:
    """The value that a program leaves at a place, as a number of its argument's type."""
    assert evidence.execution is not None
    size, kind = evidence.execution.element(place)
    first = place - evidence.execution.within(place) % size
    held = side.written(first, first + size)
    which = (held.places >= first) & (held.places < first + size)
    raw = held.values[which].astype(np.uint8)
    return f"{numbers(raw, kind)[0]:.6g}" if len(raw) == size else raw.tobytes().hex()


def _decided_by_order(meeting: _Meeting, evidence: Evidence, trials: Trials) -> str | None:
    """What the reading program stores alone and behind the other one, if that is not the same.

    Raises:
        UntriedError: they cannot be executed so.
    """
    reader, writer = meeting.theirs.side, meeting.ours.side
    sides = []
    for programs in ([reader.program], [writer.program, reader.program]):
        ran = trials.run(evidence.compiled, programs)
        sides.append(_Side(reader.program, ran.outcomes[-1], evidence))
    alone, behind = (side.written(0, 1 << 62) for side in sides)
    _, a, b = np.intersect1d(alone.places, behind.places, assume_unique=True, return_indices=True)
    apart = np.flatnonzero(alone.values[a] != behind.values[b])
    if not len(apart) and len(a) == len(alone.places) == len(behind.places):
        return None
    if not len(apart):
        return f"alone, it stores {len(alone.places)} bytes, and behind the other one {len(behind.places)}"
    assert evidence.execution is not None
    place = int(alone.places[a][apart[0]])
    name, element = evidence.execution.named(place)
    values = [_value(place, side, evidence) for side in sides]
    return f"it stores {values[0]} to {name}[{element}] alone and {values[1]} where the other one ran before"

"""Atomics that order more than they must, or come one an element."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tilefold.xray.evidence import Evidence, integer_arguments
from tilefold.xray.ir import element_bytes, tensors
from tilefold.xray.ir.programs import Programs
from tilefold.xray.ir.syntax import Function, Operation, Tensor
from tilefold.xray.machine import Access, Outcome
from tilefold.xray.machine.counts import global_cost
from tilefold.xray.machine.types import Array
from tilefold.xray.report.model import Observation, Report
from tilefold.xray.report.static import kind_of, line_of

_SHARED = 4  # programs that add to one place from which another way is worth a word
_TILE = 4  # elements a thread from which a tile of atomics is worth a word
_STORES = {"tt.store", "tt.descriptor_store", "tt.descriptor_reduce"}
_ORDERS = ("acq_rel", "acquire", "release")


def _atomics(function: Function) -> Iterator[tuple[Operation, str, int]]:
    for operation in function.walk():
        place = line_of(operation.place)
        if operation.name == "tt.atomic_rmw" and place is not None:
            yield operation, *place


def _before(function: Function, operation: Operation) -> set[str]:
    """The names of the operations that stand before one in the text, or in a round of a loop before its own."""
    names = set()
    for other in function.walk():
        if other is operation:
            break
        names.add(other.name)
    loops = (o for o in function.walk() if o.name in ("scf.for", "scf.while"))
    around = ([*loop.walk()] for loop in loops)
    return names.union(
        *({o.name for o in each if o is not operation} for each in around if operation in each)
    )


def strong_atomic(report: Report, evidence: Evidence) -> Iterator[Observation]:
    """An accumulation with an order, whose result is not read: it acquires nothing. It may publish what is stored before;
    an exchange may open a lock, and is not asked."""
    used = {v for o in evidence.ttir.walk() for v in o.operands}
    for operation, file, line in _atomics(evidence.ttir):
        words = operation.attributes.split("%")[0]
        order = next((o for o in _ORDERS if o in words), None)
        if order is None or "exch" in words or any(r in used for r in operation.results):
            continue
        # Sums of floats tell others of nothing but themselves; a counter may stand for the sums before it.
        before = _before(evidence.ttir, operation)
        counts = "i32" in operation.types.split("->")[-1] and "tt.atomic_rmw" in before
        publishes = counts or not _STORES.isdisjoint(before)
        issued = _issued(evidence, file, line)
        yield Observation(
            "strong-atomic",
            "note" if publishes else "warning",
            file,
            line,
            f'an atomic of order "{order}", issued {issued} times by warps, whose old value is not used',
            f"{order} makes other memory accesses wait for this one; a plain accumulation reads nothing that they wrote",
            'sem="release" suffices if it tells others that the stores before it are done; else say sem="relaxed"'
            if publishes
            else 'say sem="relaxed": nothing is stored before it that it could tell others of',
            cycles_at_stake=issued * 32,
            numbers=(("order", order), ("issued", issued)),
        )


def per_element_atomic(report: Report, evidence: Evidence) -> Iterator[Observation]:
    """A tile added to few places, an atomic an element. Where each goes to a place of its own there is nothing to fold."""
    for operation, file, line in _atomics(evidence.ttir):
        tile = next(iter(tensors(operation.types)), None)
        if (
            tile is None
            or tile.elements < 2
            or "exch" in operation.attributes.split("%")[0]
            or any(r in o.operands for o in evidence.ttir.walk() for r in operation.results)
        ):
            continue
        sent = _sent(evidence, file, line)
        if evidence.execution is not None and not sent.lanes:
            continue  # an arm that no executed program takes
        lanes, places = sent.lanes, sent.places
        if sent.places is None:
            one = _one_place(evidence.ttir, operation)
            lanes, places = tile.elements, 1 if one else tile.elements
        assert places is not None
        if lanes < 2 * places:
            if tile.elements >= _TILE * 32 * report.num_warps and not _scattered(evidence.ttir, operation):
                yield _added(file, line, tile, sent, _sharing(operation, report, evidence))
            continue
        yield Observation(
            "per-element-atomic",
            "warning",
            file,
            line,
            f"{lanes} elements are sent by atomics of their own to {places} place{'s' * (places > 1)}",
            "atomics on one address are done one after the other in L2",
            "count or add up what goes to one place within the program first (tl.histogram, or a sort by place), then "
            "do one atomic a program and place; nothing to do where few elements go to one place"
            if places > 1 or _scattered(evidence.ttir, operation)
            else "fold the tile first (tl.sum, tl.max), then do one atomic a program and place",
            bytes_at_stake=32 * (_again(evidence, file, line) or lanes - places),
            numbers=(("elements", lanes), ("places", places)),
        )


@dataclass(frozen=True)
class _Sent:
    """Atomics of a line in one program: lanes that did one, bytes of each, requests of warps; places, summed over the rounds
    of a loop (None without an execution). `moved` are bytes of all executed programs."""

    lanes: int
    size: int
    requests: int
    places: int | None
    moved: int = 0


def _sent(evidence: Evidence, file: str, line: int) -> _Sent:
    if evidence.execution is None:
        return _Sent(0, 0, 0, None)
    each = [_accesses(o, evidence, file, line) for o in evidence.execution.outcomes]
    done = max(each, key=lambda accesses: sum(int(a.active.sum()) for a in accesses))
    rounds: dict[int, list[Array]] = {}
    turns: dict[int, int] = {}
    for a in done:
        turn = turns[a.instruction] = turns.get(a.instruction, -1) + 1
        rounds.setdefault(turn, []).append(a.addresses[a.active])
    return _Sent(
        sum(int(a.active.sum()) for a in done),
        max((a.bytes for a in done), default=0),
        sum(int(a.active.reshape(-1, 32).any(1).sum()) for a in done),
        sum(len(np.unique(np.concatenate(parts))) for parts in rounds.values()),
        sum(int(a.active.sum()) * a.bytes for accesses in each for a in accesses),
    )


def _sharing(operation: Operation, report: Report, evidence: Evidence) -> float:
    """Programs that begin at one place of the argument an atomic adds to; 1 where that is not known."""
    world = Programs(evidence.ttir, integer_arguments(evidence), report.grid)
    place = world.places.get(operation.operands[0])
    if place is None:
        return 1.0
    return world.count / len(np.unique(np.broadcast_to(place.offset, (world.count,))))


def _added(file: str, line: int, tile: Tensor, sent: _Sent, sharing: float) -> Observation:
    """A whole tile added to memory, each element to a place of its own: what a split of a product's K does."""
    size = element_bytes(tile.pointee)
    each = max(1, sent.size // size)
    wide = f", each of {each} elements" if each > 1 else ""
    known = sent.places is not None
    done = (
        f"{sent.lanes} atomics of a program{wide} ({sent.requests} requests of warps)" if known else "atomics"
    )
    few = sharing < _SHARED or each > 1
    return Observation(
        "per-element-atomic",
        "note" if few else "warning",
        file,
        line,
        f"a tile of {'x'.join(map(str, tile.shape))} is added to memory by {done}; about {sharing:.3g} programs "
        "begin at one place",
        "each is read, added and written in L2; and sums of floats come in another order every time",
        "nothing to do: "
        + (
            "a lane adds several elements at once"
            if each > 1
            else "few programs add to one place, by what is known of them"
        )
        if few
        else "let programs store their tiles side by side and add them up in a second launch, or let the last program that "
        "arrives at a counter do so",
        bytes_at_stake=sent.moved if known else tile.elements * size,
        numbers=(("elements", tile.elements), ("atomics", sent.lanes), ("requests", sent.requests)),
    )


def _scattered(function: Function, operation: Operation) -> bool:
    """Whether the places of an atomic come out of memory."""
    made, reads = function.made_by(), ("tt.load", "tt.atomic_rmw", "tt.atomic_cas", "tt.gather")
    return any(n in made and made[n].name in reads for n in function.reached_from(operation.operands[:1]))


def _again(evidence: Evidence, file: str, line: int) -> int:
    """Sectors that are sent again, since lanes of a request meet at one place, in all executed programs."""
    outcomes = evidence.execution.outcomes if evidence.execution is not None else ()
    return sum(global_cost(_accesses(o, evidence, file, line)).again for o in outcomes)


def _issued(evidence: Evidence, file: str, line: int) -> int:
    """How often warps issued an atomic of a line with a lane that acted, in all executed programs."""
    outcomes = evidence.execution.outcomes if evidence.execution is not None else ()
    return sum(
        int(a.active.reshape(-1, 32).any(1).sum())
        for o in outcomes
        for a in _accesses(o, evidence, file, line)
    )


def _accesses(outcome: Outcome, evidence: Evidence, file: str, line: int) -> list[Access]:
    """A program's atomics on global memory at a line: a histogram's own are in shared memory."""
    here = {n for n in evidence.at((file, line)) if kind_of(evidence.entry.instructions[n]) == "atomics"}
    return [
        a for a in outcome.accesses if a.instruction in here and a.kind == "atomic" and a.space == "global"
    ]


def _one_place(function: Function, operation: Operation) -> bool:
    made = function.made_by().get(operation.operands[0])
    return made is not None and made.name == "tt.splat"

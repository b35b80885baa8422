"""Atomics that order more than they must, or come one an element."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tilefold.xray.evidence import Evidence
from tilefold.xray.ir import element_bytes, tensors
from tilefold.xray.ir.syntax import Function, Operation, Tensor
from tilefold.xray.machine import Access, Outcome
from tilefold.xray.machine.counts import global_cost
from tilefold.xray.machine.types import Array
from tilefold.xray.report.model import Observation, Report
from tilefold.xray.report.static import kind_of, line_of

_TILE = 4  # elements a thread from which a tile of atomics is worth a word
_ORDERS = ("acq_rel", "acquire", "release")


def _atomics(function: Function) -> Iterator[tuple[Operation, str, int]]:
    for operation in function.walk():
        place = line_of(operation.place)
        if operation.name == "tt.atomic_rmw" and place is not None:
            yield operation, *place


def _before(function: Function, operation: Operation) -> set[str]:
    """The names of the operations that stand before one in the text."""
    names = set()
    for other in function.walk():
        if other is operation:
            break
        names.add(other.name)
    return names


def strong_atomic(report: Report, evidence: Evidence) -> Iterator[Observation]:
    """An accumulation with an order, whose result is not read: it acquires nothing. It may publish what is stored before;
    an exchange may open a lock, and is not asked."""
    used = {v for o in evidence.ttir.walk() for v in o.operands}
    for operation, file, line in _atomics(evidence.ttir):
        words = operation.attributes.split("%")[0]
        order = next((o for o in _ORDERS if o in words), None)
        if order is None or "exch" in words or any(r in used for r in operation.results):
            continue
        publishes = "tt.store" in _before(evidence.ttir, operation)
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
            or any(r in o.operands for o in evidence.ttir.walk() for r in operation.results)
        ):
            continue
        lanes, places = _places(evidence, file, line)
        if places is None:
            one = _one_place(evidence.ttir, operation)
            lanes, places = tile.elements, 1 if one else tile.elements
        if lanes < 2 * places:
            if tile.elements >= _TILE * 32 * report.num_warps and not _scattered(evidence.ttir, operation):
                yield _added(file, line, tile, lanes, report.programs)
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


def _added(file: str, line: int, tile: Tensor, lanes: int, programs: Sequence[object]) -> Observation:
    """A whole tile added to memory, each element to a place of its own: what a split of a product's K does."""
    return Observation(
        "per-element-atomic",
        "warning",
        file,
        line,
        f"a tile of {'x'.join(map(str, tile.shape))} is added to memory by {lanes} atomics of a program",
        "each is read, added and written in L2; and sums come in another order every time",
        "let programs store their tiles side by side and add them up in a second launch, or let the last program that "
        "arrives at a counter do so; nothing to do where few programs share a tile",
        bytes_at_stake=tile.elements * element_bytes(tile.pointee) * max(len(programs), 1),
        numbers=(("elements", tile.elements), ("places", lanes)),
    )


def _scattered(function: Function, operation: Operation) -> bool:
    """Whether the places of an atomic come out of memory."""
    made, reads = function.made_by(), ("tt.load", "tt.atomic_rmw", "tt.atomic_cas", "tt.gather")
    return any(n in made and made[n].name in reads for n in function.reached_from(operation.operands[:1]))


def _again(evidence: Evidence, file: str, line: int) -> int:
    """Sectors that are sent again, since lanes of a request meet at one place, in all executed programs."""
    outcomes = evidence.execution.outcomes if evidence.execution is not None else ()
    return sum(global_cost(_accesses(o, evidence, file, line)).again for o in outcomes)


def _places(evidence: Evidence, file: str, line: int) -> tuple[int, int | None]:
    """Lanes that did an atomic of a line in one program, and different addresses they had."""
    if evidence.execution is None:
        return 0, None
    at = _addresses(evidence.execution.outcomes[0], evidence, file, line)
    return len(at), len(np.unique(at))


def _issued(evidence: Evidence, file: str, line: int) -> int:
    """How often warps issued an atomic of a line with a lane that acted, in all executed programs."""
    outcomes = evidence.execution.outcomes if evidence.execution is not None else ()
    return sum(
        int(a.active.reshape(-1, 32).any(1).sum())
        for o in outcomes
        for a in _accesses(o, evidence, file, line)
    )


def _addresses(outcome: Outcome, evidence: Evidence, file: str, line: int) -> Array:
    """Where the lanes of a program's atomics on global memory at a line went."""
    at = [a.addresses[a.active] for a in _accesses(outcome, evidence, file, line)]
    return np.concatenate(at) if at else np.zeros(0, np.uint64)


def _accesses(outcome: Outcome, evidence: Evidence, file: str, line: int) -> list[Access]:
    """A program's atomics on global memory at a line: a histogram's own are in shared memory."""
    here = {n for n, i in enumerate(evidence.entry.instructions)
            if kind_of(i) == "atomics" and evidence.places.line(i) == (file, line)}  # fmt: skip
    return [
        a for a in outcome.accesses if a.instruction in here and a.kind == "atomic" and a.space == "global"
    ]


def _one_place(function: Function, operation: Operation) -> bool:
    made = function.made_by().get(operation.operands[0])
    return made is not None and made.name == "tt.splat"

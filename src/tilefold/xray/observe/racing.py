"""`race`: threads of one program that write different values to one place, with no barrier between them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tilefold.xray.evidence import Evidence
from tilefold.xray.machine import Outcome
from tilefold.xray.machine.races import Race, races
from tilefold.xray.observe.trials import numbers
from tilefold.xray.report.model import Observation, Report
from tilefold.xray.report.static import line_of

_READS = (
    "tt.load",
    "tt.descriptor_load",
    "tt.descriptor_gather",
    "tt.atomic_rmw",
    "tt.atomic_cas",
)
_IN_TURN = (
    "the threads are of one warp, whose instructions take effect in their order on chips of today; between threads no rule "
    "promises that without a barrier"
)


def race(report: Report, evidence: Evidence) -> Iterator[Observation]:
    """One observation a line: the first place of an argument that threads of a program disagree about. Places that memory
    filled at random decides are left out: there, threads share places by chance. So is shared memory, which a kernel cannot
    name: threads that hold copies of one sum, added in other orders, write them to the compiler's own scratch."""
    if evidence.execution is None:
        return
    by_chance = lines_by_chance(evidence)
    seen: set[tuple[str, int]] = set()
    for program, outcome in zip(evidence.execution.programs, evidence.execution.outcomes, strict=True):
        for found in races(outcome, "global"):
            place = evidence.line(found.instructions[-1])
            if not found.differing or place in seen or place in by_chance:
                continue
            seen.add(place)
            lines = [evidence.line(n) for n in found.instructions]
            named = ", ".join(f"{line}" for _, line in dict.fromkeys(lines) if line)
            yield Observation(
                "race",
                "warning" if found.in_turn else "error",
                *place,
                f"{found.differing} bytes are written by several threads of program {program} with different values and no "
                f"barrier between: {_said(found, outcome, evidence)}",
                _IN_TURN
                if found.in_turn
                else "which of them stays is decided by the chip, and may be decided otherwise the next time",
                "let each place be written by one thread (fold what goes there, or mask all but one), or use an atomic"
                if len(set(lines)) == 1
                else f"store once what lines {named} store one after the other, or put tl.debug_barrier() between them",
                numbers=(
                    ("bytes", found.differing),
                    ("threads", f"{found.threads[0]} and {found.threads[1]}"),
                ),
            )


def _said(found: Race, outcome: Outcome, evidence: Evidence) -> str:
    """The place, and what two threads write to it."""
    assert evidence.execution is not None
    values = [_value(found, thread, outcome, evidence) for thread in found.threads]
    name, place = evidence.execution.named(found.place)
    return f"{name}[{place}] gets {values[0]} from thread {found.threads[0]} and {values[1]} from thread {found.threads[1]}"


def _value(found: Race, thread: int, outcome: Outcome, evidence: Evidence) -> str:
    """The last value that a thread wrote to the place of a race, as a number of its argument's type."""
    assert evidence.execution is not None
    size, kind = evidence.execution.element(found.place)
    value = ""
    for access in outcome.accesses:
        if access.written is None or access.step != found.step or not access.active[thread]:
            continue
        first = int(access.addresses[thread])
        if access.instruction in found.instructions and first <= found.place < first + access.bytes:
            row = access.written[int(access.active[:thread].sum())]
            at = (found.place - first) // size * size
            held = row[at : at + size]
            value = f"{numbers(held.copy(), kind)[0]:.6g}" if len(held) == size else held.tobytes().hex()
    return value


def lines_by_chance(
    evidence: Evidence, names: Sequence[str] = ("tt.store",), *, masks: bool = False
) -> set[tuple[str, int]]:
    """Lines of stores (or of loads, too) whose places come out of unfilled memory; with `masks` also those whose masks come
    out of whole numbers in it, as of lengths that nobody gave."""
    ttir, drawn = evidence.ttir, drawn_values(evidence)
    made, found = ttir.made_by(), set()
    whole = {v for v in drawn if re.search(r"ptr<i(?!1>)", made[v].types)}
    for operation in ttir.walk():
        place, at = line_of(operation.place), 2 if operation.name == "tt.store" else 1
        if operation.name not in names or not place:
            continue
        masked = masks and whole & ttir.reached_from(operation.operands[at : at + 1])
        if masked or drawn & ttir.reached_from(operation.operands[:1]):
            found.add(place)
    return found


def drawn_values(evidence: Evidence) -> set[str]:
    """Values that are read from memory which holds random elements, since nobody gave any; also through addresses of which
    that is not known."""
    ttir = evidence.ttir
    given = {name for name, a in evidence.parameters if a.pointer and a.data is not None}
    empty = {name for name, a in evidence.parameters if a.pointer and a.data is None}
    found: set[str] = set()
    for operation in ttir.walk():
        if operation.name in _READS:
            reached = ttir.reached_from(operation.operands[:1])
            if reached & empty or not reached & given:
                found.update(operation.results)
    return found

"""Accesses outside of arrays whose size is known: of the executed programs, and of some that a look at the whole grid
names."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from tilefold.xray.evidence import Evidence, integer_arguments
from tilefold.xray.execution import Bound, Execution, Program
from tilefold.xray.ir.programs import Programs
from tilefold.xray.ir.syntax import MASKS
from tilefold.xray.observe.trials import Trials, UntriedError
from tilefold.xray.report.model import Observation, Report
from tilefold.xray.report.static import line_of

_NEAR = 1 << 38  # bytes around an array within which an address is meant for it; arrays lie farther apart
_LOOKED = 1 << 12  # programs of a grid that are looked at
_EIGHTHS = 8  # of a range, at each of which an element is looked at: masks may end inside
_MORE = 3  # programs that are executed because of it


def out_of_bounds(report: Report, evidence: Evidence, trials: Trials) -> Iterator[Observation]:
    """One observation a line and array, with the farthest element reached."""
    if evidence.execution is None:
        return
    found = _reached(evidence, evidence.execution)
    yield from _observed(evidence, found, "")
    seen = set(found)
    # What was found of an array says nothing of another one, which other programs may leave.
    told = {(file, line) for file, line, _ in seen}
    for program in _suspects(evidence, report, told)[:_MORE]:
        try:
            more = _reached(evidence, trials.run(evidence.compiled, [program]))
        except UntriedError:
            return
        yield from _observed(
            evidence, {k: v for k, v in more.items() if k not in seen}, f" of program {program}"
        )
        seen |= set(more)


_Reached = dict[
    tuple[str, int, str], tuple[Bound, int, int, int]
]  # (file, line, array): lowest, highest byte, lanes


def _reached(evidence: Evidence, execution: Execution) -> _Reached:
    found: _Reached = {}
    for bound in execution.bounds:
        for number, lowest, highest, threads in _outside(execution, bound):
            key = (*evidence.line(number), bound.name)
            _, low, high, count = found.get(key, (bound, lowest, highest, 0))
            found[key] = (bound, min(low, lowest), max(high, highest), count + threads)
    return found


def _observed(evidence: Evidence, found: _Reached, where: str) -> Iterator[Observation]:
    sizes = {a.name: a.itemsize for a in evidence.compiled.job.arguments if a.pointer}
    for (file, line, name), (bound, low, high, threads) in found.items():
        size = sizes[name]
        held = (bound.end - bound.base) // size
        reached = low if low < bound.base else high
        yield Observation(
            "out-of-bounds",
            "error",
            file,
            line,
            f"{threads} lanes{where} reach outside of {name}: element {(reached - bound.base) // size} of {held}",
            "the mask does not cover what the offsets can reach, or the grid is larger than the array",
            "see that the strides are this array's, and mask what lies behind the end with its own length, or launch fewer "
            "programs",
            numbers=(("lanes", threads), ("element", (reached - bound.base) // size), ("size", held)),
        )


def _suspects(evidence: Evidence, report: Report, told: set[tuple[str, int]]) -> list[Program]:
    """At lines that are not told: programs that were not executed, one of whose tiles reaches outside of an array, as far as
    that is known before an execution; for each access the one that reaches farthest."""
    held = {name: (-a.before, a.size) for name, a in evidence.parameters if a.size is not None}
    accesses = [o for o in evidence.ttir.walk() if o.name in MASKS and line_of(o.place) not in told]
    if not held or not accesses or evidence.compiled.job.cluster > 1:
        return []
    found: dict[Program, int] = {}
    known = integer_arguments(evidence)
    for eighth, last in itertools.product(range(_EIGHTHS + 1), (False, True)):
        ends = (eighth / _EIGHTHS, last)
        world = Programs(evidence.ttir, known, report.grid, ends=ends, spread=True, most=_LOOKED)
        for access in accesses:
            place = world.places.get(access.operands[0])
            if place is None or place.argument not in held:
                continue
            first, end = held[place.argument]
            mask = access.operands[MASKS[access.name] :][:1]
            on = world.truth(mask[0]) if mask else None
            offset = np.broadcast_to(place.offset, (world.count,))
            beyond = np.maximum(first - offset, offset - end + 1) * (True if on is None else on)
            at = int(beyond.argmax())
            if beyond[at] > 0 and (not mask or on is not None):
                found[world.program(at)] = max(int(beyond[at]), found.get(world.program(at), 0))
    assert evidence.execution is not None
    return [p for p in sorted(found, key=lambda p: -found[p]) if p not in evidence.execution.programs]


def _outside(execution: Execution, bound: Bound) -> Iterator[tuple[int, int, int, int]]:
    """(instruction, lowest, highest, lanes) of accesses near an array and not in it."""
    for number, accesses in execution.accesses().items():
        for access in accesses:
            if access.space != "global":
                continue
            at = access.addresses[access.active].astype(np.int64)
            near = at[(at >= bound.base - _NEAR) & (at < bound.end + _NEAR)]
            outside = near[(near < bound.base) | (near + access.bytes > bound.end)]
            if len(outside):
                yield number, int(outside.min()), int(outside.max()) + access.bytes - 1, len(outside)

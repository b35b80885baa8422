"""Accesses outside of arrays whose size is known."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilefold.xray.evidence import Evidence
from tilefold.xray.execution import Bound, Execution
from tilefold.xray.report.model import Observation, Report

_NEAR = 1 << 38  # bytes around an array within which an address is meant for it; arrays lie farther apart


def out_of_bounds(report: Report, evidence: Evidence) -> Iterator[Observation]:
    """One observation a line and array, with the farthest element reached."""
    if evidence.execution is None:
        return
    found: dict[tuple[str, int, str], tuple[Bound, int, int, int]] = {}
    for bound in evidence.execution.bounds:
        for number, lowest, highest, threads in _outside(evidence.execution, bound):
            place = evidence.places.line(evidence.entry.instructions[number]) or ("", 0)
            key = (*place, bound.name)
            _, low, high, count = found.get(key, (bound, lowest, highest, 0))
            found[key] = (bound, min(low, lowest), max(high, highest), count + threads)
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
            f"{threads} lanes reach outside of {name}: element {(reached - bound.base) // size} of {held}",
            "the mask does not cover what the offsets can reach, or the grid is larger than the array",
            "mask what lies behind the end with the array's own length, or launch fewer programs",
            numbers=(("lanes", threads), ("element", (reached - bound.base) // size), ("size", held)),
        )


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

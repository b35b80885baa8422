"""`race`: boxes that the tensor memory accelerator stores or loads, and what the program itself does to the same memory.

A box that is stored has left shared memory when its wait ends, and may reach global memory later; one that is loaded may miss
what threads stored before, unless a fence of the proxies stands between. No barrier orders either. Whether that changes what
is stored is tried: boxes arrive when the program ends, in the opposite order, and are loaded as if it had stored nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilefold.xray.evidence import Evidence
from tilefold.xray.execution import Program
from tilefold.xray.machine import Access, Outcome, Transfer
from tilefold.xray.machine.types import Array
from tilefold.xray.observe.trials import Difference, Trials, UntriedError, difference
from tilefold.xray.report.model import Observation, Report

Overlap = tuple[Transfer, Transfer | Access]


def race_of_boxes(report: Report, evidence: Evidence, trials: Trials) -> Iterator[Observation]:
    """One observation a kernel: the first box whose sectors other accesses of its program touch, where it matters."""
    if evidence.execution is None:
        return
    for program, outcome in zip(evidence.execution.programs, evidence.execution.outcomes, strict=True):
        overlap = _overlap(outcome)
        if overlap is None:
            continue
        try:
            late = trials.memory(evidence.compiled, [program], turns="late")
            found = difference(evidence.compiled, late, trials.memory(evidence.compiled, [program]))
        except UntriedError:
            return
        if found is not None:
            yield _observed(overlap, found, program, evidence)
            return


def _overlap(outcome: Outcome) -> Overlap | None:
    """A box that is stored and what else touches its sectors, or one that is loaded and what stores there."""
    boxes = outcome.transfers
    touched = [(a, _sectors(a)) for a in outcome.accesses if a.space == "global"] if boxes else []
    for at, box in enumerate(boxes):
        stored = box.kind != "load"
        before = (b for b in boxes[:at] if b.kind != "load")
        earlier = next((b for b in before if _share_sectors(b.touched, box.touched)), None)
        if earlier is not None and (earlier.kind, box.kind) not in _IN_ANY_ORDER:
            return earlier, box
        for access, sectors in touched:
            if (stored or access.kind == "store") and _share_sectors(sectors, box.touched):
                return box, access
    return None


# Two that give the same whichever comes first.
_IN_ANY_ORDER = tuple((kind, kind) for kind in ("add", "min", "max", "and", "or", "xor"))


def _share_sectors(ours: Array, theirs: Array) -> bool:
    """Whether two sorted lists of sectors have one in common."""
    if not len(ours) or not len(theirs) or ours[-1] < theirs[0] or theirs[-1] < ours[0]:
        return False
    return bool(np.isin(ours, theirs).any())


def _sectors(access: Access) -> Array:
    return np.unique(access.addresses[access.active].astype(np.int64) // 32)


def _observed(overlap: Overlap, found: Difference, program: Program, evidence: Evidence) -> Observation:
    box, other = overlap
    (file, line), (_, second) = (evidence.line(x.instruction) for x in overlap)
    if isinstance(other, Transfer) and other.kind == "load":
        said, happens = f"that is loaded again in line {second}", "where it arrives later"
    elif isinstance(other, Transfer):
        said, happens = f"and another to the same place in line {second}", "where the first one arrives last"
    elif box.kind == "load":
        said = f"where threads stored in line {second}, and no fence of the proxies is between"
        happens = "where it misses what they stored"
    else:
        said = f"and threads {'store' if other.kind == 'store' else 'read'} there in line {second}"
        happens = "where the box arrives last"
    verb = "loads" if box.kind == "load" else "stores"
    return Observation(
        "race",
        "error",
        file,
        line,
        f"the tensor memory accelerator {verb} a box {said}: {happens}, program {program} stores {found}",
        "boxes move beside the threads: a barrier does not wait for them, and Triton waits only until shared memory is free",
        "use tl.load and tl.store for both, with tl.debug_barrier() between, keep the values in registers, or leave the "
        "second to another launch; not tried",
        also=() if second == line else ((file, second),),
    )

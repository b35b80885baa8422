"""Traffic that need not be: sectors beyond the bytes needed, passes through the banks of shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tilefold.xray.report.model import Access, Line, Observation, Report
from tilefold.xray.report.static import access_of

if TYPE_CHECKING:
    from tilefold.xray.report.build import Evidence

_SPARE = 1.2  # sectors over ideal from which it is said: a row that starts between two sectors costs 1 of 16


def wasted_sectors(report: Report, evidence: Evidence) -> Iterator[Observation]:
    """Accesses whose requests touch more sectors than hold the bytes needed."""
    for line in report.lines:
        for access in line.accesses:
            if access.sectors and access.ideal is not None and access.sectors > _SPARE * access.ideal:
                yield _wasted(line, access, _fetched(line, access, evidence))


def _fetched(line: Line, access: Access, evidence: Evidence) -> tuple[int, int]:
    """Different sectors that a line's accesses touch in a program, and how many would hold its different bytes."""
    assert evidence.execution is not None
    wanted = (access.kind, access.space, access.bytes)
    here = {
        n
        for n, i in enumerate(evidence.entry.instructions)
        if access_of(i) == wanted and evidence.places.line(i) == (line.file, line.line)
    }
    sectors = ideal = 0
    for outcome in evidence.execution.outcomes:
        parts = [
            a.addresses[a.active] for a in outcome.accesses if a.instruction in here and a.space == "global"
        ]
        at = np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.uint64)
        sectors += len(np.unique(at // 32))
        ideal -= -len(at) * access.bytes // 32
    return sectors, ideal


def _wasted(line: Line, access: Access, fetched: tuple[int, int]) -> Observation:
    assert access.sectors is not None
    assert access.ideal is not None
    requests = access.requests or 1
    reason, change = _why_wasted(access)
    cached = fetched[0] <= _SPARE * fetched[1]
    if cached:
        reason += (
            "; the program's other requests take the rest of these sectors, from L1 if they are still there"
        )
    return Observation(
        "wasted-sectors",
        "note" if cached else "warning",
        line.file,
        line.line,
        f"a {access.kind} touches {access.sectors / requests:.1f} sectors a request where {access.ideal / requests:.1f} "
        f"would hold its bytes",
        reason,
        change,
        bytes_at_stake=32 * (access.sectors - access.ideal),
        numbers=(("sectors", access.sectors), ("ideal", access.ideal), ("requests", requests)),
    )


def _why_wasted(access: Access) -> tuple[str, str]:
    stride = access.stride
    if stride is not None and abs(stride) == access.bytes:
        return (
            "the first lane's address is no multiple of 32 bytes, so each request reaches into one sector more",
            "let rows start at multiples of 32 bytes (pad their length), or begin at the multiple before and mask",
        )
    if stride is not None and abs(stride) >= 32:
        return (
            f"neighbouring lanes are {abs(stride)} bytes apart, and every one touches a sector of its own",
            "let the tile's contiguous dim be the array's, as tl.arange on the dim of stride 1; transpose inside the tile",
        )
    if stride is not None and abs(stride) > access.bytes:
        return (
            f"neighbouring lanes are {abs(stride)} bytes apart and take {access.bytes} of them at a time",
            "let a thread move its neighbouring elements at once: see why under scalar-access, or read a denser tile",
        )
    return (
        "lanes of a warp read places that do not lie together",
        "sort or group the indices so that neighbouring lanes read neighbouring places; nothing to do for a true gather",
    )


def bank_conflict(report: Report, evidence: Evidence) -> Iterator[Observation]:
    """Shared memory accessed in more passes than the words need."""
    for line in report.lines:
        for access in line.accesses:
            if access.passes is None or access.ideal is None or access.passes <= access.ideal:
                continue
            spare = access.passes - access.ideal
            yield Observation(
                "bank-conflict",
                "warning",
                line.file,
                line.line,
                f"a {access.kind} of shared memory makes {access.passes / (access.requests or 1):.1f} passes a request where "
                f"{access.ideal / (access.requests or 1):.1f} would do",
                "lanes of one warp ask different words of the same bank, and these come one after the other",
                "change the tile's shape or warps, so that what one warp writes and reads spans whole rows of 128 bytes; "
                "for a gather, spread the indices",
                cycles_at_stake=4 * spare,
                numbers=(("passes", access.passes), ("ideal", access.ideal)),
            )

"""Traffic that need not be: sectors beyond the bytes needed, passes through the banks of shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tilefold.xray.report.model import Access, Line, Observation, Report

if TYPE_CHECKING:
    from tilefold.xray.report.build import Evidence

_SPARE = 1.2  # sectors over ideal from which it is said: a row that starts between two sectors costs 1 of 16


def wasted_sectors(report: Report, evidence: Evidence) -> Iterator[Observation]:
    """Accesses whose requests touch more sectors than hold the bytes needed."""
    for line in report.lines:
        for access in line.accesses:
            if access.sectors and access.ideal is not None and access.sectors > _SPARE * access.ideal:
                yield _wasted(line, access)


def _wasted(line: Line, access: Access) -> Observation:
    assert access.sectors is not None
    assert access.ideal is not None
    requests = access.requests or 1
    reason, change = _why_wasted(access)
    return Observation(
        "wasted-sectors",
        "warning",
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

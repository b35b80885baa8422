"""Assertions on a report, for tests: this kernel never spills, loads whole vectors, wastes no sector."""

from __future__ import annotations

from typing import Any

from tilefold.errors import ArgumentError
from tilefold.xray.ir.types import element_bytes
from tilefold.xray.report.model import Access, Line, Observation, Report


class UnmetError(AssertionError):
    """A kernel does not meet a demand; `report` has the findings."""

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message)
        self.report = report


def check(
    kernel: Any,
    args: Any = None,
    constants: Any = None,
    *,
    vector_bytes: int | None = None,
    no_spill: bool = False,
    no_conflict: bool = False,
    wasted_sectors: float | None = None,
    occupancy: float | None = None,
    executed: bool = False,
    without: tuple[str, ...] = (),
    **given: Any,
) -> Report:
    """Explain a kernel, assert the demands on it, and return the report.

    Args:
        kernel: a kernel with `args` and `constants` as in `explain` (and its other keyword arguments), or a `Report`.
        vector_bytes: every load and store of global memory moves so many bytes a thread at once, or all that a thread
            holds of the tile where that is less.
        no_spill: no register goes to local memory.
        no_conflict: no pass through the banks of shared memory more than needed.
        wasted_sectors: at most this share of all sectors is more than the bytes needed.
        occupancy: at least this share of an SM's warps.
        executed: the programs were executed, with no instruction unknown.
        without: codes of observations that must not be there.

    Raises:
        UnmetError: an AssertionError; one line a demand that is not met, with the kernel's line and the numbers.
        ArgumentError, CompileError: as `explain`.
    """
    from tilefold.xray.explain import explain

    report = kernel if isinstance(kernel, Report) else explain(kernel, args or {}, constants, **given)
    failures = [
        *(_scalars(report, vector_bytes) if vector_bytes is not None else ()),
        *(_spills(report) if no_spill else ()),
        *(_conflicts(report) if no_conflict else ()),
        *(_wasted(report, wasted_sectors) if wasted_sectors is not None else ()),
    ]
    if occupancy is not None and report.occupancy.share < occupancy:
        found = report.occupancy
        failures.append(
            f"at least {occupancy:.0%} of an SM's warps were asked for, got {found.share:.0%}, limited by {found.limiter}"
        )
    if executed and not report.executed:
        failures.append(f"programs were to be executed: {' '.join(report.notes)}")
    failures += [
        f"line {o.line}: no {o.code} was allowed: {o.evidence}"
        for o in report.observations
        if o.code in without
    ]
    if failures:
        raise UnmetError(f"xray: {report.kernel} on {report.target}:\n  " + "\n  ".join(failures), report)
    return report


def failing(report: Report, what: str) -> list[Observation]:
    """Observations for which a run is to fail: `what` is "error", "warning" (errors and warnings) or a code.

    Raises:
        ArgumentError: it is none of these.
    """
    from tilefold.xray.observe import CODES

    if what in CODES:
        return [o for o in report.observations if o.code == what]
    if what not in ("error", "warning"):
        raise ArgumentError(
            f"xray: --fail-on must be error, warning or a code, got {what!r}; codes are {', '.join(CODES)}"
        )
    severities = ("error",) if what == "error" else ("error", "warning")
    return [o for o in report.observations if o.severity in severities]


def _scalars(report: Report, least: int) -> list[str]:
    """Lines that load or store in smaller pieces, though a thread holds more."""
    found = []
    for line, access in _accesses(report, "global"):
        held = max(
            (
                x.bytes_a_thread
                for x in line.layouts
                if x.operation == access.kind and element_bytes(x.element) <= access.bytes
            ),
            default=0,
        )
        wanted = min(least, 1 << (held.bit_length() - 1)) if held else 0
        if 0 < access.bytes < wanted:
            found.append(
                f"line {line.line}: {access.kind}s of {wanted} bytes were asked for, got {access.bytes} "
                f"with {held} bytes a thread"
            )
    return found


def _spills(report: Report) -> list[str]:
    spilled = report.resources.spilled
    return [f"no spills were allowed, got {spilled} bytes a thread"] if spilled else []


def _conflicts(report: Report) -> list[str]:
    return [
        f"line {line.line}: no bank conflict was allowed, got {a.passes} passes where {a.ideal} would do"
        for line, a in _accesses(report, "shared")
        if a.passes is not None and a.ideal is not None and a.passes > a.ideal
    ]


def _wasted(report: Report, share: float) -> list[str]:
    sectors, ideal = report.totals.sectors or 0, report.totals.ideal_sectors or 0
    if not sectors or (sectors - ideal) / sectors <= share:
        return []
    return [
        f"at most {share:.0%} of sectors might be wasted, got {(sectors - ideal) / sectors:.0%} of {sectors}"
    ]


def _accesses(report: Report, space: str) -> list[tuple[Line, Access]]:
    return [(line, a) for line in report.lines for a in line.accesses if a.space == space]

"""What got slower between two results, beyond noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilefold.bench.results import ERROR, NOT_RUN, OK, WRONG, CaseResult, Measurement, SuiteResult
from tilefold.bench.statistics import slower
from tilefold.errors import ArgumentError

# Medians of a few microseconds repeat to 0.3 us at best between runs: docs/measured.md.
NOISE, NOISE_US = 0.03, 0.3


@dataclass(frozen=True)
class Comparison:
    """Of all pairs that can be compared: what got worse, what got faster, and what cannot be compared, in words."""

    compared: int
    worse: tuple[str, ...]
    faster: tuple[str, ...]
    remarks: tuple[str, ...]


def compare_results(
    old: SuiteResult,
    new: SuiteResult,
    variants: tuple[str, ...] | None = None,
    noise: float = NOISE,
    noise_us: float = NOISE_US,
) -> Comparison:
    """Compare every variant (or those named) of every case that both hold.

    Slower: the median by more than `noise` and `noise_us`, with quartiles that do not overlap. What was right and timed and
    is wrong or failed now counts as worse too; what was not run, or whose peer is missing, is a remark.

    Raises:
        ArgumentError: the results are of two suites, or nothing in them can be compared.
    """
    if old.suite != new.suite:
        raise ArgumentError(
            f"bench compare: both files must be of one suite, got {old.suite} and {new.suite}; name two of one suite"
        )
    worse: list[str] = []
    faster: list[str] = []
    remarks = list(_machines(old, new))
    there = {case.name: case for case in new.cases}
    compared = absent = 0
    for case in old.cases:
        for before in case.measurements:
            if before.status != OK or before.time_us is None or (variants and before.variant not in variants):
                continue
            after = _after(there.get(case.name), before.variant)
            label = f"{case.name}, {before.variant}"
            if after is None or after.status == NOT_RUN:
                absent += 1
                continue
            if after.time_us is None:
                gone = f"{label}: {_gone(after)}"
                (worse if after.status in (WRONG, ERROR) else remarks).append(gone)
                continue
            compared += 1
            text = (
                f"{label}: {before.time_us.median_us:.2f} -> {after.time_us.median_us:.2f} us "
                f"({after.time_us.median_us / before.time_us.median_us - 1:+.1%})"
            )
            if slower(before.time_us, after.time_us, noise, noise_us):
                worse.append(text)
            elif slower(after.time_us, before.time_us, noise, noise_us):
                faster.append(text)
    if absent:
        remarks.append(f"{absent} timed before were not run now")
    if not compared and not worse:
        raise ArgumentError(
            "bench compare: the files must share a case that both timed, got none; compare runs of the same cases"
        )
    return Comparison(compared, tuple(worse), tuple(faster), tuple(remarks))


def _after(case: CaseResult | None, variant: str) -> Measurement | None:
    return case.of(variant) if case else None


def _gone(after: Measurement) -> str:
    return f"timed before, {after.status} now{f' ({after.note})' if after.note else ''}"


def _machines(old: SuiteResult, new: SuiteResult) -> Iterator[str]:
    """Where the two were made differently: a difference in time may be one of machines."""
    for name in ("chip", "driver", "torch", "triton"):
        before, after = ({getattr(run, name) for run in result.runs} for result in (old, new))
        if before != after:
            shown = [", ".join(sorted(str(v) for v in values)) for values in (before, after)]
            yield f"{name} differs: {shown[0]} -> {shown[1]}"

"""What got slower between two results, beyond noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tilefold.bench.results import ERROR, NOT_RUN, OK, WRONG, CaseResult, Measurement, SuiteResult
from tilefold.bench.statistics import Quartiles, slower
from tilefold.errors import ArgumentError

# Medians of a few microseconds repeat to 0.3 us at best between runs: docs/measured.md.
NOISE, NOISE_US = 0.03, 0.3
# The host's cost of a call has no quartiles in the files; torch's own moved by a tenth to a third between two machines.
HOST_NOISE = 0.25


@dataclass(frozen=True)
class Comparison:
    """All pairs in words: slower ones, faster ones, and pairs that cannot be compared."""

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

    Slower: the median by more than `noise` and `noise_us`, with quartiles that do not overlap, also when it is forgiven by
    how much empty launches, measured beside it, took longer. A host suite is compared by the host's cost of a call. What
    was right and timed and is wrong or failed now counts as worse too; what was not run, or whose peer is missing, is a
    remark.

    Raises:
        ArgumentError: the results are of two suites, nothing in them can be compared, or no variant is so named.
    """
    _check_alike(old, new, variants)
    found = _Found(old.suite == "host", noise, noise_us)
    found.remarks += _machines(old, new)
    there = {case.name: case for case in new.cases}
    for case in old.cases:
        for before in case.measurements:
            if before.status == OK and before.time_us and (not variants or before.variant in variants):
                found.add(case, before, there.get(case.name))
    if found.absent:
        found.remarks.append(f"{found.absent} timed before were not run now")
    if not found.compared and not found.worse:
        raise ArgumentError(
            "bench compare: the files must share a case that both timed, got none; compare runs of the same cases"
        )
    return Comparison(found.compared, tuple(found.worse), tuple(found.faster), tuple(found.remarks))


def _check_alike(old: SuiteResult, new: SuiteResult, variants: tuple[str, ...] | None) -> None:
    """Refuse results of two suites, and variants that neither has."""
    if old.suite != new.suite:
        raise ArgumentError(
            f"bench compare: both files must be of one suite, got {old.suite} and {new.suite}; name two of one suite"
        )
    there_are = dict.fromkeys([*old.variants, *new.variants])
    for name in variants or ():
        if name not in there_are:
            raise ArgumentError(
                f"bench compare: --variant must be of {'; '.join(there_are)}, got {name!r}; leave it out, or name one"
            )


@dataclass
class _Found:
    """The findings of a comparison; `absent` were timed before and not run now."""

    host: bool
    noise: float
    noise_us: float
    compared: int = 0
    absent: int = 0
    worse: list[str] = field(default_factory=list)
    faster: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def add(self, case: CaseResult, before: Measurement, now: CaseResult | None) -> None:
        """Compare one measurement with that of the same variant in the new case."""
        after = now.of(before.variant) if now else None
        if now is None or after is None or after.status == NOT_RUN:
            self.absent += 1
            return
        after_time, before_time = _judged(after, self.host), _judged(before, self.host)
        if after_time is None or before_time is None:
            gone = f"{case.name}, {before.variant}: {_gone(after)}"
            (self.worse if after.status in (WRONG, ERROR) else self.remarks).append(gone)
            return
        self.compared += 1
        text = (
            f"{case.name}, {before.variant}: {before_time.median_us:.2f} -> {after_time.median_us:.2f} "
            f"us{' host' * self.host} ({after_time.median_us / before_time.median_us - 1:+.1%})"
        )
        share = max(self.noise, HOST_NOISE) if self.host else self.noise
        longer = 0.0 if self.host else _longer_us(case, now)
        if slower(before_time, after_time, share, self.noise_us + max(longer, 0.0)):
            self.worse.append(text)
        elif slower(after_time, before_time, share, self.noise_us + max(-longer, 0.0)):
            self.faster.append(text)


def _judged(row: Measurement, host: bool) -> Quartiles | None:
    """The time that a suite is about."""
    if not host or row.time_us is None:
        return row.time_us
    return None if row.host_us is None else Quartiles(row.host_us, None, None, None)


def _longer_us(old: CaseResult, new: CaseResult) -> float:
    """By how much empty launches took longer beside the new case: up to 0.7 us, for all kernels of a process alike.

    Of one kind each, so that a plan that launches more than before is not forgiven.
    """
    both = old.empty_us.keys() & new.empty_us.keys()
    return min((new.empty_us[kind] - old.empty_us[kind] for kind in both), key=abs, default=0.0)


def _gone(after: Measurement) -> str:
    return f"timed before, {after.status} now{f' ({after.note})' if after.note else ''}"


def _machines(old: SuiteResult, new: SuiteResult) -> Iterator[str]:
    """Where the two were made differently: a difference in time may be one of machines."""
    for name in ("chip", "driver", "torch", "triton"):
        before, after = ({getattr(run, name) for run in result.runs} for result in (old, new))
        if before != after:
            shown = [", ".join(sorted(str(v) for v in values)) for values in (before, after)]
            yield f"{name} differs: {shown[0]} -> {shown[1]}"

"""All observations of a kernel, in the order of what is at stake."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilefold.xray.observe import (
    arithmetic,
    atomics,
    barriers,
    bounds,
    fills,
    memory,
    offsets,
    resources,
    threads,
    vectors,
)  # fmt: skip
from tilefold.xray.observe.codes import CODES
from tilefold.xray.report.model import Observation, Report

if TYPE_CHECKING:
    from tilefold.xray.report.build import Evidence

_FINDERS = (
    fills.wrong_fill, bounds.out_of_bounds, offsets.offset_overflow, memory.wasted_sectors, memory.bank_conflict,
    vectors.scalar_access, threads.repeated_work, threads.small_axis_shuffles, barriers.needless_barrier,
    atomics.strong_atomic, atomics.per_element_atomic, arithmetic.no_tensor_core, arithmetic.tf32_dot,
    arithmetic.approximate_math, resources.spill, resources.few_warps,
)  # fmt: skip
_RANK = {"error": 0, "warning": 1, "note": 2}
_ISSUE = 4  # instructions of warps that a core issues in a clock


def observe(report: Report, evidence: Evidence) -> tuple[Observation, ...]:
    """What every finder finds: errors, then warnings, then notes; within these the costliest first."""
    found = [o for finder in _FINDERS for o in finder(report, evidence)]
    assert all(o.code in CODES for o in found)
    rate = evidence.compiled.job.chip.bytes_per_clock

    def clocks(o: Observation) -> float:
        return o.bytes_at_stake / rate + o.cycles_at_stake / _ISSUE

    return tuple(sorted(found, key=lambda o: (_RANK[o.severity], -clocks(o), o.code, o.line)))

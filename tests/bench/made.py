"""Small results and calls to test with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from tilefold.bench.cases import Case, Choice, Variant
from tilefold.bench.clocks import ClockWatch
from tilefold.bench.limits import Limits
from tilefold.bench.measure import Bench
from tilefold.bench.operations import fold_case
from tilefold.bench.results import OK, SCHEMA, CaseResult, Measurement, Run, SuiteResult
from tilefold.bench.statistics import Quartiles
from tilefold.bench.timing import HostClock, Pace, Stopwatch

RUN = Run(
    chip="NVIDIA X", driver="1", torch="9", triton="8", python="3", tilefold="0", commit="abc", date="2031-02-03T00:00",
    command="tilefold bench folds --out /some/where --jobs 2", copy_gb_per_s=4000.0, copy_again_gb_per_s=4001.0,
    empty_us={"1": 3.0}, peers={"torch": "9", "quack": None}, settings={"warmup_ms": 5.0},
)  # fmt: skip


def measurement(
    median_us: float, variant: str = "ours", spread: float = 0.01, **changes: object
) -> Measurement:
    """A timed measurement with quartiles around its median."""
    times = Quartiles(median_us, median_us * (1 - spread), median_us * (1 + spread), 100)
    made = Measurement(variant, OK, None, times, 1.0, 9.0, 1, 0.98 * median_us, 0.98, "rows:k1")
    return replace(made, **changes)  # type: ignore[arg-type]  # names are checked when made


def case_result(
    *measurements: Measurement, shape: Sequence[int] = (1, 1 << 28), dtype: str = "bf16"
) -> CaseResult:
    """A headline sum."""
    size = "x".join(map(str, shape))
    return CaseResult(
        f"sum dim1 {size} {dtype}", "sum", 1, tuple(shape), dtype, f"sum, dim 1, {dtype}", True, 1 << 29, 1 << 28,
        125.0, "exact", measurements,
    )  # fmt: skip


def suite_result(*cases: CaseResult, suite: str = "folds") -> SuiteResult:
    """One run of those cases."""
    return SuiteResult(SCHEMA, suite, (RUN,), cases)


def small_case(operation: str = "sum", shape: tuple[int, ...] = (8, 256), dtype: str = "fp32") -> Case:
    """A case that takes microseconds."""
    return fold_case(operation, len(shape) - 1, shape, dtype, "group, panel")


def variant(call, name: str = "ours", **changes: object) -> Variant:
    """A variant of one call of x."""
    return Variant(name, lambda case, x: [Choice("only", call)], **changes)  # type: ignore[arg-type]  # names are checked when made


def cpu_bench(**changes: object) -> Bench:
    """A bench on the host's clock at a quick pace, with a known limit."""
    stopwatch = Stopwatch(HostClock(), Pace(0.1, 0.5))
    limits = Limits(stopwatch, "cpu", copy_gb_per_s=1.0)
    return replace(Bench("cpu", stopwatch, limits, ClockWatch(None), 1 << 20), **changes)  # type: ignore[arg-type]  # names are checked when made


def total(x: torch.Tensor) -> torch.Tensor:
    """The right answer of `small_case`."""
    return x.sum(-1)

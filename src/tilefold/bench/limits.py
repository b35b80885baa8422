"""The two limits that no fold can beat, measured in the same run: the copy's bandwidth and an empty launch."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from tilefold.bench.cases import PlanNote
from tilefold.bench.timing import Stopwatch

# Where nothing can be measured (a dry run): an H200's copy, read plus write; the committed runs measured 4242 to 4254.
H200_COPY_GB_PER_S = 4251.0
COPY_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 29}


def floor_us(compulsory_bytes: int, copy_gb_per_s: float) -> float:
    """The time of the compulsory bytes at the copy's bandwidth, in microseconds."""
    return compulsory_bytes / (copy_gb_per_s * 1e3)


def copy_gb_per_s(stopwatch: Stopwatch, device: str, elements: int | None = None) -> float:
    """Bytes read plus bytes written by a large copy of float32, over its median time."""
    count = elements or COPY_ELEMENTS["cpu" if device == "cpu" else "cuda"]
    source = torch.randn(count, device=device)
    target = torch.empty_like(source)
    timing = stopwatch.time_one(lambda: target.copy_(source))
    return 2 * source.numel() * source.element_size() / timing.median_us / 1e3


@dataclass
class Limits:
    """Limits that one run measured, and that of a call: (empty launches as its plan chains them) + bytes / bandwidth.

    An empty launch has two or three times, half a microsecond apart, that come and go within seconds of one process. So
    `empty_us`, the whole run's, serves cases to which that is nothing; the others give `limit_us` what was measured in
    turns with their own variants.
    """

    stopwatch: Stopwatch
    device: str
    copy_gb_per_s: float
    empty_us: dict[str, float] = field(default_factory=dict)

    def limit_us(
        self, compulsory_bytes: int, plan: PlanNote, empty_us: Mapping[str, float] | None = None
    ) -> float:
        """The least time that a call of this plan could take, by the run's empty launches or by those given."""
        launches = (empty_us or {}).get(chain_kind(plan)) or self.launch_us(plan)
        return launches + floor_us(compulsory_bytes, self.copy_gb_per_s)

    def launch_us(self, plan: PlanNote) -> float:
        """The time of a chain of empty kernels, measured once a kind. A CPU launches nothing."""
        if self.device == "cpu" or plan.launches < 1:
            return 0.0
        kind = chain_kind(plan)
        if kind not in self.empty_us:
            call = self.empty_call(plan)
            times = [self.stopwatch.time_one(call).median_us for _ in range(3)]
            self.empty_us[kind] = statistics.median(times)
        return self.empty_us[kind]

    def empty_call(self, plan: PlanNote) -> Callable[[], None]:
        """Launches empty kernels one after another, as a plan of so many stages would."""
        from tilefold.bench.kernels.empty import empty, empty_first, empty_next

        x = torch.ones(1, device=self.device)

        def plain() -> None:
            for _ in range(plan.launches):
                empty[(1,)](x)

        def overlapped() -> None:
            empty_first[(1,)](x)
            for _ in range(plan.launches - 1):
                empty_next[(1,)](x, launch_pdl=True)

        return overlapped if plan.overlap and plan.launches > 1 else plain


def chain_kind(plan: PlanNote) -> str:
    """The name of a chain of empty kernels: "1", "2", "2+overlap"."""
    return f"{plan.launches}{'+overlap' if plan.overlap and plan.launches > 1 else ''}"


def measure_limits(stopwatch: Stopwatch, device: str) -> Limits:
    """The copy, and the chains that plans have: one launch, two, two that overlap."""
    # A CPU is shared with other processes: the best of three is nearest to its own speed.
    copies = [copy_gb_per_s(stopwatch, device) for _ in range(3 if device == "cpu" else 1)]
    limits = Limits(stopwatch, device, max(copies))
    for plan in (PlanNote("", 1), PlanNote("", 2), PlanNote("", 2, overlap=True)):
        limits.launch_us(plan)
    return limits

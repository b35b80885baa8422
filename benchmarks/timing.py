"""Time on the device with a cold L2, and the two ceilings of every figure: a copy and an empty launch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Timing:
    """Median and quartiles of one variant, in microseconds."""

    median_us: float
    q1_us: float
    q3_us: float


Timer = Callable[[Callable[[], Any]], Timing]


def device_timer(warmup_ms: float, repeat_ms: float) -> Timer:
    """A timer by device events. `do_bench` writes a 256 MB buffer before each call, five times an H200's L2.

    That write (60 us) also hides the host: the launches are in the queue before the start event is reached.
    """
    from triton.testing import do_bench

    def timer(call: Callable[[], Any]) -> Timing:
        median, q1, q3 = do_bench(call, warmup=warmup_ms, rep=repeat_ms, quantiles=[0.5, 0.25, 0.75])
        return Timing(median * 1e3, q1 * 1e3, q3 * 1e3)

    return timer


def host_timer(repeats: int = 5) -> Timer:
    """A timer by the host's clock, for trying the script without a GPU. Its figures mean nothing."""

    def timer(call: Callable[[], Any]) -> Timing:
        call()
        times = []
        for _ in range(max(repeats, 2)):
            start = time.perf_counter()
            call()
            times.append((time.perf_counter() - start) * 1e6)
        q1, median, q3 = statistics.quantiles(times, n=4)
        return Timing(median, q1, q3)

    return timer


def copy_bytes_per_us(timer: Timer, device: str, elements: int) -> float:
    """Bytes read plus bytes written by a large copy, over its time."""
    source = torch.randn(elements, device=device)
    target = torch.empty_like(source)
    timing = timer(lambda: target.copy_(source))
    return 2 * source.numel() * source.element_size() / timing.median_us


@dataclass
class EmptyLaunches:
    """The time of `launches` empty kernels, each later one overlapped if the plan overlaps. Measured once a kind."""

    timer: Timer
    device: str
    times_us: dict[str, float] = field(default_factory=dict)

    def time_us(self, launches: int, overlap: bool) -> float:
        """The time of a chain, from the table or measured now."""
        key = f"{launches}{'+overlap' if overlap and launches > 1 else ''}"
        if key not in self.times_us:
            self.times_us[key] = self.measure(launches, overlap and launches > 1)
        return self.times_us[key]

    def measure(self, launches: int, overlap: bool) -> float:
        """The median of three medians: one of these is a term of every small cell."""
        if self.device == "cpu":
            return 0.0
        call = empty_chain(launches, overlap, self.device)
        return statistics.median(self.timer(call).median_us for _ in range(3))


def empty_chain(launches: int, overlap: bool, device: str) -> Callable[[], None]:
    """A call that launches empty kernels one after another, as a plan of so many stages would."""
    from empty_kernels import empty, empty_first, empty_next

    x = torch.ones(1, device=device)

    def plain() -> None:
        for _ in range(launches):
            empty[(1,)](x)

    def overlapped() -> None:
        empty_first[(1,)](x)
        for _ in range(launches - 1):
            empty_next[(1,)](x, launch_pdl=True)

    return overlapped if overlap else plain


def host_call_us(call: Callable[[], Any], synchronize: Callable[[], None], calls: int, batches: int) -> float:
    """Host time of one of many calls in a row: the median over batches, synchronized at each end."""
    call()
    times = []
    for _ in range(batches):
        synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize()
        times.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(times)

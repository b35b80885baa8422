"""Clocks. Variants take turns, so that drift hits all alike; a device's samples start with a cold L2."""

from __future__ import annotations

import contextlib
import ctypes
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch

from tilefold.bench.statistics import Quartiles, quartiles

Thunk = Callable[[], Any]
Turn = Callable[[str], None]
MOST_SAMPLES, FEWEST_SAMPLES = 500, 5
FEWEST_OF_SLOW, VERY_SLOW_MS = 3, 20.0  # a call this slow is no contender: its time is known well enough
TURN = 5  # samples of one variant in a row, where it is so fast that many are taken
MANY_SAMPLES = 10 * TURN
SLOW_US = 10_000.0
LATE_FLUSHES = 4


def nobody(name: str) -> None:
    """Nobody asks whose turn it is."""


class Clock(Protocol):
    """The interface of a machine's clock."""

    def sample_us(self, call: Thunk, host_us: float = 0.0) -> Callable[[], float]:
        """Run the call once; what is returned gives its microseconds, after `finish`.

        `host_us` is the host's time of a sample until it returns, which must be hidden from a device's clock.
        """

    def finish(self) -> None:
        """Wait until everything that was started is done."""

    @property
    def flush_bytes(self) -> int:
        """How much is written between two samples; 0 where caches stay warm."""


class DeviceClock:
    """Device events around one call, after a write of `flush_bytes` that leaves the L2 with nothing of the input.

    256 MB is five times an H200's L2. The write takes some 60 us there and hides the host too: a call's launches are in
    the queue before the device reaches the first event. Where the host takes longer, more is written; a sample whose first
    event the device had reached before all was launched is taken again, once, behind `LATE_FLUSHES` times as much.

    Lines that a kernel asked the L2 to keep (an evict-last policy) would outlive the write: they are released before it.

    The last lines written are still in the L2 and go to memory while the call reads. With `clean` other memory, as
    much of it, is read after the write, so that the L2 is as cold and has nothing to write back.
    """

    def __init__(self, device: str = "cuda", flush_bytes: int | None = None, clean: bool = False) -> None:
        """Allocate what is written between samples: 256 MB, or four times the L2 where that is more."""
        least = 4 * l2_bytes(device)
        size = max(1 << 28, least) if flush_bytes is None else flush_bytes
        self._flushed = torch.empty(size, dtype=torch.int8, device=device)
        self._read = torch.zeros(size // 8, dtype=torch.int64, device=device) if clean else None
        self._release = release_of_kept_lines()

    @property
    def flush_bytes(self) -> int:
        """Bytes written before each sample."""
        return self._flushed.numel()

    def sample_us(self, call: Thunk, host_us: float = 0.0) -> Callable[[], float]:
        """One call between two events, which the device reaches when the host has launched all of it."""
        # what the host does before the flush needs no hiding
        flushes = 1 + int(max(0.0, host_us - self._release_us) / self._flush_us) if host_us else 1
        read, late = self._sample(call, flushes)
        return self._sample(call, LATE_FLUSHES * flushes)[0] if late else read

    def _sample(self, call: Thunk, flushes: int) -> tuple[Callable[[], float], bool]:
        self._release()
        for _ in range(flushes):
            self._flushed.zero_()
        if self._read is not None:
            self._read.sum()
        return between_events(call)

    @cached_property
    def _flush_us(self) -> float:
        """How long one write takes: the host's time that it hides."""
        reads = [between_events(self._flushed.zero_)[0] for _ in range(5)]
        self.finish()
        return min(read() for read in reads)

    @cached_property
    def _release_us(self) -> float:
        """What releasing lines costs the host."""
        start = time.perf_counter()
        for _ in range(20):
            self._release()
        return (time.perf_counter() - start) / 20 * 1e6

    def finish(self) -> None:
        """Synchronize with the device."""
        torch.cuda.synchronize()


def release_of_kept_lines() -> Callable[[], Any]:
    """The driver's call that makes lines ordinary again which the L2 was asked to keep; nothing where there is none.

    As nvbench does between cold samples (NVIDIA/nvbench, pull request 459).
    """
    try:
        return ctypes.CDLL("libcuda.so.1").cuCtxResetPersistingL2Cache
    except (OSError, AttributeError):  # no driver, or one older than such lines
        return lambda: None


def between_events(call: Thunk) -> tuple[Callable[[], float], bool]:
    """Run the call between two events: what gives the device's microseconds, once it is done, and whether the host was late.

    Late is a host that had not launched all when the device reached the first event: the time may hold what it waited.
    """
    start, end = _event(), _event()
    start.record()
    call()
    end.record()
    late = bool(start.query())
    return lambda: float(start.elapsed_time(end)) * 1e3, late


class HostClock:
    """The host's clock around one call of a CPU tensor. Caches stay as the call before left them: rows say so."""

    flush_bytes = 0

    def sample_us(self, call: Thunk, host_us: float = 0.0) -> Callable[[], float]:
        """One call between two readings."""
        start = time.perf_counter()
        call()
        elapsed = (time.perf_counter() - start) * 1e6
        # The clock's own step is tens of nanoseconds; a time of zero would be a fault of the clock.
        return lambda: max(elapsed, 1e-3)

    def finish(self) -> None:
        """Nothing is in flight."""


@dataclass(frozen=True)
class Pace:
    """How long each variant is warmed and sampled. Milliseconds, not counts: a count means nothing across sizes."""

    warmup_ms: float = 5.0
    repeat_ms: float = 25.0


@dataclass
class Stopwatch:
    """A clock and a pace: times variants in turns."""

    clock: Clock
    pace: Pace = field(default_factory=Pace)

    def time(self, calls: Mapping[str, Thunk], turn: Turn = nobody) -> dict[str, Quartiles]:
        """Quartiles of each call's time; `turn` hears whose turn it is, between samples.

        All are warmed for `warmup_ms`, then sampled in turns for `repeat_ms` each. A turn of a fast call is a few samples,
        after one that does not count: like the empty kernels of the limit, each sample comes after the same code and not
        after another variant's. A slow call takes part in fewer turns (at least 5; 3 above 20 ms), of one sample
        each, spread evenly over all of them.
        """
        warm = {}
        for name, call in calls.items():
            turn(name)
            warm[name] = self._warmed(call)
        counts = {name: count for name, (count, _) in warm.items()}
        lengths = {name: TURN if count >= MANY_SAMPLES else 1 for name, count in counts.items()}
        turns = {name: count // lengths[name] for name, count in counts.items()}
        total = max(turns.values(), default=0)
        samples: dict[str, list[Callable[[], float]]] = {name: [] for name in calls}
        for number in range(total):
            for name, call in calls.items():
                if not takes_part(number, turns[name], total):
                    continue
                turn(name)
                host_us = warm[name][1]
                if lengths[name] > 1:
                    self.clock.sample_us(call, host_us)
                samples[name] += [self.clock.sample_us(call, host_us) for _ in range(lengths[name])]
        self.clock.finish()
        spreads = {}
        for name, reads in samples.items():
            turn(name)
            spreads[name] = quartiles([read() for read in reads])
        return spreads

    def time_one(self, call: Thunk) -> Quartiles:
        """Quartiles of a single call's time."""
        return self.time({"": call})[""]

    def _warmed(self, call: Thunk) -> tuple[int, float]:
        """Warm up by time; how many samples fit into `repeat_ms`, the flush counted; what one costs the host, in us."""
        call()
        self.clock.finish()
        hosts: list[float] = []
        start = time.perf_counter()
        while len(hosts) < 2 or (time.perf_counter() - start) * 1e3 < self.pace.warmup_ms:
            before = time.perf_counter()
            self.clock.sample_us(call)
            hosts.append((time.perf_counter() - before) * 1e6)
            self.clock.finish()
        each_ms = (time.perf_counter() - start) * 1e3 / len(hosts)
        fewest = FEWEST_OF_SLOW if each_ms > VERY_SLOW_MS else FEWEST_SAMPLES
        count = min(MOST_SAMPLES, max(fewest, round(self.pace.repeat_ms / each_ms)))
        return count, statistics.median(hosts)


def takes_part(turn: int, turns: int, total: int) -> bool:
    """Whether a call that takes part in `turns` of `total` does so in this one: evenly spread."""
    return (turn + 1) * turns // total > turn * turns // total


def host_us(
    calls: Mapping[str, Thunk],
    finish: Thunk,
    each_us: Mapping[str, float],
    batches: int = 5,
    most: int = 50,
    turn: Turn = nobody,
) -> dict[str, float]:
    """Host time of each call, until it returns: the median over batches, in turns, the device idle before each batch.

    Calls of more than 10 ms have none: the device hides their host, and batches of them would take long. A batch is at
    most some 4 ms of the device's time and `most` calls, so that the device's queue cannot fill up.
    """
    quick = {name: call for name, call in calls.items() if each_us[name] <= SLOW_US}
    counts = {name: min(most, max(3, round(4000 / max(each_us[name], 1.0)))) for name in quick}
    times: dict[str, list[float]] = {name: [] for name in quick}
    for _ in range(batches):
        for name, call in quick.items():
            turn(name)
            finish()
            start = time.perf_counter()
            for _ in range(counts[name]):
                call()
            times[name].append((time.perf_counter() - start) / counts[name] * 1e6)
    finish()
    return {name: quartiles(samples).median_us for name, samples in times.items()}


def graph_us(call: Thunk, each_us: float, most: int = 50, replays: int = 5) -> float:
    """Device time of a call inside a CUDA graph: up to `most` calls captured, replayed, over their number. The L2 stays warm.

    Raises:
        RuntimeError: the call does what cannot be captured.
    """
    calls = min(most, max(5, round(2000 / max(each_us, 1.0))))
    with own_stream():
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    times = []
    for _ in range(1 + replays):
        start, end = _event(), _event()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(float(start.elapsed_time(end)) / calls * 1e3)
    return quartiles(times[1:]).median_us


@contextlib.contextmanager
def own_stream() -> Iterator[None]:
    """Another current stream, which begins after what was launched before it and ends before what comes after it."""
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own


def l2_bytes(device: str) -> int:
    """The size of a GPU's L2, or of the CPU's last level cache; 0 where it cannot be told."""
    if device != "cpu":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    from pathlib import Path

    sizes = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    try:
        return max((int(path.read_text().strip().rstrip("K")) << 10 for path in sizes), default=0)
    except (OSError, ValueError):
        return 0

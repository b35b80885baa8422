"""Clocks, turns, limits: on a clock that the test sets."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from made import cpu_bench, small_case, total, variant

from tilefold.bench import limits, timing
from tilefold.bench.cases import Choice, PlanNote, Variant
from tilefold.bench.limits import Limits
from tilefold.bench.measure import measure_case
from tilefold.bench.timing import HostClock, Pace, Stopwatch, takes_part


class SetClock:
    """Each sample takes what its call returns, in microseconds."""

    flush_bytes = 0

    def __init__(self) -> None:
        self.order: list[float] = []

    def sample_us(self, call, host_us=0.0):
        took = call()
        self.order.append(took)
        return lambda: took

    def finish(self) -> None:
        pass


def test_variants_take_turns() -> None:
    clock = SetClock()
    times = Stopwatch(clock, Pace(0.0, 1e9)).time({"a": lambda: 1.0, "b": lambda: 2.0})
    assert [times["a"].median_us, times["b"].median_us] == [1.0, 2.0]
    assert times["a"].samples == timing.MOST_SAMPLES
    turns = timing.MOST_SAMPLES // timing.TURN
    one_turn = [1.0] * (1 + timing.TURN) + [2.0] * (
        1 + timing.TURN
    )  # a sample that does not count leads each
    assert clock.order[-turns * len(one_turn) :] == one_turn * turns


def test_slow_variants_take_turns_of_one_sample() -> None:
    clock = SetClock()
    Stopwatch(clock, Pace(0.0, 0.0)).time({"a": lambda: 1.0, "b": lambda: 2.0})
    assert clock.order[-2 * timing.FEWEST_SAMPLES :] == [1.0, 2.0] * timing.FEWEST_SAMPLES


@pytest.mark.parametrize(("rounds", "total"), [(5, 5), (5, 500), (7, 30), (0, 4)])
def test_a_slow_call_takes_part_evenly(rounds: int, total: int) -> None:
    turns = [turn for turn in range(total) if takes_part(turn, rounds, total)]
    assert len(turns) == rounds
    gaps = [b - a for a, b in pairwise(turns)]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_a_slow_call_gets_five_samples_at_least() -> None:
    assert Stopwatch(SetClock(), Pace(0.0, 0.0)).time_one(lambda: 1e6).samples == timing.FEWEST_SAMPLES


def test_a_very_slow_call_gets_three_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def call() -> float:
        now[0] += 0.08
        return 80_000.0

    assert Stopwatch(SetClock(), Pace(5.0, 25.0)).time_one(call).samples == timing.FEWEST_OF_SLOW == 3


def test_warm_up_is_by_time_not_by_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def call() -> float:
        now[0] += 0.001
        return 1000.0

    clock = SetClock()
    Stopwatch(clock, Pace(warmup_ms=40, repeat_ms=25)).time_one(call)
    assert len(clock.order) == 40 + 25  # a millisecond each


def test_the_host_clock_measures() -> None:
    clock = HostClock()
    assert clock.sample_us(lambda: sum(range(10_000)))() > 10
    clock.finish()


def test_host_time_is_that_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def call() -> None:
        now[0] += 7e-6

    assert timing.host_us({"x": call}, lambda: None, {"x": 10.0})["x"] == pytest.approx(7.0)
    assert timing.host_us({"x": call}, lambda: None, {"x": 20_000.0}) == {}


class Event:
    """A device's event that only notes its order."""

    seen: list[str]
    late: list[bool]

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.place = 0

    def query(self) -> bool:
        return self.late.pop() if self.late else False

    def record(self) -> None:
        self.seen.append("event")
        self.place = len(self.seen)

    def elapsed_time(self, end: Event) -> float:
        return float(end.place - self.place)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> timing.DeviceClock:
    """A device's clock without a device. `Event.seen` says what it does; of what it notes, each takes a millisecond."""
    Event.seen, Event.late = [], []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(timing, "l2_bytes", lambda device: 1 << 10)
    for name in ("empty", "zeros"):
        monkeypatch.setattr(timing.torch, name, lambda size, dtype, device: torch.ones(size, dtype=dtype))
    monkeypatch.setattr(torch.Tensor, "zero_", lambda self: Event.seen.append(f"flush {self.numel()}"))
    monkeypatch.setattr(torch.Tensor, "sum", lambda self: Event.seen.append(f"read {self.numel() * 8}"))
    return timing.DeviceClock(flush_bytes=1 << 12)


FLUSH = "flush 4096"


def test_a_device_sample_is_flush_event_call_event(clock: timing.DeviceClock) -> None:
    """Nothing but the call stands between the events, and the flush comes before the first."""
    read = clock.sample_us(lambda: Event.seen.append("call"))
    assert Event.seen == [FLUSH, "event", "call", "event"]
    assert read() == 2000.0  # two milliseconds, as events count


def test_kept_lines_are_released_before_the_flush(
    clock: timing.DeviceClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time: the call before may have asked the L2 to keep what it read. What that costs the host needs no hiding."""
    monkeypatch.setattr(timing, "release_of_kept_lines", lambda: lambda: Event.seen.append("release"))
    clock = timing.DeviceClock(flush_bytes=1 << 12)
    clock.sample_us(lambda: Event.seen.append("call"))
    assert Event.seen == ["release", FLUSH, "event", "call", "event"]
    clock.__dict__["_release_us"] = 7000.0
    clock.sample_us(lambda: None, host_us=1.0)  # learns that a flush takes 2000 us, by these events
    for host_us, flushes in ((8999.0, 1), (9000.0, 2)):
        Event.seen = []
        clock.sample_us(lambda: None, host_us)
        assert Event.seen == ["release", *[FLUSH] * flushes, "event", "event"]


def test_without_a_driver_nothing_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(timing.ctypes, "CDLL", missing)
    assert timing.release_of_kept_lines()() is None


@pytest.mark.usefixtures("clock")
def test_a_clean_flush_reads_after_it_wrote() -> None:
    """Other memory, as much of it: the L2 then has nothing of the flush to write back while the call runs."""
    timing.DeviceClock(flush_bytes=1 << 12, clean=True).sample_us(lambda: Event.seen.append("call"))
    assert Event.seen == [FLUSH, "read 4096", "event", "call", "event"]


def test_a_slow_host_is_hidden_behind_more_flushes(clock: timing.DeviceClock) -> None:
    """A launch that came after the first event would be timed with the host's delay."""
    clock.__dict__["_release_us"] = 0.0
    clock.sample_us(lambda: None, host_us=1.0)
    for host_us, flushes in ((1999.0, 1), (2000.0, 2), (9000.0, 5)):  # by these events a flush takes 2000 us
        Event.seen = []
        clock.sample_us(lambda: None, host_us)
        assert Event.seen == [FLUSH] * flushes + ["event", "event"]


def test_a_sample_that_the_host_was_late_for_is_taken_again(clock: timing.DeviceClock) -> None:
    """Once: of a call that waits for the device itself every sample seems late."""
    again = [FLUSH, "event", "event"] + [FLUSH] * timing.LATE_FLUSHES + ["event", "event"]
    for late, seen in (([False], again[:3]), ([False, True], again), ([True, True], again)):
        Event.seen, Event.late = [], late
        clock.sample_us(lambda: None)
        assert Event.seen == seen


def test_a_flush_is_four_times_the_l2_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(timing.torch, "empty", lambda size, dtype, device: sizes.append(size))
    for l2 in (50 << 20, 100 << 20):
        monkeypatch.setattr(timing, "l2_bytes", lambda device, l2=l2: l2)
        timing.DeviceClock()
    assert sizes == [256 << 20, 400 << 20]


# -------------------------------------------------------------------------------------------------------- limits


def test_floor_and_copy() -> None:
    assert limits.floor_us(4_000_000_000, 4000.0) == pytest.approx(1e3)
    assert limits.copy_gb_per_s(Stopwatch(HostClock(), Pace(0.1, 0.5)), "cpu", 1 << 12) > 0


def test_the_limit_counts_launches_as_the_plan_chains_them() -> None:
    known = Limits(Stopwatch(SetClock()), "cuda", 1.0, {"1": 3.0, "2": 5.0, "2+overlap": 4.0})
    assert known.limit_us(1000, PlanNote("")) == pytest.approx(3 + 1)
    assert known.limit_us(1000, PlanNote("", 2)) == pytest.approx(5 + 1)
    assert known.limit_us(1000, PlanNote("", 2, overlap=True)) == pytest.approx(4 + 1)
    assert Limits(Stopwatch(SetClock()), "cpu", 1.0).limit_us(1000, PlanNote("", 2)) == pytest.approx(1)


def test_empty_launches_measured_with_a_case_come_before_the_runs() -> None:
    known = Limits(Stopwatch(SetClock()), "cuda", 1.0, {"1": 3.0, "2": 5.0})
    assert known.limit_us(1000, PlanNote(""), {"1": 3.5}) == pytest.approx(3.5 + 1)
    assert known.limit_us(1000, PlanNote("", 2), {"1": 3.5}) == pytest.approx(5 + 1)


def test_a_rows_fraction_is_limit_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    case = small_case()
    note = PlanNote("rows + partials overlap", 2, overlap=True)
    row = measure_case(cpu_bench(), case, [variant(total, plan=lambda: note)]).measurements[0]
    assert row.time_us is not None
    assert row.limit_us == pytest.approx(case.compulsory_bytes / 1e3)
    assert row.fraction == pytest.approx(row.limit_us / row.time_us.median_us)
    assert (row.launches, row.plan) == (2, "rows + partials overlap")


def test_bytes_are_inputs_and_outputs_once() -> None:
    assert small_case("sum", (8, 256)).compulsory_bytes == 8 * 256 * 4 + 8 * 4
    # A sector holds 32 bytes: the eight values of 2 bytes take one, whole.
    assert small_case("max", (8, 256), "bf16").compulsory_bytes == 8 * 256 * 2 + 32 + 8 * 8
    assert small_case("sum", (3, 7)).compulsory_bytes == 96 + 32
    assert small_case("logsumexp", (8, 256)).operations == 8 * 256 * 4


def test_the_fastest_choice_is_the_one_that_is_timed() -> None:
    import time

    def slow(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.002)
        return total(x)

    form = Variant("form", lambda case, x: [Choice("slow", slow), Choice("quick", total)])
    assert measure_case(cpu_bench(), small_case(), [form]).measurements[0].plan == "quick"


def test_a_plan_that_is_not_remembered_is_an_error() -> None:
    row = measure_case(cpu_bench(), small_case(), [variant(total, plan=lambda: None)]).measurements[0]
    assert (row.status, row.time_us) == ("error", None)

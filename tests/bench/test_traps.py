"""Every trap is sprung: what would make a figure wrong without notice is said instead."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo as dynamo
from made import cpu_bench, small_case, total, variant

from tilefold.bench import traps
from tilefold.bench.cases import Case, Choice, Variant
from tilefold.bench.clocks import ClockWatch, Reading, clock_reader
from tilefold.bench.measure import measure_case
from tilefold.bench.traps import TrapError, check_compiled, fresh_compile, nothing_chosen


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """Dynamo as it was before, also its settings."""
    dynamo.reset()
    with dynamo.config.patch(fail_on_recompile_limit_hit=False):
        yield
    dynamo.reset()


def rows(x: torch.Tensor) -> torch.Tensor:
    return x.sum(1)


# ------------------------------------------------------------------------------------------------- torch.compile


def test_dynamos_recompile_limit_is_found_out() -> None:
    """Without code of its own for each shape, a function runs eagerly after eight of them, and nothing says so."""
    compiled = torch.compile(rows, backend="eager", dynamic=False)
    for length in range(2, 14):
        compiled(torch.ones(4, length))
    with pytest.raises(TrapError, match="compiled for one input only, got 8 specialisations"):
        check_compiled(compiled, torch.ones(4, 13))


def test_shape_after_shape_compiled_anew_is_right() -> None:
    for length in range(2, 14):
        x = torch.ones(4, length)
        compiled = fresh_compile(rows, backend="eager")
        compiled(x)
        check_compiled(compiled, x)


def test_too_many_recompiles_of_one_function_raise() -> None:
    compiled = fresh_compile(rows, backend="eager")
    inputs = [torch.ones(4, length) for length in range(2, 14)]
    with pytest.raises(Exception, match="recompile_limit"):
        list(map(compiled, inputs))


@pytest.mark.filterwarnings("ignore")
def test_a_fallback_to_eager_is_found_out() -> None:
    def failing(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> None:
        raise RuntimeError("the compiler is broken")

    compiled = torch.compile(rows, backend=failing)
    with dynamo.config.patch(suppress_errors=True):
        assert compiled(torch.ones(2, 3)).tolist() == [3, 3]  # right, and eager
        with pytest.raises(TrapError, match="fell back to eager"):
            check_compiled(compiled, torch.ones(2, 3))


def test_a_graph_break_raises() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        dynamo.graph_break()
        return x.sum(1)

    with pytest.raises(Exception, match="graph_break"):
        fresh_compile(broken, backend="eager")(torch.ones(2, 3))


def test_a_function_specialised_on_another_shape_is_found_out() -> None:
    compiled = fresh_compile(rows, backend="eager")
    compiled(torch.ones(4, 5))
    with pytest.raises(TrapError, match="specialised on another shape"):
        check_compiled(compiled, torch.ones(4, 6))


def test_a_fallen_back_variant_is_an_error_not_a_time() -> None:
    """From the variant's own check to its row."""
    shared = torch.compile(total, backend="eager", dynamic=False)
    for length in range(2, 14):
        shared(torch.ones(4, length))
    row = measure_case(
        cpu_bench(), small_case(), [variant(shared, "compile", check=check_compiled)]
    ).measurements[0]
    assert row.status == "error"
    assert row.time_us is None


# ------------------------------------------------------------------------------------------ choosing while timing


def test_an_autotuner_inside_the_timed_region_is_found_out() -> None:
    from torch._inductor.runtime.benchmarking import benchmarker

    def tuning(x: torch.Tensor) -> torch.Tensor:
        benchmarker.benchmark(lambda: x.sum(), (), {}, device="cpu", warmup=0, rep=1)
        return total(x)

    ours, row = measure_case(
        cpu_bench(), small_case(), [variant(total), variant(tuning, "tuning")]
    ).measurements
    assert row.status == "error"
    assert row.note is not None
    assert "Inductor's autotuner ran" in row.note
    assert ours.status == "ok"  # who did nothing is not blamed
    assert ours.time_us is not None


def test_tritons_autotuner_and_compiler_are_watched() -> None:
    triton = pytest.importorskip("triton")
    tuner = object.__new__(triton.runtime.autotuner.Autotuner)
    with (
        pytest.raises(TrapError, match="Triton's autotuner ran"),
        nothing_chosen(),
        contextlib.suppress(Exception),
    ):
        tuner._bench(config=None)
    assert hasattr(triton.runtime.JITFunction, "_do_compile")


def test_a_compilation_inside_the_timed_region_is_found_out() -> None:
    compiled = torch.compile(rows, backend="eager", dynamic=False)
    compiled(torch.ones(2, 3))
    with nothing_chosen():
        compiled(torch.ones(2, 3))
    with pytest.raises(TrapError, match="Dynamo compiled a graph"), nothing_chosen():
        compiled(torch.ones(2, 4))


def test_only_the_variant_that_compiles_is_blamed() -> None:
    compiled = torch.compile(rows, backend="eager", dynamic=False)
    lengths = iter(range(2, 500))

    def compiling(x: torch.Tensor) -> torch.Tensor:
        with dynamo.config.patch(recompile_limit=1000):
            compiled(torch.ones(2, next(lengths)))
        return total(x)

    variants = [variant(total), variant(compiling, "compiling"), variant(total, "last")]
    found = measure_case(cpu_bench(), small_case(), variants).measurements
    assert [row.status for row in found] == ["ok", "error", "ok"]
    assert "Dynamo compiled a graph" in str(found[1].note)


def test_tuning_takes_turns_among_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime.benchmarking import InductorBenchmarker

    held: list[str] = []

    class Lock:
        def __enter__(self) -> None:
            held.append("taken")

        def __exit__(self, *error: object) -> None:
            held.append("given")

    def measure(self: Any, call, **keywords: object) -> float:
        held.append(call())
        assert keywords in ({}, traps.TUNING)
        if keywords:  # else it is measured as Inductor does
            assert self.L2_cache_size == self.get_device_cache_size("cuda") == traps.TUNING_FLUSH_BYTES
        return 1.0

    assert set(traps.TUNING) <= set(inspect.signature(InductorBenchmarker.benchmark_gpu).parameters)
    monkeypatch.setattr(InductorBenchmarker, "benchmark_gpu", measure)
    for once_ms, measured in ((0.1, ["measured"]), (40.0, [])):
        monkeypatch.setattr(traps, "_once_ms", lambda call, once_ms=once_ms: once_ms)
        with traps.tuned_one_at_a_time(Lock()):
            took = InductorBenchmarker().benchmark_gpu(lambda: "measured")
        assert took == (1.0 if measured else once_ms)  # a slow candidate's one call is its time
        assert held == ["taken", *measured, "given"]
        held.clear()
    InductorBenchmarker().benchmark_gpu(lambda: "outside")
    assert held == ["outside"]


@pytest.mark.parametrize("how", ["in graphs", "unmeasured"])
def test_candidates_are_replayed_or_only_compiled(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a choice counts, it is measured without the host; where nobody takes it, each candidate is called once."""
    from torch._inductor import config
    from torch._inductor.codecache import PersistentCache
    from torch._inductor.runtime.benchmarking import InductorBenchmarker

    done: list[str] = []

    def measure(self: object, call, **keywords: object) -> float:
        done.append(call())
        assert keywords == traps.TUNING
        return 7.0

    def write(self: object, *choices: object) -> None:
        done.append("on disk")

    monkeypatch.setattr(InductorBenchmarker, "benchmark_gpu", measure)
    monkeypatch.setattr(PersistentCache, "update_local_cache", write)
    monkeypatch.setattr(traps, "_once_ms", lambda call: 0.1)
    monkeypatch.setattr(traps, "_recorded", lambda call: lambda: "replayed")
    monkeypatch.setattr(traps, "own_stream", contextlib.nullcontext)
    with traps.tuned_in_graphs() if how == "in graphs" else traps.unmeasured():
        assert not config.autotune_local_cache
        took = InductorBenchmarker().benchmark_gpu(lambda: done.append("called"))
        PersistentCache().update_local_cache({})
    assert (took, done) == ((7.0, ["replayed"]) if how == "in graphs" else (1.0, ["called"]))
    assert config.autotune_local_cache
    monkeypatch.setattr(traps, "_once_ms", lambda call: 40.0)
    with traps.tuned_in_graphs():
        assert InductorBenchmarker().benchmark_gpu(lambda: None) == 40.0


# -------------------------------------------------------------------------------------------------------- inputs


@pytest.mark.parametrize(
    ("x", "said"),
    [
        pytest.param(torch.zeros(100), "100 of 100", id="zeros"),
        pytest.param(torch.arange(100) % 20, "5 of 100", id="some zeros"),
        pytest.param(torch.ones(100, dtype=torch.int32), "one value 100 times", id="one value"),
    ],
)
def test_zeros_are_never_timed(x: torch.Tensor, said: str) -> None:
    with pytest.raises(TrapError, match=said):
        traps.check_input(x, "sum")


def test_a_case_that_draws_zeros_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilefold.bench.cases import Case

    monkeypatch.setattr(Case, "draw", lambda self, device, seed=0: torch.zeros(self.shape))
    row = measure_case(cpu_bench(), small_case(), [variant(total)]).measurements[0]
    assert row.status == "error"
    assert row.note is not None
    assert "may be zero" in row.note


def test_an_input_that_fits_the_cache_is_marked_where_nothing_is_flushed() -> None:
    assert traps.cold_note(1000, 1 << 20, flush_bytes=0) == traps.WARM
    assert traps.cold_note(1 << 22, 1 << 20, flush_bytes=0) is None
    assert traps.cold_note(1 << 22, 0, flush_bytes=0) == traps.WARM  # the cache's size is not known
    assert traps.cold_note(1000, 1 << 20, flush_bytes=1 << 21) is None
    assert traps.WARM in measure_case(cpu_bench(), small_case(), [variant(total)]).notes


def test_a_flush_smaller_than_the_cache_is_refused() -> None:
    with pytest.raises(TrapError, match="must write twice the cache"):
        traps.cold_note(1000, 1 << 20, flush_bytes=1 << 20)


# -------------------------------------------------------------------------------------------------------- clocks


class Falling:
    """A clock that is lower at each reading."""

    def __init__(self, *readings: Reading | None) -> None:
        self.readings = list(readings)

    def read(self) -> Reading | None:
        return self.readings.pop(0)


def test_clocks_that_drop_are_reported() -> None:
    watch = ClockWatch(Falling(Reading(1980), Reading(1950), Reading(1200, ("heat",)), None))
    assert [watch.look() for _ in range(4)] == [
        None,
        None,
        "clocks dropped: 1200 MHz after 1980 MHz (heat)",
        None,
    ]
    assert (watch.lowest_mhz, watch.highest_mhz) == (1200, 1980)


def test_the_row_measured_under_a_dropped_clock_says_so() -> None:
    watch = ClockWatch(Falling(Reading(1000)), highest_mhz=2000)
    case = measure_case(cpu_bench(watch=watch), small_case(), [variant(total)])
    assert "clocks dropped: 1000 MHz after 2000 MHz" in case.notes


def test_a_cpu_has_no_clock_to_read() -> None:
    assert clock_reader("cpu") is None
    assert ClockWatch(None).look() is None


# --------------------------------------------------------------------------------------------------------- peers


def test_a_missing_peer_is_named_never_timed() -> None:
    bench = cpu_bench(missing=frozenset({"quack"}))
    row = measure_case(bench, small_case(), [variant(total, "quack")]).measurements[0]
    assert (row.status, row.time_us) == ("missing", None)


def test_what_must_not_be_compiled_here_is_not_built() -> None:
    """A kernel that ended the process that compiled it would end this one."""

    def build(case: Case, x: torch.Tensor) -> list[Choice]:
        raise AssertionError

    bench = cpu_bench(unfit={(small_case().name, "theirs"): "it ended by signal 11"})
    row = measure_case(bench, small_case(), [variant(total), Variant("theirs", build)]).of("theirs")
    assert row is not None
    assert (row.status, row.note, row.time_us) == ("not run", "it ended by signal 11", None)

"""What only a device can show: cold caches, graphs, chained launches, the forms, the peers, one whole small run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from made import small_case

from tilefold import cli
from tilefold.bench import gate, limits, timing, traps
from tilefold.bench.clocks import clock_reader
from tilefold.bench.operations import fold_case
from tilefold.bench.peers import known_peers
from tilefold.bench.results import read_results
from tilefold.bench.suites.or_small_axis import FORMS
from tilefold.bench.timing import DeviceClock, Pace, Stopwatch

pytestmark = pytest.mark.gpu


def test_samples_begin_cold() -> None:
    """An input that fits the L2 takes longer to read when it is flushed before each sample.

    Warm is a graph's replay: without a flush before it, a call alone would wait for the host.
    """
    x = torch.randn(1 << 22, device="cuda")
    cold = Stopwatch(DeviceClock()).time_one(lambda: x.sum())
    assert DeviceClock().flush_bytes >= 4 * timing.l2_bytes("cuda")
    assert cold.median_us > timing.graph_us(lambda: x.sum(), 5.0)


def test_what_the_l2_was_asked_to_keep_is_cold_too() -> None:
    """Read with an evict-last policy 16 MB were a tenth faster behind a flush that released nothing."""
    import triton
    import triton.language as tl

    @triton.jit
    def reader(x, y, KEPT: tl.constexpr):
        at = tl.program_id(0) * 4096 + tl.arange(0, 4096)
        tl.store(y + tl.program_id(0), tl.sum(tl.load(x + at, eviction_policy="evict_last" if KEPT else "")))

    x, y = torch.randn(1 << 22, device="cuda"), torch.empty(1 << 10, device="cuda")
    watch = Stopwatch(DeviceClock(), Pace(5, 50))
    calls = {str(kept): lambda kept=kept: reader[(1 << 10,)](x, y, kept) for kept in (False, True)}
    times = {name: spread.median_us for name, spread in watch.time(calls).items()}
    assert times["True"] > 0.96 * times["False"]


def test_a_graph_costs_less_than_launches_do() -> None:
    x = torch.randn(1024, device="cuda")
    assert (
        0
        < timing.graph_us(lambda: x.sum(), 5.0)
        < Stopwatch(DeviceClock()).time_one(lambda: x.sum()).median_us
    )


def test_limits_of_the_device() -> None:
    measured = limits.measure_limits(Stopwatch(DeviceClock(), Pace(2, 10)), "cuda")
    assert measured.copy_gb_per_s > 100
    assert set(measured.empty_us) == {"1", "2", "2+overlap"}
    assert 0 < measured.empty_us["1"] < measured.empty_us["2"]


def test_the_clock_can_be_read() -> None:
    reader = clock_reader("cuda")
    if reader is None:
        pytest.skip("the driver's library cannot be loaded here")
    now = reader.read()
    assert now is not None
    assert now.sm_mhz > 100


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "does not wait"])
def test_work_on_another_stream_that_waits_for_nobody_is_refused(waits: bool) -> None:
    case = small_case()
    probes = gate.probes_of(case, "cuda")
    other = torch.cuda.Stream()

    def aside(x: torch.Tensor) -> torch.Tensor:
        here = torch.cuda.current_stream()
        if waits:
            other.wait_stream(here)
        with torch.cuda.stream(other):
            y = x.sum(-1)
        here.wait_stream(other)
        return y

    x = torch.empty_like(probes[0].x)
    torch.cuda.synchronize()
    assert (gate.check(case, aside, x, probes) is None) is waits


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_every_form_and_block_is_right(form, dtype: str) -> None:
    case = fold_case("bitwise_or", 2, (67, 130, 8), dtype, "x")
    probes = gate.probes_of(case, "cuda")
    x = torch.empty_like(probes[0].x)
    for choice in form.build(case, x):
        assert gate.check(case, choice.call, x, probes) is None, choice.label


@pytest.mark.parametrize("name", sorted(set(known_peers()) - {"quack"}))
@pytest.mark.parametrize("operation", ["sum", "amax", "argmax", "logsumexp", "bitwise_or"])
def test_a_peer_that_is_here_is_right(name: str, operation: str) -> None:
    peer = known_peers()[name]
    if peer.version is None:
        pytest.skip(f"{name} cannot be imported here")
    shape, dtype = ((64, 128, 8), "int32") if operation == "bitwise_or" else ((1, 1 << 16), "fp32")
    case = small_case(operation, shape, dtype)
    probes = gate.probes_of(case, "cuda")
    x = torch.empty_like(probes[0].x)
    for choice in peer.variant.build(case, x):
        choice.call(x)
        assert gate.check(case, choice.call, x, probes) is None


def test_a_small_run_with_torch_and_compile(tmp_path: Path) -> None:
    argv = "folds --size small --shapes 4096x8,4x8x4 --operations sum,argmax,bitwise_or --against torch,compile --jobs 2"
    assert cli.run(["bench", *argv.split(), "--out", str(tmp_path)]) == 0
    for case in read_results(tmp_path / "folds.json").cases:
        for variant in ("ours", "torch", "compile"):
            row = case.of(variant)
            assert row is not None
            assert row.status == "ok", row.note
            assert row.time_us is not None
            assert row.graph_us is not None
            assert row.fraction is not None


def test_every_or_form_is_timed(tmp_path: Path) -> None:
    argv = "or-small-axis --shapes 256x512x16 --dtype int64 --jobs 4"
    assert cli.run(["bench", *argv.split(), "--out", str(tmp_path)]) == 0
    (case,) = read_results(tmp_path / "or-small-axis.json").cases
    assert [m.status for m in case.measurements] == ["ok"] * 6


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # inside Inductor's autotuning
@pytest.mark.parametrize(
    ("suite", "only", "shapes"),
    [
        ("decompose-k", "--dtype bf16 --operations matmul+relu", [(16, 16, 1024), (16, 16, 256)]),
        ("router", "--operations matmul", [(1, 32, 512), (16, 32, 512)]),
    ],
)
def test_every_way_to_multiply_is_timed_and_says_what_was_chosen(
    suite: str, only: str, shapes: list[tuple[int, ...]], tmp_path: Path
) -> None:
    argv = f"{suite} --size small {only} --jobs 4"
    assert cli.run(["bench", *argv.split(), "--out", str(tmp_path)]) == 0
    cases = read_results(tmp_path / f"{suite}.json").cases
    assert [case.shape for case in cases] == shapes
    for case in cases:
        for row in case.measurements:
            assert row.status == "ok", (row.variant, row.note)
            assert row.graph_us is not None, (row.variant, row.note)
            assert row.plan, row.variant


def test_what_launches_on_another_stream_is_no_graph() -> None:
    """Its graph would be empty, and the fastest of all."""
    x, other = torch.ones(1 << 20, device="cuda"), torch.cuda.Stream()

    def elsewhere() -> None:
        with torch.cuda.stream(other):
            x.neg_()

    with timing.own_stream():
        assert traps._recorded(elsewhere) is elsewhere
        replay = traps._recorded(x.neg_)
        x.fill_(1)
        replay()
    assert bool((x == -1).all())

"""Workers that compile: what they report, and that nobody waits for one that hangs."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from tilefold.bench import run, traps, warm
from tilefold.bench.selection import Selection
from tilefold.bench.suites import load_suite, or_small_axis
from tilefold.bench.variants import variants_of

LATER = 4e9
SMALL = Selection("small")


def job(deadline: float, case: str = "quick") -> warm.Job:
    return warm.Job("host", case, "ours", "cpu", deadline, SMALL)


def hang(job: warm.Job) -> str:
    """In a worker: what a deadlock looks like from outside."""
    if job.case == "hangs":
        time.sleep(600)
    if job.case == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    return ""


def tune_a_graph(job: warm.Job) -> str:
    """In a worker: a candidate that is a compiled graph has Inductor tune its kernels when it is first called."""
    from torch._inductor.runtime.benchmarking import InductorBenchmarker

    measured: list[str] = []

    def measure(self: object, call, **keywords: object) -> float:  # type: ignore[no-untyped-def]
        call()
        return 1.0

    InductorBenchmarker.benchmark_gpu = measure  # type: ignore[assignment,method-assign]
    traps._once_ms = lambda call: call() or 0.1  # type: ignore[assignment]
    with traps.tuned_one_at_a_time(warm._lock):
        tuner = InductorBenchmarker()
        tuner.benchmark_gpu(lambda: tuner.benchmark_gpu(lambda: measured.append("inner")))
    return "" if measured else "nothing was measured"


def ended() -> bool:
    """Whether no worker is left, after the moment that ending takes."""
    for _ in range(100):
        if not multiprocessing.active_children():
            return True
        time.sleep(0.1)
    return False


def test_workers_compile_and_report(capfd: pytest.CaptureFixture[str]) -> None:
    """On a CPU there is nothing worth compiling, but the way there and back is the same."""
    later = time.time() + 300
    case = or_small_axis.cases("small")[0].name
    jobs = [
        warm.Job("or-small-axis", case, "ours", "cpu", later, SMALL),
        warm.Job("or-small-axis", case, "ours", "cpu", 0.0, SMALL),
        warm.Job("or-small-axis", case, "torch", "nowhere", later, SMALL),
    ]
    told: list[tuple[int, str]] = []
    unfit = warm.warm_caches(jobs, 1, lambda done, trouble: told.append((done, trouble)))
    assert [done for done, _ in told] == [1, 2, 3]
    late, compiled, failed = sorted((text for _, text in told), key=lambda text: "no time" not in text)
    assert (late, compiled) == (f"{case}, ours: no time left", "")
    assert failed.startswith(f"{case}, torch: RuntimeError")
    assert unfit == {jobs[1]: warm.NO_TIME_LEFT}, "what raises is tried again where it is timed"


def test_a_candidate_that_tunes_its_own_kernels_does_not_wait_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warm, "_compile", tune_a_graph)
    monkeypatch.setattr(warm, "GRACE_S", 120.0)
    told: list[tuple[int, str]] = []
    warm.warm_caches([job(LATER)], 1, lambda done, trouble: told.append((done, trouble)))
    assert told == [(1, "")]


@pytest.mark.parametrize("name", ["segment", "topk", "transpose", "scan", "atomic-sum"])
def test_only_the_variants_asked_for_are_compiled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the budget: what is in hand at its deadline is given a fifth of it."""
    asked: list[tuple[list[warm.Job], float]] = []
    monkeypatch.setattr(
        run, "warm_caches", lambda jobs, workers, told, grace_s, limit_s: asked.append((jobs, grace_s)) or {}
    )
    suite, options = load_suite(name), run.Options(budget_s=20.0, jobs=2)
    variants = variants_of(suite, (), ("ours",))
    cases = suite.select("small", 0, 60)
    one = run.Prepared(suite, options, cases, variants, {})
    run.warm([one, one], Mock(), time.time() + 20.0)
    [(jobs, grace_s)] = asked
    assert {job.variant for job in jobs} == {"ours"}
    assert len(jobs) == 2 * len(cases), "of both suites, in one pool"
    assert grace_s == 4.0


@pytest.mark.parametrize("beyond", ["limit", "deadline"])
def test_a_worker_that_hangs_is_ended_and_the_others_go_on(
    beyond: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "_compile", hang)
    deadline = LATER if beyond == "limit" else time.time() + 12.0
    limit_s, grace_s = (12.0, 30.0) if beyond == "limit" else (600.0, 1.0)
    told: list[tuple[int, str]] = []
    jobs = [job(deadline), job(deadline, "hangs"), job(deadline)]
    unfit = warm.warm_caches(
        jobs, 1, lambda done, trouble: told.append((done, trouble)), grace_s, limit_s=limit_s
    )
    last = "" if beyond == "limit" else "quick, ours: no time left"
    assert told == [(1, ""), (2, "hangs, ours: not compiled in time"), (3, last)]
    assert unfit[jobs[1]] == "not compiled in time"
    assert ended()


def test_a_worker_that_crashes_costs_its_job_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "_compile", hang)
    told: list[tuple[int, str]] = []
    jobs = [job(LATER), job(LATER, "crashes"), job(LATER)]
    unfit = warm.warm_caches(jobs, 1, lambda done, trouble: told.append((done, trouble)))
    why = "the process that compiled it ended by signal 11"
    assert told == [(1, ""), (2, f"crashes, ours: {why}"), (3, "")]
    assert unfit == {jobs[1]: why}


def hold(lock: Path) -> None:
    """In another process: take the lock twice, and end without giving it back."""
    held = warm.FileLock(lock)
    held.__enter__()
    with held:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_lock_is_free_when_its_holder_has_ended(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=hold, args=(tmp_path / "lock",))
    process.start()
    process.join()
    with warm.FileLock(tmp_path / "lock"):
        assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("raised", [KeyboardInterrupt, BrokenPipeError])
def test_an_interrupt_waits_for_nobody(raised: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor a display that nobody reads any more."""

    def interrupted(done: int, trouble: str) -> None:
        raise raised

    monkeypatch.setattr(warm, "_compile", hang)
    start = time.monotonic()
    with pytest.raises(raised):
        warm.warm_caches([job(LATER), job(LATER, "hangs"), job(LATER)], 1, interrupted)
    assert time.monotonic() - start < 120
    assert ended()


def test_an_interrupt_while_jobs_are_handed_out_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are started by and by, and the first of them may hang already."""
    take = warm.Worker.take

    def interrupted(worker: warm.Worker, job: warm.Job, *seconds: float) -> None:
        if job.case == "quick":
            raise KeyboardInterrupt
        take(worker, job, *seconds)

    monkeypatch.setattr(warm, "_compile", hang)
    monkeypatch.setattr(warm.Worker, "take", interrupted)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        warm.warm_caches([job(LATER, "hangs"), job(LATER)], 2, lambda done, trouble: None)
    assert time.monotonic() - start < 120
    assert ended()

"""Compile before anything is timed, in worker processes: kernels and tuned choices land in the caches on disk."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures import TimeoutError as WaitedTooLong  # Python 3.10 has two of that name
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilefold.bench.selection import Selection

NO_TIME_LEFT = "no time left"
GRACE_S = 30.0  # that a job in hand is given beyond its deadline
_lock: Any = None


@dataclass(frozen=True)
class Job:
    """One variant of one case to compile, by names: workers find the rest themselves."""

    suite: str
    case: str
    variant: str
    device: str
    deadline: float
    asked: Selection


def warm_caches(
    jobs: Sequence[Job], workers: int, told: Callable[[int, str], None], most_grace_s: float = GRACE_S
) -> None:
    """Run the jobs in `workers` processes; `told` hears how many are done, and what went wrong with one ("" if nothing).

    Compiling is parallel, measuring is not: autotuners (`traps.tuned_one_at_a_time`) and inputs that are drawn take turns on
    the device. A job that fails is compiled again, and reported, where it is timed. Workers still at it half a minute after
    the last deadline, or `most_grace_s` where that is less, are ended, as they are at Ctrl-C or whatever else is raised here.
    """
    # The workers are the parallelism. Set here too: it belongs to what Inductor looks its caches up by.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    context = multiprocessing.get_context("spawn")
    lock = context.RLock()  # a candidate may be a graph, whose own kernels are tuned when it is first called
    others = set(multiprocessing.active_children())
    latest = max((job.deadline for job in jobs), default=0.0)
    grace_s = min(GRACE_S, most_grace_s)
    with ProcessPoolExecutor(workers, context, _keep_lock, (lock,)) as pool:
        done = 0
        try:
            waiting = [pool.submit(_compile, job) for job in jobs]
            for future in as_completed(waiting, max(0.0, latest - time.time()) + grace_s):
                done += 1
                told(done, future.result())
        except BrokenProcessPool as error:  # a worker died: the rest compiles where it is timed
            told(len(jobs), str(error))
        except WaitedTooLong:
            _end(pool, others)
            told(len(jobs), f"{len(jobs) - done} jobs: not done {grace_s:.0f} s after their time")
        except BaseException:  # Ctrl-C, or a display that fails: else the pool would compile all that waits
            _end(pool, others)
            raise


def _end(pool: ProcessPoolExecutor, others: set[multiprocessing.process.BaseProcess]) -> None:
    """Leave what waits, and end the workers: one that hangs would be waited for."""
    pool.shutdown(wait=False, cancel_futures=True)
    for process in set(multiprocessing.active_children()) - others:
        process.terminate()


def _keep_lock(lock: Any) -> None:
    global _lock
    _lock = lock
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches all: the parent answers it


def _compile(job: Job) -> str:
    """In a worker: call each choice of one variant once. Gives what went wrong, or nothing."""
    if time.time() > job.deadline:
        return f"{job.case}, {job.variant}: {NO_TIME_LEFT}"
    try:
        import torch

        from tilefold.bench import traps
        from tilefold.bench.selection import asked_suite, selected
        from tilefold.bench.suites import load_suite
        from tilefold.bench.variants import variants_of

        if job.device != "cpu":
            torch.cuda.set_device(torch.device(job.device).index or 0)
        suite = load_suite(job.suite)
        case = next(case for case in selected(suite, job.asked) if case.name == job.case)
        suite = asked_suite(suite, job.asked)
        variant = next(v for v in variants_of(suite, (job.variant,)) if v.name == job.variant)
        with _lock:  # so that nobody measures beside what this launches
            x = case.draw(job.device)
            if job.device != "cpu":
                torch.cuda.synchronize()
        with traps.tuned_one_at_a_time(_lock):
            for choice in (variant.compiles or variant.build)(case, x):
                choice.call(x)
        if job.device != "cpu":
            del x
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
    except Exception as error:  # any failure of one job must leave the others running
        return f"{job.case}, {job.variant}: {type(error).__name__}: {str(error)[:200]}"
    return ""

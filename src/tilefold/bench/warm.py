"""Compile before anything is timed, in worker processes: kernels and tuned choices land in the caches on disk."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilefold.bench.selection import Selection

NO_TIME_LEFT = "no time left"
GRACE_S = 30.0  # that a job in hand is given beyond its deadline
LIMIT_S = 120.0  # that a job is given at most
BROKEN_DEVICE = 3  # exit code of a worker whose device answers no more
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


class FileLock:
    """A lock of several processes that its holder's end releases, however that comes; its holder may take it again."""

    def __init__(self, path: Path) -> None:
        """Nobody holds it yet."""
        self._path, self._depth = path, 0
        self._file: IO[str] | None = None

    def __enter__(self) -> None:
        import fcntl

        if not self._depth:
            self._file = self._path.open("w")
            fcntl.flock(self._file, fcntl.LOCK_EX)
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth and self._file:
            self._file.close()


class Worker:
    """A process that takes one job after another."""

    def __init__(self, lock: Path) -> None:
        """Start it; a job may be given at once."""
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, lock, _compile), daemon=True)
        self.process.start()
        theirs.close()
        self.job: Job | None = None
        self.until = 0.0

    def take(self, job: Job, limit_s: float, grace_s: float) -> None:
        """Begin a job, which has so many seconds, and so many beyond its deadline."""
        self.job = job
        self.until = min(time.time() + limit_s, job.deadline + grace_s)
        with contextlib.suppress(OSError):  # a worker that has ended is found out below
            self.connection.send(job)

    def answer(self) -> tuple[str, str] | None:
        """What went wrong with its job, and why that must not be tried again; None while it is at work.

        With a reason the worker has ended.
        """
        assert self.job is not None
        name = f"{self.job.case}, {self.job.variant}"
        if self.connection.poll():
            try:
                return self.connection.recv(), ""
            except (EOFError, OSError):
                self.process.join()
                self.connection.close()
                why = _ended(self.process.exitcode)
                return f"{name}: {why}", why
        if time.time() < self.until:
            return None
        self.end()
        return f"{name}: not compiled in time", "not compiled in time"

    def end(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.join()
        self.connection.close()


def _ended(code: int | None) -> str:
    if code == BROKEN_DEVICE:
        return "the device answered no more after it"
    how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
    return f"the process that compiled it ended {how}"


def warm_caches(
    jobs: Sequence[Job],
    workers: int,
    told: Callable[[int, str], None],
    most_grace_s: float = GRACE_S,
    limit_s: float = LIMIT_S,
) -> dict[Job, str]:
    """Run the jobs in `workers` processes; `told` hears how many are done, and what went wrong with one ("" if nothing).

    Compiling is parallel, measuring is not: autotuners (`traps.tuned_one_at_a_time`) and inputs that are drawn take turns on
    the device. A job that raises is compiled again, and reported, where it is timed. It returns the jobs that must
    not be: those for which no time was left, that took `limit_s`, or half a minute (`most_grace_s` where that is less)
    beyond their deadline, and that ended their process. The others go on. All workers are ended at Ctrl-C or whatever else
    is raised here.
    """
    # The workers are the parallelism. Set here too: it belongs to what Inductor looks its caches up by.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    grace_s = min(GRACE_S, most_grace_s)
    unfit: dict[Job, str] = {}
    waiting, done = deque(jobs), 0
    with _workers() as (lock, pool):
        while waiting or any(worker.job for worker in pool):
            if waiting and time.time() > waiting[0].deadline:
                job, done = waiting.popleft(), done + 1
                unfit[job] = NO_TIME_LEFT
                told(done, f"{job.case}, {job.variant}: {NO_TIME_LEFT}")
                continue
            idle = [worker for worker in pool if not worker.job]
            if waiting and not idle and len(pool) < workers:
                pool.append(Worker(lock))
            elif waiting and idle:
                idle[0].take(waiting.popleft(), limit_s, grace_s)
            else:
                for worker, job, trouble, why in _answers(pool):
                    unfit |= {job: why} if why else {}
                    done += 1
                    told(done, trouble)
                    if why:
                        pool.remove(worker)
    return unfit


@contextlib.contextmanager
def _workers() -> Iterator[tuple[Path, list[Worker]]]:
    """Where workers keep their lock, and a list of those that are ended afterwards."""
    pool: list[Worker] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            yield Path(folder) / "lock", pool
        finally:
            for worker in pool:
                worker.end()


def _answers(pool: Sequence[Worker]) -> Iterator[tuple[Worker, Job, str, str]]:
    """Wait until something happens; then each worker that is done with its job, and how that went."""
    busy = [worker for worker in pool if worker.job]
    soonest = min(worker.until for worker in busy)
    wait([worker.connection for worker in busy], max(0.0, soonest - time.time()))
    for worker in busy:
        job, answer = worker.job, worker.answer()
        if job and answer:
            worker.job = None
            yield worker, job, *answer


def _serve(connection: Connection, lock: Path, compile_job: Callable[[Job], str]) -> None:
    """In a worker: do jobs until the parent is gone."""
    global _lock
    _lock = FileLock(lock)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches all: the parent answers it
    with contextlib.suppress(EOFError, OSError):
        while True:
            connection.send(compile_job(connection.recv()))


def _compile(job: Job) -> str:
    """In a worker: call each choice of one variant once. Gives what went wrong, or nothing."""
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
        with _lock:  # so that no other process measures beside this launch
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
        _check_device(job.device)
        return f"{job.case}, {job.variant}: {type(error).__name__}: {str(error)[:200]}"
    return ""


def _check_device(device: str) -> None:
    """End this worker if its device answers no more: every later job in it would fail as well."""
    import torch

    try:
        if device != "cpu" and torch.cuda.is_available():
            torch.cuda.synchronize()
    except Exception:
        os._exit(BROKEN_DEVICE)

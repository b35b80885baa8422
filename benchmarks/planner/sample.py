"""Time plans of drawn problems on a GPU: the chosen plan, those of the other forms, and tiles around it, all in one run.

    PYTHONPATH=src python benchmarks/planner/sample.py --count 60 --plans 24 --budget-s 540 --out sample.jsonl
    PYTHONPATH=src python benchmarks/planner/sample.py --count 3 --plans 4 --dry-run --out /tmp/sample.jsonl

Problems are those of `tilefold bench shapes`. First comes the plan that any call has, then every other form's with its
rule's tile, then tiles around the problem's own rule, drawn. Other processes compile the next problems while one is timed; a
plan that does not compile soon, or whose answer is wrong, is noted and not timed. A problem's plans take turns, each sample
behind a flush of the L2. A line is written as soon as its problem is done, so that nothing is lost where the budget ends:
{seed, size, name, chip, plans: [{stages, time_us, registers, spilled, wrong}]}. Problems that the file already has are left
out, so that the same command goes on where one ended. `--dry-run` needs no GPU: it compiles for sm_90 and times nothing.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import multiprocessing
import os
import random
import re
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import astuple, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TextIO

import torch
from problems import Drawn, dims_of, draw

from tilefold.backends.triton.call import compile_for
from tilefold.backends.triton.lower import calls_of
from tilefold.planner.candidates import Wanted, candidates
from tilefold.planner.choose import first_launches, plan_fold, plan_of
from tilefold.planner.device import H200, Device, device_of
from tilefold.planner.first_tile import first_tile
from tilefold.planner.plan import Plan
from tilefold.planner.reading import reading_of

ROUNDS = 9  # samples of each plan
BEGUN = time.monotonic()
PATIENCE_S = 3.0  # for the other half of a problem's plans, once half are compiled
SLOW = 4.0  # times the fastest plan's first sample: such a plan is sampled no further


@dataclass(frozen=True)
class Asked:
    """What every process of a run must know to draw and plan a problem again."""

    size: str
    plans: int
    device: Device


def plans_of(drawn: Drawn, seed: int, most: int, device: Device) -> list[Plan]:
    """The plans to time: the chosen one, every other form's, and some of the tiles around the problem's own rule."""
    problem, program = drawn.problem, drawn.program
    launches = list(first_launches(problem, program))
    stages = [first_tile(launch, launch.reading, device, False) for launch in launches]
    wanted = Wanted(stages[0], reading_of(problem), problem, drawn.geometry, program, device)
    others = list(candidates(wanted))
    random.Random(f"sample {seed}").shuffle(others)
    chosen: dict[Any, Plan] = {}
    plans = (plan_of(stage, problem, program, device) for stage in (*stages, *others))
    for plan in (plan_fold(problem, program, device, "run_to_run"), *plans):
        if len(chosen) < most:
            chosen.setdefault(plan.stages, plan)
    return list(chosen.values())


@functools.lru_cache(64)
def planned(asked: Asked, seed: int) -> tuple[Drawn, list[Plan]]:
    """Problem `seed` and its plans."""
    drawn = draw(seed, asked.size)
    return drawn, plans_of(drawn, seed, asked.plans, asked.device)


def compile_plan(asked: Asked, seed: int, number: int) -> str:
    """In a worker: one plan's launches into Triton's cache on disk. What went wrong, or nothing."""
    drawn, plans = planned(asked, seed)
    try:
        for call in calls_of(plans[number], drawn.problem, drawn.program):
            compile_for(call, asked.device.capability)
    except Exception as error:  # any failure of one plan must leave the others running
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""


class Ahead:
    """Compiles the next problems' plans in processes of its own while one is timed."""

    def __init__(self, asked: Asked, workers: int) -> None:
        """Start the processes."""
        self.asked, self.workers = asked, workers
        self.waiting: dict[int, list[Future[str]]] = {}
        self.pool = ProcessPoolExecutor(workers, get_context("spawn"))

    def begin(self, seed: int) -> None:
        """Have a problem's plans compiled."""
        count = len(planned(self.asked, seed)[1])
        try:
            self.waiting[seed] = [
                self.pool.submit(compile_plan, self.asked, seed, number) for number in range(count)
            ]
        except BrokenProcessPool:  # a worker died: others go on from here
            self.pool = ProcessPoolExecutor(self.workers, get_context("spawn"))
            self.begin(seed)

    def compiled(self, seed: int, end: float) -> list[str]:
        """What went wrong with each plan, once all are done, or a while after half of them are: nobody waits for the last."""
        futures, give_up = self.waiting.pop(seed), end
        while (now := time.monotonic()) < give_up and not all(future.done() for future in futures):
            if sum(future.done() for future in futures) >= len(futures) / 2:
                give_up = min(give_up, now + PATIENCE_S)
            time.sleep(0.01)
        for future in futures:
            future.cancel()
        return [_trouble(future) for future in futures]

    def stop(self) -> None:
        """End all processes, also those that compile for long."""
        self.pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()


def _trouble(future: Future[str]) -> str:
    if future.cancelled() or not future.done():
        return "not compiled in time"
    error = future.exception()
    return f"{type(error).__name__}: {error}" if error else future.result()


def executable_of(plan: Plan, drawn: Drawn, x: torch.Tensor) -> tuple[Callable[[], Any], list[Any]]:
    """A call that folds x by this plan, and the compiled kernels. The one place that knows how a plan is run."""
    from tilefold.backends.triton.executable import Executable
    from tilefold.backends.triton.launch import compiled

    dims = dims_of(drawn.case)
    shape = tuple(n for d, n in enumerate(x.shape) if d not in dims)
    calls = calls_of(plan, drawn.problem, drawn.program)
    outputs = [(shape, dtype) for dtype in drawn.program.outputs]
    run = Executable(plan, calls, drawn.program, 1, outputs, x.device.index)
    return (lambda: run([x])), [compiled(call, x.device.index) for call in calls]


def timed(
    drawn: Drawn,
    plans: Sequence[Plan],
    clock: Any,
    device: str = "cuda",
    troubles: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Every plan checked and timed, in turns, but those with whose compilation something went wrong."""
    from tilefold.bench.gate import fault

    case = drawn.case
    x = case.draw(device)
    want = case.reference(x)
    entries, calls = [], {}
    for number, plan in enumerate(plans):
        entry = _entry(plan)
        entries.append(entry)
        if number < len(troubles) and troubles[number]:
            entry["wrong"] = troubles[number]
            continue
        try:
            call, kernels = executable_of(plan, drawn, x)
            entry["registers"] = max(kernel.n_regs or 0 for kernel in kernels)
            entry["spilled"] = max(kernel.n_spills or 0 for kernel in kernels)
            entry["wrong"] = fault(case, x, tuple(call()), want)
        except Exception as error:  # a plan that cannot run is noted, the others are timed
            entry["wrong"] = f"{type(error).__name__}: {str(error)[:200]}"
        if not entry["wrong"]:
            calls[number] = call
    for number, samples in _samples(calls, clock).items():
        entries[number]["time_us"] = statistics.median(samples)
    return entries


def _samples(calls: dict[int, Callable[[], Any]], clock: Any) -> dict[int, list[float]]:
    """Samples of each call, in turns; what is far from the fastest gets one."""
    found: dict[int, list[float]] = {number: [] for number in calls}
    for turn in range(ROUNDS):
        fastest = min((samples[0] for samples in found.values() if samples), default=0.0)
        going = [n for n in calls if turn == 0 or found[n][0] <= SLOW * fastest]
        reads = {number: clock.sample_us(calls[number]) for number in going}
        clock.finish()
        for number, read in reads.items():
            found[number].append(read())
    return found


def _entry(plan: Plan) -> dict[str, Any]:
    stages = [list(astuple(stage)) for stage in plan.stages]
    return {
        "stages": stages,
        "time_us": None,
        "registers": None,
        "spilled": 0,
        "wrong": None,
    }


def device_works() -> bool:
    """Whether the GPU still answers: after a fault of a kernel nothing works in this process any more."""
    try:
        torch.cuda.synchronize()
    except Exception:
        return False
    return True


def seeds_of(given: argparse.Namespace, known: set[int]) -> Iterator[int]:
    """Problems that are small enough and not in the file yet."""
    left = given.count - len(known)
    for seed in range(given.first, given.first + 4 * given.count):
        if (
            left > 0
            and seed not in known
            and draw(seed, given.size).problem.bytes_read <= given.most_mb * 1e6
        ):
            left -= 1
            yield seed


def known_seeds(path: Path) -> set[int]:
    """Problems of which the file already tells."""
    lines = path.read_text().splitlines() if path.exists() else []
    seeds = (re.match(r'{"seed":(\d+),', line) for line in lines)
    return {int(found[1]) for found in seeds if found}


def sample(given: argparse.Namespace, asked: Asked, out: TextIO, end: float) -> bool:
    """Problem after problem until the time is over; whether the device still works."""
    clock = None
    seeds = seeds_of(given, known_seeds(given.out))
    ahead = Ahead(asked, given.jobs)
    waiting: deque[int] = deque()

    def begin(count: int) -> None:
        for seed in itertools.islice(seeds, count):
            waiting.append(seed)
            ahead.begin(seed)

    try:
        begin(given.jobs // 2 + 2)
        if not given.dry_run:
            from tilefold.bench.timing import DeviceClock

            clock = DeviceClock()
        while waiting and time.monotonic() < end:
            seed = waiting.popleft()
            drawn, plans = planned(asked, seed)
            troubles = ahead.compiled(seed, end)
            begin(1)
            line = {"seed": seed, "size": asked.size, "name": drawn.name, "chip": astuple(asked.device)}
            if time.monotonic() > end:
                break
            try:
                if clock is None:
                    entries = [_entry(plan) for plan in plans]
                else:
                    entries = timed(drawn, plans, clock, troubles=troubles)
                line["plans"] = entries
                _said(seed, drawn, entries, troubles)
            except Exception as error:  # a problem that fails must leave the others
                line["failed"] = f"{type(error).__name__}: {str(error)[:200]}"
                print(seed, drawn.name, line["failed"], flush=True)
            out.write(json.dumps(line, separators=(",", ":")) + "\n")
            out.flush()
            if clock is not None and not device_works():
                return False
    finally:
        ahead.stop()
    return True


def _said(seed: int, drawn: Drawn, entries: Sequence[dict[str, Any]], troubles: Sequence[str]) -> None:
    """A line of progress."""
    times = [e["time_us"] for e in entries if e["time_us"]]
    best = min(times, default=None)
    print(
        f"{time.monotonic() - BEGUN:.0f} s: {seed} {drawn.name}: {len(times)} of {len(entries)} plans, chosen "
        f"{entries[0]['time_us']}, best {best}",
        *(f"  {t}" for t in sorted({*troubles, *(e["wrong"] for e in entries)} - {"", None})),
        sep="\n",
        flush=True,
    )


def main() -> None:
    """Compile, time, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=0, help="seed of the first problem")
    parser.add_argument("--count", type=int, default=60, help="of problems in the file, at most")
    parser.add_argument("--plans", type=int, default=24, help="plans of a problem, at most")
    parser.add_argument("--size", default="full", choices=("full", "small"))
    parser.add_argument("--most-mb", type=float, default=300.0, help="inputs of more are left out")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--budget-s", type=float, default=540.0)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    device = H200 if given.dry_run else device_of(0)
    asked = Asked(given.size, given.plans, device)
    with given.out.open("a") as out:
        works = sample(given, asked, out, BEGUN + given.budget_s)
    if not works:
        print("the device failed; the same command goes on behind the problem", flush=True)
    sys.stdout.flush()
    os._exit(0 if works else 3)  # processes that compile are not waited for


if __name__ == "__main__":
    main()

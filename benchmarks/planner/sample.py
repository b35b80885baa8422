"""Time plans of drawn problems on a GPU: the rules' plan, the model's, and candidates around them, all in one run.

    PYTHONPATH=src python benchmarks/planner/sample.py --count 60 --plans 24 --budget-s 540 --out sample.jsonl
    PYTHONPATH=src python benchmarks/planner/sample.py --count 3 --plans 4 --dry-run --out /tmp/sample.jsonl

Problems are those of `tilefold bench shapes`. Of each one's candidates half are those that the model expects to be fastest,
half are drawn. All are compiled by processes of their own before anything is timed; an answer that is wrong is noted and
its plan not timed. A problem's plans take turns, each sample behind a flush of the L2. A line is written as soon as its
problem is done, so that nothing is lost where the budget ends: {seed, size, name, plans: [{stages, time_us, registers,
spilled, model_us, wrong}]}, the rules' plan first, the model's second. `--dry-run` needs no GPU: it compiles for sm_90 and
times nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from problems import Drawn, dims_of, draw

from tilefold.backends.triton.call import compile_for
from tilefold.backends.triton.lower import calls_of
from tilefold.planner.candidates import Wanted, candidates
from tilefold.planner.choose import plan_fold, plan_of
from tilefold.planner.cost import Known, cost
from tilefold.planner.device import H200, Device, device_of
from tilefold.planner.plan import Plan
from tilefold.planner.view import view_of

ROUNDS = 9  # samples of each plan
SLOW = 4.0  # times the fastest plan's first sample: such a plan is sampled no further


@dataclass(frozen=True)
class Task:
    """One plan of one problem, by numbers: a process draws and plans it again."""

    seed: int
    size: str
    number: int
    plans: int
    device: Device


def plans_of(drawn: Drawn, seed: int, most: int, device: Device) -> list[tuple[Plan, float]]:
    """The plans to time, each with the model's time: the rules', the model's, its next best, and some at random."""
    rules, model = (
        plan_fold(drawn.problem, drawn.program, device, "run_to_run", planner=planner)
        for planner in ("rules", "model")
    )
    wanted = Wanted(
        rules.stages[0], view_of(drawn.problem), drawn.problem, drawn.geometry, drawn.program, device
    )
    known = Known.of(drawn.geometry, drawn.program)
    others = [plan_of(stage, drawn.problem, drawn.program, device) for stage in candidates(wanted)]
    others.sort(key=lambda plan: cost(known, plan.stages, device).time_us)
    best, rest = others[: most // 2], others[most // 2 :]
    random.Random(f"sample {seed}").shuffle(rest)
    chosen: dict[Any, Plan] = {}
    for plan in (rules, model, *best, *rest):
        if len(chosen) < most:
            chosen.setdefault(plan.stages, plan)
    return [(plan, cost(known, plan.stages, device).time_us) for plan in chosen.values()]


def compile_task(task: Task) -> str:
    """Compile one plan's launches into Triton's cache on disk; what went wrong, or nothing."""
    drawn = draw(task.seed, task.size)
    plans = plans_of(drawn, task.seed, task.plans, task.device)
    if task.number >= len(plans):
        return ""
    try:
        for call in calls_of(plans[task.number][0], drawn.problem, drawn.program):
            compile_for(call, task.device.capability)
    except Exception as error:  # is met again, and noted, where the plan is timed
        return f"{drawn.name}: {type(error).__name__}: {str(error)[:200]}"
    return ""


def compile_all(tasks: Sequence[Task], workers: int, seconds: float) -> None:
    """Compile in processes, as far as the time goes; the rest compiles where it is timed."""
    end = time.monotonic() + seconds
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        waiting = [pool.submit(compile_task, task) for task in tasks]
        for done, future in enumerate(waiting, 1):
            if time.monotonic() > end:
                for one in waiting:
                    one.cancel()
                print(f"compiled {done} of {len(tasks)} plans in time", flush=True)
                return
            if wrong := future.result():
                print(wrong, flush=True)
            if done % 200 == 0:
                print(f"compiled {done} of {len(tasks)}", flush=True)


def executable_of(plan: Plan, drawn: Drawn, x: torch.Tensor) -> tuple[Callable[[], Any], list[Any]]:
    """A call that folds x by this plan, and the compiled kernels. The one place that knows how a plan is run."""
    from tilefold.backends.triton.executable import Executable, contiguous
    from tilefold.backends.triton.launch import compiled

    dims = dims_of(drawn.case)
    shape = [n for d, n in enumerate(x.shape) if d not in dims]
    calls = calls_of(plan, drawn.problem, drawn.program)
    outputs = [contiguous(shape, dtype) for dtype in drawn.program.outputs]
    run = Executable(plan, calls, drawn.program, 1, outputs, x.device.index)
    return (lambda: run([x])), [compiled(call, x.device.index) for call in calls]


def timed(
    drawn: Drawn, plans: Sequence[tuple[Plan, float]], clock: Any, device: str = "cuda"
) -> list[dict[str, Any]]:
    """Every plan checked and timed, in turns."""
    from tilefold.bench.gate import fault

    case = drawn.case
    x = case.draw(device)
    want = case.reference(x)
    entries, calls = [], {}
    for number, (plan, model_us) in enumerate(plans):
        entry = _entry(plan, model_us)
        entries.append(entry)
        try:
            call, kernels = executable_of(plan, drawn, x)
            entry["registers"] = max(kernel.n_regs for kernel in kernels)
            entry["spilled"] = max(kernel.n_spills for kernel in kernels)
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


def _entry(plan: Plan, model_us: float) -> dict[str, Any]:
    stages = [list(astuple(stage)) for stage in plan.stages]
    return {
        "stages": stages,
        "time_us": None,
        "registers": None,
        "spilled": 0,
        "model_us": round(model_us, 3),
        "wrong": None,
    }


def main() -> None:
    """Compile, time, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=0, help="seed of the first problem")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--plans", type=int, default=24, help="plans of a problem, at most")
    parser.add_argument("--size", default="full", choices=("full", "small"))
    parser.add_argument("--most-mb", type=float, default=300.0, help="inputs of more are left out")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--budget-s", type=float, default=540.0)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    begun = time.monotonic()
    device = H200 if given.dry_run else device_of(0)
    seeds = [
        seed
        for seed in range(given.first, given.first + 4 * given.count)
        if draw(seed, given.size).problem.bytes_read <= given.most_mb * 1e6
    ][: given.count]
    tasks = [
        Task(seed, given.size, number, given.plans, device) for number in range(given.plans) for seed in seeds
    ]
    compile_all(tasks, given.jobs, 0.5 * given.budget_s)
    clock = None
    if not given.dry_run:
        from tilefold.bench.timing import DeviceClock

        clock = DeviceClock()
    with given.out.open("a") as out:
        for seed in seeds:
            if time.monotonic() - begun > given.budget_s:
                print("no time left", flush=True)
                break
            drawn = draw(seed, given.size)
            plans = plans_of(drawn, seed, given.plans, device)
            entries = [_entry(*plan) for plan in plans] if clock is None else timed(drawn, plans, clock)
            line = {
                "seed": seed,
                "size": given.size,
                "name": drawn.name,
                "device": device.name,
                "plans": entries,
            }
            out.write(json.dumps(line, separators=(",", ":")) + "\n")
            out.flush()
            times = [e["time_us"] for e in entries if e["time_us"]]
            print(
                f"{seed} {drawn.name}: {len(entries)} plans, rules {entries[0]['time_us']}, best {min(times, default=None)}",
                flush=True,
            )


if __name__ == "__main__":
    main()

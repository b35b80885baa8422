"""Fit the `Constants` of `planner/cost` to measured times, and print the error and the regret on problems held back.

    PYTHONPATH=src python benchmarks/planner/fit.py --sample sample.jsonl \
        [--folds benchmarks/results/h200/folds.json] [--means benchmarks/planner/odd_shapes.json]

`--sample` is what `sample.py` wrote: several plans of each problem. `--folds` are results of `tilefold bench folds`, one
plan a case, the rules'; `--means` are shapes of which only the mean over several folds was noted. Minimised is the mean
square of log(model / measured), every problem counting the same, plus a share of the regret: how much slower the plan is that
the model would choose than the fastest measured one. Every fifth problem is held back. No GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from problems import Drawn, draw, problem_of

from tilefold.bench.operations import fold_case
from tilefold.bench.results import read_results
from tilefold.planner.choose import plan_fold
from tilefold.planner.cost import Constants, Counts, Known, cost_of, counts_of
from tilefold.planner.device import H200, Device
from tilefold.planner.plan import Stage

HELD_BACK = 5  # every fifth problem
STEPS = (1.5, 1.2, 1.07, 1.02)  # factors by which a constant is moved, one after the other
FAR = 2.0  # times the fastest plan's time: slower ones say little of the choice
SHARP = 0.05  # of a time: how far apart two plans are expected before one is surely taken
CHOICE = 0.05  # what the regret counts beside the mean square
PRIOR = (
    0.0003  # what the square of log(constant / published) counts: what no time depends on stays where it was
)
# What the constants were before any fit: from data sheets, papers and docs/measured.md, as `Constants` names them.
PUBLISHED = replace(
    Constants(), overlapped_us=0.3, l2_gb_per_s=6000.0, latency_us=0.75, l2_latency_us=0.3, start_us=0.6, second_start_us=0.6,
    dependent_clocks=5.0, overlap=4.0, row_bytes=16.0, tail=0.6,
)  # fmt: skip
EMPTY_US, COPY_GB_PER_S = {1: 4.0, 2: 4.29}, 4268.0  # of the run that `from_means` reads
GIVEN = ("clock_mhz", "issue_per_clock", "launch_us")  # known, not fitted


@dataclass(frozen=True)
class Timed:
    """A problem's plans with their measured times; the first one is the rules'."""

    name: str
    plans: tuple[tuple[Counts, ...], ...]
    times_us: tuple[float, ...]


def from_sample(path: Path, device: Device) -> list[Timed]:
    """What `sample.py` measured: problems by seed, plans by their stages."""
    found = []
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if "seed" not in entry:
            continue
        problem = draw(entry["seed"], entry["size"])
        plans = [p for p in entry["plans"] if p["time_us"] and not p["spilled"]]
        if plans:
            stages = [tuple(Stage(*values) for values in p["stages"]) for p in plans]
            times = [p["time_us"] for p in plans]
            found.append(_timed(problem, stages, times, device))
    return found


def from_folds(path: Path, device: Device) -> list[Timed]:
    """The bench's own suite: one plan a case, as the rules choose it now."""
    found = []
    for case in read_results(path).cases:
        ours = next(m for m in case.measurements if m.variant == "ours")
        if ours.time_us is None:
            continue
        dim = case.dim if isinstance(case.dim, int) else tuple(case.dim)
        problem = problem_of(fold_case(case.operation, dim, tuple(case.shape), case.dtype, ""))
        plan = plan_fold(problem.problem, problem.program, device, "run_to_run")
        found.append(_timed(problem, [plan.stages], [ours.time_us.median_us], device))
    return found


def from_means(path: Path, device: Device) -> list[Timed]:
    """Shapes of which the mean fraction of the limit over several folds is known: each fold is taken to be as slow."""
    given = json.loads(path.read_text())
    found = []
    for shape, dim, dtype, fraction in given["cells"]:
        for operation in given["operations"]:
            problem = problem_of(fold_case(operation, dim, tuple(shape), dtype, ""))
            plan = plan_fold(problem.problem, problem.program, device, "run_to_run")
            known = Known.of(problem.geometry, problem.program)
            counts = counts_of(known, plan.stages, device)
            limit_us = EMPTY_US[plan.launches] + counts[0].traffic.bytes / COPY_GB_PER_S / 1e3
            found.append(Timed(f"{operation} {shape} dim {dim} {dtype}", (counts,), (limit_us / fraction,)))
    return found


def _timed(
    problem: Drawn, stages: Sequence[tuple[Stage, ...]], times: Sequence[float], device: Device
) -> Timed:
    known = Known.of(problem.geometry, problem.program)
    counted = tuple(counts_of(known, plan, device) for plan in stages)
    return Timed(problem.name, counted, tuple(times))


def loss(problems: Sequence[Timed], device: Device, constants: Constants) -> float:
    """The mean square of log(model / measured) of plans that are no more than `FAR`, and a share of the expected regret."""
    total = 0.0
    for one in problems:
        least = min(one.times_us)
        near = [(p, t) for p, t in zip(one.plans, one.times_us, strict=True) if t <= FAR * least]
        model = [cost_of(p, device, constants).time_us for p, _ in near]
        total += sum(math.log(m / t) ** 2 for m, (_, t) in zip(model, near, strict=True)) / len(near)
        if len(near) > 1:
            best = min(model)
            weights = [math.exp((1 - m / best) / SHARP) for m in model]
            regret = sum(w * (t / least - 1) for w, (_, t) in zip(weights, near, strict=True)) / sum(weights)
            total += CHOICE * regret
    moved = (
        math.log(getattr(constants, f.name) / getattr(PUBLISHED, f.name)) ** 2 for f in fields(constants)
    )
    return total / len(problems) + PRIOR * sum(moved)


def fitted(problems: Sequence[Timed], device: Device, constants: Constants) -> Constants:
    """Constants with the least loss that moving one at a time finds."""
    names = [f.name for f in fields(constants) if f.name not in GIVEN]
    least = loss(problems, device, constants)
    for step in STEPS:
        improved = True
        while improved:
            improved = False
            for name in names:
                for factor in (step, 1 / step):
                    tried = replace(constants, **{name: getattr(constants, name) * factor})
                    found = loss(problems, device, tried)
                    if found < least * (1 - 1e-4):
                        least, constants, improved = found, tried, True
                        break
    return constants


def report(label: str, problems: Sequence[Timed], device: Device, constants: Constants) -> None:
    """Print the error of the times, and the regret of the choice beside the rules'."""
    ratios, chosen, rules = [], [], []
    for one in problems:
        model = [cost_of(p, device, constants).time_us for p in one.plans]
        ratios += [m / t for m, t in zip(model, one.times_us, strict=True)]
        least = min(one.times_us)
        chosen.append(one.times_us[model.index(min(model))] / least)
        rules.append(one.times_us[0] / least)
    logs = sorted(abs(math.log(r)) for r in ratios)
    print(
        f"{label}: {len(problems)} problems, {len(ratios)} plans: mean |log error| {sum(logs) / len(logs):.3f}, "
        f"median {logs[len(logs) // 2]:.3f}, ninth tenth {logs[int(0.9 * len(logs))]:.3f}"
    )
    if len(ratios) > len(problems):
        for name, slower in (("chosen", sorted(chosen)), ("rules", sorted(rules))):
            over = sum(s > 1.05 for s in slower)
            mean = math.exp(sum(map(math.log, slower)) / len(slower))
            print(
                f"  {name} over fastest measured: mean {mean:.3f}, worst {slower[-1]:.2f}, {over} beyond 5 %"
            )


def main() -> None:
    """Fit and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sample", type=Path, action="append", default=[])
    parser.add_argument("--folds", type=Path)
    parser.add_argument("--means", type=Path)
    given = parser.parse_args()
    problems = [one for path in given.sample for one in from_sample(path, H200)]
    problems += from_folds(given.folds, H200) if given.folds else []
    problems += from_means(given.means, H200) if given.means else []
    fit_to = [p for i, p in enumerate(problems) if i % HELD_BACK]
    held = problems[::HELD_BACK]
    report("published, all", problems, H200, PUBLISHED)
    report("as committed, all", problems, H200, Constants())
    constants = fitted(fit_to, H200, PUBLISHED)
    report("fitted", fit_to, H200, constants)
    report("held back", held, H200, constants)
    constants = fitted(problems, H200, constants)
    report("all, fitted to all", problems, H200, constants)
    for field in fields(constants):
        print(f"    {field.name}: float = {getattr(constants, field.name):.4g}")


if __name__ == "__main__":
    main()

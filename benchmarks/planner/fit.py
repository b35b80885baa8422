"""Fit the `Constants` of `planner/cost` to measured times, and print the error and the regret on problems held back.

    PYTHONPATH=src python benchmarks/planner/fit.py --sample sample.jsonl \
        [--folds benchmarks/results/h200/folds.json] [--means benchmarks/planner/odd_shapes.json]
    PYTHONPATH=src python benchmarks/planner/fit.py --sample benchmarks/planner/sample.jsonl --error  # as committed

`--sample` is what `sample.py` wrote: several plans of each problem. `--folds` are results of `tilefold bench folds`, one
plan a case, the rules'; `--means` are shapes of which only the mean over several folds was noted. Minimised is the mean
square of log(model / measured), problems of several plans counting alike and those of one plan less, plus a share of the
regret: how much slower the plan is that the model would choose than the fastest measured one. Every fifth problem is held
back: it says what that share should be, and what the fit is worth. No GPU is needed; `--out` writes what was found as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from problems import Drawn, draw, problem_of
from vector import Plans

from tilefold.bench.operations import fold_case
from tilefold.bench.results import read_results
from tilefold.bench.statistics import geometric_mean
from tilefold.planner.choose import plan_fold
from tilefold.planner.cost import Constants, Counts, Known, counts_of
from tilefold.planner.device import H200, Device
from tilefold.planner.plan import Stage

HELD_BACK = 5  # every fifth problem
STEPS = (1.5, 1.2, 1.07, 1.02)  # factors by which a constant is moved, one after the other
TOGETHER = 800  # random moves of several constants
FAR = 2.0  # times the fastest plan's time: slower ones say little of the choice
SHARP = 0.05  # of a time: how far apart two plans are expected before one is surely taken
CHOICE = 0.05  # what the regret counts beside the mean square
CHOICES = (0.05, 0.2, 0.8)  # tried: the one whose choice is best where it was held back
SINGLE = 0.25  # what a problem counts of which one plan was timed: it says nothing of the choice
MOST_WORSE = 0.01
DOUBTS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5)
FINISH_S = 10.0  # beyond the budget, for the last fit
PRIOR = (
    0.0003  # what the square of log(constant / published) counts: what no time depends on stays where it was
)
# What the constants were before any fit: from data sheets, papers and docs/measured.md, as `Constants` names them.
PUBLISHED = replace(
    Constants(), overlapped_us=0.3, l2_gb_per_s=6000.0, latency_us=0.75, l2_latency_us=0.3, start_us=0.6, second_start_us=0.6,
    dependent_clocks=5.0, overlap=4.0, row_bytes=16.0, tail=0.6,
)  # fmt: skip
EMPTY_US, COPY_GB_PER_S = {1: 4.0, 2: 4.29}, 4268.0  # of the run that `from_means` reads
# Known or chosen, not fitted.
GIVEN = ("clock_mhz", "issue_per_clock", "doubt", "whole_rows_doubt", "apart_doubt")
MOVED = tuple(field.name for field in fields(Constants) if field.name not in GIVEN)


@dataclass(frozen=True)
class Timed:
    """A problem's plans with their measured times; the first one is the rules'."""

    name: str
    plans: tuple[tuple[Counts, ...], ...]
    times_us: tuple[float, ...]


def entries_of(path: Path) -> list[dict[str, Any]]:
    """The problems of a sample: a line that is cut off, or tells of a device that failed, is left out."""
    found = []
    for line in path.read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            entry = json.loads(line)
            found += [entry] if "plans" in entry else []
    return found


def device_of(paths: Sequence[Path]) -> Device:
    """The chip on which the first of the samples was taken, as its driver told it; an H200 without any."""
    chips = [entry["chip"] for path in paths for entry in entries_of(path) if "chip" in entry]
    return Device(*chips[0]) if chips else H200


def from_sample(path: Path, device: Device) -> list[Timed]:
    """What `sample.py` measured: problems by seed, plans by their stages. Plans that spill are no choice but the rules'."""
    found = []
    for entry in entries_of(path):
        problem = draw(entry["seed"], entry["size"])
        rules, *others = entry["plans"]
        plans = [rules, *(p for p in others if p["time_us"] and not p["spilled"])]
        if rules["time_us"]:
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
        plan = plan_fold(problem.problem, problem.program, device, "run_to_run", "rules")
        found.append(_timed(problem, [plan.stages], [ours.time_us.median_us], device))
    return found


def from_means(path: Path, device: Device) -> list[Timed]:
    """Shapes of which the mean fraction of the limit over several folds is known: each fold is taken to be as slow."""
    given = json.loads(path.read_text())
    found = []
    for shape, dim, dtype, fraction in given["cells"]:
        for operation in given["operations"]:
            problem = problem_of(fold_case(operation, dim, tuple(shape), dtype, ""))
            plan = plan_fold(problem.problem, problem.program, device, "run_to_run", "rules")
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


class Fit:
    """Problems laid out for a loss that is evaluated thousands of times: the plans that count, in arrays."""

    def __init__(self, problems: Sequence[Timed], device: Device, choice: float = CHOICE) -> None:
        """Leave out what is slower than `FAR` times the fastest. `choice` is what the regret counts."""
        self.choice = choice
        near = [
            [(p, t) for p, t in zip(one.plans, one.times_us, strict=True) if t <= FAR * min(one.times_us)]
            for one in problems
        ]
        sizes = np.array([len(some) for some in near])
        self.first = np.concatenate([[0], np.cumsum(sizes)[:-1]])  # each problem's first plan
        self.problem = np.repeat(np.arange(len(near)), sizes)
        self.plans = Plans([p for some in near for p, _ in some], device)
        self.logs = np.log([t for some in near for _, t in some])
        self.slower = np.exp(self.logs - np.minimum.reduceat(self.logs, self.first)[self.problem]) - 1
        weights = np.where(sizes > 1, 1.0, SINGLE)
        self.weights = weights / weights.sum()
        self.mean_of = (self.weights / sizes)[self.problem]

    def loss(self, constants: Constants) -> float:
        """The mean square of log(model / measured), a share of the expected regret, and how far constants moved."""
        model = self.plans.times_us(constants)
        square = float(((np.log(model) - self.logs) ** 2) @ self.mean_of)
        best = np.minimum.reduceat(model, self.first)[self.problem]
        taken = np.exp((1 - model / best) / SHARP)
        regret = np.bincount(self.problem, taken * self.slower) / np.bincount(self.problem, taken)
        moved = (math.log(getattr(constants, name) / getattr(PUBLISHED, name)) ** 2 for name in MOVED)
        return square + self.choice * float(regret @ self.weights) + PRIOR * sum(moved)


def loss(problems: Sequence[Timed], device: Device, constants: Constants) -> float:
    """What is minimised, of these problems."""
    return Fit(problems, device).loss(constants)


def fitted(
    problems: Sequence[Timed],
    device: Device,
    constants: Constants,
    choice: float = CHOICE,
    end: float = math.inf,
    moved: Sequence[str] = MOVED,
) -> Constants:
    """Constants with the least loss found by moving one at a time, then a few together, or as far as it comes until `end`."""
    fit = Fit(problems, device, choice)
    least = fit.loss(constants)
    rng = random.Random("fit")
    for step in STEPS:
        improved = True
        while improved and time.monotonic() < end:
            improved = False
            for name in moved:
                for factor in (step, 1 / step):
                    tried = replace(constants, **{name: getattr(constants, name) * factor})
                    found = fit.loss(tried)
                    if found < least * (1 - 1e-4):
                        least, constants, improved = found, tried, True
                        break
    for number in range(
        TOGETHER if len(moved) > 1 else 0
    ):  # constants that make up for each other move only together
        if time.monotonic() > end:
            break
        names, far = rng.sample(moved, min(len(moved), rng.randint(2, 4))), 0.2 if number % 2 else 0.05
        values = {name: getattr(constants, name) * math.exp(rng.gauss(0, far)) for name in names}
        tried = replace(constants, **values)
        if (found := fit.loss(tried)) < least:
            least, constants = found, tried
    return constants


def best_fitted(problems: Sequence[Timed], device: Device, end: float) -> Constants:
    """Of fits that weigh the choice differently, from two beginnings, the one whose choice is best where it was held back."""
    fit_to, held = parted(problems)
    found = []
    for choice in CHOICES:
        for begin in (PUBLISHED, Constants()):
            if found and time.monotonic() > end:
                break
            constants = fitted(fit_to, device, begin, choice, end)
            regret = math.log(slower(held, device, constants)[0])
            print(
                f"the choice counts {choice}: loss {loss(fit_to, device, constants):.5f}, held back {regret:.4f}"
            )
            found.append((regret, choice, constants))
    _, choice, constants = min(found, key=lambda one: one[0])
    constants = doubting(fit_to, device, constants)
    report("fitted", fit_to, device, constants)
    report("held back", held, device, constants)
    return doubting(problems, device, fitted(problems, device, constants, choice, end + FINISH_S))


def some_fitted(problems: Sequence[Timed], device: Device, end: float, only: Sequence[str]) -> Constants:
    """The constants as committed, but `only` these fitted, after the error on what was held back is said."""
    fit_to, held = parted(problems)
    report("held back, as committed", held, device, Constants())
    report("held back", held, device, fitted(fit_to, device, Constants(), end=end, moved=only))
    return fitted(problems, device, Constants(), end=end + FINISH_S, moved=only)


def doubting(problems: Sequence[Timed], device: Device, constants: Constants) -> Constants:
    """How much another plan must promise before it is taken instead of the rules'.

    The least regret among those with which at most `MOST_WORSE` of the problems get a plan slower than the rules' by 5 %:
    the rules have been tried on every shape of the `folds` suite.
    """
    found = []
    for doubt in DOUBTS:
        tried = replace(constants, doubt=doubt)
        found.append((worse(problems, device, tried), slower(problems, device, tried)[0], tried))
    print("doubt: " + ", ".join(f"{t.doubt} {mean:.4f} ({share:.1%} worse)" for share, mean, t in found))
    return min((one for one in found if one[0] <= MOST_WORSE), key=lambda one: one[1])[2]


def worse(problems: Sequence[Timed], device: Device, constants: Constants) -> float:
    """The share of problems whose chosen plan is slower than the rules' by more than 5 %."""
    ratios = [one.times_us[chosen(one, device, constants)] / one.times_us[0] for one in problems]
    return sum(ratio > 1.05 for ratio in ratios) / max(1, len(ratios))


def chosen(one: Timed, device: Device, constants: Constants) -> int:
    """The plan that the model takes of a problem's."""
    model = Plans(one.plans, device).times_us(constants)
    best = int(model.argmin())
    return 0 if model[best] > (1 - constants.doubt) * model[0] else best


def parted(problems: Sequence[Timed]) -> tuple[Sequence[Timed], Sequence[Timed]]:
    """What is fitted to, and what is held back."""
    return [p for i, p in enumerate(problems) if i % HELD_BACK], problems[::HELD_BACK]


def slower(problems: Sequence[Timed], device: Device, constants: Constants) -> tuple[float, list[float]]:
    """The chosen plans' times over the fastest measured ones', where there is a choice: the mean, and all in order."""
    found = [
        one.times_us[chosen(one, device, constants)] / min(one.times_us)
        for one in problems
        if len(one.plans) > 1
    ]
    return (geometric_mean(found) if found else 1.0), sorted(found)


def within(problems: Sequence[Timed], device: Device, constants: Constants) -> tuple[float, float]:
    """Within which factor of the measured times half of the plans are predicted, and nine tenths."""
    model = Plans([plan for one in problems for plan in one.plans], device).times_us(constants)
    logs = abs(np.log(model) - np.log([t for one in problems for t in one.times_us]))
    half, most = np.exp(np.quantile(logs, (0.5, 0.9)))
    return float(half), float(most)


def report(label: str, problems: Sequence[Timed], device: Device, constants: Constants) -> None:
    """Print the error of the times, and the regret of the choice beside the rules'."""
    model = Plans([plan for one in problems for plan in one.plans], device).times_us(constants)
    logs = sorted(abs(np.log(model) - np.log([t for one in problems for t in one.times_us])))
    print(
        f"{label}: {len(problems)} problems, {len(logs)} plans: mean |log error| {sum(logs) / len(logs):.3f}, "
        f"median {logs[len(logs) // 2]:.3f}, ninth tenth {logs[int(0.9 * len(logs))]:.3f}"
    )
    rules = sorted(one.times_us[0] / min(one.times_us) for one in problems if len(one.plans) > 1)
    for name, found in (("chosen", slower(problems, device, constants)[1]), ("rules", rules)):
        if found:
            over = sum(s > 1.05 for s in found)
            print(
                f"  {name} over fastest measured: mean {geometric_mean(found):.3f}, worst {found[-1]:.2f}, "
                f"{over} of {len(found)} beyond 5 %"
            )


def worst_chosen(problems: Sequence[Timed], device: Device, constants: Constants, count: int = 12) -> None:
    """Print where the choice is worst: what the model believes of its plan and of the fastest, and what is true."""
    rows = []
    for one in problems:
        model = Plans(one.plans, device).times_us(constants)
        chosen, best = int(model.argmin()), one.times_us.index(min(one.times_us))
        notes = [" + ".join(launch.stage.note for launch in one.plans[n]) for n in (chosen, best)]
        said = [
            f"{note} {one.times_us[n]:.1f} us (model {model[n]:.1f})"
            for note, n in zip(notes, (chosen, best), strict=True)
        ]
        rows.append((one.times_us[chosen] / one.times_us[best], f"{one.name}: {said[0]}, fastest {said[1]}"))
    for ratio, text in sorted(rows, reverse=True)[:count]:
        print(f"  {ratio:.2f} {text}")


def kinds_of(plan: Sequence[Counts]) -> Iterator[str]:
    """What a plan's launches have that the model may misjudge."""
    first = plan[0].stage
    yield f"{first.num_warps} warps"
    yield "splits" if len(plan) > 1 else "one launch"
    yield "copies" if plan[0].traffic.copied else "reads ahead" if first.prefetch else "plain"
    yield first.family
    yield "absorbs" if first.absorb else "folds"
    yield f"{2 ** round(math.log2(max(1.0, plan[0].programs / plan[0].held / 132)))} waves"
    yield f"{plan[0].held * first.num_warps // 16 * 16} warps of an SM or more"
    yield f"{min(8, plan[0].tiles)} tiles or more"


def misjudged(problems: Sequence[Timed], device: Device, constants: Constants) -> None:
    """Print by kinds of plans how far the model is off: beside the same problem's other plans, and as it is."""
    found: dict[str, list[tuple[float, float]]] = {}
    for one in problems:
        if len(one.plans) > 1:
            logs = np.log(Plans(one.plans, device).times_us(constants)) - np.log(one.times_us)
            for plan, log in zip(one.plans, logs, strict=True):
                for kind in kinds_of(plan):
                    found.setdefault(kind, []).append((float(log - np.median(logs)), float(log)))
    for kind, pairs in sorted(found.items()):
        within, total = (sum(logs) / len(logs) for logs in zip(*pairs, strict=True))
        print(
            f"  {kind}: {len(pairs)} plans, log(model / measured) {within:+.3f} beside others, {total:+.3f}"
        )


def main() -> None:
    """Fit, print, and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sample", type=Path, action="append", default=[])
    parser.add_argument("--folds", type=Path)
    parser.add_argument("--means", type=Path)
    parser.add_argument("--budget-s", type=float, default=600.0, help="what was found by then is taken")
    parser.add_argument("--only", help="names of constants, between commas: the others stay as they are")
    parser.add_argument(
        "--error", action="store_true", help="the error of the committed constants, and no fit"
    )
    parser.add_argument("--out", type=Path, help="write the constants, for TILEFOLD_BENCH_CONSTANTS")
    given = parser.parse_args()
    end = time.monotonic() + given.budget_s
    device = device_of(given.sample)
    problems = [one for path in given.sample for one in from_sample(path, device)]
    problems += from_folds(given.folds, device) if given.folds else []
    problems += from_means(given.means, device) if given.means else []
    print(device)
    if given.error:
        print(
            "half of the times within a factor of {:.3f}, nine tenths {:.3f}".format(
                *within(problems, device, Constants())
            )
        )
        return
    report("published, all", problems, device, PUBLISHED)
    report("as committed, all", problems, device, Constants())
    only = tuple(given.only.split(",")) if given.only else ()
    constants = some_fitted(problems, device, end, only) if only else best_fitted(problems, device, end)
    values = {field.name: float(f"{getattr(constants, field.name):.4g}") for field in fields(constants)}
    for name, value in values.items():
        print(f"    {name}: float = {value}")
    if given.out:
        given.out.write_text(json.dumps(values, indent=1) + "\n")
    report("all, fitted to all", problems, device, constants)
    misjudged(problems, device, constants)
    worst_chosen(problems, device, constants)


if __name__ == "__main__":
    main()

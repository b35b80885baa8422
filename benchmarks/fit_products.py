"""Fit the cost model's numbers to times that tune_products.py took, and put them into the chip's table.

    PYTHONPATH=src python benchmarks/fit_products.py tune-*.json --table src/tilefold/contract/tables/nvidia-h200.json

Of each shape those plans count that took at most 1.7 times the fastest one's time: what the choice is among. Minimized is
first the mean square of log(model / measured), then that and how much slower the plans are that the model would choose.
No GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch

from tilefold.contract import tuned
from tilefold.contract.costs import Costs, plan_us
from tilefold.contract.plan import Asked, ContractPlan, Sizes
from tilefold.planner.device import Device

FAR = 1.7  # times the fastest plan's time: slower ones are no choice
SHARP = 0.04  # of the fastest time: how far apart two plans are expected before one is surely taken
STEPS = (1.5, 1.2, 1.07, 1.02)  # factors by which a number is moved, one after the other


@dataclass(frozen=True)
class Timed:
    """The plans of one shape with their times, on a device."""

    sizes: Sizes
    asked: Asked
    device: Device
    plans: tuple[ContractPlan, ...]


def read_logs(paths: Sequence[Path]) -> list[Timed]:
    """What the logs hold, without what no planner would take: plans of more than `FAR` times the fastest one's time."""
    shapes = []
    for path in paths:
        document = json.loads(path.read_text(encoding="utf-8"))
        device = Device(**document["device"])
        for shape in document["shapes"]:
            entries = sorted(map(tuned.entry_of, shape["plans"]), key=lambda e: e.plan.time_us)
            first = entries[0]
            dtype = getattr(torch, first.dtype)
            kept = tuple(
                e.plan for e in entries if e.plan.time_us <= FAR * first.plan.time_us or not e.plan.tile
            )
            shapes.append(
                Timed(Sizes(*first.sizes, dtype.itemsize), Asked(dtype, first.precision), device, kept)
            )
    return shapes


def error(costs: Costs, shapes: Sequence[Timed]) -> float:
    """The mean square of the logarithm of model over measured."""
    logs = [
        math.log(plan_us(plan, shape.sizes, shape.asked, shape.device, costs) / plan.time_us) ** 2
        for shape in shapes
        for plan in shape.plans
    ]
    return sum(logs) / len(logs)


def expected(costs: Costs, shapes: Sequence[Timed]) -> float:
    """The mean, over shapes, of the time of a plan drawn by what the model expects, over that of the fastest, less one.

    Of plans that the model holds for alike, each may be taken: smoother than `regret`, and blind to chance.
    """
    total = 0.0
    for shape in shapes:
        fastest = min(plan.time_us for plan in shape.plans)
        times = [plan_us(plan, shape.sizes, shape.asked, shape.device, costs) for plan in shape.plans]
        least = min(times)
        weights = [math.exp((least - time_us) / (SHARP * fastest)) for time_us in times]
        drawn = sum(w * plan.time_us for w, plan in zip(weights, shape.plans, strict=True)) / sum(weights)
        total += drawn / fastest - 1
    return total / len(shapes)


def badness(costs: Costs, shapes: Sequence[Timed]) -> float:
    """What is minimized: how far the plan taken is from the fastest, and the error of the times themselves."""
    return 2 * expected(costs, shapes) + error(costs, shapes)


def regret(costs: Costs, shapes: Sequence[Timed]) -> list[float]:
    """For each shape, the time of the plan that the model would take over that of the best."""
    found = []
    for shape in shapes:
        taken = min(shape.plans, key=lambda p: plan_us(p, shape.sizes, shape.asked, shape.device, costs))
        found.append(taken.time_us / min(plan.time_us for plan in shape.plans))
    return found


def fit(shapes: Sequence[Timed], costs: Costs | None = None) -> Costs:
    """The numbers that explain the times, then those near them that choose best."""
    return descend(badness, shapes, descend(error, shapes, costs or Costs()))


def descend(
    minimized: Callable[[Costs, Sequence[Timed]], float], shapes: Sequence[Timed], best: Costs
) -> Costs:
    """One number after the other is moved by smaller and smaller factors while what is minimized falls."""
    least = minimized(best, shapes)
    for step in STEPS:
        moved = True
        while moved:
            moved = False
            for name in (f.name for f in fields(Costs)):
                for factor in (step, 1 / step):
                    other = replace(best, **{name: getattr(best, name) * factor})
                    if (found := minimized(other, shapes)) < least * (1 - 1e-4):
                        best, least, moved = other, found, True
    return best


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, say how good it is, write."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("logs", type=Path, nargs="+")
    parser.add_argument("--table", type=Path, help="the table whose costs are replaced")
    options = parser.parse_args(arguments)
    shapes = read_logs(options.logs)
    fitted = fit(shapes)
    for name, costs in (("defaults", Costs()), ("fitted", fitted)):
        ratios = sorted(regret(costs, shapes))
        near = sum(ratio <= 1.05 for ratio in ratios)
        print(
            f"{name}: {math.sqrt(error(costs, shapes)):.3f} log error, choice within 5 % in {near} of {len(ratios)}, "
            f"median {ratios[len(ratios) // 2]:.3f}, worst {ratios[-1]:.3f}"
        )
    print(fitted)
    if options.table:
        document = json.loads(options.table.read_text(encoding="utf-8"))
        numbers = {f.name: round(getattr(fitted, f.name), 4) for f in fields(Costs)}
        tuned.write_document(options.table, document | {"costs": numbers})
    return 0


if __name__ == "__main__":
    sys.exit(main())

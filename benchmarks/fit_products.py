"""Fit the cost model's numbers to times that tune_products.py or sample_products.py took, and put them into the chip's table.

    PYTHONPATH=src python benchmarks/fit_products.py tune-*.json --table src/tilefold/planner/products/tables/nvidia-h200.json
    PYTHONPATH=src python benchmarks/fit_products.py sample-*.jsonl products.json decompose-k.json --numbers launch_us,waited

Times of a sample and of a suite's results are those of a cold call, times of a search those in a CUDA graph: a fit is of one
kind. With `--numbers` no others are moved.
Of each shape those plans count that the planner weighs, the more the nearer they are to the fastest plan that was found,
which may be none of them. Minimized is the mean square of log(model / measured), then that and how much slower the plans are
that the model would choose. No GPU is needed; two minutes for 66 shapes.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from tilefold.bench.cases import DTYPES
from tilefold.planner.device import H200, Device
from tilefold.planner.products import tuned
from tilefold.planner.products.choose import candidates
from tilefold.planner.products.costs import Costs, plan_us
from tilefold.planner.products.operands import (
    canonical_product,
    loads_of_elements,
    narrow_vectors,
    neighbours_across,
)
from tilefold.planner.products.plan import Asked, Candidate, Sizes, Tile
from tilefold.planner.products.tiles import finish_of
from tilefold.planner.sizes import VECTOR_BYTES

FAR = 1.7  # times the fastest plan's time: slower ones are no choice
NEAR = 0.2  # of the fastest time: how far a plan is from it that counts a third
SHARP = 0.06  # of the fastest time: how far apart two plans are expected before one is surely taken
CHOICE = 0.02  # what the choice counts beside the mean square
NUMBERS = tuple(f.name for f in fields(Costs))
STEPS = (1.5, 1.2, 1.07, 1.02)  # factors by which a number is moved, one after the other


@dataclass(frozen=True)
class Timed:
    """Plans of ours for one shape with their times, on a device, and cuBLAS's; `fastest_us` is that of any plan of ours."""

    sizes: Sizes
    asked: Asked
    device: Device
    plans: tuple[Candidate, ...]
    cublas: tuple[Candidate, ...]
    fastest_us: float


def read_logs(paths: Sequence[Path]) -> list[Timed]:
    """What the logs hold of plans that the planner weighs, without those of more than `FAR` times the fastest one's time."""
    shapes = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            found = [
                _timed(line, Device(**line["device"]), "cold_us")
                for line in map(json.loads, text.splitlines())
            ]
        elif "suite" in (document := json.loads(text)):
            found = [timed for case in document["cases"] for timed in _of_suite(case)]
        else:
            found = [_timed(shape, Device(**document["device"]), "time_us") for shape in document["shapes"]]
        shapes += [timed for timed in found if timed.plans or timed.cublas]
    return shapes


def _timed(shape: dict[str, Any], device: Device, clock: str) -> Timed:
    """One product of a log; `clock` names the time that counts."""
    entries = [tuned.entry_of(plan | {"time_us": plan[clock]}) for plan in shape["plans"]]
    dtype, loose = getattr(torch, entries[0].dtype), tuple(shape.get("loose", (False, False)))
    vector = VECTOR_BYTES // dtype.itemsize
    # Older logs do not tell: a's rows lie along K, b's along N.
    narrow = tuple(shape.get("narrow", [entries[0].sizes[dim] % vector > 0 for dim in (2, 1)]))
    sizes = Sizes(*entries[0].sizes, dtype.itemsize, loose, narrow=narrow)
    asked = Asked(dtype, entries[0].precision, finished=clock == "cold_us" and not entries[0].epilogue)
    ours = [e.plan for e in entries if e.plan.tile]
    weighed = {plan.decisions for plan in candidates(sizes, asked, device)}
    fastest_us = min((plan.time_us for plan in ours), default=math.inf)
    near = tuple(p for p in ours if p.decisions in weighed and p.time_us <= FAR * fastest_us)
    return Timed(sizes, asked, device, near, tuple(e.plan for e in entries if not e.plan.tile), fastest_us)


NOTE = re.compile(r"(?:pack:(a?b?),\S+ \+ )?(?:tiles|split|whole):m(\d+),n(\d+),k(\d+),w(\d+),p(\d+),s(\d+)")


def _of_suite(case: dict[str, Any]) -> Iterator[Timed]:
    """What a suite's results say of one product: the time of the plan that was taken, and cuBLAS's, each by itself."""
    rows, columns, depth = case["shape"][-3:]
    dtype, relu = DTYPES[case["dtype"]], case["operation"].endswith("+relu")
    a, b = (torch.empty(shape, dtype=dtype, device="meta") for shape in ((rows, depth), (depth, columns)))
    problem = canonical_product(a, b, [])
    lie = loads_of_elements(problem), neighbours_across(problem), narrow_vectors(problem)
    sizes = Sizes(rows, columns, depth, 1, dtype.itemsize, *lie)
    asked = Asked(dtype, finished=not relu)
    for measured in case["measurements"]:
        if not measured["time_us"] or measured["variant"] not in ("ours", "torch"):
            continue
        time_us, note = measured["time_us"]["median_us"], NOTE.match(measured["plan"])
        if measured["variant"] == "torch" and min(rows, columns) > 1:
            finish = finish_of(sizes, 1) if relu else None
            plan = Candidate("cublas", finish=finish, time_us=time_us)
            yield Timed(sizes, asked, H200, (), (plan,), time_us)
        elif measured["variant"] == "ours" and note:
            packed, *numbers = note.groups(default="")
            *tile, splits = map(int, numbers)
            finish = finish_of(sizes, splits) if splits > 1 else None
            plan = Candidate("split" if finish else "whole", Tile(*tile), splits, finish, time_us=time_us)
            chained = "chained" in measured["plan"]
            plan = replace(plan, packed=("a" in packed, "b" in packed), chained=chained)
            yield Timed(sizes, asked, H200, (plan,), (), time_us)


def error(costs: Costs, shapes: Sequence[Timed]) -> float:
    """The mean square of the logarithm of model over measured; cuBLAS counts as the fastest plan does."""
    total = weights = 0.0
    for shape in shapes:
        for plan in (*shape.plans, *shape.cublas):
            weight = math.exp((1 - plan.time_us / shape.fastest_us) / NEAR) if plan.tile else 1.0
            model_us = plan_us(plan, shape.sizes, shape.asked, shape.device, costs)
            total += weight * math.log(model_us / plan.time_us) ** 2
            weights += weight
    return total / weights


def expected(costs: Costs, shapes: Sequence[Timed]) -> float:
    """The mean, over shapes, of the time of a plan drawn by what the model expects, over that of the fastest, less one.

    Of plans that the model holds for alike, each may be taken: smoother than `regret`, and blind to chance.
    """
    total = 0.0
    shapes = [shape for shape in shapes if shape.plans]
    for shape in shapes:
        times = [plan_us(plan, shape.sizes, shape.asked, shape.device, costs) for plan in shape.plans]
        least = min(times)
        weights = [math.exp((least - time_us) / (SHARP * shape.fastest_us)) for time_us in times]
        drawn = sum(w * plan.time_us for w, plan in zip(weights, shape.plans, strict=True)) / sum(weights)
        total += drawn / shape.fastest_us - 1
    return total / len(shapes)


def badness(costs: Costs, shapes: Sequence[Timed]) -> float:
    """What is minimized: the error of the times, and how far the plan taken is from the fastest."""
    return error(costs, shapes) + CHOICE * expected(costs, shapes)


def regret(costs: Costs, shapes: Sequence[Timed]) -> list[float]:
    """For each shape, the time of the plan of ours that the model would take over that of the fastest."""
    found = []
    for shape in shapes:
        if not shape.plans:
            continue
        taken = min(shape.plans, key=lambda p: plan_us(p, shape.sizes, shape.asked, shape.device, costs))
        found.append(taken.time_us / shape.fastest_us)
    return found


def fit(shapes: Sequence[Timed], numbers: Sequence[str] = NUMBERS) -> Costs:
    """The numbers that explain the times, then those near them that choose best."""
    return descend(badness, shapes, descend(error, shapes, Costs(), numbers), numbers)


def descend(
    minimized: Callable[[Costs, Sequence[Timed]], float],
    shapes: Sequence[Timed],
    best: Costs,
    numbers: Sequence[str] = NUMBERS,
) -> Costs:
    """One number after the other is moved by smaller and smaller factors while what is minimized falls."""
    least = minimized(best, shapes)
    for step in STEPS:
        moved = True
        while moved:
            moved = False
            for name in numbers:
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
    parser.add_argument("--numbers", default=",".join(NUMBERS), help="those that may move, by commas")
    options = parser.parse_args(arguments)
    shapes = read_logs(options.logs)
    fitted = fit(shapes, options.numbers.split(","))
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

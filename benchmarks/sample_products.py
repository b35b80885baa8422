"""Time plans of random products on this GPU: those that the cost model likes best, and others, so that it can be corrected.

    PYTHONPATH=src python benchmarks/sample_products.py --seed 7 --count 36 --out sample.jsonl

A line of the result holds one product and the times of its plans, in a CUDA graph and cold; fit_products.py reads it. No plan
is timed whose answer was not compared with float64.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from tune_products import NEVER, QUICK_COLD_MS, Compiler, Shape, Stand

from tilefold.bench.cases import DTYPES
from tilefold.bench.suites.products import draw_case
from tilefold.planner.device import device_of
from tilefold.planner.products import tuned
from tilefold.planner.products.choose import candidates
from tilefold.planner.products.plan import Candidate

LIKELY = 8  # plans that the cost model likes best
TILES = 8  # tiles besides those, each with its best number of splits
WHOLE = 3  # plans of one launch
OTHERS = 3  # drawn from all that are weighed
FAR = 6.0  # times the best plan's expected time: slower ones are not timed
OPERAND_BYTES = 1 << 28


def plans_of(stand: Stand, rng: random.Random) -> list[Candidate]:
    """What is timed of one product."""
    weighed = candidates(stand.sizes, stand.asked, stand.device, tuned.costs_of(stand.device))
    weighed.sort(key=lambda plan: plan.time_us)
    near = [plan for plan in weighed if plan.tile and plan.time_us <= FAR * weighed[0].time_us]
    by_tile: dict[Any, Candidate] = {}
    for plan in near:
        assert plan.tile is not None
        by_tile.setdefault((plan.tile.block_m, plan.tile.block_n), plan)
    taken = near[:LIKELY]
    taken += [plan for plan in by_tile.values() if plan not in taken][:TILES]
    taken += [plan for plan in near if plan.strategy == "whole"][:WHOLE]
    taken += rng.sample(near, min(OTHERS, len(near)))
    taken += [plan for plan in weighed if plan.strategy == "cublas"]
    shipped = tuned.tuned_plan(stand.sizes, stand.asked, stand.device, weighed[0])
    taken += [shipped] if shipped else []
    return list(dict.fromkeys(plan.decisions for plan in taken))


def shapes_of(seed: int, count: int) -> list[Shape]:
    """Random products as the suite `products` draws them, of operands that are made in no time."""
    found: dict[Shape, None] = {}
    number = 0
    while len(found) < count:
        case = draw_case(random.Random(f"sample {seed} {number}"), "full", number)
        rows, columns, depth = case.shape
        if case.elements * DTYPES[case.dtype].itemsize <= OPERAND_BYTES:
            found.setdefault(Shape(case.dtype, rows, columns, depth, case.relu))
        number += 1
    return list(found)


def line_of(stand: Stand, plans: Sequence[Candidate]) -> dict[str, Any]:
    """One product with the times of its plans."""
    shape = stand.shape
    name = str(DTYPES[shape.dtype]).removeprefix("torch.")
    sizes = (shape.rows, shape.columns, shape.depth, 1)
    timed = []
    for plan in plans:
        final = stand.time(plan, QUICK_COLD_MS, most=20, replays=3)
        if final != NEVER:
            entry = tuned.Entry(name, "ieee", sizes, shape.relu, replace(plan, time_us=final.graph_us))
            timed.append(tuned.record_of(entry) | {"cold_us": round(final.cold_us, 3)})
    return {
        "shape": asdict(shape),
        "loose": stand.sizes.loose,
        "narrow": stand.sizes.narrow,
        "device": asdict(stand.device),
        "plans": timed,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, compile all plans at once, time them."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=36, help="products")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds in all")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--out", type=Path, default=Path("sample-products.jsonl"))
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        raise SystemExit("sample_products: needs a CUDA device, got none; run it where there is one")
    until, device = time.time() + options.budget, device_of(0)
    stands = [Stand(shape, device) for shape in shapes_of(options.seed, options.count)]
    plans = [plans_of(stand, random.Random(options.seed)) for stand in stands]
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        Compiler(pool, device.capability).compile(
            call for stand, some in zip(stands, plans, strict=True) for call in stand.calls(some)
        )
    print(f"compiled, {until - time.time():.0f} s left", flush=True)
    with options.out.open("w", encoding="utf-8") as out:
        for stand, some in zip(stands, plans, strict=True):
            if time.time() < until:
                out.write(json.dumps(line_of(stand, some)) + "\n")
                out.flush()
                torch.cuda.empty_cache()  # each graph had memory of its own
    return 0


if __name__ == "__main__":
    sys.exit(main())

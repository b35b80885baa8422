"""Products of one row or one column: the plan as tiles, the plan as a fold, and what the models expect of both. Needs no GPU.

    PYTHONPATH=src python benchmarks/planner/product_folds.py --count 60 --seed 20261124

Counts of compiled kernels (`--counts`) are for sm_90: loads by width, trips through shared memory, registers, spilled bytes.
"""

from __future__ import annotations

import argparse
import math
import random
import re
from collections import Counter

import torch

from tilefold.backends.triton.call import compile_for
from tilefold.backends.triton.lower import calls_of
from tilefold.planner.choose import plan_fold
from tilefold.planner.device import H200
from tilefold.planner.first_launch import FirstLaunch
from tilefold.planner.form_choice import needed_us
from tilefold.planner.plan import Plan
from tilefold.planner.products import choose
from tilefold.planner.products.epilogue import make_epilogue
from tilefold.planner.products.folded import fold_of
from tilefold.planner.products.operands import canonical_product, loads_of_elements

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
LAYOUTS = ("plain", "plain", "matrix transposed")
RANGES = ((1, 20_000), (16, 100_000))  # of M or N, of K
MOST = 1 << 27  # elements of the matrix


def drawn(count: int, seed: int) -> list[tuple[int, int, int, str, str]]:
    """(M, N, K, dtype, layout): sizes by their logarithm, every other K and size a multiple of 8."""
    random_ = random.Random(seed)
    found: list[tuple[int, int, int, str, str]] = []
    while len(found) < count:
        other, depth = (
            round(math.exp(random_.uniform(math.log(least), math.log(most)))) for least, most in RANGES
        )
        other, depth = (max(1, n // 8 * 8) if random_.random() < 0.5 else n for n in (other, depth))
        if other * depth <= MOST:
            sizes = (other, 1) if random_.random() < 0.5 else (1, other)
            dtype = random_.choice(("bf16", "fp16", "bf16", "fp16", "fp32"))
            found.append((*sizes, depth, dtype, random_.choice(LAYOUTS)))
    return found


def operand(rows: int, columns: int, dtype: torch.dtype, transposed: bool) -> torch.Tensor:
    """A matrix without elements."""
    if transposed:
        return torch.empty(columns, rows, dtype=dtype, device="meta").mT
    return torch.empty(rows, columns, dtype=dtype, device="meta")


def written(plan: Plan) -> str:
    """A fold's launches in a few letters."""
    return " + ".join(
        f"{s.family}:k{s.block_outputs},l{s.lanes},r{s.run}x{s.unroll},s{s.splits},w{s.num_warps}"
        + ",ahead" * s.prefetch
        + f",{s.num_stages} stages" * (s.num_stages > 1)
        + ",aligned" * (s.align > 1)
        for s in (step.settings for step in plan.launched)
    )


def main() -> None:
    """One line for each product."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=20261124)
    parser.add_argument("--counts", action="store_true")
    arguments = parser.parse_args()
    print(
        "product | dtype, layout | loose | tiles, splits, us | fold needs, us | in one clock | taken | fold"
    )
    for rows, columns, depth, name, layout in drawn(arguments.count, arguments.seed):
        dtype, turned = DTYPES[name], layout != "plain"
        a, b = (
            operand(rows, depth, dtype, turned and rows > 1),
            operand(depth, columns, dtype, turned and columns > 1),
        )
        ending = make_epilogue(None, None, (), dtype, None)
        problem = canonical_product(a, b, ())
        tiles = choose.choose_product(problem, H200, finished=True)
        folded, program = fold_of(problem, ending)
        plan = plan_fold(folded, program, H200, "run_to_run")
        loose = loads_of_elements(problem)
        letters = "".join(name for name, is_loose in zip("ab", loose, strict=True) if is_loose) or "-"
        first = plan.stages[0]
        needed = needed_us(FirstLaunch.of(folded, program, first), first, H200) + choose.EARLY_US * (
            plan.launches - 1
        )
        fold_us, tiles_us = choose.as_timed(needed, tiles, dtype.itemsize, H200)
        _, taken = choose.plan_tensors((a, b), ending, "ieee", "run_to_run", H200)
        print(
            f"{rows}x{columns}x{depth} | {name}, {layout} | {letters} | {tiles.strategy} "
            f"{tiles.splits} {tiles.time_us:.1f} | {needed:.1f} | {tiles_us:.1f}, {fold_us:.1f}: "
            f"{fold_us / tiles_us:.2f} | {taken.strategy} | {written(plan)}"
        )
        if arguments.counts and taken.strategy == "fold":
            for call in calls_of(taken, problem, ending):
                compiled = compile_for(call, 90)
                ptx = compiled.asm["ptx"]
                words = Counter(
                    re.sub(r"\.L1\S*cache_hint|:", "", w) for w in re.findall(r"ld\.global\S*", ptx)
                )
                shared = len(re.findall(r"[sl][tm]\S*\.shared", ptx))
                print(
                    f"    {call.grid} programs: {dict(words)}, {shared} of shared memory, spills {'.local' in ptx}"
                )


if __name__ == "__main__":
    main()

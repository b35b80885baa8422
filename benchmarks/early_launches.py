"""What a product gains when its first launch begins early, and what its share of each SM does to that.

    PYTHONPATH=src python benchmarks/early_launches.py

relu(a @ b), [M, K] @ [K, M], by the cost model's plan (no table) and by plans of more programs than SMs, in three ways:
its first launch not early; early; early with so much shared memory that an SM holds its share of the programs, no more. Each
is compared with float64, then timed in a CUDA graph and by do_bench, in turns, twice. Needs a GPU of sm_90 or later.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

from tilefold.api.dispatch import compiled
from tilefold.api.requests import Product
from tilefold.bench.timing import graph_us
from tilefold.planner.device import device_of
from tilefold.planner.products.choose import choose_product
from tilefold.planner.products.epilogue import make_epilogue
from tilefold.planner.products.operands import canonical_product
from tilefold.planner.products.plan import Candidate, Sizes, Tile
from tilefold.planner.products.steps import product_plan
from tilefold.planner.products.tiles import finish_of, spreading_bytes

SHAPES = ((16, 8192), (16, 32768), (32, 16384), (48, 20480), (64, 8192), (64, 32768))
# Two to four programs an SM of an H200's 132.
CROWDED = (
    (torch.bfloat16, 16, 20480, Tile(16, 16, 128, 2, 3), 160),
    (torch.bfloat16, 32, 8192, Tile(16, 16, 64, 2, 4), 64),
    (torch.bfloat16, 64, 16384, Tile(64, 32, 64, 4, 4), 128),
    (torch.float32, 32, 16384, Tile(16, 32, 32, 2, 3), 128),
    (torch.float32, 48, 8192, Tile(16, 32, 32, 2, 3), 43),
    (torch.float32, 48, 16384, Tile(16, 32, 32, 2, 3), 86),
    (torch.float32, 48, 32768, Tile(16, 64, 32, 1, 3), 171),
    (torch.float32, 64, 16384, Tile(32, 64, 32, 2, 3), 128),
    (torch.float32, 64, 32768, Tile(32, 64, 32, 2, 3), 128),
)
TURNS = 2


def ways(plan: Candidate) -> dict[str, Candidate]:
    """The plan begun in each of the three ways."""
    return {
        "not early": replace(plan, chained=False, reserved_bytes=0),
        "early": replace(plan, chained=True, reserved_bytes=0),
        "early, its share an SM": plan,
    }


def crowded(tile: Tile, splits: int, sizes: Sizes) -> Candidate:
    """A plan of more programs than SMs, of which no SM holds more than its share."""
    device = device_of(0)
    reserved = spreading_bytes(tile, splits, sizes, device)
    finish = finish_of(sizes, splits)
    return Candidate("split", tile, splits, finish, device.overlaps, True, reserved)


def compare(rows: int, depth: int, dtype: torch.dtype, plan: Candidate | None = None) -> str:
    """A line of times in microseconds, of a plan or of the cost model's.

    Raises:
        SystemExit: an answer is wrong.
    """
    from triton.testing import do_bench

    a, b = (
        torch.randn(rows, depth, device="cuda").to(dtype),
        torch.randn(depth, rows, device="cuda").to(dtype),
    )
    ending = make_epilogue("relu", None, (), dtype, None)
    chip = replace(device_of(0), name="a chip without a table")
    problem, request = canonical_product(a, b, []), Product(ending, "ieee", "run_to_run", (rows, rows))
    plan = plan or choose_product(problem, chip)
    want = torch.relu(a.double() @ b.double())
    bound = depth * 2.0**-22 * (a.double().abs() @ b.double().abs()) + torch.finfo(dtype).eps * want
    times: dict[str, list[str]] = {}
    for _ in range(TURNS):
        for name, way in ways(plan).items():
            made = compiled(request, [a, b], (problem, product_plan(way, problem, ending))).call
            if not bool(((made(a, b)[0].double() - want).abs() <= bound).all()):
                raise SystemExit(f"WRONG ANSWER at {rows} x {rows} x {depth} {dtype}, {name}")
            call = lambda made=made: made(a, b)  # noqa: E731  # bound now
            cold_us = 1e3 * float(do_bench(call, warmup=10, rep=40, return_mode="median"))
            times.setdefault(name, []).append(f"{graph_us(call, 5.0):.2f} (do_bench {cold_us:.2f})")
    parts = (f"{name} {' / '.join(each)}" for name, each in times.items())
    return f"{dtype} {rows}x{rows}x{depth}, {plan.tile}, {plan.splits} splits: {'; '.join(parts)}"


def main() -> int:
    """Every shape in bfloat16 and in float32, and the crowded plans."""
    if not torch.cuda.is_available():
        raise SystemExit("early_launches: needs a CUDA device, got none; run it where there is one")
    cases: list[tuple[int, int, torch.dtype, Candidate | None]] = [
        (*shape, dtype, None) for dtype in (torch.bfloat16, torch.float32) for shape in SHAPES
    ]
    for dtype, rows, depth, tile, splits in CROWDED:
        sizes = Sizes(rows, rows, depth, 1, dtype.itemsize)
        cases.append((rows, depth, dtype, crowded(tile, splits, sizes)))
    for case in cases:
        print(compare(*case), flush=True)
        torch.cuda.empty_cache()  # each graph had memory of its own
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Random products: M, N, K and the dtype drawn from a seed, with ReLU or without, so that no plan can be tuned to them."""

from __future__ import annotations

import random

from tilefold.bench import settings
from tilefold.bench.cases import DTYPES, Case, Suite
from tilefold.bench.product_cases import ProductCase, make_product, product_case
from tilefold.bench.product_variants import COMPILED, CUBLAS, CUBLASLT, OURS, build_ours
from tilefold.bench.suites.shapes import log_uniform, rounded

# Shares of eight.
DRAWN_DTYPES = ("bf16", "bf16", "bf16", "bf16", "bf16", "fp16", "fp16", "fp32")
SIDES = {"full": (1, 4096), "small": (1, 48)}
DEPTHS = {"full": (16, 100_000), "small": (16, 1024)}
OPERAND_BYTES = 1 << 30  # of a and b together


def cases(size: str = "full", seed: int = 0, count: int = 60) -> tuple[Case, ...]:
    """`count` products of `seed`. The first ones of a larger count are the same."""
    found: dict[str, Case] = {}
    number = 0
    while len(found) < count:
        case = draw_case(random.Random(f"{size} {seed} {number}"), size, number)
        if case.elements * DTYPES[case.dtype].itemsize <= OPERAND_BYTES:
            found.setdefault(case.name, case)
        number += 1
    return tuple(found.values())


def draw_case(rng: random.Random, size: str, number: int) -> ProductCase:
    """One product. Every other one has a ReLU; logarithms of extents are evenly distributed, half of the extents odd."""
    (least, most), (short, long) = SIDES[size], DEPTHS[size]
    rows, columns = (min(most, rounded(rng, log_uniform(rng, least, most))) for _ in "MN")
    depth = max(short, min(long, rounded(rng, log_uniform(rng, short, long))))
    dtype, relu = rng.choice(DRAWN_DTYPES), number % 2 == 1
    return product_case(rows, columns, depth, dtype, relu, f"drawn, {dtype}{' + ReLU' * relu}")


SUITE = Suite(
    "products",
    str(__doc__).strip(),
    cases,
    (OURS, CUBLAS, CUBLASLT, COMPILED, *settings.variants_of(build_ours)),
    against=(),
    needs_gpu=True,
    drawn=cases,
    make=make_product,
    products=True,
)

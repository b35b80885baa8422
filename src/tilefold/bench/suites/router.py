"""A router's product, [T, 7168] @ [7168, 256] in bf16, for few tokens and for many, plain and with ReLU."""

from __future__ import annotations

from tilefold.bench.cases import Case, Suite
from tilefold.bench.product_cases import make_product, product_case
from tilefold.bench.product_variants import (
    COMPILED,
    CUBLAS,
    CUSTOM_OP,
    CUSTOM_OP_OURS,
    OURS,
    RANGES,
    RANGES_OURS,
    VECTOR,
)

TOKENS = (1, 16, 64, 256, 768)
DEPTH, EXPERTS = 7168, 256


def cases(size: str = "full") -> tuple[Case, ...]:
    """Five batches of tokens, each plain and with ReLU."""
    tokens, depth, experts = (TOKENS, DEPTH, EXPERTS) if size == "full" else ((1, 16), 512, 32)
    return tuple(
        product_case(
            count, experts, depth, "bf16", relu, f"router, bf16{' + ReLU' * relu}", headline=count <= 64
        )
        for relu in (False, True)
        for count in tokens
    )


SUITE = Suite(
    "router",
    str(__doc__).strip(),
    cases,
    (OURS, CUBLAS, COMPILED, CUSTOM_OP, CUSTOM_OP_OURS, RANGES, RANGES_OURS, VECTOR),
    against=(),
    needs_gpu=True,
    make=make_product,
    products=True,
)

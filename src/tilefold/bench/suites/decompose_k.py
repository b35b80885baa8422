"""Products with tiny M and N and a huge K, in bf16 (with ReLU and without), fp16 and fp32: the ways to split K."""

from __future__ import annotations

from tilefold.bench.cases import Case, Suite
from tilefold.bench.product_cases import make_product, product_case
from tilefold.bench.product_variants import (
    BMM,
    BMM_COMPILED,
    COMPILED,
    CUBLAS,
    CUSTOM_OP,
    CUSTOM_OP_OURS,
    OURS,
    SERIAL,
    SERIAL_APART,
    VECTOR,
    VECTOR_APART,
)

KINDS = (("bf16", True), ("bf16", False), ("fp16", False), ("fp32", False))
SIDES = (16, 32, 48, 64)
DEPTHS = tuple(range(8192, 32769, 4096))
SHORT = 256  # of K: there Inductor does not split K, which it does only where K is large


def cases(size: str = "full") -> tuple[Case, ...]:
    """28 shapes a kind, headline cases, and four with a short K; float32 products are true ones."""
    sides, depths = (SIDES, (*DEPTHS, SHORT)) if size == "full" else ((16,), (1024, SHORT))
    return tuple(
        product_case(
            side,
            side,
            depth,
            dtype,
            relu,
            f"M = N = {side}, {dtype}{' + ReLU' * relu}",
            headline=depth != SHORT,
        )
        for dtype, relu in KINDS
        for side in sides
        for depth in depths
    )


SUITE = Suite(
    "decompose-k",
    str(__doc__).strip(),
    cases,
    (
        OURS,
        CUBLAS,
        COMPILED,
        CUSTOM_OP,
        CUSTOM_OP_OURS,
        BMM,
        BMM_COMPILED,
        SERIAL,
        SERIAL_APART,
        VECTOR,
        VECTOR_APART,
    ),
    against=(),
    needs_gpu=True,
    make=make_product,
    products=True,
)

"""OR over a short last axis: every form that a kernel's author would write, torch.compile, tilefold, and the limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tilefold.bench.cases import Case, Choice, Suite, Variant
from tilefold.bench.layout import Layout
from tilefold.bench.operations import fold_case
from tilefold.bench.ours import OURS

SHAPES = ((64, 128, 4), (128, 256, 8), (256, 512, 16), (512, 1024, 4), (1024, 2048, 8), (2048, 4096, 16))
SMALL_SHAPES = ((4, 8, 4), (8, 16, 8), (16, 32, 16))


def cases(size: str = "full") -> tuple[Case, ...]:
    """Six shapes [M, N, K] in int64 and int32, folded over K."""
    return tuple(
        fold_case("bitwise_or", 2, shape, dtype, dtype)
        for dtype in ("int64", "int32")
        for shape in (SHAPES if size == "full" else SMALL_SHAPES)
    )


def make_or(
    operation: str,
    dim: int | tuple[int, ...] | None,
    shape: tuple[int, ...],
    dtype: str,
    layout: Layout | None,
) -> Case | None:
    """A case of another shape [M, N, K]; K is a power of two, since the tree halves it."""
    fits = len(shape) == 3 and dim == 2 and shape[2] & (shape[2] - 1) == 0 and dtype in ("int32", "int64")
    return fold_case(operation, dim, shape, dtype, dtype) if fits and isinstance(dim, int) else None


def build_square(form: str) -> Any:
    """A form whose program writes a square of results, in blocks of 16 and of 32."""

    def build(case: Case, x: torch.Tensor) -> Sequence[Choice]:
        from tilefold.bench.kernels import or_forms

        kernel = getattr(or_forms, form)
        m, n, k = case.shape
        return [
            Choice(
                f"block {block}", into(case, kernel, (-(-m // block), -(-n // block)), (m, n, k, block), 4)
            )
            for block in (16, 32)
        ]

    return build


def build_flat(form: str, levels: bool) -> Any:
    """A form whose program writes a run of results, in blocks of 64 to 512 by 4 or 8 warps."""

    def build(case: Case, x: torch.Tensor) -> Sequence[Choice]:
        from tilefold.bench.kernels import or_forms

        kernel = getattr(or_forms, form)
        m, n, k = case.shape
        sizes = (m * n, k, k.bit_length() - 1) if levels else (m * n, k)
        return [
            Choice(
                f"block {block}, {warps} warps",
                into(case, kernel, (-(-m * n // block),), (*sizes, block), warps),
            )
            for block in (64, 128, 256, 512)
            for warps in (4, 8)
        ]

    return build


def into(case: Case, kernel: Any, grid: tuple[int, ...], constants: tuple[int, ...], warps: int) -> Any:
    """A call that launches a kernel from x into a new y."""

    def call(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(case.result_shape, dtype=x.dtype, device=x.device)
        kernel[grid](x, y, *constants, num_warps=warps)
        return y

    return call


FORMS = (
    Variant("reduce 3-D", build_square("or_reduce_3d"), gpu_only=True, warms=True, graphs=True),
    Variant("unrolled loads", build_square("or_loads"), gpu_only=True, warms=True, graphs=True),
    Variant(
        "reduce flat", build_flat("or_reduce_flat", levels=False), gpu_only=True, warms=True, graphs=True
    ),
    Variant("register tree", build_flat("or_tree", levels=True), gpu_only=True, warms=True, graphs=True),
)

SUITE = Suite(
    "or-small-axis", str(__doc__).strip(), cases, (OURS, *FORMS), against=("compile",), make=make_or
)

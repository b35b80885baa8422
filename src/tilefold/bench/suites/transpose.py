"""Transposes: short and odd sides, batches, heads; tiles, torch, the limit; two naive forms of few cases."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import tilefold
from tilefold.bench import settings
from tilefold.bench.cases import DTYPES, EXACT, Case, Choice, Suite, Variant, headline_first
from tilefold.bench.layout import Layout
from tilefold.bench.ours import OURS

Tensor = torch.Tensor

# Shapes, and which two dims change places.
SHAPES: tuple[tuple[tuple[int, ...], tuple[int, int]], ...] = (
    ((16384, 8192), (0, 1)), ((32768, 1024), (0, 1)), ((4096, 65536), (0, 1)), ((256, 1 << 20), (0, 1)),
    ((64, 1 << 20), (0, 1)), ((1 << 20, 64), (0, 1)), ((1 << 24, 8), (0, 1)), ((8, 1 << 24), (0, 1)),
    ((10000, 4099), (0, 1)), ((4099, 10000), (0, 1)), ((4096, 129, 128), (1, 2)), ((1 << 18, 16, 16), (1, 2)),
    ((32, 2048, 32, 128), (1, 2)), ((256, 56, 56, 64), (1, 3)),
)  # fmt: skip
SMALL_SHAPES = (((64, 100), (0, 1)), ((1000, 8), (0, 1)), ((3, 20, 33), (1, 2)))
HEADLINE = (16384, 8192)
QUICK_ELEMENTS = 1 << 20  # the naive forms take some 80 ms of a headline: beyond this, of those alone


@dataclass(frozen=True)
class TransposeCase(Case):
    """A tensor of `shape` with the two dims of `dim` swapped, contiguous."""

    @property
    def result_shape(self) -> tuple[int, ...]:
        """The shape with two sizes swapped."""
        sizes, (first, second) = list(self.shape), self.dims
        sizes[first], sizes[second] = sizes[second], sizes[first]
        return tuple(sizes)


def transpose_case(
    dims: tuple[int, int], shape: tuple[int, ...], dtype: str, layout: Layout | None = None
) -> TransposeCase:
    """The case of one shape."""
    in_torch = functools.partial(_in_torch, dims)
    return TransposeCase(
        operation="transpose",
        dim=dims,
        shape=shape,
        dtype=dtype,
        torch_call=in_torch,
        reference=lambda x: (in_torch(x),),
        tolerance=replace(EXACT, why="no rounding happens: every element keeps its bits"),
        result_dtypes=(DTYPES[dtype],),
        group=f"transpose, {dtype}",
        headline=shape == HEADLINE,
        layout=layout,
        contiguous=True,
    )


def _in_torch(dims: tuple[int, int], x: Tensor) -> Tensor:
    # `contiguous` returns the input itself where a view is contiguous already: a copy in no time.
    return x.transpose(*dims).clone(memory_format=torch.contiguous_format)


def cases(size: str = "full") -> tuple[Case, ...]:
    """All shapes in bf16 and fp32, those of the headline in 1 and 8 bytes as well."""
    shapes = SHAPES if size == "full" else SMALL_SHAPES
    made = [transpose_case(dims, shape, dtype) for dtype in ("bf16", "fp32") for shape, dims in shapes]
    made += [transpose_case(dims, shape, dtype) for dtype in ("int8", "int64") for shape, dims in shapes[:1]]
    return headline_first(made)


def make_transpose(
    operation: str, dim: Any, shape: tuple[int, ...], dtype: str, layout: Layout | None = None
) -> Case | None:
    """A case of any shape and two dims, by default the last ones; None where there are no two."""
    dims = (len(shape) - 2, len(shape) - 1) if dim is None or isinstance(dim, int) else dim
    return transpose_case(dims, shape, dtype, layout) if len(shape) > 1 and len(dims) == 2 else None


def build_ours(case: Case, x: Tensor) -> Sequence[Choice]:
    """`tilefold.transpose`."""
    return [Choice("default", lambda x: tilefold.transpose(x, *case.dims))]


def build_elements(case: Case, x: Tensor) -> Sequence[Choice]:
    """One element a program."""

    def call(x: Tensor) -> Tensor:
        from tilefold.bench.kernels.transposes import transpose_elements

        y = torch.empty(case.result_shape, dtype=x.dtype, device=x.device)
        transpose_elements[(x.numel(),)](x, y, *case.shape, num_warps=1)
        return y

    return [Choice("1 warp", call)] if _is_for_naive(case) else []


def build_strided(case: Case, x: Tensor) -> Sequence[Choice]:
    """A part of a row a program, in blocks of 256 and 1024."""

    def choice(block: int) -> Choice:
        def call(x: Tensor) -> Tensor:
            from tilefold.bench.kernels.transposes import transpose_strided

            y = torch.empty(case.result_shape, dtype=x.dtype, device=x.device)
            grid = (case.shape[0] * -(-case.shape[1] // block),)
            transpose_strided[grid](x, y, *case.shape, BLOCK=block, num_warps=4)
            return y

        return Choice(f"block {block}", call)

    return [choice(block) for block in (256, 1024)] if _is_for_naive(case) else []


def _is_for_naive(case: Case) -> bool:
    quick = case.headline or case.elements <= QUICK_ELEMENTS
    return len(case.shape) == 2 and case.layout is None and quick


NAIVE = (
    Variant("an element a program", build_elements, gpu_only=True, warms=True, graphs=True),
    Variant("strided stores", build_strided, gpu_only=True, warms=True, graphs=True),
)

SUITE = Suite(
    "transpose",
    str(__doc__).strip(),
    cases,
    (replace(OURS, build=build_ours), *NAIVE, *settings.variants_of(build_ours)),
    make=make_transpose,
)

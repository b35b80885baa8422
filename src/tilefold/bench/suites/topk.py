"""The k largest of rows: vocabularies, routers, long and short rows, columns, rising rows: torch, QuACK, and the limit."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import tilefold
from tilefold.bench import settings
from tilefold.bench.cases import DTYPES, EXACT, Case, Choice, Suite, Variant, headline_first, outputs_of
from tilefold.bench.layout import Layout
from tilefold.bench.ours import OURS

Tensor = torch.Tensor

# Shapes, dim, k.
SHAPES = (
    ((32768, 1024), 1, 8), ((32768, 256), 1, 8), ((16384, 8192), 1, 8), ((4096, 65536), 1, 8), ((8192, 151936), 1, 8),
    ((8192, 50257), 1, 8), ((64, 1 << 20), 1, 8), ((1, 1 << 28), 1, 8), ((1 << 20, 64), 1, 8), ((16384, 128), 1, 4),
    ((16384, 4096), 0, 8), ((8192, 151936), 1, 1), ((8192, 151936), 1, 32), ((32768, 1024), 1, 32),
)  # fmt: skip
RISING = (((8192, 151936), 1, 8), ((16384, 8192), 1, 8), ((32768, 1024), 1, 8))
SMALL_SHAPES = (((64, 100), 1, 8), ((3, 5000), 1, 8), ((300, 20), 0, 3))
HEADLINE = ((32768, 1024), (8192, 151936))
SORTED_AT_ONCE = 1 << 28  # elements


@dataclass(frozen=True)
class TopkCase(Case):
    """The `k` largest along `dim`, and their places. `rising`: each row ascends, so that every element beats those before."""

    k: int = 1
    rising: bool = False

    @property
    def result_shape(self) -> tuple[int, ...]:
        """The shape with k places along the dim."""
        return tuple(self.k if d in self.dims else n for d, n in enumerate(self.shape))

    def draw(self, device: str, seed: int = 0) -> Tensor:
        """As any case, ascending along the dim if it rises."""
        x = super().draw(device, seed)
        if self.rising:
            (dim,) = self.dims
            rows = max(1, SORTED_AT_ONCE // self.shape[dim])
            for part in torch.split(x.movedim(dim, -1), rows):
                part.copy_(part.sort(-1).values)
        return x


def topk_case(
    shape: tuple[int, ...],
    dim: int,
    k: int,
    dtype: str,
    *,
    rising: bool = False,
    layout: Layout | None = None,
) -> TopkCase:
    """The case of one shape."""
    in_torch = functools.partial(_in_torch, k, dim)
    return TopkCase(
        operation=f"{'rising ' * rising}topk({k})",
        dim=dim,
        shape=shape,
        dtype=dtype,
        torch_call=in_torch,
        reference=lambda x: outputs_of(in_torch(x)),
        tolerance=replace(
            EXACT, why="no rounding happens: values are elements, and any place of an equal one is right"
        ),
        result_dtypes=(DTYPES[dtype], torch.int64),
        group=f"topk, {dtype}",
        headline=shape in HEADLINE and k == 8 and not rising,
        has_index=True,
        layout=layout,
        k=k,
        rising=rising,
    )


def _in_torch(k: int, dim: int, x: Tensor) -> Any:
    return torch.topk(x, k, dim)


def cases(size: str = "full") -> tuple[Case, ...]:
    """All shapes in bf16 and fp32; a few again with rising rows."""
    shapes, rising = (SHAPES, RISING) if size == "full" else (SMALL_SHAPES, SMALL_SHAPES[1:2])
    made = [topk_case(shape, dim, k, dtype) for dtype in ("bf16", "fp32") for shape, dim, k in shapes]
    made += [topk_case(*one, dtype, rising=True) for dtype in ("bf16", "fp32") for one in rising]
    return headline_first(made)


def make_topk(
    operation: str, dim: Any, shape: tuple[int, ...], dtype: str, layout: Layout | None = None
) -> Case | None:
    """A case of any shape and one dim, k as the operation's name has it; None where the dim is shorter."""
    k = int(operation.partition("(")[2].rstrip(")"))
    along = len(shape) - 1 if dim is None else dim
    fits = isinstance(along, int) and shape[along] >= k
    return (
        topk_case(shape, along, k, dtype, rising=operation.startswith("rising"), layout=layout)
        if fits
        else None
    )


def build_ours(case: Case, x: Tensor) -> Sequence[Choice]:
    """`tilefold.topk`."""
    assert isinstance(case, TopkCase)
    k = case.k
    return [Choice("default", lambda x: tilefold.topk(x, k, case.dims[0]))]


def build_quack(case: Case, x: Tensor) -> Sequence[Choice]:
    """QuACK's, where it is installed and has one: rows of a power of two, at most 4096."""
    assert isinstance(case, TopkCase)
    length, k = case.shape[-1], case.k
    fits = case.dims == (1,) and len(case.shape) == 2 and length <= 4096 and length & (length - 1) == 0
    if not fits or k & (k - 1):
        return []
    quack = importlib.import_module("quack.topk").topk

    def call(x: Tensor) -> tuple[Tensor, Tensor]:
        values, places = quack(x, k)
        return values, places.long()

    return [Choice("topk", call)]


QUACK = Variant("quack", build_quack, gpu_only=True, warms=True, graphs=True, asked_only=True)

SUITE = Suite(
    "topk",
    str(__doc__).strip(),
    cases,
    (replace(OURS, build=build_ours), QUACK, *settings.variants_of(build_ours)),
    against=("torch", "compile", "quack"),
    make=make_topk,
)

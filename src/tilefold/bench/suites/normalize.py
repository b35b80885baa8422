"""Softmax over rows and columns, layer_norm and rms_norm with and without a residual: every element read and written."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from tilefold.bench import settings
from tilefold.bench.cases import DTYPES, Case, Choice, Suite, Variant, headline_first
from tilefold.bench.map_cases import EPS, MapCase, in_tilefold, make_map, map_case, weight_of
from tilefold.bench.ours import OURS

ROWS = (
    (32768, 256), (32768, 1024), (16384, 8192), (4096, 65536), (2048, 131072), (512, 262144), (256, 1 << 20),
    (4096, 50257), (2048, 151936),
)  # fmt: skip
COLUMNS = ((32768, 1024), (16384, 8192), (4096, 65536), (1 << 20, 64))
NORMS = ("layer_norm", "rms_norm", "layer_norm+residual", "rms_norm+residual")
SMALL_ROWS = ((32, 256), (8, 4097))
SMALL_COLUMNS = ((256, 64),)
HEADLINE = (16384, 8192)


def cases(size: str = "full") -> tuple[Case, ...]:
    """Softmax of rows and of columns, then the norms of rows, in bf16 and fp32; headline cases first."""
    rows, columns = (ROWS, COLUMNS) if size == "full" else (SMALL_ROWS, SMALL_COLUMNS)
    asked = [("softmax", 1, shape) for shape in rows] + [("softmax", 0, shape) for shape in columns]
    asked += [(norm, 1, shape) for shape in rows for norm in NORMS]
    grid = [
        map_case(
            name, dim, shape, dtype, f"{name}, dim {dim}, {dtype}", shape == HEADLINE and dtype == "bf16"
        )
        for dtype in ("bf16", "fp32")
        for name, dim, shape in asked
    ]
    return headline_first(grid)


def build_ours(case: Case, x: torch.Tensor) -> Sequence[Choice]:
    """Tilefold's function of the operation's name."""
    assert isinstance(case, MapCase)
    return [Choice("default", in_tilefold(case))]


def build_quack(case: Case, x: torch.Tensor) -> Sequence[Choice]:
    """QuACK's kernel of rows; none for columns, or a layer_norm with a residual.

    Its layer_norm takes weights in float32 alone: they are rounded like the others' weights.
    """
    if case.dim != 1 or not isinstance(case, MapCase):
        return []
    if case.operation == "softmax":
        softmax = importlib.import_module("quack.softmax").softmax
        return [Choice("softmax", lambda x: softmax(x))]
    norms = importlib.import_module("quack.rmsnorm")
    weight = weight_of(case.shape[-1], DTYPES[case.dtype], str(x.device))
    if case.operation == "layer_norm":
        wide = weight.float()
        return [Choice("layernorm_fwd", lambda x: norms.layernorm_fwd(x, wide, eps=EPS))]

    def rms(x: torch.Tensor) -> Any:
        x, *residual = case.parts(x)
        if not residual:
            return norms.rmsnorm(x, weight, eps=EPS)
        return norms.rmsnorm(x, weight, residual=residual[0], eps=EPS, prenorm=True)

    return [Choice("rmsnorm", rms)] if case.operation.startswith("rms_norm") else []


SUITE = Suite(
    "normalize",
    str(__doc__).strip(),
    cases,
    (
        replace(OURS, build=build_ours),
        Variant("quack", build_quack, gpu_only=True, warms=True, graphs=True, asked_only=True),
        *settings.variants_of(build_ours),
    ),
    against=("torch", "compile", "quack"),
    make=make_map,
)

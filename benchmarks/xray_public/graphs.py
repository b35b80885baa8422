"""Twenty small graphs, compiled by Inductor for the chip, and its kernels launched by its own wrapper code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from compared import Case, normal

Function = Callable[..., Any]
GRAPHS: dict[str, tuple[Function, Callable[[], list[torch.Tensor]]]] = {
    "gelu": (lambda x: F.gelu(x), lambda: [normal(8, 1000)]),
    "bias_silu_mul": (
        lambda x, b, y: F.silu(x + b) * y,
        lambda: [normal(16, 384), normal(384), normal(16, 384)],
    ),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (512,), w, b),
        lambda: [normal(16, 512), normal(512), normal(512)],
    ),
    "rms_norm_bf16": (
        lambda x, w: (x.float() * torch.rsqrt(x.float().square().mean(-1, True) + 1e-6)).to(x.dtype) * w,
        lambda: [normal(16, 1024, dtype=torch.bfloat16), normal(1024, dtype=torch.bfloat16)],
    ),
    "softmax": (lambda x: torch.softmax(x, -1), lambda: [normal(16, 700)]),
    "log_softmax_fp16": (
        lambda x: torch.log_softmax(x.float(), -1),
        lambda: [normal(16, 700, dtype=torch.float16)],
    ),
    "long_row_softmax": (lambda x: torch.softmax(x, -1), lambda: [normal(2, 20000)]),
    "column_sum": (lambda x: x.sum(0), lambda: [normal(700, 96)]),
    "whole_sum": (lambda x: x.sum(), lambda: [normal(300, 300)]),
    "argmax": (lambda x: x.argmax(-1), lambda: [normal(16, 900)]),
    "variance": (lambda x: torch.var_mean(x, 1), lambda: [normal(24, 600)]),
    "amax_and_amin": (lambda x: (x.amax(1), x.amin(1)), lambda: [normal(24, 600)]),
    "cumsum": (lambda x: x.cumsum(-1), lambda: [normal(8, 500)]),
    "embedding": (
        lambda i, w: F.embedding(i, w) * 2,
        lambda: [torch.randint(0, 50, (8, 16)), normal(50, 128)],
    ),
    "cross_entropy": (
        lambda x, t: F.cross_entropy(x, t),
        lambda: [normal(32, 500), torch.randint(0, 500, (32,))],
    ),
    "transposed_add": (lambda x, y: x + y, lambda: [normal(96, 200).t(), normal(200, 96)]),
    "cat": (lambda x, y: torch.cat([x.relu(), y * 2], 1), lambda: [normal(16, 100), normal(16, 60)]),
    "average_pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), lambda: [normal(2, 4, 20, 20)]),
    "index_add": (
        lambda x, i, y: x.index_add(0, i, y),
        lambda: [normal(40, 64), torch.randint(0, 40, (100,)), normal(100, 64)],
    ),
    "bit_tricks": (
        lambda a, b: ((a ^ b) << 3) + (a // b.abs().clamp(min=1)) + (a & 0xFF),
        lambda: [torch.randint(-999, 999, (3000,)), torch.randint(-99, 99, (3000,))],
    ),
}


def cases() -> list[Case]:
    """A case for each graph."""
    return [Case("torch (Inductor)", name, lambda name=name: _run(name)) for name in GRAPHS]


def _run(name: str) -> Iterator[tuple[Any, Any]]:
    function, make = GRAPHS[name]
    inputs = make()
    want = function(*(x.double() if x.is_floating_point() else x for x in inputs))
    got = torch.compile(function)(*inputs)
    yield from zip(*(x if isinstance(x, tuple) else (x,) for x in (got, want)), strict=True)

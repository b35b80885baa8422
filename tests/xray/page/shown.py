"""Kernels and their pages, examined once for all tests of a process."""

from __future__ import annotations

import functools
from typing import Any

import triton
import triton.language as tl

from tilefold.xray.examine import Examined, examined
from tilefold.xray.explain import make_job
from tilefold.xray.page import document


@triton.jit
def halved(x):
    """Stands before the kernels that call it."""
    return x * 0.5


@triton.jit
def product(a_ptr, b_ptr, c_ptr, K, stride, M: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    """c = a @ b; </script><script>document.title = "owned"</script><!-- is text here."""
    offs_m, offs_n, offs_k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, BLOCK)
    total = tl.zeros((M, N), tl.float32)
    for k in range(0, K, BLOCK):
        a = tl.load(a_ptr + offs_m[:, None] * stride + k + offs_k[None, :])
        b = tl.load(b_ptr + (k + offs_k)[:, None] * stride + offs_n[None, :])
        total = tl.dot(a, b, total)
    tl.store(c_ptr + offs_m[:, None] * stride + offs_n[None, :], total)


@triton.jit
def columns(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Rows are read as they lie, and stored column by column."""
    offs = tl.arange(0, BLOCK)
    tile = tl.load(x_ptr + offs[:, None] * BLOCK + offs[None, :])
    tl.store(y_ptr + offs[None, :] * n + offs[:, None] * 64, tile)
    tl.atomic_add(y_ptr + 5_000_000, tl.sum(tl.sum(tile, 1), 0), sem="acq_rel")


@triton.jit
def wide(x_ptr, y_ptr, BLOCK: tl.constexpr):
    """A tile of one long row, and a helper of another place."""
    offs = tl.arange(0, 1)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(y_ptr + offs, halved(tl.load(x_ptr + offs)))


CASES: dict[str, dict[str, Any]] = {
    "product": {
        "kernel": product, "args": {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp32", "K": 128, "stride": 512},
        "constants": {"M": 64, "N": 64, "BLOCK": 32}, "grid": 4,
    },
    "columns": {
        "kernel": columns, "args": {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": 4096}, "constants": {"BLOCK": 32}, "grid": 3,
    },
    "wide": {"kernel": wide, "args": {"x_ptr": "*fp32", "y_ptr": "*fp32"}, "constants": {"BLOCK": 1024}},
}  # fmt: skip


@functools.cache
def made(case: str, target: str = "sm_90", run: bool = True) -> Examined:
    given = dict(CASES[case])
    return examined(make_job(given.pop("kernel"), given.pop("args"), **given, target=target), run=run)


@functools.cache
def page_of(case: str, target: str = "sm_90", run: bool = True) -> dict[str, Any]:
    return document(made(case, target, run))

"""Fourteen small kernels, each with a question about what Triton's compiler makes of it.

The questions are those of a study of April 2023 that turned PTX into CUDA by hand; `book.py` answers them with the X-ray.
`tilefold xray examples/casebook/kernels.py --case copy` shows one.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """A program copies a tile of BLOCK elements, masked at the end."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(y_ptr + offs, x, mask=offs < n)


@triton.jit
def copy_by_loop(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """One program copies all tiles, one after the other."""
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offs, mask=offs < n)
        tl.store(y_ptr + offs, x, mask=offs < n)


@triton.jit
def copy_matrix(x_ptr, y_ptr, rows, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """A program copies BLOCK_M whole rows of BLOCK_N elements."""
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs = offs_m[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    mask = offs_m[:, None] < rows
    x = tl.load(x_ptr + offs, mask=mask)
    tl.store(y_ptr + offs, x, mask=mask)


@triton.jit
def copy_static(x_ptr, y_ptr, N: tl.constexpr, BLOCK: tl.constexpr):
    """The copy with a length that the compiler knows."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < N)
    tl.store(y_ptr + offs, x, mask=offs < N)


@triton.jit
def copy_hinted(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """The copy of a length that is said to be a multiple of 4."""
    n = tl.multiple_of(n, 4)
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(y_ptr + offs, x, mask=offs < n)


@triton.jit
def copy_split(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """One program copies whole tiles without a mask, then the rest with one."""
    whole = n // BLOCK * BLOCK
    for start in range(0, whole, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        tl.store(y_ptr + offs, tl.load(x_ptr + offs))
    last = whole + tl.arange(0, BLOCK)
    rest = tl.load(x_ptr + last, mask=last < n)
    tl.store(y_ptr + last, rest, mask=last < n)


@triton.jit
def total(x_ptr, y_ptr, BLOCK: tl.constexpr):
    """One program adds a tile up."""
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.store(y_ptr, tl.sum(x, 0))


@triton.jit
def total_of_many(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Every program adds its tile up, and the sum to the total."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.atomic_add(y_ptr, tl.sum(x, 0))


@triton.jit
def transpose(x_ptr, y_ptr, SIZE: tl.constexpr):
    """One program transposes a square tile."""
    rows, columns = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    x = tl.load(x_ptr + rows * SIZE + columns)
    tl.store(y_ptr + rows * SIZE + columns, tl.trans(x))


@triton.jit
def transpose_matrix(x_ptr, y_ptr, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """A program transposes a tile of a matrix [M, N]: an element, a part of a row, or a square."""
    blocks = tl.cdiv(N, BLOCK_N)
    rows = (tl.program_id(0) // blocks * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    columns = (tl.program_id(0) % blocks * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    x = tl.load(x_ptr + rows * N + columns)
    tl.store(y_ptr + columns * M + rows, x)


@triton.jit
def sigmoid(x_ptr, y_ptr, BLOCK: tl.constexpr):
    """One program takes the sigmoid of a tile."""
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    tl.store(y_ptr + offs, 1 / (1 + tl.exp(-x)))


@triton.jit
def product(a_ptr, b_ptr, c_ptr, SIZE: tl.constexpr):
    """One program multiplies two square tiles."""
    rows, columns = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    a = tl.load(a_ptr + rows * SIZE + columns)
    b = tl.load(b_ptr + rows * SIZE + columns)
    c = tl.dot(a, b)
    tl.store(c_ptr + rows * SIZE + columns, c)


_FLOATS = {"x_ptr": "*fp32", "y_ptr": "*fp32"}


def _copy(n: int, **options: Any) -> dict[str, Any]:
    sized = {"x_ptr": f"*fp32[{n}]", "y_ptr": f"*fp32[{n}]", "n": n}
    return {"kernel": copy, "args": sized, "constants": {"BLOCK": 128}, "grid": -(-n // 128), **options}


def _static(n: int) -> dict[str, Any]:
    return {
        "kernel": copy_static,
        "args": _FLOATS,
        "constants": {"N": n, "BLOCK": 128},
        "grid": 8,
        "num_warps": 1,
    }


def _transpose(block_m: int, block_n: int) -> dict[str, Any]:
    return {
        "kernel": transpose_matrix,
        "args": {"x_ptr": "*fp32[65536]", "y_ptr": "*fp32[65536]", "M": 256, "N": 256},
        "constants": {"BLOCK_M": block_m, "BLOCK_N": block_n},
        "grid": 65536 // (block_m * block_n),
        "num_warps": 1 if block_m * block_n == 1 else 4,
    }


def xray_cases() -> dict[str, dict[str, Any]]:
    """Every configuration that the case book looks at, by name."""
    return {
        "copy": _copy(1000),
        "copy, 2 warps": _copy(1000, num_warps=2),
        "copy, 1 warp": _copy(1000, num_warps=1),
        "copy, 16 warps": _copy(1000, num_warps=16),
        "loop": {"kernel": copy_by_loop, "args": {**_FLOATS, "n": 1000}, "constants": {"BLOCK": 128}, "num_warps": 16},
        "matrix": {
            "kernel": copy_matrix, "args": {**_FLOATS, "rows": 1000}, "constants": {"BLOCK_M": 128, "BLOCK_N": 32},
            "grid": 8, "num_warps": 16,
        },
        "static 1000": _static(1000),
        "static 1002": _static(1002),
        "static 1001": _static(1001),
        "hinted": {
            "kernel": copy_hinted, "args": {**_FLOATS, "n": 1000}, "constants": {"BLOCK": 128}, "grid": 8, "num_warps": 1,
        },
        "dynamic 1008": _copy(1008, num_warps=1),
        "split": {"kernel": copy_split, "args": {**_FLOATS, "n": 1000}, "constants": {"BLOCK": 128}, "num_warps": 1},
        "sum": {"kernel": total, "args": _FLOATS, "constants": {"BLOCK": 128}},
        "sum, 1 warp": {"kernel": total, "args": _FLOATS, "constants": {"BLOCK": 128}, "num_warps": 1},
        "atomic sum": {
            "kernel": total_of_many, "args": {**_FLOATS, "n": 1000}, "constants": {"BLOCK": 128}, "grid": 8,
        },
        "atomic sum, 1 warp": {
            "kernel": total_of_many, "args": {**_FLOATS, "n": 1000}, "constants": {"BLOCK": 128}, "grid": 8, "num_warps": 1,
        },
        "transpose": {"kernel": transpose, "args": _FLOATS, "constants": {"SIZE": 16}, "num_warps": 1},
        "transpose, elements": _transpose(1, 1),
        "transpose, strided": _transpose(1, 256),
        "transpose, tiles": _transpose(64, 64),
        "sigmoid": {"kernel": sigmoid, "args": _FLOATS, "constants": {"BLOCK": 32}, "num_warps": 1},
        "dot": {
            "kernel": product, "args": {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp32"}, "constants": {"SIZE": 16},
            "num_warps": 1,
        },
    }  # fmt: skip

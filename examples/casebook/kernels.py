"""Small kernels, each with a question about what Triton's compiler makes of it.

Most questions are those of a study of April 2023 that turned PTX into CUDA by hand; `book.py` answers them with the X-ray.
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


@triton.jit
def either(a, b):
    """OR of two."""
    return a | b


@triton.jit
def or_by_tile(a_ptr, y_ptr, K: tl.constexpr, BLOCK: tl.constexpr):
    """OR over a short last axis: a tile of rows, folded by tl.reduce."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tile = tl.load(a_ptr + offs[:, None] * K + tl.arange(0, K)[None, :])
    tl.store(y_ptr + offs, tl.reduce(tile, 1, either))


@triton.jit
def or_unrolled(a_ptr, y_ptr, K: tl.constexpr, BLOCK: tl.constexpr):
    """The same, the K values loaded one by one."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.zeros((BLOCK,), tl.int32)
    for k in tl.static_range(K):
        found |= tl.load(a_ptr + offs * K + k)
    tl.store(y_ptr + offs, found)


@triton.jit
def or_by_halves(a_ptr, y_ptr, K: tl.constexpr, BLOCK: tl.constexpr):
    """The same, a flat tile whose halves are joined until one is left."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tile = tl.load(a_ptr + tl.program_id(0) * BLOCK * K + tl.arange(0, BLOCK * K))
    for _ in tl.static_range(2):
        one, two = tl.split(tl.reshape(tile, (tile.numel // 2, 2)))
        tile = one | two
    tl.store(y_ptr + offs, tile)


@triton.jit
def softmax(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """A row that fits into a tile: its maximum, then the sum of exponentials."""
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + offs, mask=offs < n, other=float("-inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + row * n + offs, e / tl.sum(e, 0), mask=offs < n)


@triton.jit
def join(m0, l0, m1, l1):
    """Two states of a softmax: the maximum, and the sum of exponentials beside it."""
    m = tl.maximum(m0, m1)
    return m, l0 * tl.exp(m0 - m) + l1 * tl.exp(m1 - m)


@triton.jit
def softmax_of_pairs(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Maximum and denominator by one fold of pairs."""
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + offs, mask=offs < n, other=float("-inf"))
    m, l = tl.reduce((x, tl.where(offs < n, 1.0, 0.0)), 0, join)
    tl.store(y_ptr + row * n + offs, tl.exp(x - m) / l, mask=offs < n)


@triton.jit
def softmax_online(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """A row of any length, tile by tile: the recurrence of maximum and denominator, then the row once more."""
    row = tl.program_id(0)
    m, l = tl.full((), float("-inf"), tl.float32), tl.full((), 0.0, tl.float32)
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + offs, mask=offs < n, other=float("-inf"))
        higher = tl.maximum(m, tl.max(x, 0))
        l = l * tl.exp(m - higher) + tl.sum(tl.exp(x - higher), 0)
        m = higher
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + offs, mask=offs < n, other=float("-inf"))
        tl.store(y_ptr + row * n + offs, tl.exp(x - m) / l, mask=offs < n)


@triton.jit
def relaxed_sum(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """A sum by blocks: each program adds its own, in no order."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.atomic_add(y_ptr, tl.sum(x, 0), sem="relaxed")


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


def _or(kernel: Any) -> dict[str, Any]:
    sized = {"a_ptr": "*i32[8192]", "y_ptr": "*i32[2048]"}
    return {"kernel": kernel, "args": sized, "constants": {"K": 4, "BLOCK": 256}, "grid": 8}


def _softmax(kernel: Any, block: int) -> dict[str, Any]:
    sized = {"x_ptr": "*fp32[3000]", "y_ptr": "*fp32[3000]", "n": 781}
    return {"kernel": kernel, "args": sized, "constants": {"BLOCK": block}, "grid": 3}


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
        "or, by a tile": _or(or_by_tile),
        "or, one by one": _or(or_unrolled),
        "or, by halves": _or(or_by_halves),
        "softmax, one pass": _softmax(softmax, 1024),
        "softmax, of pairs": _softmax(softmax_of_pairs, 1024),
        "softmax, online": _softmax(softmax_online, 256),
        "atomic sum, relaxed": {
            "kernel": relaxed_sum, "args": {"x_ptr": "*fp32[1000]", "y_ptr": "*fp32[1]", "n": 1000},
            "constants": {"BLOCK": 128}, "grid": 8,
        },
    }  # fmt: skip

"""For every code of an observation a kernel that has the fault, and a twin that does the same without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import triton
import triton.language as tl


@dataclass(frozen=True)
class Plant:
    """A kernel as `explain` takes it. `line` is where the fault is: text that only that line of it has."""

    kernel: Any
    args: Mapping[str, Any]
    constants: Mapping[str, Any]
    line: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@triton.jit
def copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(y_ptr + offs, x, mask=offs < n)


@triton.jit
def copy_beyond(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    tl.store(y_ptr + offs, x, mask=offs < n)


@triton.jit
def copy_rows(x_ptr, y_ptr, rows, stride, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    row = tl.program_id(0)
    if WIDE:
        row = row.to(tl.int64)
    offs = tl.arange(0, BLOCK)
    tl.store(y_ptr + row * stride + offs, tl.load(x_ptr + row * stride + offs))


@triton.jit
def copy_column(x_ptr, y_ptr, stride, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs * stride)
    tl.store(y_ptr + offs, x)


@triton.jit
def copy_in_a_loop(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offs, mask=offs < n)
        tl.store(y_ptr + offs, x, mask=offs < n)


@triton.jit
def maximum(x_ptr, y_ptr, n, BLOCK: tl.constexpr, FILL: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=FILL)
    tl.store(y_ptr, tl.max(x, 0))


@triton.jit
def running_maximum(x_ptr, y_ptr, n, BLOCK: tl.constexpr, FILL: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    most = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + start + offs, mask=start + offs < n, other=FILL)
        most = tl.maximum(most, x)
    tl.store(y_ptr + offs, most)


@triton.jit
def sum_of_exponentials(x_ptr, y_ptr, n, BLOCK: tl.constexpr, FILL: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=FILL)
    tl.store(y_ptr, tl.sum(tl.exp(x), 0))


@triton.jit
def largest_magnitude(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(y_ptr, tl.max(tl.abs(x), 0))


@triton.jit
def least_bits(x_ptr, y_ptr, n, BLOCK: tl.constexpr, FILL: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=FILL)
    tl.store(y_ptr, tl.min(x.to(tl.int32, bitcast=True), 0))


@triton.jit
def largest_of_bits(x_ptr, y_ptr, n, BLOCK: tl.constexpr, FILL: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=FILL)
    tl.store(y_ptr, tl.max(x.to(tl.float32, bitcast=True), 0))


@triton.jit
def row_maxima(x_ptr, y_ptr, rows, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    offs_m, offs_n = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    mask_m = offs_m < rows
    x = tl.load(x_ptr + offs_m[:, None] * BLOCK_N + offs_n[None, :], mask=mask_m[:, None], other=0.0)
    tl.store(y_ptr + offs_m, tl.max(x, 1), mask=mask_m)


@triton.jit
def short_sums(x_ptr, y_ptr, BLOCK: tl.constexpr, K: tl.constexpr):
    rows, k = tl.arange(0, BLOCK), tl.arange(0, K)
    x = tl.load(x_ptr + rows[:, None] * K + k[None, :])
    tl.store(y_ptr + rows, tl.sum(x, 1))


@triton.jit
def short_sums_in_registers(x_ptr, y_ptr, BLOCK: tl.constexpr, K: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK * K))
    for level in tl.static_range(3):
        even, odd = tl.split(tl.reshape(x, (BLOCK * K // (2 << level), 2)))
        x = even + odd
    tl.store(y_ptr + tl.arange(0, BLOCK), x)


@triton.jit
def total(x_ptr, y_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.store(y_ptr, tl.sum(x, 0))


@triton.jit
def look_up(x_ptr, i_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.gather(tl.load(x_ptr + offs), tl.load(i_ptr + offs), 0))


@triton.jit
def look_up_rows(x_ptr, i_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + tl.load(i_ptr + offs)))


@triton.jit
def multiply(a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr):
    offs_m, offs_n, offs_k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + offs_m[:, None] * K + offs_k[None, :])
    b = tl.load(b_ptr + offs_k[:, None] * N + offs_n[None, :])
    c = tl.dot(a, b, input_precision=PRECISION)
    tl.store(c_ptr + offs_m[:, None] * N + offs_n[None, :], c)


@triton.jit
def many_alive(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    for _ in range(4):
        x = tl.sort(x) + x
    tl.store(y_ptr + offs, x)


@triton.jit
def exponential(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.exp(tl.load(x_ptr + offs)))


@triton.jit
def double(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, 2 * tl.load(x_ptr + offs))


@triton.jit
def add_up(x_ptr, y_ptr, BLOCK: tl.constexpr, SEM: tl.constexpr, FOLD: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    if FOLD:
        tl.atomic_add(y_ptr, tl.sum(x, 0), sem=SEM)
    else:
        tl.atomic_add(y_ptr + offs * 0, x, sem=SEM)


@triton.jit
def count_arrivals(counter_ptr, y_ptr):
    before = tl.atomic_add(counter_ptr, 1, sem="acq_rel")
    tl.store(y_ptr + before, before)


@triton.jit
def take_turns(x_ptr, y_ptr, lock_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + offs)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(y_ptr + offs, tl.load(y_ptr + offs) + x)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def leave_a_part(x_ptr, y_ptr, counter_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, 2 * tl.load(x_ptr + offs))
    tl.debug_barrier()
    tl.atomic_add(counter_ptr, 1, sem="release")


@triton.jit
def store_pairs(x_ptr, y_ptr, BLOCK: tl.constexpr, APART: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    tl.store(y_ptr + offs // APART, x)


@triton.jit
def normalised_in_two_passes(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + start + offs)
        total += x * x
    scale = tl.rsqrt(tl.sum(total, 0) / n)
    for start in range(0, n, BLOCK):
        again = tl.load(x_ptr + start + offs)
        tl.store(y_ptr + start + offs, again * scale)


@triton.jit
def normalised_at_once(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    tl.store(y_ptr + offs, x * tl.rsqrt(tl.sum(x * x, 0) / n))


@triton.jit
def total_of_rounds(x_ptr, y_ptr, n, BLOCK: tl.constexpr, WAIT: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    if WAIT:
        tile = tl.zeros([BLOCK], tl.float32)
        for start in range(0, n, BLOCK):
            tile += tl.load(x_ptr + start + offs)
        tl.store(y_ptr, tl.sum(tile, 0))
    else:
        most = 0.0
        for start in range(0, n, BLOCK):
            most += tl.sum(tl.load(x_ptr + start + offs), 0)
        tl.store(y_ptr, most)


@triton.jit
def sum_of_transposed(x_ptr, y_ptr, n, B: tl.constexpr, WAIT: tl.constexpr):
    rows, columns = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    sums = tl.zeros([B, B], tl.float32)
    for start in range(n):
        x = tl.load(x_ptr + start * B * B + rows * B + columns)
        if WAIT:
            sums += x
        else:
            tl.store(y_ptr + start * B * B + rows * B + columns, tl.trans(x))
    if WAIT:
        tl.store(y_ptr + rows * B + columns, tl.trans(sums))


@triton.jit
def multiply_in_rounds(a_ptr, b_ptr, c_ptr, stride, K, B: tl.constexpr):
    offs_m, offs_k = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    sums = tl.zeros([B, B], tl.float32)
    for k in range(0, K, B):
        a = tl.load(a_ptr + offs_m * stride + k + offs_k)
        b = tl.load(b_ptr + (k + offs_m) * stride + offs_k)
        sums = tl.dot(a, b, sums)
    tl.store(c_ptr + offs_m * B + offs_k, sums)


@triton.jit
def add_a_tile(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.atomic_add(y_ptr + offs, tl.load(x_ptr + tl.program_id(0) * BLOCK + offs), sem="relaxed")


@triton.jit
def decaying(a, b):
    return a * 0.5 + b


@triton.jit
def both_or_either(a, b):
    return a + b - a * b


@triton.jit
def scanned(x_ptr, y_ptr, BLOCK: tl.constexpr, DECAY: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    if DECAY:
        tl.store(y_ptr + offs, tl.associative_scan(x, 0, decaying))
    else:
        tl.store(y_ptr + offs, tl.associative_scan(x, 0, both_or_either))


@triton.jit
def product_with_itself(x_ptr, y_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    v = tl.load(x_ptr + rows[:, None] * COLUMNS + columns[None, :])
    tl.store(y_ptr + columns[:, None] * COLUMNS + columns[None, :], tl.dot(tl.trans(v), v))


@triton.jit
def copy_up_to(x_ptr, y_ptr, n, end, BLOCK: tl.constexpr):
    for start in range(0, end, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offs, mask=offs < n)
        tl.store(y_ptr + offs, x, mask=offs < n)


XY = {"x_ptr": "*fp32", "y_ptr": "*fp32"}
ABC = {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp32"}
ABC32 = dict.fromkeys(ABC, "*fp32")
_INF = float("-inf")

# code: (the fault, its clean twin)
PLANTED: dict[str, tuple[Plant, Plant]] = {
    "wrong-fill": (
        Plant(maximum, {**XY, "n": 1000}, {"BLOCK": 1024, "FILL": 0.0}, "x = tl.load"),
        Plant(maximum, {**XY, "n": 1000}, {"BLOCK": 1024, "FILL": _INF}),
    ),
    "out-of-bounds": (
        Plant(copy_beyond, {"x_ptr": "*fp32[1008]", "y_ptr": "*fp32[1008]", "n": 1008}, {"BLOCK": 1024}, "x = tl.load"),
        Plant(copy, {"x_ptr": "*fp32[1008]", "y_ptr": "*fp32[1008]", "n": 1008}, {"BLOCK": 1024}),
    ),
    "offset-overflow": (
        Plant(
            copy_rows, {**XY, "rows": 70000, "stride": 65536}, {"BLOCK": 1024, "WIDE": False}, "tl.store",
            {"grid": 70000},
        ),
        Plant(copy_rows, {**XY, "rows": 70000, "stride": 65536}, {"BLOCK": 1024, "WIDE": True}, "", {"grid": 70000}),
    ),
    "wasted-sectors": (
        Plant(copy_column, {**XY, "stride": 512}, {"BLOCK": 256}, "x = tl.load"),
        Plant(copy_column, {**XY, "stride": 1}, {"BLOCK": 256}),
    ),
    "bank-conflict": (
        Plant(look_up, {**XY, "i_ptr": "@conflict"}, {"BLOCK": 128}, "tl.gather"),
        Plant(look_up, {**XY, "i_ptr": "@straight"}, {"BLOCK": 128}),
    ),
    "scalar-access": (
        Plant(copy, {**XY, "n": 1001}, {"BLOCK": 1024}, "x = tl.load"),
        Plant(copy, {**XY, "n": 1008}, {"BLOCK": 1024}),
    ),
    "race": (
        Plant(store_pairs, XY, {"BLOCK": 128, "APART": 2}, "tl.store"),
        Plant(store_pairs, XY, {"BLOCK": 128, "APART": 1}),
    ),
    "read-again": (
        Plant(normalised_in_two_passes, {**XY, "n": 4096}, {"BLOCK": 1024}, "again = tl.load"),
        Plant(normalised_at_once, {**XY, "n": 4096}, {"BLOCK": 4096}),
    ),
    "fold-in-loop": (
        Plant(total_of_rounds, {**XY, "n": 8192}, {"BLOCK": 1024, "WAIT": False}, "most +="),
        Plant(total_of_rounds, {**XY, "n": 8192}, {"BLOCK": 1024, "WAIT": True}),
    ),
    "layout-in-loop": (
        Plant(sum_of_transposed, {**XY, "n": 8}, {"B": 64, "WAIT": False}, "tl.trans(x)"),
        Plant(sum_of_transposed, {**XY, "n": 8}, {"B": 64, "WAIT": True}),
    ),
    "masked-rounds": (
        Plant(copy_up_to, {**XY, "n": 1000, "end": 8192}, {"BLOCK": 256}, "x = tl.load"),
        Plant(copy_up_to, {**XY, "n": 1000, "end": 1000}, {"BLOCK": 256}),
    ),
    "narrow-sum": (
        Plant(total, {"x_ptr": "*fp16", "y_ptr": "*fp32"}, {"BLOCK": 1024}, "tl.sum"),
        Plant(total, XY, {"BLOCK": 1024}),
    ),
    "not-associative": (
        Plant(scanned, XY, {"BLOCK": 128, "DECAY": True}, "0, decaying"),
        Plant(scanned, XY, {"BLOCK": 128, "DECAY": False}),
    ),
    "repeated-dot": (
        Plant(product_with_itself, {"x_ptr": "*fp16", "y_ptr": "*fp32"}, {"ROWS": 64, "COLUMNS": 16}, "tl.dot"),
        Plant(product_with_itself, {"x_ptr": "*fp16", "y_ptr": "*fp32"}, {"ROWS": 64, "COLUMNS": 16}, "", {"num_warps": 1}),
    ),
    "narrow-copy": (
        Plant(multiply_in_rounds, {**ABC32, "stride": 257, "K": 256}, {"B": 32}, "a = tl.load"),
        Plant(multiply_in_rounds, {**ABC32, "stride": 256, "K": 256}, {"B": 32}),
    ),
    "redundant-threads": (
        Plant(copy, {**XY, "n": 1008}, {"BLOCK": 128}, "x = tl.load", {"num_warps": 16, "grid": 8}),
        Plant(copy, {**XY, "n": 1008}, {"BLOCK": 128}, "", {"num_warps": 1, "grid": 8}),
    ),
    "idle-warps": (
        Plant(copy_in_a_loop, {**XY, "n": 1008}, {"BLOCK": 128}, "x = tl.load", {"num_warps": 16}),
        Plant(copy_in_a_loop, {**XY, "n": 4096}, {"BLOCK": 2048}, "", {"num_warps": 16}),
    ),
    "small-axis-shuffles": (
        Plant(short_sums, XY, {"BLOCK": 256, "K": 8}, "tl.sum"),
        Plant(short_sums_in_registers, XY, {"BLOCK": 256, "K": 8}),
    ),
    "needless-barrier": (
        Plant(look_up, {**XY, "i_ptr": "@straight"}, {"BLOCK": 128}, "tl.gather"),
        Plant(total, XY, {"BLOCK": 128}),
    ),
    "strong-atomic": (
        Plant(add_up, XY, {"BLOCK": 128, "SEM": "acq_rel", "FOLD": True}, "tl.sum"),
        Plant(add_up, XY, {"BLOCK": 128, "SEM": "relaxed", "FOLD": True}),
    ),
    "per-element-atomic": (
        Plant(add_up, XY, {"BLOCK": 128, "SEM": "relaxed", "FOLD": False}, "offs * 0"),
        Plant(add_up, XY, {"BLOCK": 128, "SEM": "relaxed", "FOLD": True}),
    ),
    "no-tensor-core": (
        Plant(multiply, ABC32, {"M": 32, "N": 32, "K": 32, "PRECISION": "ieee"}, "tl.dot"),
        Plant(multiply, ABC, {"M": 32, "N": 32, "K": 32, "PRECISION": "ieee"}),
    ),
    "older-tensor-core": (
        Plant(multiply, ABC, {"M": 64, "N": 64, "K": 32, "PRECISION": "tf32"}, "tl.dot", {"num_warps": 2}),
        Plant(multiply, ABC, {"M": 64, "N": 64, "K": 32, "PRECISION": "tf32"}),
    ),
    "tf32-dot": (
        Plant(multiply, ABC32, {"M": 32, "N": 32, "K": 32, "PRECISION": "tf32"}, "tl.dot"),
        Plant(multiply, ABC32, {"M": 32, "N": 32, "K": 32, "PRECISION": "ieee"}),
    ),
    "approximate-math": (Plant(exponential, XY, {"BLOCK": 128}, "tl.exp"), Plant(double, XY, {"BLOCK": 128})),
    "spill": (
        Plant(copy_column, {**XY, "stride": 1}, {"BLOCK": 32768}, "", {"num_warps": 1}),
        Plant(copy_column, {**XY, "stride": 1}, {"BLOCK": 1024}),
    ),
    "occupancy": (
        Plant(multiply, ABC, {"M": 128, "N": 256, "K": 64, "PRECISION": "ieee"}),
        Plant(copy, {**XY, "n": 1008}, {"BLOCK": 1024}),
    ),
}  # fmt: skip

# Fills that are no identity and harmless all the same, or wrong although they look like one.
FILLS: dict[str, tuple[Plant, bool]] = {
    "minus infinity under a sum of exponentials": (
        Plant(sum_of_exponentials, {**XY, "n": 1000}, {"BLOCK": 1024, "FILL": _INF}), False,
    ),
    "zero under a sum of exponentials": (
        Plant(sum_of_exponentials, {**XY, "n": 1000}, {"BLOCK": 1024, "FILL": 0.0}), True,
    ),
    "zero under a maximum of magnitudes": (Plant(largest_magnitude, {**XY, "n": 1000}, {"BLOCK": 1024}), False),
    "rows that are not stored": (Plant(row_maxima, {**XY, "rows": 50}, {"BLOCK_M": 64, "BLOCK_N": 128}), False),
    "zero under a minimum of bits": (Plant(least_bits, {**XY, "n": 1000}, {"BLOCK": 1024, "FILL": 0.0}), True),
    "the bits of NaN, above all others": (
        Plant(least_bits, {**XY, "n": 1000}, {"BLOCK": 1024, "FILL": float("nan")}), False,
    ),
    "bits of minus infinity under a maximum": (
        Plant(largest_of_bits, {"x_ptr": "*i32", "y_ptr": "*fp32", "n": 1000}, {"BLOCK": 1024, "FILL": -0x800000}), False,
    ),
    "bits of one under a maximum": (
        Plant(largest_of_bits, {"x_ptr": "*i32", "y_ptr": "*fp32", "n": 1000}, {"BLOCK": 1024, "FILL": 0x3F800000}), True,
    ),
    "zero in a loop": (Plant(running_maximum, {**XY, "n": 1000}, {"BLOCK": 256, "FILL": 0.0}), True),
    "minus infinity in a loop": (Plant(running_maximum, {**XY, "n": 1000}, {"BLOCK": 256, "FILL": _INF}), False),
}  # fmt: skip

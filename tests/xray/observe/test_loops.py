"""`masked-rounds`: rounds of loops in which no lane is on; `repeated-dot` in and out of loops; folds that may wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

from tilefold import xray
from tilefold.xray.report.model import Observation
from xray.observe.planted import XY, total_of_rounds


@triton.jit
def rounds(x_ptr, y_ptr, n_ptr, low, high, end, HOW: tl.constexpr, B: tl.constexpr):
    """Rounds of B elements up to `end`, of which those from `low` to `high` count."""
    pid, offs = tl.program_id(0), tl.arange(0, B)
    total = tl.full([B], 1.0, tl.float32)
    most = -float("inf")
    if HOW == "ragged":
        high = tl.load(n_ptr + pid)
    pointers = x_ptr + offs
    for start in range(0, end, B):
        at = start + offs
        there = (at >= low) & (at < high)
        if HOW == "copy":
            tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=there), mask=there)
        elif HOW == "maximum":
            most = tl.maximum(most, tl.max(tl.load(x_ptr + at, mask=there, other=-float("inf")), 0))
        elif HOW == "pointers":
            total += tl.load(pointers, mask=there, other=0.0)
            pointers += B
        elif HOW == "decay":
            total = 0.5 * total + tl.load(x_ptr + at, mask=there, other=0.0)
        elif HOW == "fill":
            tl.store(y_ptr + at, tl.load(x_ptr + at, mask=there, other=0.0))
        elif HOW == "atomic":
            tl.atomic_add(y_ptr + at, tl.load(x_ptr + at, mask=there, other=0.0), mask=there, sem="relaxed")
        else:
            total += tl.load(x_ptr + pid * end + at, mask=there, other=0.0)
    tl.store(y_ptr + end + pid * B + offs, total + most)


@triton.jit
def product(a_ptr, b_ptr, c_ptr, K, end, B: tl.constexpr):
    rows, columns = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    total = tl.zeros([B, B], tl.float32)
    for k in range(0, end, B):
        a = tl.load(a_ptr + rows * end + k + columns, mask=k + columns < K, other=0.0)
        b = tl.load(b_ptr + (k + rows) * B + columns, mask=k + rows < K, other=0.0)
        total = tl.dot(a, b, total)
    tl.store(c_ptr + rows * B + columns, total)


LENGTHS = np.array([100, 3000, 900, 50], np.int32)
ABC = {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp32"}


def idle(
    how: str, low: int, high: int, end: int, *, lengths: Any = LENGTHS, grid: int = 1
) -> list[Observation]:
    args = {**XY, "n_ptr": lengths, "low": low, "high": high, "end": end}
    report = xray.explain(rounds, args, {"HOW": how, "B": 256}, grid=grid)
    assert report.executed, report.notes
    return [o for o in report.observations if o.code == "masked-rounds"]


@pytest.mark.parametrize(
    ("how", "low", "high"),
    [
        ("sum", 0, 1000), ("copy", 0, 1000), ("maximum", 2000, 2600), ("pointers", 0, 1000), ("atomic", 0, 1000),
        ("sum", 7000, 8192),
    ],
)  # fmt: skip
def test_rounds_in_which_no_lane_is_on(how: str, low: int, high: int) -> None:
    (found,) = idle(how, low, high, 8192)
    left = 32 - (-(-high // 256) - low // 256)
    assert f"in {left} of 32 rounds of a loop no lane of a load or store is on" in found.evidence
    assert dict(found.numbers) == {"rounds": 32, "idle": left}


def test_rows_of_several_lengths() -> None:
    (found,) = idle("ragged", 0, 0, 4096, grid=4)
    assert "in 42 of 48 rounds" in found.evidence
    assert not idle("ragged", 0, 0, 4096, lengths="*i32", grid=4), "by chance"


@pytest.mark.parametrize(
    ("how", "high", "end"),
    [
        ("sum", 1000, 1000),
        ("copy", 1000, 1000),
        ("maximum", 8100, 8192),
        ("decay", 1000, 8192),
        ("fill", 1000, 8192),
    ],
)
def test_rounds_with_a_lane_or_something_else_to_do(how: str, high: int, end: int) -> None:
    """A tail that is masked in part; a variable that decays in every round; what is stored in all of them."""
    assert not idle(how, 0, high, end)


@pytest.mark.parametrize(("k", "found"), [(64, True), (512, False), (500, False)])
def test_rounds_of_a_product_whose_copies_run_ahead(k: int, found: bool) -> None:
    report = xray.explain(product, {**ABC, "K": k, "end": 512}, {"B": 32})
    assert ("masked-rounds" in report.codes()) == found


@triton.jit
def gram(x_ptr, y_ptr, tiles, N: tl.constexpr, D: tl.constexpr):
    rows, columns = tl.arange(0, N)[:, None], tl.arange(0, D)[None, :]
    total = tl.zeros([D, D], tl.float32)
    for tile in range(tiles):
        v = tl.load(x_ptr + tile * N * D + rows * D + columns)
        total += tl.dot(tl.trans(v), v)
    one = tl.arange(0, D)
    tl.store(y_ptr + one[:, None] * D + one[None, :], total)


def repeated(kind: str, constants: dict[str, int], warps: int) -> list[Observation]:
    args = {"x_ptr": kind, "y_ptr": "*fp32", "tiles": 4}
    report = xray.explain(gram, args, constants, num_warps=warps)
    return [o for o in report.observations if o.code == "repeated-dot"]


@pytest.mark.parametrize(
    ("kind", "d", "warps", "copies"),
    [
        ("*fp16", 16, 4, 2), ("*fp16", 16, 8, 4), ("*bf16", 16, 4, 2), ("*fp16", 32, 16, 2), ("*fp32", 16, 4, 2),
        ("*fp16", 16, 16, 8),
    ],
)  # fmt: skip
def test_a_dot_that_several_warps_compute(kind: str, d: int, warps: int, copies: int) -> None:
    (found,) = repeated(kind, {"N": 64, "D": d}, warps)
    assert dict(found.numbers)["copies"] == copies
    assert f"of {d}x{d} is computed {copies} times over by {warps} warps" in found.evidence
    assert f"num_warps={warps // copies}" in found.change


@pytest.mark.parametrize(("d", "warps"), [(16, 1), (16, 2), (32, 4), (32, 8), (64, 4), (128, 4)])
def test_a_dot_that_warps_share(d: int, warps: int) -> None:
    assert not repeated("*fp16", {"N": 32, "D": d}, warps)


@triton.jit
def online_softmax(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    most, total = float("-inf"), 0.0
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + start + offs)
        larger = tl.maximum(most, tl.max(x, 0))
        total = total * tl.exp(most - larger) + tl.sum(tl.exp(x - larger), 0)
        most = larger
    tl.store(y_ptr, total)


@triton.jit
def stored_each_round(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    total = 0.0
    for start in range(0, n, BLOCK):
        total += tl.sum(tl.load(x_ptr + start + offs), 0)
        tl.store(y_ptr + start, total)


@triton.jit
def stored_before_each_round(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    total = 0.0
    for start in range(0, n, BLOCK):
        tl.store(y_ptr + start, total)
        total += tl.sum(tl.load(x_ptr + start + offs), 0)
    tl.store(y_ptr + n, total)


@pytest.mark.parametrize("kernel", [online_softmax, stored_each_round, stored_before_each_round])
def test_a_running_value_that_the_round_reads_cannot_wait(kernel: Any) -> None:
    report = xray.explain(kernel, {**XY, "n": 4096}, {"BLOCK": 512})
    assert "fold-in-loop" not in report.codes()


def test_a_running_value_that_nothing_reads_can() -> None:
    report = xray.explain(total_of_rounds, {**XY, "n": 4096}, {"BLOCK": 512, "WAIT": False})
    assert "fold-in-loop" in report.codes()

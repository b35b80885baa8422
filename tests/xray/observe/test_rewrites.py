"""Changes of the source that are applied to the TTIR, executed, and told with what they gained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from tilefold import xray
from tilefold.xray.report.model import Observation
from xray.observe.planted import XY
from xray.versions import TRITON


def said(
    code: str, kernel: Any, args: dict[str, Any], constants: dict[str, Any], **given: Any
) -> list[Observation]:
    report = xray.explain(kernel, args, constants, **given)
    return [o for o in report.observations if o.code == code]


@triton.jit
def largest(x_ptr, y_ptr, n, BLOCK: tl.constexpr, ADD: tl.constexpr):
    found = 0.0
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + start + tl.arange(0, BLOCK))
        found = tl.sum(x + found, 0) if ADD else tl.max(tl.maximum(x, found), 0)
    tl.store(y_ptr, found)


def test_a_variable_that_a_tile_takes_in_before_its_fold_could_wait() -> None:
    """A maximum may take it any number of times; a sum would count it once an element."""
    (found,) = said("fold-in-loop", largest, {**XY, "n": 8192}, {"BLOCK": 1024, "ADD": False})
    assert "tried one fold behind the loop: barriers" in found.change
    assert found.change.endswith("and the same is stored)")
    assert not said("fold-in-loop", largest, {**XY, "n": 8192}, {"BLOCK": 1024, "ADD": True})


@triton.jit
def extremes(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    high, low, total = -float("inf"), float("inf"), 0.0
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + start + tl.arange(0, BLOCK))
        high = tl.max(tl.maximum(x, high), 0)
        low = tl.min(tl.minimum(low, x * 2), 0)
        total += tl.sum(x, 0)
    tl.store(y_ptr, high - low + total)


def test_several_folds_of_both_kinds_are_tried() -> None:
    for found in said("fold-in-loop", extremes, {**XY, "n": 8192}, {"BLOCK": 1024}):
        assert "tried one fold behind the loop: barriers" in found.change


@triton.jit
def read_twice(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(y_ptr + n, tl.sum(x, 0))
    again = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(y_ptr + offs, again, mask=offs < n)


@triton.jit
def least_and_many(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(y_ptr, tl.min(tl.load(x_ptr + offs, mask=offs < n, other=2147483647), 0))
    many = tl.load(x_ptr + offs, mask=offs < n, other=0) > 3
    tl.store(y_ptr + 1, tl.sum(many.to(tl.int32), 0))


@triton.jit
def windows(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    left = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    right = tl.load(x_ptr + offs + 1, mask=offs + 1 < n, other=0.0)
    tl.store(y_ptr + offs, left + right, mask=offs < n)


@triton.jit(do_not_specialize=["stride_m", "stride_n"])
def columns(x_ptr, y_ptr, stride_m, stride_n, B: tl.constexpr):
    m, n = tl.arange(0, B), tl.arange(0, B)
    x = tl.load(
        x_ptr + m[:, None] * stride_m + n[None, :] * stride_n, mask=(m < B)[:, None] & (n < B)[None, :]
    )
    tl.store(y_ptr + m[:, None] * B + n[None, :], x)


@triton.jit
def count_above(x_ptr, y_ptr, n, BLOCK: tl.constexpr, ONE: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    above = (tl.load(x_ptr + offs, mask=offs < n, other=0.0) > 0.5).to(tl.int32)
    at = tl.zeros([BLOCK], tl.int32) if ONE else offs % 4
    tl.atomic_add(y_ptr + at, above, mask=offs < n, sem="relaxed")


@triton.jit
def into_one(x_ptr, y_ptr, n, BLOCK: tl.constexpr, HOW: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    y_ptrs, mask = y_ptr + tl.zeros([BLOCK], tl.int32), (offs < n) & (offs % 3 == 1)
    if HOW == "add":
        tl.atomic_add(y_ptrs, x, mask=mask, sem="relaxed")
    elif HOW == "max":
        tl.atomic_max(y_ptrs, x, mask=mask, sem="relaxed")
    elif HOW == "min":
        tl.atomic_min(y_ptrs, x, mask=mask, sem="relaxed")
    elif HOW == "and":
        tl.atomic_and(y_ptrs, x, mask=mask, sem="relaxed")
    elif HOW == "or":
        tl.atomic_or(y_ptrs, x, mask=mask, sem="relaxed")
    else:
        tl.atomic_xor(y_ptrs, x, mask=mask, sem="relaxed")


@triton.jit
def sums_of_rounds(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    total, rounds, most = 0.0, 0, float("-inf")
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + start + tl.arange(0, BLOCK))
        total += tl.sum(x * x, 0)
        most = tl.maximum(most, tl.max(x, 0))
        rounds += 1
    tl.store(y_ptr, total / rounds)
    tl.store(y_ptr + 1, most)


@triton.jit
def mixed_up(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + (offs ^ 64)))


def test_a_tile_that_is_kept_is_tried() -> None:
    (found,) = said("read-again", read_twice, {**XY, "n": 1008}, {"BLOCK": 1024})
    assert "tried keeping the tile: bytes moved" in found.change
    assert found.change.endswith("and the same is stored)")


def test_a_tile_that_is_kept_has_the_second_load_s_fill() -> None:
    args = {"x_ptr": "*i32", "y_ptr": "*i32", "n": 1008}
    (found,) = said("read-again", least_and_many, args, {"BLOCK": 1024})
    assert found.change.endswith("and the same is stored)")


def test_a_window_beside_another_is_not_the_same_tile() -> None:
    (found,) = said("read-again", windows, {**XY, "n": 5000}, {"BLOCK": 1024}, grid=5)
    assert found.quiet


@pytest.mark.skipif(
    TRITON >= (3, 9),
    reason="this Triton's layout follows the other dim: its loads are called narrow instead",
)
def test_a_tile_that_is_transposed_is_tried() -> None:
    """Its other dim is contiguous, which no argument says."""
    args = {**XY, "stride_m": 64, "stride_n": 1}
    (found,) = said("wasted-sectors", columns, args, {"B": 64})
    assert found.severity == "warning"
    assert "tried transposing the tile: bytes moved" in found.change


def test_atomics_that_are_folded_first_are_tried() -> None:
    args = {"x_ptr": "*fp32", "y_ptr": "*i32", "n": 5000}
    (found,) = said("per-element-atomic", count_above, args, {"BLOCK": 1024, "ONE": True}, grid=5)
    assert "tried folding the tile first: atomics" in found.change
    assert "-> 3, and the same is stored" in found.change
    (found,) = said("per-element-atomic", count_above, args, {"BLOCK": 1024, "ONE": False}, grid=5)
    assert "not tried: its elements go to several places" in found.change


@pytest.mark.parametrize(
    ("how", "element", "start"),
    [("add", "i32", 3), ("max", "i32", -9), ("min", "i32", 9), ("and", "i32", -1), ("or", "i32", 0), ("xor", "i64", 5),
     ("max", "i64", -9), ("add", "fp32", 3)],
)  # fmt: skip
def test_an_atomic_of_each_kind_is_folded_first(how: str, element: str, start: int) -> None:
    """Elements that are masked off are no part of the fold, whatever they hold."""
    dtype = {"i32": torch.int32, "i64": torch.int64, "fp32": torch.float32}[element]
    x = torch.randint(-1000, 1000, (256,), dtype=dtype) if element != "fp32" else torch.randn(256)
    args = {"x_ptr": x, "y_ptr": torch.full((1,), start, dtype=dtype), "n": 200}
    (found,) = said("per-element-atomic", into_one, args, {"BLOCK": 256, "HOW": how})
    assert "-> 1, and the same is stored" in found.change


def test_folds_behind_a_loop_are_tried_together() -> None:
    (found,) = said("fold-in-loop", sums_of_rounds, {**XY, "n": 4096}, {"BLOCK": 512})
    assert found.also
    assert "(tried one fold behind the loop: barriers" in found.change
    # Triton 3.9 folds in another order, so that a sum behind the loop rounds otherwise.
    assert found.change.endswith(f"and the same is stored{' but for rounding' if TRITON >= (3, 9) else ''})")


def test_promises_that_the_addresses_keep_are_tried() -> None:
    (found,) = said("scalar-access", mixed_up, XY, {"BLOCK": 1024})
    assert "tried both promises: requests to global memory" in found.change

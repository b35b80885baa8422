"""`offset-overflow`: an error names a program in which an offset wraps; bounds that no program reaches are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

from tilefold import xray
from tilefold.xray.report.model import Observation
from xray.observe.planted import XY, copy_rows


def overflows(
    kernel: Any, args: dict[str, Any], constants: dict[str, Any], **given: Any
) -> list[Observation]:
    report = xray.explain(kernel, args, constants, run=False, **given)
    return [o for o in report.observations if o.code == "offset-overflow"]


@triton.jit
def grouped(x_ptr, y_ptr, rows, stride, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    """Rows in groups: first + pid % size is below rows in every program, and its bounds alone are not."""
    pid = tl.program_id(0)
    first = pid // GROUP * GROUP
    row = first + pid % tl.minimum(rows - first, GROUP)
    offs = row * stride + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs))


@triton.jit
def masked_end(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(y_ptr + offs, x, mask=offs < n)


@triton.jit
def in_rounds(x_ptr, y_ptr, rows, stride, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    for row in range(rows):
        tl.store(y_ptr + row * stride + offs, tl.load(x_ptr + row * stride + offs))


def test_a_program_is_named_in_which_it_wraps() -> None:
    args = {**XY, "rows": 70000, "stride": 65536}
    (found,) = overflows(copy_rows, args, {"BLOCK": 1024, "WIDE": False}, grid=70000)
    assert found.severity == "error"
    assert f"would have to be {69999 * 65536} in program (69999, 0, 0)" in found.evidence


def test_bounds_that_no_program_reaches_are_no_error() -> None:
    """32767 rows of 65536 end just below 2^31; one group more would not."""
    args = {**XY, "rows": 32766, "stride": 65536}
    assert not overflows(grouped, args, {"BLOCK": 1024, "GROUP": 64}, grid=32766)
    (found,) = overflows(grouped, {**args, "rows": 32800}, {"BLOCK": 1024, "GROUP": 64}, grid=32800)
    assert found.severity == "error"


def test_elements_behind_a_mask_may_wrap() -> None:
    n = 2**31 - 100
    grid = -(-n // 1024)
    assert not overflows(masked_end, {**XY, "n": n}, {"BLOCK": 1024}, grid=grid)


def test_a_loop_s_last_round_is_looked_at() -> None:
    (found,) = overflows(in_rounds, {**XY, "rows": 40000, "stride": 65536}, {"BLOCK": 1024})
    assert f"have to be {39999 * 65536}" in found.evidence or f"{39999 * 65536 + 1023}" in found.evidence


@triton.jit
def looked_up(x_ptr, i_ptr, j_ptr, y_ptr, n, stride, HOW: tl.constexpr, R: tl.constexpr, B: tl.constexpr):
    """Rows of x, or of y, at loaded places."""
    rows, columns = tl.arange(0, R), tl.arange(0, B)
    there = rows < n
    near = y_ptr + rows[:, None] * B + columns[None, :]
    if HOW == "one":
        i = tl.load(i_ptr + 3)
        tl.store(y_ptr + columns, tl.load(x_ptr + i * stride + columns))
    elif HOW == "rows":
        i = tl.load(i_ptr + rows, mask=there, other=0)
        tl.store(
            near, tl.load(x_ptr + i[:, None] * stride + columns[None, :], mask=there[:, None], other=0.0)
        )
    elif HOW == "wide":
        i = tl.load(i_ptr + rows, mask=there, other=0).to(tl.int64)
        tl.store(
            near, tl.load(x_ptr + i[:, None] * stride + columns[None, :], mask=there[:, None], other=0.0)
        )
    elif HOW == "sentinel":
        i = tl.load(i_ptr + rows)
        used = (i < 1000)[:, None]
        tl.store(near, tl.load(x_ptr + i[:, None] * stride + columns[None, :], mask=used, other=0.0))
    elif HOW == "scattered":
        i = tl.load(i_ptr + rows, mask=there, other=0)
        tl.store(x_ptr + i[:, None] * stride + columns[None, :], tl.load(near), mask=there[:, None])
    elif HOW == "atomic":
        i = tl.load(i_ptr + rows, mask=there, other=0)
        tl.atomic_add(
            x_ptr + i[:, None] * stride + columns[None, :], tl.load(near), mask=there[:, None], sem="relaxed"
        )
    elif HOW == "twice":
        i = tl.load(i_ptr + tl.load(j_ptr + rows), mask=there, other=0)
        tl.store(
            near, tl.load(x_ptr + (i * stride)[:, None] + columns[None, :], mask=there[:, None], other=0.0)
        )
    elif HOW == "loop":
        for row in range(n):
            i = tl.load(i_ptr + row)
            base = i * stride
            tl.store(y_ptr + row * B + columns, tl.load(x_ptr + base + columns))
    elif HOW == "hashed":
        i = tl.load(i_ptr + rows) * 1000003 % 64
        tl.store(near, tl.load(x_ptr + i[:, None] * B + columns[None, :]))


FAR = np.array([5, 600_000, 7, 1_000_000, 2_000_000, 9, 11, 13], np.int32)
NEAR = np.arange(8, dtype=np.int32) * 60_000
TURN = np.arange(8, dtype=np.int32)[::-1].copy()


def of_loaded(how: str, table: Any, size: str = "*fp32", **given: Any) -> list[Observation]:
    args = {"x_ptr": size, "i_ptr": table, "j_ptr": TURN, "y_ptr": "*fp32", "n": 6, "stride": 4096}
    report = xray.explain(looked_up, args, {"HOW": how, "R": 8, "B": 64}, num_warps=1, **given)
    assert report.executed, report.notes
    return [o for o in report.observations if o.code in ("offset-overflow", "out-of-bounds")]


@pytest.mark.parametrize(
    ("how", "size"),
    [
        ("one", "*fp32"), ("rows", "*fp32[8200000000]"), ("scattered", "*fp32[8200000000]"), ("atomic", "*fp32"),
        ("twice", "*fp32"), ("loop", "*fp32"),
    ],
)  # fmt: skip
def test_an_offset_of_a_loaded_index_that_wraps(how: str, size: str) -> None:
    """Of a sized array nothing else is said: the wrap is why it is left."""
    (found,) = of_loaded(how, FAR, size)
    assert (found.code, found.severity) == ("offset-overflow", "error")
    row = 1_000_000 if how == "one" else 2_000_000
    assert f"with offsets of 64 bits it reaches x_ptr[{row * 4096 + 63}]" in found.evidence
    assert "tl.load(...).to(tl.int64) (tried" in found.change


@pytest.mark.parametrize(
    ("how", "table"),
    [
        ("rows", NEAR), ("wide", FAR), ("scattered", NEAR), ("twice", NEAR), ("loop", NEAR), ("sentinel", FAR),
        ("hashed", NEAR), ("rows", FAR.astype(np.int64)), ("rows", "*i32"),
    ],
)  # fmt: skip
def test_an_offset_of_a_loaded_index_that_fits(how: str, table: Any) -> None:
    """In 64 bits, by the table's values, or behind a mask; of a table that nobody gave nothing is known."""
    assert not of_loaded(how, table)

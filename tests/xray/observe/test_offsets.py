"""`offset-overflow`: an error names a program in which an offset wraps; bounds that no program reaches are none."""

from __future__ import annotations

from typing import Any

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

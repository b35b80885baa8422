"""`out-of-bounds`: how many lanes reach out of an array, and how far."""

from __future__ import annotations

import pytest
import triton
import triton.language as tl

from tilefold import xray
from xray.observe.planted import copy_beyond


@pytest.mark.parametrize(("held", "lanes"), [(1024, 0), (1023, 1), (1021, 1), (1020, 1), (1019, 2)])
def test_a_vector_that_straddles_an_array_s_end_is_outside(held: int, lanes: int) -> None:
    """Vectors of four: the last one begins in the array wherever it does not hold all of it."""
    args = {"x_ptr": f"*fp32[{held}]", "y_ptr": "*fp32[1024]", "n": held}
    report = xray.explain(copy_beyond, args, {"BLOCK": 1024})
    found = [dict(o.numbers) for o in report.observations if o.code == "out-of-bounds"]
    assert found == [{"lanes": lanes, "element": 1023, "size": held}] * (lanes > 0)


@triton.jit
def rows_of_first(x_ptr, y_ptr, stride, n, BLOCK: tl.constexpr):
    """The programs of the first column copy a row each."""
    head, row, offs = tl.program_id(0), tl.program_id(1), tl.arange(0, BLOCK)
    mask = (offs < n) & (head < 1)
    tl.store(y_ptr + row * n + offs, tl.load(x_ptr + row * stride + offs, mask=mask), mask=mask)


@pytest.mark.parametrize(("held", "lanes"), [(7 * 60 + 40, 0), (7 * 60 + 30, 10), (7 * 60, 40)])
def test_a_program_that_is_not_among_the_first_ones_executed_reaches_outside(held: int, lanes: int) -> None:
    """Executed are the first program, a middle and the last one, of which the latter two move nothing."""
    args = {"x_ptr": f"*fp32[{held}]", "y_ptr": "*fp32[320]", "stride": 60, "n": 40}
    report = xray.explain(rows_of_first, args, {"BLOCK": 128}, grid=(3, 8))
    found = [o for o in report.observations if o.code == "out-of-bounds"]
    assert [dict(o.numbers)["lanes"] for o in found] == [lanes] * (lanes > 0)
    assert all("of program (0, 7, 0)" in o.evidence for o in found)


@triton.jit
def outer(a_ptr, b_ptr, c_ptr, B: tl.constexpr):
    offs = tl.arange(0, B)
    a = tl.load(a_ptr + tl.program_id(0) * B + offs)
    b = tl.load(b_ptr + tl.program_id(1) * 3 % 8 * B + offs)
    tl.store(c_ptr + (tl.program_id(0) * 8 + tl.program_id(1)) * B + offs, a * b)


def test_a_second_operand_that_another_program_leaves_is_found_too() -> None:
    """a ends within the programs that are executed, b in none of them."""
    report = xray.explain(
        outer, {"a_ptr": f"*fp32[{7 * 128}]", "b_ptr": f"*fp32[{8 * 128 - 1}]", "c_ptr": "*fp32"}, {"B": 128}, grid=(8, 8)
    )  # fmt: skip
    said = "; ".join(o.evidence for o in report.observations if o.code == "out-of-bounds")
    assert "reach outside of a_ptr: element 1023 of 896" in said
    assert "of program (0, 5, 0) reach outside of b_ptr: element 1023 of 1023" in said

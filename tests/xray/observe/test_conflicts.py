"""`bank-conflict` and `layout-in-loop` name their cause: an operand that is turned, two layouts and who wants them."""

from __future__ import annotations

import re

import pytest
import triton
import triton.language as tl

from tilefold import xray
from xray.observe.planted import XY
from xray.versions import TRITON

OTHER_LAYOUTS = pytest.mark.skipif(
    TRITON >= (3, 9), reason="this Triton's layouts make no such change, or gain nothing here"
)


@triton.jit
def product(a_ptr, b_ptr, c_ptr, K, stride_k, stride_n, B: tl.constexpr):
    m, n, k = tl.arange(0, B), tl.arange(0, B), tl.arange(0, B)
    acc = tl.zeros((B, B), tl.float32)
    for start in range(0, K, B):
        a = tl.load(a_ptr + m[:, None] * K + (start + k)[None, :])
        b = tl.load(b_ptr + (start + k)[:, None] * stride_k + n[None, :] * stride_n)
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + m[:, None] * B + n[None, :], acc)


@triton.jit
def both_ways(x_ptr, y_ptr, rounds, B: tl.constexpr):
    m, n = tl.arange(0, B), tl.arange(0, B)
    acc = tl.zeros([B, B], tl.float32)
    for i in range(rounds):
        here = i * B * B + m[:, None] * B + n[None, :]
        acc += tl.trans(tl.load(x_ptr + here)) * tl.load(y_ptr + here)
    tl.store(y_ptr + m[:, None] * B + n[None, :], acc)


def conflicts(stride_k: int, stride_n: int) -> list[str]:
    args = {
        "a_ptr": "*fp8e4nv", "b_ptr": "*fp8e4nv", "c_ptr": "*fp32", "K": 128, "stride_k": stride_k, "stride_n": stride_n,
    }  # fmt: skip
    report = xray.explain(product, args, {"B": 64})
    return [o.reason + "; " + o.change for o in report.observations if o.code == "bank-conflict"]


def test_an_operand_of_eight_bits_that_is_turned_is_named() -> None:
    (said,) = conflicts(64, 1)
    assert "wgmma takes operands of 8 bits only with K contiguous" in said
    assert "keep this operand in global memory with K contiguous" in said
    assert "num_warps" not in said


def test_an_operand_with_k_contiguous_is_not_turned() -> None:
    assert not any("turned" in said for said in conflicts(1, 128))


def test_both_layouts_are_named_with_the_lines_that_want_them() -> None:
    report = xray.explain(both_ways, {**XY, "rounds": 4}, {"B": 32})
    (found,) = [o for o in report.observations if o.code == "layout-in-loop"]
    assert f"the transpose in line {found.line} has it as" in found.reason
    assert f"the load in line {found.line} wants" in found.reason
    assert "a thread" in found.reason
    assert (found.severity, "nothing was gained by the tile of line" in found.change) == ("note", True)


@triton.jit
def loaded_across(x_ptr, w_ptr, y_ptr, K, B: tl.constexpr):
    """Rows along which no lane goes: the tile's dims stand as the product wants them, and not as they are loaded best."""
    m, k = tl.arange(0, B), tl.arange(0, B)
    acc = tl.zeros([B, B], tl.float32)
    for start in range(0, K, B):
        x = tl.load(
            x_ptr + m[:, None, None] * 2400 + (start + k)[None, :, None] * 30 + tl.arange(0, 1)[None, None, :]
        )
        w = tl.load(w_ptr + (start + k)[:, None] * B + m[None, :])
        acc += tl.dot(tl.reshape(x, [B, B]), w)
    tl.store(y_ptr + m[:, None] * B + m[None, :], acc)


@OTHER_LAYOUTS
def test_a_layout_is_a_warning_where_another_order_of_dims_gains() -> None:
    args = {"x_ptr": "*fp16", "w_ptr": "*fp16", "y_ptr": "*fp32", "K": 128}
    report = xray.explain(loaded_across, args, {"B": 32}, num_warps=2)
    (found,) = [o for o in report.observations if o.code == "layout-in-loop"]
    assert found.severity == "warning"
    assert re.search(
        r"tried the tile of line \d+ in the other order: clocks of all units .*the same", found.change
    )


@triton.jit
def scores_of_a_row(q_ptr, k_ptr, y_ptr, n, B: tl.constexpr, D: tl.constexpr):
    offs, d, one = tl.arange(0, B), tl.arange(0, D), tl.arange(0, 1)
    q = tl.load(q_ptr + one[:, None] + d[None, :])
    most = tl.full([1], float("-inf"), tl.float32)
    for start in range(0, n, B):
        k = tl.load(k_ptr + (start + offs)[:, None] * D + d[None, :])
        scores = tl.dot(q, tl.trans(k)) * 0.5
        most = tl.maximum(most, tl.max(scores))
    tl.store(y_ptr + one, most)


@OTHER_LAYOUTS
def test_the_operand_of_a_product_is_no_part_of_a_change_of_layout() -> None:
    args = {"q_ptr": "*fp16", "k_ptr": "*fp16", "y_ptr": "*fp32", "n": 128}
    report = xray.explain(scores_of_a_row, args, {"B": 32, "D": 64})
    (found,) = [o for o in report.observations if o.code == "layout-in-loop"]
    (line,) = [x for x in report.lines if x.line == found.line]
    matrices = 4 * 32  # passes of ldmatrix: a warp takes four in a round
    assert sum(a.passes or 0 for a in line.accesses) - dict(found.numbers)["passes"] == matrices

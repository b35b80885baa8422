"""`scalar-access`: what one thread holds decides, and the argument that is named is the one that matters."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from tilefold import xray
from tilefold.xray.report.model import Observation


def narrow(kernel: Any, args: dict[str, Any], constants: dict[str, Any], **given: Any) -> list[Observation]:
    report = xray.explain(kernel, args, constants, **given)
    return [o for o in report.observations if o.code == "scalar-access"]


@triton.jit
def dequantised(q_ptr, scale_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(q_ptr + offs).to(tl.float32) * tl.load(scale_ptr + offs // 32)
    tl.store(y_ptr + offs, y)


@triton.jit
def every_other(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + 2 * offs))


@triton.jit
def rows(x_ptr, y_ptr, n, stride_x, stride_y, unused, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + offs, mask=offs < n)
    tl.store(y_ptr + row * stride_y + offs, x + unused, mask=offs < n)


def test_scales_of_groups_are_one_place_a_thread() -> None:
    """All threads together read neighbouring scales; each of them reads one, several times."""
    args = {"q_ptr": "*i8", "scale_ptr": "*fp32", "y_ptr": "*fp32"}
    assert not narrow(dequantised, args, {"BLOCK": 1024}, grid=4)


def test_a_stride_of_two_cannot_be_wider() -> None:
    assert not narrow(every_other, {"x_ptr": "*fp32", "y_ptr": "*fp32"}, {"BLOCK": 1024})


def test_only_the_argument_that_matters_is_named() -> None:
    args = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": 1024, "stride_x": 1025, "stride_y": 1024, "unused": 7}
    (found,) = narrow(rows, args, {"BLOCK": 1024}, grid=3)
    assert found.reason.startswith(
        "divisibility: with stride_x a multiple of 16 it is 16 bytes (compiled so)"
    )


def test_two_arguments_that_matter_together_are_both_named() -> None:
    args = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": 1001, "stride_x": 1025, "stride_y": 1024, "unused": 7}
    reasons = sorted(o.reason for o in narrow(rows, args, {"BLOCK": 1024}, grid=3))
    assert [r.partition(" a multiple")[0] for r in reasons] == [
        "divisibility: with n",
        "divisibility: with n and stride_x",
    ]


@triton.jit
def halves(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs // 2))


def test_a_place_that_a_thread_asks_for_twice_is_named() -> None:
    (found,) = narrow(halves, {"x_ptr": "*fp32", "y_ptr": "*fp32"}, {"BLOCK": 1024})
    assert found.reason.startswith("a thread asks for each place 2 times")

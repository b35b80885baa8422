"""`race`: boxes of tensors that arrive later than the program's other accesses to the same memory expect."""

from __future__ import annotations

from typing import Any

import pytest
import triton
import triton.language as tl

from tilefold import xray
from tilefold.xray.report.model import Observation
from xray.versions import TRITON

# From some version on Triton waits until a box is stored whole, so that nothing after it overlaps it: seen in 3.9.
WAITS = TRITON >= (3, 9)
ARGS = {"x_ptr": "*fp32", "y_ptr": "*fp32", "z_ptr": "*fp32"}
B = 32


@triton.jit
def stored_then_read(x_ptr, y_ptr, z_ptr, APART: tl.constexpr, B: tl.constexpr):
    r, c = tl.arange(0, B), tl.arange(0, B)
    box = tl.make_tensor_descriptor(y_ptr, [B, B], [B, 1], [B, B])
    box.store([0, 0], tl.load(x_ptr + r[:, None] * B + c[None, :]) * 2)
    again = tl.load(y_ptr + APART + c[:, None] * B + r[None, :])
    tl.store(z_ptr + r[:, None] * B + c[None, :], again)


@triton.jit
def stored_then_fetched(x_ptr, y_ptr, z_ptr, APART: tl.constexpr, B: tl.constexpr):
    r, c = tl.arange(0, B), tl.arange(0, B)
    box = tl.make_tensor_descriptor(y_ptr, [B, B], [B, 1], [B, B])
    tl.store(y_ptr + APART + r[:, None] * B + c[None, :], tl.load(x_ptr + r[:, None] * B + c[None, :]))
    tl.debug_barrier()
    tl.store(z_ptr + r[:, None] * B + c[None, :], box.load([0, 0]))


@triton.jit
def two_boxes(x_ptr, y_ptr, z_ptr, APART: tl.constexpr, B: tl.constexpr):
    r, c = tl.arange(0, B), tl.arange(0, B)
    box = tl.make_tensor_descriptor(y_ptr, [4 * B, B], [B, 1], [B, B])
    x = tl.load(x_ptr + r[:, None] * B + c[None, :])
    box.store([0, 0], x)
    box.store([B // 2 + APART // B, 0], x + 1)


@triton.jit
def box_by_box(x_ptr, y_ptr, z_ptr, APART: tl.constexpr, B: tl.constexpr):
    source = tl.make_tensor_descriptor(x_ptr, [B, 4 * B], [4 * B, 1], [B, B])
    target = tl.make_tensor_descriptor(x_ptr, [B, 4 * B], [4 * B, 1], [B, B])
    for at in range(0, 4 * B, B):
        target.store([0, at], source.load([0, at]) * 2)


def races(kernel: Any, apart: int) -> list[Observation]:
    report = xray.explain(kernel, ARGS, {"APART": apart, "B": B})
    assert report.executed, report.notes
    return [o for o in report.observations if o.code == "race"]


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (stored_then_read, "threads read there"), (stored_then_fetched, "no fence of the proxies"),
        (two_boxes, "another to the same place"),
    ],
)  # fmt: skip
def test_a_box_that_meets_other_accesses_is_an_error_with_what_is_stored(kernel: Any, said: str) -> None:
    if WAITS and kernel is not stored_then_fetched:
        assert not races(kernel, 0)
        return
    (found,) = races(kernel, 0)
    assert found.severity == "error"
    assert said in found.evidence
    assert " stores " in found.evidence
    assert found.also


@pytest.mark.parametrize("kernel", [stored_then_read, stored_then_fetched, two_boxes])
def test_a_box_beside_other_accesses_is_none(kernel: Any) -> None:
    assert not races(kernel, 2 * B * B)


def test_boxes_changed_in_place_are_none() -> None:
    """Each is loaded before it is stored, and its wait is between."""
    assert not races(box_by_box, 0)

"""`narrow-sum`: sums accumulated in 16 bits, beside float32; and those that lose nothing or are float32 already."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

from tilefold import xray
from tilefold.xray.report.model import Observation

HALVES = {"x_ptr": "*fp16", "y_ptr": "*fp16"}
BRAINS = {"x_ptr": "*bf16", "y_ptr": "*bf16"}


@triton.jit
def summed(x_ptr, y_ptr, n, HOW: tl.constexpr, B: tl.constexpr):
    """n elements, or n rounds of B."""
    offs = tl.arange(0, B)
    kind: tl.constexpr = x_ptr.dtype.element_ty
    x = tl.load(x_ptr + offs)
    if HOW == "sum":
        tl.store(y_ptr, tl.sum(x, 0))
    elif HOW == "rows":
        rows = tl.arange(0, 8)
        tl.store(y_ptr + rows, tl.sum(tl.load(x_ptr + rows[:, None] * B + offs[None, :]), 1))
    elif HOW == "scan":
        tl.store(y_ptr + offs, tl.cumsum(x, 0))
    elif HOW == "wide":
        tl.store(y_ptr, tl.sum(x.to(tl.float32), 0))
    elif HOW == "max":
        tl.store(y_ptr, tl.max(x, 0))
    elif HOW == "chain":
        for i in tl.static_range(1, 8):
            x += tl.load(x_ptr + i * B + offs)
        tl.store(y_ptr + offs, x)
    elif HOW == "residual":
        tl.store(y_ptr + offs, x + tl.load(x_ptr + B + offs))
    elif HOW == "loop":
        total = tl.zeros([B], kind)
        for i in range(n):
            total += tl.load(x_ptr + i * B + offs)
        tl.store(y_ptr + offs, total)
    elif HOW == "loop of a number":
        one = tl.zeros([], kind)
        for i in range(n):
            one += tl.load(x_ptr + i)
        tl.store(y_ptr, one)
    elif HOW == "loop of some":
        total = tl.zeros([B], kind)
        for i in range(n):
            y = tl.load(x_ptr + i * B + offs)
            total = tl.where(y > 0, total + y, total)
        tl.store(y_ptr + offs, total)
    elif HOW == "rounded loop":
        total = tl.zeros([B], kind)
        for i in range(n):
            y = tl.load(x_ptr + i * B + offs).to(tl.float32)
            total = (total.to(tl.float32) + y * y).to(kind)
        tl.store(y_ptr + offs, total)
    elif HOW == "read in the loop":
        total = tl.zeros([B], kind)
        most = tl.full([B], -1000.0, kind)
        for i in range(n):
            total += tl.load(x_ptr + i * B + offs)
            most = tl.maximum(most, total)
        tl.store(y_ptr + offs, total)
        tl.store(y_ptr + B + offs, most)
    elif HOW == "nested":
        total = tl.zeros([B], kind)
        for j in range(2):
            for i in range(n):
                total += tl.load(x_ptr + (j * n + i) * B + offs)
        tl.store(y_ptr + offs, total)
    elif HOW == "loop of a branch":
        total = tl.zeros([B], kind)
        for i in range(n):
            y = tl.load(x_ptr + i * B + offs)
            if i % 8 == 7:
                tl.store(y_ptr + i * B + offs, total)
                total = y
            else:
                if i % 8 != 3:
                    total += y
        tl.store(y_ptr + offs, total)
    elif HOW == "wide loop":
        wide = tl.zeros([B], tl.float32)
        for i in range(n):
            wide += tl.load(x_ptr + i * B + offs)
        tl.store(y_ptr + offs, wide.to(kind))
    elif HOW == "running maximum":
        most = tl.full([B], -1000.0, kind)
        for i in range(n):
            most = tl.maximum(most, tl.load(x_ptr + i * B + offs))
        tl.store(y_ptr + offs, most)


@triton.jit
def product(x_ptr, y_ptr, n, OUT: tl.constexpr, B: tl.constexpr):
    rows, columns = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    total = tl.zeros([B, B], OUT)
    for i in range(n):
        a, b = (
            tl.load(x_ptr + i * B * B + rows * B + columns),
            tl.load(x_ptr + i * B * B + columns * B + rows),
        )
        total = tl.dot(a, b, total, out_dtype=OUT)
    tl.store(y_ptr + rows * B + columns, total)


def narrow(kernel: Any, args: dict[str, Any], constants: dict[str, Any], **given: Any) -> list[Observation]:
    report = xray.explain(kernel, args, constants, **given)
    return [o for o in report.observations if o.code == "narrow-sum"]


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("sum", HALVES), ("sum", BRAINS), ("rows", HALVES), ("scan", HALVES), ("chain", HALVES), ("loop", HALVES),
        ("loop", BRAINS), ("loop of a number", BRAINS), ("loop of some", BRAINS), ("rounded loop", HALVES),
        ("read in the loop", HALVES), ("nested", BRAINS), ("loop of a branch", BRAINS),
    ],
)  # fmt: skip
def test_a_sum_in_16_bits_is_shown_beside_float32(how: str, kind: dict[str, str]) -> None:
    (found,) = narrow(
        summed, {**kind, "n": 60}, {"HOW": how, "B": 64 if "loop" in how or how == "nested" else 1024}
    )
    name = "float16 (10" if kind is HALVES else "bfloat16 (7"
    assert f"accumulated in {name} bits of mantissa): executed, y_ptr[" in found.evidence
    assert " with float32" in found.evidence
    assert found.change.endswith("(tried: that is what comes out then)")


@pytest.mark.parametrize(
    ("how", "x"),
    [
        ("wide", "*fp16"), ("max", "*fp16"), ("residual", "*fp16"), ("wide loop", "*bf16"), ("running maximum", "*fp16"),
        ("sum", np.ones(1024, np.float16)), ("loop", np.ones(64 * 60, np.float16)),
    ],
)  # fmt: skip
def test_a_sum_that_loses_nothing_is_none(how: str, x: Any) -> None:
    """Of float32, of small whole numbers, or no sum."""
    args = {"x_ptr": x, "y_ptr": "*fp32", "n": 60}
    assert not narrow(summed, args, {"HOW": how, "B": 64 if "loop" in how or "running" in how else 1024})


def test_a_sum_that_leaves_the_type_is_a_warning() -> None:
    """And what is widened behind it anyway is not rounded."""
    args = {"x_ptr": np.full(65536, 2, np.float16), "y_ptr": "*fp32", "n": 1}
    (found,) = narrow(summed, args, {"HOW": "sum", "B": 65536}, num_warps=8)
    assert found.severity == "warning"
    assert "y_ptr[0] is inf, and 131072 with float32" in found.evidence


def test_a_count_that_stops_at_2048() -> None:
    args = {"x_ptr": np.ones(64 * 3000, np.float16), "y_ptr": "*fp32", "n": 3000}
    (found,) = narrow(summed, args, {"HOW": "loop", "B": 64}, num_warps=1)
    assert found.severity == "warning"
    assert "is 2048, and 3000 with float32 (64 elements of it differ)" in found.evidence


def test_a_product_that_is_accumulated_in_16_bits() -> None:
    (found,) = narrow(product, {**HALVES, "n": 16}, {"OUT": tl.float16, "B": 32})
    assert found.severity == "warning"
    assert not narrow(product, {**HALVES, "n": 16}, {"OUT": tl.float32, "B": 32})


def test_without_an_execution_it_is_a_note() -> None:
    (found,) = narrow(summed, {**HALVES, "n": 60}, {"HOW": "loop", "B": 64}, run=False)
    assert (found.severity, found.change.endswith("not tried: nothing was executed")) == ("note", True)

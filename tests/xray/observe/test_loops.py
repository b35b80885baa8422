"""`fold-in-loop`: a fold may wait only where nothing in the round needs what it gives."""

from __future__ import annotations

from typing import Any

import pytest
import triton
import triton.language as tl

from tilefold import xray
from xray.observe.planted import XY, total_of_rounds


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

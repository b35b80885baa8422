"""Every stage ends: graphs with very many ways, programs that wait forever, long chains; and what was found is reported."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
from triton.language.extra import libdevice

from tilefold import xray
from tilefold.xray.ir.syntax import Function
from tilefold.xray.observe.values import Element, StoppedError, World
from tilefold.xray.report.machine_code import END, read_code
from tilefold.xray.report.ways import Ways
from xray.observe.planted import multiply_in_rounds


def diamonds(count: int) -> str:
    """Machine code that chooses between two blocks so many times."""
    rows = []
    for i in range(count):
        rows += [
            f"        /*0000*/ @P0 BRA `(.L_x_{3 * i}) ;", "        /*0010*/ FADD R0, R0, R1 ;",
            f"        /*0020*/ BRA `(.L_x_{3 * i + 1}) ;", f".L_x_{3 * i}:", "        /*0030*/ FMUL R0, R0, R1 ;",
            f".L_x_{3 * i + 1}:",
        ]  # fmt: skip
    return "\n".join([*rows, "        /*0040*/ EXIT ;"])


def test_each_block_is_visited_once() -> None:
    start = time.perf_counter()
    code = read_code(diamonds(40))
    assert code is not None
    assert END in code.blocks
    assert len(code.blocks) >= 3 * 40
    assert time.perf_counter() - start < 5


def test_too_many_ways_are_not_listed() -> None:
    code = read_code(diamonds(40))
    assert code is not None
    assert Ways(code).too_many
    few = read_code(diamonds(5))
    assert few is not None
    assert not Ways(few).too_many


@triton.jit
def hyperbolic(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, libdevice.tanh(tl.load(x_ptr + offs)))


def test_a_branch_an_element_is_reported_with_a_note() -> None:
    start = time.perf_counter()
    report = xray.explain(hyperbolic, {"x_ptr": "*fp32", "y_ptr": "*fp32"}, {"BLOCK": 4096})
    assert report.executed
    assert time.perf_counter() - start < 60


@triton.jit
def locked(x_ptr, y_ptr, lock_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(y_ptr + offs, x)


def spinning(lock: int) -> xray.Report:
    args: dict[str, Any] = {"x_ptr": "*fp32", "y_ptr": "*fp32", "lock_ptr": np.full(1, lock, np.int32)}
    return xray.explain(locked, args, {"BLOCK": 128}, grid=4)


def test_a_lock_that_stays_shut_stops_the_execution_and_not_the_report() -> None:
    start = time.perf_counter()
    report = spinning(1)
    assert time.perf_counter() - start < 30
    assert not report.executed
    assert any("a loop that changes nothing any more" in n and "PTX line" in n for n in report.notes)
    assert report.lines


def test_programs_before_the_one_that_waits_forever_are_kept() -> None:
    """The first program shuts the lock, and nobody opens it."""
    report = spinning(0)
    assert report.programs == ((0, 0, 0),)
    assert any(n.startswith("Not all executed: program (2, 0, 0): a program must end") for n in report.notes)
    assert report.totals.bytes_moved


def test_steps_over_elements_are_bounded() -> None:
    world = World(Function("", (), (), {}), {}, (1, 1, 1), steps=3)
    for name in "abc":
        Element(world, 0, 0).value(name)
    with pytest.raises(StoppedError, match="too many steps"):
        Element(world, 0, 0).value("d")


@triton.jit
def long_chain(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    for _ in tl.static_range(1500):
        x = x * 1.5 + 0.25
    tl.store(y_ptr, tl.sum(x, 0))


def test_a_chain_longer_than_python_s_stack_is_followed() -> None:
    report = xray.explain(
        long_chain, {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": 100}, {"BLOCK": 128}, run=False
    )
    assert "wrong-fill" in report.codes()


def test_a_program_that_needs_more_shared_memory_than_there_is_does_not_run() -> None:
    args = {"a_ptr": "*fp32", "b_ptr": "*fp32", "c_ptr": "*fp32", "stride": 512, "K": 512}
    report = xray.explain(multiply_in_rounds, args, {"B": 128}, num_stages=5, num_warps=8)
    assert not report.executed
    assert any("must fit into 232448 bytes of shared memory" in note for note in report.notes)

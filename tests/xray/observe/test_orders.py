"""`race` between a load and a store: what the order of warps decides, and what it does not."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import triton
import triton.language as tl

from tilefold import xray
from tilefold.xray.compile.offline import compile_job
from tilefold.xray.execution import execute
from tilefold.xray.explain import make_job
from tilefold.xray.machine.run import Turns
from tilefold.xray.observe.trials import difference
from tilefold.xray.ptx import parse
from tilefold.xray.report.model import Observation
from xray.observe.planted import XY, multiply, total


@triton.jit
def turned_through_memory(x_ptr, t_ptr, y_ptr, BLOCK: tl.constexpr, WAIT: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(t_ptr + offs, tl.load(x_ptr + offs))
    if WAIT:
        tl.debug_barrier()
    tl.store(y_ptr + offs, tl.load(t_ptr + BLOCK - 1 - offs))


@triton.jit
def doubled_in_place(x_ptr, y_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, COPY: tl.constexpr):
    """Every row of threads reads all of x; one of them writes it."""
    columns, rows = tl.arange(0, COLUMNS), tl.arange(0, ROWS)
    x = tl.load(x_ptr + columns)
    tl.store(x_ptr + columns, 2 * x)
    if COPY:
        tl.store(y_ptr + rows[:, None] * COLUMNS + columns[None, :], x[None, :] + rows[:, None])


@triton.jit
def transposed_in_place(x_ptr, N: tl.constexpr):
    n = tl.arange(0, N)
    tl.store(x_ptr + n[None, :] * N + n[:, None], tl.load(x_ptr + n[:, None] * N + n[None, :]))


def raced(kernel: Any, args: dict[str, Any], constants: dict[str, Any], **given: Any) -> list[Observation]:
    report = xray.explain(kernel, args, constants, **given)
    assert report.executed, report.notes
    return [o for o in report.observations if o.code == "race"]


def test_what_other_warps_stored_is_loaded_without_a_barrier() -> None:
    args = {**XY, "t_ptr": "*fp32"}
    (found,) = raced(turned_through_memory, args, {"BLOCK": 256, "WAIT": False})
    assert found.severity == "error"
    assert len(found.lines) == 2
    assert (
        "and no barrier is between: with warps in another order program (0, 0, 0) stores y_ptr["
        in found.evidence
    )
    assert "tl.debug_barrier() between the two (tried: then every order stores the same)" in found.change
    assert not raced(turned_through_memory, args, {"BLOCK": 256, "WAIT": True})


def test_what_several_warps_read_and_one_writes() -> None:
    (found,) = raced(doubled_in_place, XY, {"ROWS": 16, "COLUMNS": 64, "COPY": True})
    assert "reads x_ptr[" in found.evidence


def test_a_copy_that_nobody_uses_decides_nothing() -> None:
    """All warps read x as well, but what they read goes nowhere."""
    assert not raced(doubled_in_place, XY, {"ROWS": 16, "COLUMNS": 64, "COPY": False})


def test_a_change_of_layout_has_a_barrier() -> None:
    assert not raced(transposed_in_place, {"x_ptr": "*fp32"}, {"N": 64})


HALVES = {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp32"}


@pytest.mark.parametrize(
    ("kernel", "args", "constants"),
    [
        (total, XY, {"BLOCK": 1024}),
        (multiply, HALVES, {"M": 64, "N": 64, "K": 64, "PRECISION": "tf32"}),
    ],
    ids=["shuffles and barriers", "matrices of four warps"],
)
def test_warps_come_out_alike_in_any_order(
    kernel: Any, args: dict[str, Any], constants: dict[str, Any]
) -> None:
    compiled = compile_job(make_job(kernel, args, constants))
    first, *others = (
        execute(compiled, parse(compiled.ptx), [(0, 0, 0)], turns=t).memory for t in get_args(Turns)
    )
    assert all(difference(compiled, first, other, exact=True) is None for other in others)

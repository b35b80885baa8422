"""One cause is one entry; what nothing can be done about is counted in a line; and what fails a run."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import triton
import triton.language as tl
from rich.console import Console

from tilefold import xray
from tilefold.errors import ArgumentError
from tilefold.xray.check import failing
from tilefold.xray.observe.joined import ASTRAY, PIECES, joined
from tilefold.xray.render.diff import differs, render_diff
from tilefold.xray.render.terminal import render_report
from tilefold.xray.report.model import Observation
from xray.observe.planted import PLANTED, XY, Plant, add_a_tile, exponential, maximum


def observation(code: str, line: int, reason: str = "why", **given: Any) -> Observation:
    return Observation(code, "warning", "k.py", line, f"line {line}", reason, "do", **given)


def test_lines_of_one_cause_are_one_entry_at_the_costliest() -> None:
    found = [
        observation("a", 1, cycles_at_stake=1),
        observation("a", 2, cycles_at_stake=5),
        observation("b", 1),
    ]
    first, second = joined(found)
    assert (first.line, first.lines, first.cycles_at_stake, first.evidence) == (
        2,
        (2, 1),
        6,
        "line 2; line 1: line 1",
    )
    assert second.code == "b"


def test_reasons_that_differ_stay_two() -> None:
    assert len(joined([observation("a", 1), observation("a", 2, "another")])) == 2


def test_sectors_of_rows_that_nothing_divides_go_with_their_narrow_accesses() -> None:
    """Of eight requests of 2 bytes a lane, one of 16 is left, which still reaches into one sector more."""
    narrow = replace(
        observation(
            "scalar-access", 1, "divisibility: with n a multiple of 16; the pointer may not be aligned"
        ),
        numbers=(("bytes", 2), ("possible", 16)),
    )
    astray = observation("wasted-sectors", 1, ASTRAY, bytes_at_stake=64)
    (one,) = joined([narrow, astray])
    assert (one.code, one.bytes_at_stake, one.evidence) == ("scalar-access", 56, "line 1; line 1")
    assert len(joined([narrow, replace(astray, line=2)])) == 2
    assert len(joined([narrow, replace(astray, reason="a stride")])) == 2


@triton.jit
def layer_norm(x_ptr, y_ptr, w_ptr, stride, n, BLOCK: tl.constexpr):
    x_ptr += tl.program_id(0) * stride
    y_ptr += tl.program_id(0) * stride
    mean = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        mean += tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    middle = tl.sum(mean, 0) / n
    square = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.where(offs < n, tl.load(x_ptr + offs, mask=offs < n, other=0.0) - middle, 0.0)
        square += x * x
    scale = tl.rsqrt(tl.sum(square, 0) / n + 1e-5)
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        w = tl.load(w_ptr + offs, mask=offs < n)
        x = tl.load(x_ptr + offs, mask=offs < n)
        tl.store(y_ptr + offs, (x - middle) * scale * w, mask=offs < n)


def test_a_layer_norm_of_an_odd_length_has_a_cause_an_entry() -> None:
    args = {"x_ptr": "*fp32", "y_ptr": "*fp32", "w_ptr": "*fp32", "stride": 1151, "n": 1151}
    report = xray.explain(layer_norm, args, {"BLOCK": 1024}, grid=64)
    narrow = [o for o in report.observations if o.code == "scalar-access"]
    assert len({o.reason for o in narrow}) == len(narrow)
    assert sum(len(o.lines) for o in narrow) == 5
    assert not [o for o in report.observations if o.code == "wasted-sectors" and o.reason.startswith(ASTRAY)]
    (again,) = [o for o in report.observations if o.code == "read-again"]
    assert len(again.lines) == 2, "x is read three times"
    assert "wrong-fill" not in report.codes()


def printed(renderable: Any) -> str:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def test_what_nothing_can_be_done_about_is_a_line_unless_asked_for() -> None:
    report = xray.explain(exponential, XY, {"BLOCK": 128})
    assert report.codes() == ("approximate-math",)
    few, all_ = printed(render_report(report)), printed(render_report(report, everything=True))
    assert "Nothing to do about approximate-math (--all shows them)." in few
    assert "No observations." in few
    assert "libdevice" not in few
    assert "libdevice" in all_
    assert "Nothing to do about" not in all_


def test_equal_reports_are_said_to_be_equal() -> None:
    report = xray.explain(exponential, XY, {"BLOCK": 128})
    assert not differs(report, report)
    assert "Nothing differs." in printed(render_diff(report, report))
    other = xray.explain(exponential, XY, {"BLOCK": 256})
    assert differs(report, other)
    assert "Nothing differs." not in printed(render_diff(report, other))


def test_what_a_run_is_to_fail_for() -> None:
    report = xray.explain(maximum, {**XY, "n": 1000}, {"BLOCK": 1024, "FILL": 0.0})
    assert {o.code for o in failing(report, "error")} == {"wrong-fill"}
    assert {o.severity for o in failing(report, "warning")} == {"error", "warning"}
    assert [o.code for o in failing(report, "scalar-access")] == ["scalar-access"]
    with pytest.raises(ArgumentError, match="must be error, warning or a code, got 'often'"):
        failing(report, "often")


def test_a_tile_that_is_added_to_memory_by_atomics() -> None:
    report = xray.explain(add_a_tile, XY, {"BLOCK": 1024}, grid=8)
    (found,) = [o for o in report.observations if o.code == "per-element-atomic"]
    assert re.match(r"a tile of 1024 is added to memory by \d+ atomics of a program", found.evidence)
    assert "per-element-atomic" not in xray.explain(add_a_tile, XY, {"BLOCK": 128}, grid=8).codes()


def test_a_race_shows_what_two_threads_write() -> None:
    plant: Plant = PLANTED["race"][0]
    report = xray.explain(plant.kernel, plant.args, plant.constants)
    (found,) = [o for o in report.observations if o.code == "race"]
    assert "y_ptr[0] gets " in found.evidence
    assert "from thread 0 and" in found.evidence
    assert found.severity == "error"


@triton.jit
def products_of_rows(x_ptr, y_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    """Lanes that hold copies of a row's sum add it in other orders: the first product is rounded, or fused."""
    rows = tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :]
    at = rows[:, :, None] * C + tl.arange(0, C)[None, None, :]
    tl.store(y_ptr + rows, tl.sum(tl.load(x_ptr + at) * tl.load(x_ptr + A * B * C + at), 2))


@pytest.mark.parametrize(("rows", "length"), [((2, 4), 16), ((4, 2), 16), ((2, 2), 32)])
def test_the_compiler_s_own_scratch_is_no_race_of_the_kernel(rows: tuple[int, int], length: int) -> None:
    """Copies of one sum that differ in the last bits are written to shared memory; memory of the kernel gets one of them."""
    report = xray.explain(products_of_rows, XY, {"A": rows[0], "B": rows[1], "C": length})
    assert report.executed, report.notes
    assert "race" not in report.codes()


def test_what_each_line_costs_is_told_beside_the_line() -> None:
    """Sectors of one reason at three lines, two of which share their entry: each goes with its own line's."""
    narrow = [
        observation("scalar-access", 1, "divisibility: with n a multiple of 4"),
        observation("scalar-access", 2, "divisibility: with n a multiple of 4"),
        observation("scalar-access", 3, "divisibility: with m a multiple of 4"),
    ]
    pieces = [
        replace(observation("wasted-sectors", n, f"{PIECES}16"), evidence=f"sectors {n}", bytes_at_stake=n)
        for n in (1, 2, 3)
    ]
    one, other = joined([*narrow, *pieces])
    assert (one.lines, one.bytes_at_stake, one.evidence) == (
        (2, 1), 3, "line 2; sectors 2; line 1: line 1; sectors 1",
    )  # fmt: skip
    assert (other.lines, other.bytes_at_stake, other.evidence) == ((3,), 3, "line 3; sectors 3")

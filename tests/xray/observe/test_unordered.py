"""`race` between programs: what two of them write, or one writes and another reads, where no atomic orders them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

from tilefold import xray
from tilefold.xray.report.model import Observation
from xray.observe.planted import XY, take_turns


def raced(
    kernel: Any, args: dict[str, Any], constants: dict[str, Any], grid: int = 4, **given: Any
) -> list[Observation]:
    report = xray.explain(kernel, args, constants, grid=grid, **given)
    assert report.executed, report.notes
    return [o for o in report.observations if o.code == "race"]


@triton.jit
def one_total(x_ptr, y_ptr, HOW: tl.constexpr, B: tl.constexpr):
    """Every program's sum to one place."""
    pid, offs = tl.program_id(0), tl.arange(0, B)
    total = tl.sum(tl.load(x_ptr + pid * B + offs), 0)
    if HOW == "store":
        tl.store(y_ptr, total)
    elif HOW == "add":
        tl.store(y_ptr, tl.load(y_ptr) + total)
    elif HOW == "atomic":
        tl.atomic_add(y_ptr, total, sem="relaxed")
    elif HOW == "flag":
        tl.store(y_ptr, 1.0)
    else:
        tl.store(y_ptr + pid, total)


@triton.jit
def scattered(x_ptr, i_ptr, y_ptr, ATOMIC: tl.constexpr, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    places, x = tl.load(i_ptr + offs), tl.load(x_ptr + offs)
    if ATOMIC:
        tl.atomic_add(y_ptr + places, x, sem="relaxed")
    else:
        tl.store(y_ptr + places, x)


@triton.jit
def shifted_in_place(x_ptr, n, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    right = tl.load(x_ptr + (offs + B) % n)
    tl.store(x_ptr + offs, tl.load(x_ptr + offs) + right)


@triton.jit
def doubled_in_place(x_ptr, n, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x_ptr + offs, 2 * tl.load(x_ptr + offs))


@triton.jit
def first_fills(x_ptr, y_ptr, t_ptr, B: tl.constexpr):
    pid, offs = tl.program_id(0), tl.arange(0, B)
    if pid == 0:
        tl.store(t_ptr + offs, tl.load(x_ptr + offs))
    t = tl.load(t_ptr + offs)
    tl.store(y_ptr + pid * B + offs, t)


@triton.jit
def last_one_sums(x_ptr, y_ptr, part_ptr, count_ptr, COUNTED: tl.constexpr, G: tl.constexpr, B: tl.constexpr):
    pid = tl.program_id(0)
    tl.store(part_ptr + pid, tl.sum(tl.load(x_ptr + pid * B + tl.arange(0, B)), 0))
    tl.debug_barrier()
    last = pid == G - 1
    if COUNTED:
        last = tl.atomic_add(count_ptr, 1) == 2  # of the three programs that are executed
    if last:
        tl.store(y_ptr, tl.sum(tl.load(part_ptr + tl.arange(0, G)), 0))


@triton.jit
def stored_then_counted(x_ptr, y_ptr, count_ptr, B: tl.constexpr):
    offs = tl.arange(0, B)
    tl.store(y_ptr + offs, tl.load(x_ptr + tl.program_id(0) * B + offs))
    tl.atomic_add(count_ptr, 1)


@triton.jit
def taken_slots(x_ptr, y_ptr, count_ptr):
    at = tl.atomic_add(count_ptr, 1)
    tl.store(y_ptr + at, tl.load(x_ptr + tl.program_id(0)))


NONE = np.zeros(1, np.int32)
DOUBLE = np.random.default_rng(0).integers(0, 50, 256).astype(np.int32)
ONCE = np.random.default_rng(0).permutation(256).astype(np.int32)


@pytest.mark.parametrize("how", ["store", "add"])
def test_programs_that_write_different_bits_to_one_place(how: str) -> None:
    (found,) = raced(one_total, XY, {"HOW": how, "B": 64})
    assert found.severity == "error"
    assert "programs (0, 0, 0) and (2, 0, 0) write y_ptr[0] without an atomic: " in found.evidence
    assert "use an atomic" in found.change


@pytest.mark.parametrize("how", ["atomic", "apart"])
def test_programs_with_an_atomic_or_a_place_each(how: str) -> None:
    assert not raced(one_total, XY, {"HOW": how, "B": 64})


def test_programs_that_write_the_same_bits_are_a_note() -> None:
    (found,) = raced(one_total, XY, {"HOW": "flag", "B": 64})
    assert (found.severity, found.quiet) == ("note", True)
    assert "the same bits" in found.evidence


def test_places_of_a_table_that_was_given() -> None:
    """Threads of one program share places, and so do programs; a permutation has each once."""
    within, between = raced(scattered, {**XY, "i_ptr": DOUBLE}, {"ATOMIC": False, "B": 64})
    assert {within.severity, between.severity} == {"error"}
    assert "threads of program (0, 0, 0)" in within.evidence
    assert "programs (0, 0, 0) and (2, 0, 0)" in between.evidence
    assert not raced(scattered, {**XY, "i_ptr": ONCE}, {"ATOMIC": False, "B": 64})
    assert not raced(scattered, {**XY, "i_ptr": DOUBLE}, {"ATOMIC": True, "B": 64})


def test_places_that_nobody_gave_are_left_out() -> None:
    assert not raced(scattered, {**XY, "i_ptr": "*i32"}, {"ATOMIC": False, "B": 64})
    assert not raced(taken_slots, {**XY, "count_ptr": "*i32"}, {})
    assert not raced(taken_slots, {**XY, "count_ptr": NONE}, {})


def test_what_another_program_overwrites_in_place() -> None:
    (found,) = raced(shifted_in_place, {"x_ptr": "*fp32", "n": 192}, {"B": 64}, grid=3)
    assert found.severity == "error"
    assert "and no atomic is between: it stores" in found.evidence
    assert len(found.lines) == 2
    assert not raced(doubled_in_place, {"x_ptr": "*fp32", "n": 192}, {"B": 64}, grid=3)


def test_a_table_that_one_program_fills_for_all() -> None:
    args = {**XY, "t_ptr": "*fp32"}
    (found,) = raced(first_fills, args, {"B": 64})
    assert "which program (0, 0, 0) writes in line" in found.evidence


def test_an_atomic_orders_what_stands_before_and_behind_it() -> None:
    args = {**XY, "part_ptr": "*fp32", "count_ptr": NONE}
    assert not raced(last_one_sums, args, {"COUNTED": True, "G": 4, "B": 64})
    (found,) = raced(last_one_sums, args, {"COUNTED": False, "G": 4, "B": 64})
    assert found.severity == "error"
    assert not raced(take_turns, {**XY, "lock_ptr": NONE}, {"BLOCK": 64})


def test_an_atomic_behind_both_orders_nothing() -> None:
    (found,) = raced(stored_then_counted, {**XY, "count_ptr": NONE}, {"B": 64})
    assert found.severity == "error"


@triton.jit
def overhanging(x_ptr, y_ptr, rows, B: tl.constexpr, D: tl.constexpr, FLAT: tl.constexpr):
    """A head has fewer rows than its programs' tiles: the last of one reaches into the first of the next."""
    tile, head, offs = tl.program_id(0), tl.program_id(1), tl.arange(0, B * D)
    if FLAT:
        tile, head = tl.program_id(0) % 2, tl.program_id(0) // 2
    at = head * rows * D + tile * B * D + offs
    tl.store(y_ptr + at, tl.load(x_ptr + at) * (1 + tile))


@pytest.mark.parametrize(
    ("rows", "flat", "races"), [(96, 0, True), (128, 0, False), (96, 1, True), (128, 1, False)]
)
def test_programs_that_are_not_executed_together_are_tried_in_pairs(
    rows: int, flat: int, races: bool
) -> None:
    """The first, a middle and the last program touch nothing of each other's."""
    args, sizes = {"x_ptr": "*fp32", "y_ptr": "*fp32", "rows": rows}, {"B": 64, "D": 16, "FLAT": flat}
    report = xray.explain(overhanging, args, sizes, grid=(12,) if flat else (2, 6))
    found = [o for o in report.observations if o.code == "race"]
    assert [o.severity for o in found] == ["error"] * races
    meeting = "(1, 0, 0) and (2, 0, 0)" if flat else "(1, 0, 0) and (0, 1, 0)"
    assert not races or f"programs {meeting} write y_ptr" in found[0].evidence


@triton.jit
def rows_of_one_grid(x_ptr, y_ptr, n, row, B: tl.constexpr):
    """A grid of tiles for each row, which go on into the rows behind it: (d, s) and (d - 1, s + 1) meet."""
    offs = tl.program_id(1) * row + tl.program_id(0) * B + tl.arange(0, B)
    scale = (1 + tl.program_id(1)).to(tl.float32)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * scale, mask=offs < n)


@pytest.mark.parametrize(("row", "tiles", "meets"), [(1500, 6, True), (2048, 2, False)])
def test_programs_that_are_no_neighbours_meet(row: int, tiles: int, meets: bool) -> None:
    args = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": 4 * row, "row": row}
    report = xray.explain(rows_of_one_grid, args, {"B": 1024}, grid=(tiles, 4))
    found = [o for o in report.observations if o.code == "race"]
    assert [o.severity for o in found] == ["error"] * meets


@triton.jit
def one_by_one_then_whole(x_ptr, y_ptr, BARRIER: tl.constexpr, B: tl.constexpr):
    offs = tl.arange(0, B)
    x = tl.load(x_ptr + offs)
    for k in tl.static_range(4):
        tl.store(y_ptr + k, tl.sum(tl.where(offs == k, x, 0.0)))
    if BARRIER:
        tl.debug_barrier()
    tl.store(y_ptr + offs - B // 2, x * 2, mask=(offs >= B // 2) & (offs < B // 2 + 4))


# One warp; and two, of which the second overwrites what the first has stored.
@pytest.mark.parametrize(("warps", "severity"), [(1, "warning"), (2, "error")])
def test_lanes_of_one_warp_store_in_turn(warps: int, severity: str) -> None:
    """What two instructions of one warp store to a place comes in their order on the chips there are: no error."""
    (found,) = raced(one_by_one_then_whole, XY, {"BARRIER": False, "B": 64}, grid=1, num_warps=warps)
    assert found.severity == severity
    assert "debug_barrier" in found.change
    assert not raced(one_by_one_then_whole, XY, {"BARRIER": True, "B": 64}, grid=1, num_warps=warps)


@triton.jit
def cleared_in_each(x_ptr, y_ptr, B: tl.constexpr):
    tl.store(y_ptr, 0.0)
    tl.atomic_add(y_ptr, tl.sum(tl.load(x_ptr + tl.program_id(0) * B + tl.arange(0, B))))


@triton.jit
def cleared_in_one(x_ptr, y_ptr, B: tl.constexpr):
    if tl.program_id(0) == 0:
        tl.store(y_ptr, 0.0)
    tl.atomic_add(y_ptr, tl.sum(tl.load(x_ptr + tl.program_id(0) * B + tl.arange(0, B))))


@triton.jit
def cleared_by_the_last(x_ptr, y_ptr, count_ptr, B: tl.constexpr):
    tl.store(y_ptr + tl.program_id(0), tl.sum(tl.load(x_ptr + tl.program_id(0) * B + tl.arange(0, B))))
    if tl.atomic_add(count_ptr, 1) == 3:
        tl.store(count_ptr, 0)


@pytest.mark.parametrize("kernel", [cleared_in_each, cleared_in_one])
def test_a_store_takes_away_what_another_program_has_added(kernel: Any) -> None:
    found = [o for o in raced(kernel, XY, {"B": 64}) if o.severity == "error"]
    assert len(found) == 1
    assert "updates y_ptr[0] by an atomic" in found[0].evidence
    assert "y_ptr[0] is" in found[0].evidence


def test_the_last_program_may_clear_what_all_counted() -> None:
    args = {**XY, "count_ptr": NONE}
    assert not [o for o in raced(cleared_by_the_last, args, {"B": 64}) if o.severity == "error"]

"""What is a warning: a share of what the executed programs take at the least."""

from __future__ import annotations

import math

import numpy as np
import pytest
import triton
import triton.language as tl

from tilefold import xray
from tilefold.planner.chips import CHIPS
from tilefold.xray.observe.stakes import clocks, sampled, weighed
from tilefold.xray.render.plain import report_text
from tilefold.xray.report.model import Observation

CHIP = CHIPS["sm_90"]


def observation(code: str, cycles: int, severity: str = "warning") -> Observation:
    return Observation(
        code, severity, "k.py", 1, "numbers", "reason", "change", bytes_at_stake=0, cycles_at_stake=cycles
    )


@pytest.mark.parametrize(
    ("found", "severity"),
    [
        (observation("scalar-access", 80), "warning"),
        (observation("scalar-access", 79), "note"),
        (observation("bank-conflict", 200), "warning"),
        (observation("bank-conflict", 199), "note"),
        (observation("strong-atomic", 1), "warning"),
        (observation("wrong-fill", 1), "warning"),
        (observation("race", 1, "error"), "error"),
        (observation("no-tensor-core", 0), "warning"),
    ],
    ids=[
        "two-percent",
        "less",
        "five-percent-of-passes",
        "less-of-them",
        "waiting",
        "computed",
        "error",
        "not-counted",
    ],
)
def test_less_than_a_share_of_the_least_time_is_a_note(found: Observation, severity: str) -> None:
    assert weighed(found, 1000.0, CHIP).severity == severity


def test_the_share_is_said() -> None:
    assert weighed(observation("bank-conflict", 40), 1000, CHIP).evidence == (
        "numbers; 1.0 % of what a program takes at the least"
    )


def test_without_an_execution_nothing_is_weighed() -> None:
    assert weighed(observation("bank-conflict", 1), None, CHIP).severity == "warning"


@triton.jit
def sums_of_rows(x_ptr, y_ptr, K: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float32)
    for k in range(K):
        sums += tl.load(x_ptr + rows * K + k)
    tl.store(y_ptr + rows, sums)


def of_rows(grid: int) -> Observation:
    report = xray.explain(
        sums_of_rows, {"x_ptr": "*fp32", "y_ptr": "*fp32"}, {"K": 64, "BLOCK": 128}, grid=grid
    )
    (found,) = [o for o in report.observations if o.code == "wasted-sectors"]
    return found


def test_most_of_what_is_asked_of_l2_is_a_warning() -> None:
    """Each lane walks a row: 8 times the bytes are asked of L2, which the next rounds use from L1 at best."""
    found = of_rows(8192)
    assert found.severity == "warning"
    assert found.bytes_at_stake == 8192 * 128 * 64 * (32 - 4)
    assert "nothing to do" not in found.change


def test_stakes_are_of_the_whole_grid_and_in_one_unit() -> None:
    small, large = of_rows(132), of_rows(4 * 132)
    assert large.bytes_at_stake == 4 * small.bytes_at_stake
    assert large.us_at_stake == pytest.approx(4 * small.us_at_stake, rel=0.01)
    assert small.us_at_stake == pytest.approx(128 * 64 * (32 - 4) / 64 / CHIP.clock_mhz, rel=0.01)


@triton.jit
def faults_of_two_kinds(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(y_ptr + offs * 8, x + tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


def test_observations_come_in_the_order_of_what_is_shown() -> None:
    args = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": 99_999}
    report = xray.explain(faults_of_two_kinds, args, {"BLOCK": 1024}, grid=98)
    rank = {"error": 0, "warning": 1, "note": 2}
    order = [(rank[o.severity], -o.us_at_stake) for o in report.observations]
    assert len(order) > 1
    assert order == sorted(order)
    text = report_text(report, everything=True)
    assert text.count(" of the whole launch at the most") == sum(
        o.us_at_stake > 0 for o in report.observations
    )


def test_bytes_go_at_the_rate_of_memory() -> None:
    moved = Observation("wasted-sectors", "warning", "k.py", 1, "", "", "", bytes_at_stake=1987)
    assert clocks(moved, CHIP) == pytest.approx(100, rel=0.01)


@triton.jit
def rows_of_tail(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """The last program has less to do, and its loads cost another share of it than those of the others."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + rows * 16, mask=rows < n, other=0.0)
    tl.store(y_ptr + rows, x)


def test_the_stakes_of_three_programs_are_those_of_all() -> None:
    """Each line is scaled by what the executed programs do at it: where those between are alike, to the byte."""
    args, count = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": 128 * 8 + 24}, 9
    some, every = (
        xray.explain(rows_of_tail, args, {"BLOCK": 128}, grid=count, programs=programs)
        for programs in (None, [(n, 0, 0) for n in range(count)])
    )
    ours, theirs = ({o.code: o.bytes_at_stake for o in r.observations} for r in (some, every))
    assert ours["wasted-sectors"] == theirs["wasted-sectors"] > 0


@triton.jit
def read_twice(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Rows of `n` halves from odd places, in rounds, twice."""
    row, offs = x_ptr + tl.program_id(0) * n, tl.arange(0, BLOCK)
    most = 0.0
    for start in range(0, n, BLOCK):
        most = tl.maximum(most, tl.max(tl.load(row + start + offs, mask=start + offs < n, other=0.0), 0))
    for start in range(0, n, BLOCK):
        x = tl.load(row + start + offs, mask=start + offs < n, other=0.0)
        tl.store(y_ptr + tl.program_id(0) * n + start + offs, x / most, mask=start + offs < n)


def test_what_is_read_again_is_all_that_the_grid_asks_for_there() -> None:
    """Rows of 3000 bytes: a tile that keeps one has 2048 halves, 8 registers of each of 128 threads."""
    report = xray.explain(
        read_twice, {"x_ptr": "*fp16", "y_ptr": "*fp16", "n": 1500}, {"BLOCK": 1024}, grid=20
    )
    (found,) = [o for o in report.observations if o.code == "read-again"]
    assert found.bytes_at_stake == 20 * 3000
    assert dict(found.numbers)["registers"] == 8


@triton.jit
def shifted_rounds(x_ptr, y_ptr, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    most = tl.zeros([BLOCK], tl.float32)
    for start in range(ROUNDS):
        most = tl.maximum(most, tl.load(x_ptr + start + offs))
    for start in range(ROUNDS):
        tl.store(y_ptr + start * BLOCK + offs, tl.load(x_ptr + start + offs) - most)


def test_rounds_that_overlap_are_not_made_one() -> None:
    report = xray.explain(shifted_rounds, {"x_ptr": "*fp32", "y_ptr": "*fp32"}, {"ROUNDS": 3, "BLOCK": 1024})
    (found,) = [o for o in report.observations if o.code == "read-again"]
    assert found.change.startswith("keep the tiles of 3 rounds: they are 24 registers a thread")


@triton.jit
def columns_twice(x_ptr, y_ptr, N, C, BN: tl.constexpr, BC: tl.constexpr):
    """Columns of a matrix, in rounds of `BN` rows, twice."""
    rows, columns = tl.arange(0, BN)[:, None], tl.program_id(0) * BC + tl.arange(0, BC)[None, :]
    most = tl.zeros((BN, BC), tl.float32)
    for start in range(0, N, BN):
        kept = (start + rows < N) & (columns < C)
        most = tl.maximum(most, tl.load(x_ptr + (start + rows) * C + columns, mask=kept, other=0.0))
    for start in range(0, N, BN):
        kept = (start + rows < N) & (columns < C)
        x = tl.load(x_ptr + (start + rows) * C + columns, mask=kept, other=0.0)
        tl.store(y_ptr + (start + rows) * C + columns, x - most, mask=kept)


def test_a_tile_that_is_kept_takes_the_registers_of_its_masked_elements() -> None:
    """Columns 64 to 69 of 70, 3600 bytes: a tile of 256 x 16 has 16 kB, 32 registers of each of 128 threads."""
    args = {"x_ptr": "*fp32", "y_ptr": "*fp32", "N": 150, "C": 70}
    report = xray.explain(columns_twice, args, {"BN": 16, "BC": 16}, grid=5, programs=[(4, 0, 0)])
    (found,) = [o for o in report.observations if o.code == "read-again"]
    assert dict(found.numbers)["registers"] == 32
    assert "one round instead of 10" in found.change


@triton.jit
def ragged_twice(x_ptr, offsets_ptr, y_ptr, LONGEST: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of a ragged array, all in as many rounds as the longest has, twice."""
    first, end = tl.load(offsets_ptr + tl.program_id(0)), tl.load(offsets_ptr + tl.program_id(0) + 1)
    offs, total = first + tl.arange(0, BLOCK), tl.zeros([BLOCK], tl.float32)
    for start in range(0, LONGEST, BLOCK):
        total += tl.load(x_ptr + start + offs, mask=start + offs < end, other=0.0)
    most = tl.sum(total)
    for start in range(0, LONGEST, BLOCK):
        x = tl.load(x_ptr + start + offs, mask=start + offs < end, other=0.0)
        tl.store(y_ptr + start + offs, x / most, mask=start + offs < end)


def test_a_tile_that_is_kept_takes_the_registers_of_rounds_that_are_masked_off() -> None:
    """The executed rows need one round of two; the program has to have both."""
    offsets = np.array([0, 400, 1400, 1900, 2200], np.int32)
    args = {"x_ptr": "*fp32[2200]", "offsets_ptr": offsets, "y_ptr": "*fp32"}
    sizes = {"LONGEST": 1024, "BLOCK": 512}
    report = xray.explain(ragged_twice, args, sizes, grid=4, programs=[(0, 0, 0), (2, 0, 0), (3, 0, 0)])
    (found,) = [o for o in report.observations if o.code == "read-again"]
    assert dict(found.numbers)["registers"] == 2 * 512 // 128


@triton.jit
def rows_around(x_ptr, y_ptr, R, C, BLOCK: tl.constexpr):
    """The rows above and below of a tile."""
    rows, columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    above = tl.load(x_ptr + (rows - 1) * C + columns, mask=(rows > 0) & (columns < C), other=0.0)
    below = tl.load(x_ptr + (rows + 1) * C + columns, mask=(rows < R - 1) & (columns < C), other=0.0)
    tl.store(y_ptr + rows * C + columns, above + below, mask=(rows < R) & (columns < C))


def test_a_window_beside_another_is_not_kept() -> None:
    """Of 32 rows, 30 are in both windows."""
    args = {"x_ptr": "*fp32", "y_ptr": "*fp32", "R": 90, "C": 32}
    report = xray.explain(rows_around, args, {"BLOCK": 32}, grid=3, programs=[(1, 0, 0)])
    (found,) = [o for o in report.observations if o.code == "read-again"]
    assert (found.severity, dict(found.numbers)["bytes"]) == ("note", 30 * 128)
    assert found.change.startswith("nothing to do")


@triton.jit
def rows_of_halves(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0) * n, tl.arange(0, BLOCK)
    tl.store(y_ptr + row + offs, tl.load(x_ptr + row + offs, mask=offs < n), mask=offs < n)


@pytest.mark.parametrize(("length", "count"), [(1000, 30), (1001, 90)])
def test_rows_begin_between_two_sectors_in_turns(length: int, count: int) -> None:
    """Every other row of 2000 bytes begins at a sector; of 2002 bytes one of sixteen."""
    args = {"x_ptr": "*fp16", "y_ptr": "*fp16", "n": length}
    some, every = (
        next(o.bytes_at_stake for o in report.observations if o.code == "scalar-access")
        for programs in (None, [(n, 0, 0) for n in range(count)])
        for report in [xray.explain(rows_of_halves, args, {"BLOCK": 1024}, grid=count, programs=programs)]
    )
    assert some == pytest.approx(every, rel=0.01)


@pytest.mark.parametrize("grid", [(64, 1, 1), (65, 1, 1), (5, 40, 3), (2, 50, 50), (1, 1, 300)])
@pytest.mark.parametrize("alike", [True, False])
def test_sampled_programs_stand_for_the_grid(grid: tuple[int, int, int], alike: bool) -> None:
    programs, many = sampled(grid, 64, alike=alike)
    assert len(set(programs)) == len(programs) <= 64
    assert many.sum() == pytest.approx(math.prod(grid))
    assert all(0 <= n < size for program in programs for n, size in zip(program, grid, strict=True))
    assert not len(sampled(grid, 3, alike=alike)[0])

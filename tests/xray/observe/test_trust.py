"""What is no fault is not called one: cases that kernels of others brought up."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

from tilefold import xray
from tilefold.xray.observe import trials
from tilefold.xray.report.model import Observation
from xray.observe.planted import PLANTED, XY, copy, sum_of_transposed, total_of_rounds
from xray.versions import TRITON

HALVES = {"x_ptr": "*fp16", "y_ptr": "*fp16"}


def found(
    code: str, kernel: Any, args: dict[str, Any], constants: dict[str, Any], **given: Any
) -> list[Observation]:
    report = xray.explain(kernel, args, constants, **given)
    return [o for o in report.observations if o.code == code]


@triton.jit
def wrapped_rows(x_ptr, y_ptr, m, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows, columns = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    x = tl.load(x_ptr + rows % m * COLUMNS + columns)
    tl.store(y_ptr + rows * COLUMNS + columns, x)


@triton.jit
def count_each(i_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    places = tl.load(i_ptr + offs, mask=offs < n, other=0)
    tl.atomic_add(y_ptr + places, 1, mask=offs < n, sem="relaxed")


@triton.jit
def look_up_in_memory(x_ptr, i_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + tl.load(i_ptr + offs)))


@triton.jit
def copy_a_few(x_ptr, y_ptr, stride, FEW: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, FEW)
    tl.store(y_ptr + row * stride + offs, tl.load(x_ptr + row * FEW + offs))


@triton.jit
def products(a_ptr, b_ptr, c_ptr, tiles, B: tl.constexpr):
    rows, columns = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    b = tl.load(b_ptr + rows * B + columns)
    for tile in range(tiles):
        a = tl.load(a_ptr + tile * B * B + rows * B + columns)
        tl.store(c_ptr + tile * B * B + rows * B + columns, tl.dot(a, b).to(tl.float16))


@triton.jit
def one_tap_a_round(x_ptr, y_ptr, TAPS: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for tap in range(TAPS):
        total += tl.load(x_ptr + offs * TAPS + tap).to(tl.float32)
    tl.store(y_ptr + offs, total)


def test_halves_of_a_word_in_two_rounds_are_no_second_reading() -> None:
    args = {"x_ptr": "*fp16", "y_ptr": "*fp32"}
    assert not found("read-again", one_tap_a_round, args, {"TAPS": 9, "BLOCK": 1024})


@triton.jit
def one_product(a_ptr, b_ptr, c_ptr, k, stride, K: tl.constexpr):
    rows, columns, depth = tl.arange(0, 64), tl.arange(0, 32), tl.arange(0, K)
    total = tl.zeros([64, 32], tl.float32)
    for at in range(0, k, K):
        within = at + depth < k
        a = tl.load(a_ptr + rows[:, None] * stride + at + depth[None, :], mask=within[None, :], other=0.0)
        b = tl.load(b_ptr + (at + depth)[:, None] * 32 + columns[None, :], mask=within[:, None], other=0.0)
        total += tl.dot(a, b)
    tl.store(c_ptr + rows[:, None] * 32 + columns[None, :], total)


def test_warps_that_were_tried_and_gain_nothing_are_no_warning() -> None:
    args = {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp32", "k": 75, "stride": 75}
    (older,) = found("older-tensor-core", one_product, args, {"K": 32}, num_warps=2)
    assert older.change.startswith("nothing was gained by num_warps=4: tried") == (older.severity == "note")


def test_pieces_of_a_word_are_no_second_reading() -> None:
    assert not found("read-again", copy, {**HALVES, "n": 3001}, {"BLOCK": 1024}, grid=3)


def test_rows_that_wrap_around_in_one_load_are_no_second_reading() -> None:
    assert not found("read-again", wrapped_rows, {**XY, "m": 32}, {"ROWS": 64, "COLUMNS": 64})


def test_a_loop_of_one_round_has_no_round_to_save() -> None:
    programs = {"grid": 8, "programs": [(n, 0, 0) for n in range(8)]}
    assert not found(
        "fold-in-loop", total_of_rounds, {**XY, "n": 1024}, {"BLOCK": 1024, "WAIT": False}, **programs
    )
    assert not found(
        "layout-in-loop", sum_of_transposed, {**XY, "n": 1}, {"B": 64, "WAIT": False}, **programs
    )


def test_the_result_of_a_product_may_change_its_layout() -> None:
    args = {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp16", "tiles": 8}
    assert not found("layout-in-loop", products, args, {"B": 64})


def test_a_look_up_is_a_note() -> None:
    table = np.random.default_rng(0).permutation(4096).astype(np.int32)[:512]
    (gather,) = found("wasted-sectors", look_up_in_memory, {**XY, "i_ptr": table}, {"BLOCK": 512})
    assert gather.severity == "note"
    args = {"i_ptr": table * 8, "y_ptr": "*i32", "n": 512}
    scattered = found("wasted-sectors", count_each, args, {"BLOCK": 512})
    assert {o.severity for o in scattered} <= {"note"}


def test_a_few_bytes_across_two_sectors_are_a_note() -> None:
    programs = [(n, 0, 0) for n in range(8)]
    args = {**HALVES, "stride": 6}
    rows = found("wasted-sectors", copy_a_few, args, {"FEW": 8}, grid=8, programs=programs, num_warps=1)
    assert {o.severity for o in rows} <= {"note"}


def test_counts_are_advised_a_histogram() -> None:
    few = np.arange(512, dtype=np.int32) % 16
    (one,) = found(
        "per-element-atomic", count_each, {"i_ptr": few, "y_ptr": "*i32", "n": 512}, {"BLOCK": 512}
    )
    assert "tl.histogram" in one.change


@triton.jit
def count_shares(i_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    places = tl.load(i_ptr + offs, mask=offs < n, other=0)
    tl.atomic_add(y_ptr + places, 1, mask=offs < n, sem="relaxed")


def test_the_program_that_sends_most_atomics_is_shown() -> None:
    args = {"i_ptr": np.arange(700, dtype=np.int32) % 16, "y_ptr": "*i32", "n": 700}
    programs = {"grid": 2, "programs": [(0, 0, 0), (1, 0, 0)]}
    (one,) = found("per-element-atomic", count_shares, args, {"BLOCK": 512}, **programs)
    assert one.evidence.startswith("512 elements")


@triton.jit
def counted_or_raised(i_ptr, y_ptr, how, BLOCK: tl.constexpr):
    i = tl.load(i_ptr + tl.arange(0, BLOCK))
    if how == 1:
        tl.atomic_add(y_ptr + i, 1, sem="relaxed")
    else:
        tl.atomic_max(y_ptr + i, 1, sem="relaxed")


@pytest.mark.parametrize("how", [2, 3])
def test_atomics_that_no_program_comes_to_are_not_counted(how: int) -> None:
    args = {"i_ptr": np.arange(512, dtype=np.int32) % 16, "y_ptr": "*i32", "how": how}
    (one,) = found("per-element-atomic", counted_or_raised, args, {"BLOCK": 512})
    assert len(one.lines) == 1
    assert one.evidence.startswith("512 elements")


@triton.jit
def scaled_by_its_sum(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    total = tl.sum(tl.load(x_ptr + offs), 0)
    tl.store(y_ptr, total)
    tl.store(y_ptr + 1 + offs, tl.load(x_ptr + offs) * total)


def test_no_tile_is_to_be_kept_where_no_register_is_left() -> None:
    (again,) = found("read-again", scaled_by_its_sum, XY, {"BLOCK": 4096})
    assert again.severity == "warning"
    (full,) = found("read-again", scaled_by_its_sum, XY, {"BLOCK": 32768}, num_warps=32)
    assert full.severity == "note"


def test_a_program_of_32_warps_has_64_registers_a_thread() -> None:
    (spilled,) = found("spill", copy, {**XY, "n": 100_000}, {"BLOCK": 65536}, num_warps=32, run=False)
    assert "(64 at most)" in spilled.reason
    assert "more warps" not in spilled.change


@triton.jit
def counted(x_ptr, y_ptr, BLOCK: tl.constexpr, BINS: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.atomic_add(y_ptr + tl.arange(0, BINS), tl.histogram(x, BINS), sem="relaxed")


def test_a_histograms_own_atomics_are_not_those_on_memory() -> None:
    """They are at the same line, and in shared memory."""
    few = np.arange(2048, dtype=np.int32) % 256
    assert not found(
        "per-element-atomic", counted, {"x_ptr": few, "y_ptr": "*i32"}, {"BLOCK": 2048, "BINS": 256}
    )


@triton.jit
def gradients(a_ptr, b_ptr, c_ptr, tiles, B: tl.constexpr):
    """Products added to what lies in memory, tile by tile."""
    rows, columns = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    b = tl.load(b_ptr + rows * B + columns)
    for tile in range(tiles):
        a = tl.load(a_ptr + tile * B * B + rows * B + columns)
        here = c_ptr + tile * B * B + rows * B + columns
        tl.store(here, tl.load(here) + tl.dot(a, b).to(tl.float16))


@triton.jit
def scaled_rows(x_ptr, y_ptr, w_ptr, stride, N: tl.constexpr, BLOCK: tl.constexpr):
    """Rows that begin anywhere, times weights that do not."""
    row = tl.program_id(0) * stride
    for start in range(0, N, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row + offs, mask=offs < N)
        tl.store(y_ptr + row + offs, x * tl.load(w_ptr + offs, mask=offs < N), mask=offs < N)


@triton.jit
def butterflies(x_ptr, y_ptr, BLOCK: tl.constexpr):
    """Differences from the larger of a pair, along one axis of two after the other."""
    offs = tl.arange(0, BLOCK)
    x = tl.reshape(tl.load(x_ptr + offs), (2, BLOCK // 8, 2, 2))
    for _ in tl.static_range(8):
        x = x - tl.max(x, 2, keep_dims=True)
        x = x - tl.max(x, 3, keep_dims=True)
    tl.store(y_ptr + offs, tl.reshape(x, (BLOCK,)))


@triton.jit
def column_sums(x_ptr, y_ptr, R: tl.constexpr, C: tl.constexpr):
    rows, columns = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    total = tl.sum(tl.load(x_ptr + rows * C + columns), 0)
    tl.store(y_ptr + tl.arange(0, C), total)


def test_what_is_added_to_a_product_may_change_its_layout() -> None:
    args = {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp16", "tiles": 8}
    assert not found("layout-in-loop", gradients, args, {"B": 64})


def test_a_layout_that_narrow_accesses_ask_for_is_told_with_them() -> None:
    args = {"x_ptr": "*fp16", "y_ptr": "*fp16", "w_ptr": "*fp16", "stride": 3000}
    constants = {"N": 3000, "BLOCK": 1024}
    assert not found("layout-in-loop", scaled_rows, args, constants, grid=4)
    narrow = found("scalar-access", scaled_rows, args, constants, grid=4)
    assert any("changes its layout" in o.evidence and "with stride a multiple of" in o.reason for o in narrow)


def test_no_layout_holds_several_short_axes() -> None:
    assert not found("small-axis-shuffles", butterflies, XY, {"BLOCK": 256})


def test_conflicts_of_a_fold_that_no_launch_mends_are_a_note() -> None:
    """Fewer warps would add halves in another order. Triton 3.9 keeps partial results without conflicts."""
    rows = found("bank-conflict", column_sums, {**HALVES, "y_ptr": "*fp32"}, {"R": 32, "C": 64})
    assert len(rows) == (TRITON < (3, 9))
    for one in rows:
        assert one.severity == "note"
        assert "tried, and then other values are stored" in one.change


def test_a_faster_unit_that_was_not_tried_is_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "TRIALS", 0)
    plant = PLANTED["older-tensor-core"][0]
    report = xray.explain(plant.kernel, plant.args, plant.constants, **plant.options)
    (found,) = [o for o in report.observations if o.code == "older-tensor-core"]
    assert (found.severity, "not tried: more than 0 trials" in found.change) == ("note", True)


@triton.jit
def normed_in_place(x_ptr, r_ptr, y_ptr, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    x = tl.load(x_ptr + offs) + tl.load(r_ptr + offs)
    tl.store(x_ptr + offs, x)
    scale = 1 / tl.sqrt(tl.sum(x * x, 0))
    tl.store(y_ptr + offs, tl.load(x_ptr + offs) * scale)


def test_what_was_stored_in_between_is_to_be_kept_as_it_is_stored() -> None:
    args = {"x_ptr": "*fp32", "r_ptr": "*fp32", "y_ptr": "*fp32"}
    report = xray.explain(normed_in_place, args, {"B": 1024}, grid=4)
    (found,) = [o for o in report.observations if o.code == "read-again"]
    assert re.search(r"line \d+ has stored before", found.evidence)
    assert "keep what is stored" in found.change


@triton.jit
def add_tiles(x_ptr, y_ptr, GROUPS: tl.constexpr, B: tl.constexpr):
    offs = tl.arange(0, B)
    x = tl.load(x_ptr + tl.program_id(0) * B + offs)
    tl.atomic_add(y_ptr + tl.program_id(0) % GROUPS * B + offs, x, sem="relaxed")


@pytest.mark.parametrize(
    ("kind", "groups", "severity", "said"),
    [
        ("fp32", 1, "note", "256 atomics of a program, each of 4 elements (8 requests of warps); about 8 programs"),
        ("fp16", 1, "note", "each of 8 elements (4 requests of warps)"),
        ("i32", 1, "warning", "1024 atomics of a program (32 requests of warps); about 8 programs"),
        ("i32", 8, "note", "1024 atomics of a program (32 requests of warps); about 1 programs"),
    ],
)  # fmt: skip
def test_atomics_of_a_tile_are_counted_as_the_chip_does_them(
    kind: str, groups: int, severity: str, said: str
) -> None:
    args = {"x_ptr": f"*{kind}", "y_ptr": f"*{kind}"}
    report = xray.explain(add_tiles, args, {"GROUPS": groups, "B": 1024}, grid=8)
    (found,) = [o for o in report.observations if o.code == "per-element-atomic"]
    assert (found.severity, said in found.evidence) == (severity, True), found.evidence

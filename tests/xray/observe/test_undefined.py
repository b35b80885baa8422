"""`wrong-fill`: lanes that no `other` fills, factors of products, rows that were folded before, and integers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

from tilefold import xray
from tilefold.xray.observe import masked
from tilefold.xray.observe.fills import Counterexample
from tilefold.xray.report.model import Observation
from xray.observe.planted import XY
from xray.versions import TRITON


def fills(kernel: Any, args: dict[str, Any], constants: dict[str, Any]) -> list[Observation]:
    report = xray.explain(kernel, args, constants)
    return [o for o in report.observations if o.code == "wrong-fill"]


@triton.jit
def total_of_some(x_ptr, y_ptr, n, BLOCK: tl.constexpr, WHERE: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    if WHERE:
        x = tl.where(offs < n, x, 0.0)
    tl.store(y_ptr, tl.sum(x, 0))


@triton.jit
def scaled_by_total(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(y_ptr + offs, x * 2, mask=offs < n)


@triton.jit
def short_product(a_ptr, b_ptr, c_ptr, K, FILL: tl.constexpr, B: tl.constexpr):
    i, k = tl.arange(0, 16), tl.arange(0, B)
    j = tl.arange(0, 16)
    if FILL is None:
        a = tl.load(a_ptr + i[:, None] * B + k[None, :], mask=k[None, :] < K)
        b = tl.load(b_ptr + k[:, None] * 16 + j[None, :], mask=k[:, None] < K)
    else:
        a = tl.load(a_ptr + i[:, None] * B + k[None, :], mask=k[None, :] < K, other=FILL)
        b = tl.load(b_ptr + k[:, None] * 16 + j[None, :], mask=k[:, None] < K, other=FILL)
    tl.store(c_ptr + i[:, None] * 16 + j[None, :], tl.dot(a, b))


@triton.jit
def nearest(x_ptr, c_ptr, y_ptr, k, d, FAR: tl.constexpr, K: tl.constexpr, D: tl.constexpr):
    ks, ds = tl.arange(0, K), tl.arange(0, D)
    x = tl.load(x_ptr + ds, mask=ds < d, other=0.0)
    c = tl.load(c_ptr + ks[:, None] * d + ds[None, :], mask=(ks < k)[:, None] & (ds < d)[None, :], other=0.0)
    far = tl.sum((c - x[None, :]) * (c - x[None, :]), 1)
    if FAR:
        far = tl.where(ks < k, far, float("inf"))
    tl.store(y_ptr, tl.argmin(far, 0))


@triton.jit
def found_anywhere(x_ptr, y_ptr, n, KEEP: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    found = tl.zeros([BLOCK], tl.int32)
    for at in range(0, n, BLOCK):
        mask = at + offs < n
        x = tl.load(x_ptr + at + offs, mask=mask, other=0)
        found = tl.where(mask, tl.maximum(found, (x == 7).to(tl.int32)), found if KEEP else 0)
    tl.store(y_ptr, tl.max(found, 0))


@triton.jit
def least_score(x_ptr, y_ptr, n, FILL: tl.constexpr, BLOCK: tl.constexpr):
    best = tl.full([BLOCK], 2147483647, tl.int32)
    for at in range(0, n, BLOCK):
        offs = at + tl.arange(0, BLOCK)
        best = tl.minimum(best, tl.load(x_ptr + offs, mask=offs < n, other=FILL))
    tl.store(y_ptr, tl.min(best, 0))


def test_a_fold_of_lanes_that_no_other_fills_is_said() -> None:
    """Triton 3.6 puts 0 there, so nothing is wrong today; the language promises nothing."""
    (found,) = fills(total_of_some, {**XY, "n": 100}, {"BLOCK": 128, "WHERE": False})
    assert found.severity == "warning"
    assert "undefined (the load names no other)" in found.evidence
    assert "executed with 1000 in them" in found.evidence
    assert found.change.startswith("say other=0 (tried")


@triton.jit
def folded_whole(x_ptr, y_ptr, n, FOLD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A fold that names no axis: the tile becomes one dim first, in any order."""
    if ROWS == 1:
        offs = tl.arange(0, COLUMNS)
        x = tl.load(x_ptr + offs, mask=offs < n)
    else:
        rows, columns = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
        x = tl.load(x_ptr + rows * COLUMNS + columns, mask=columns < n)
    if FOLD == "max":
        y = tl.max(x)
    elif FOLD == "reordered":
        z = tl.reshape(x, (ROWS * COLUMNS,), can_reorder=True)
        y = tl.sum(z * z, 0)
    else:
        y = tl.sum(x)
    tl.store(y_ptr, y)


@pytest.mark.parametrize("tile", [(1, 1024, 1000), (1, 4096, 1000), (32, 64, 50)], ids=str)
def test_a_fold_of_all_dims_that_happens_to_be_right_is_no_error(tile: tuple[int, int, int]) -> None:
    """Several elements a thread: the reshape of such a fold reorders them, and a mask that is put behind it would not."""
    rows, columns, n = tile
    sizes = {"ROWS": rows, "COLUMNS": columns}
    (found,) = fills(folded_whole, {**XY, "n": n}, {"FOLD": "sum", **sizes})
    assert found.severity == "warning"
    assert found.change.startswith("say other=0 (tried: then nothing else is stored than now")
    (found,) = fills(folded_whole, {**XY, "n": n}, {"FOLD": "max", **sizes})
    assert found.severity == "error"
    assert found.change == "say other=-inf (tried: then it stores what it should)"


@pytest.mark.skipif(TRITON >= (3, 9), reason="this Triton reorders on no one's word")
def test_elements_in_an_order_that_nobody_knows_are_no_error() -> None:
    args = {**XY, "n": 1000}
    (found,) = fills(folded_whole, args, {"FOLD": "reordered", "ROWS": 1, "COLUMNS": 1024})
    assert found.severity == "note"
    assert found.change.endswith("not tried: its elements are in another order than the mask's")


@triton.jit
def binned(x_ptr, y_ptr, n, BLOCK: tl.constexpr, BINS: tl.constexpr, FILL: tl.constexpr):
    """Counts of bins, of which those that were filled are taken away."""
    offs, bins = tl.arange(0, BLOCK), tl.arange(0, BINS)
    if FILL:
        x = tl.load(x_ptr + offs, mask=offs < n, other=0)
    else:
        x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(y_ptr + bins, tl.histogram(x, BINS) - tl.where(bins == 0, BLOCK - n, 0))


@pytest.mark.parametrize("fill", [True, False])
def test_undefined_elements_that_a_histogram_counts(fill: bool) -> None:
    args = {"x_ptr": np.arange(100, dtype=np.int32) % 16, "y_ptr": "*i32", "n": 100}
    found = fills(binned, args, {"BLOCK": 128, "BINS": 16, "FILL": fill})
    assert [o.severity for o in found] == ["warning"] * (not fill)
    assert all("counts them: executed with 1 in them, y_ptr[0] is -21 and not 7" in o.evidence for o in found)


@triton.jit
def decayed(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    sums = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        sums = sums * 0.5 + tl.load(x_ptr + start + offs, mask=start + offs < n, other=0.0)
    tl.store(y_ptr + offs, sums)


def test_a_variable_that_every_round_changes_has_no_fill_that_leaves_it() -> None:
    assert not fills(decayed, {**XY, "n": 1000}, {"BLOCK": 256})


def test_lanes_that_are_taken_out_before_the_fold_may_be_undefined() -> None:
    assert not fills(total_of_some, {**XY, "n": 100}, {"BLOCK": 128, "WHERE": True})
    assert not fills(scaled_by_total, {**XY, "n": 100}, {"BLOCK": 128})


PRODUCT = {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp32", "K": 20}


def test_factors_that_are_undefined_along_k_are_said() -> None:
    (found,) = fills(short_product, PRODUCT, {"FILL": None, "B": 32})
    assert found.severity == "warning"
    assert "sum along K" in found.evidence


def test_factors_filled_with_one_are_an_error_and_with_zero_none() -> None:
    found = fills(short_product, PRODUCT, {"FILL": 1.0, "B": 32})
    assert {o.severity for o in found} == {"error"}
    assert all("executed, program (0, 0, 0) stores c_ptr" in o.evidence for o in found)
    assert not fills(short_product, PRODUCT, {"FILL": 0.0, "B": 32})


DISTANCES = {"x_ptr": "*fp32", "c_ptr": "*fp32", "y_ptr": "*i32", "k": 50, "d": 48}


def test_masked_rows_whose_distance_is_the_least_are_an_error() -> None:
    """Rows are folded along one dim, and then with each other: a row of zeros is near."""
    (found,) = fills(nearest, DISTANCES, {"FAR": False, "K": 64, "D": 64})
    assert found.severity == "error"
    assert "argmin" in found.evidence
    assert dict(found.numbers)["identity"] == "+inf"
    assert not fills(nearest, DISTANCES, {"FAR": True, "K": 64, "D": 64})


@pytest.mark.parametrize(
    ("got", "operands", "untried", "severity"),
    [
        (1.0, 3, "trials would take more than 10 steps", "warning"),
        (float("nan"), 3, "trials would take more than 10 steps", "note"),
        (1.0, 2, "trials would take more than 10 steps", "note"),  # undefined lanes
        (1.0, 3, "its mask is of another shape", "note"),
        (1.0, 3, None, "warning"),  # nothing was executed
    ],
)
def test_a_suspicion_that_was_not_executed_is_no_error(
    got: float, operands: int, untried: str | None, severity: str
) -> None:
    example = Counterexample(None, (1.0, got), 1, got, 1.0, 0)  # type: ignore[arg-type]
    suspect: Any = SimpleNamespace(load=SimpleNamespace(operands=("",) * operands))
    assert masked._severity(suspect, example, "", untried) == severity
    assert masked._severity(suspect, example, "program (0, 0, 0) stores 1", None) == "error"


@triton.jit
def weighted(
    x_ptr, w_ptr, y_ptr, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DOWN: tl.constexpr, AXIS: tl.constexpr
):
    """Sums of a tile along an axis, weighted by a masked vector along its rows or its columns."""
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    x = tl.load(x_ptr + rows[:, None] * COLUMNS + columns[None, :])
    offs = rows if DOWN else columns
    w = tl.load(w_ptr + offs, mask=offs < n)
    y = tl.sum(x * (w[:, None] if DOWN else w[None, :]), axis=AXIS)
    tl.store(y_ptr + (columns if AXIS == 0 else rows), y)


@pytest.mark.parametrize("down", [True, False])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_vector_is_folded_along_the_dim_that_it_lies_along(down: bool, axis: int) -> None:
    """A tile that is square tells nothing by its shape."""
    args = {**XY, "w_ptr": "*fp32", "n": 25}
    found = fills(weighted, args, {"ROWS": 32, "COLUMNS": 32, "DOWN": down, "AXIS": axis})
    assert [o.severity for o in found] == ["warning"] * (down == (axis == 0))
    assert all("executed with 1000 in them" in o.evidence for o in found)


@triton.jit
def times_weight(x_ptr, y_ptr, n, HOW: tl.constexpr, FILL: tl.constexpr, BLOCK: tl.constexpr):
    """Sums in which masked elements count 0 times, are chosen away, or follow others that are not masked."""
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=FILL)
    if HOW == "weight":
        x = x * (offs < n).to(tl.float32)
    elif HOW == "choice":
        x = tl.where(offs < n, x, 0.0)
    else:
        rest = tl.load(x_ptr + BLOCK + offs, mask=offs < n - 20, other=FILL)
        x = tl.load(x_ptr + offs) + rest
    tl.store(y_ptr, tl.sum(x, 0))


@pytest.mark.parametrize(("how", "found"), [("weight", ["warning"]), ("choice", []), ("rest", ["warning"])])
def test_undefined_elements_times_0_and_behind_others(how: str, found: list[str]) -> None:
    """0 times what is undefined may be no number; what was summed before a masked part is not masked with it."""
    args = {**XY, "n": 50}
    said = fills(times_weight, args, {"HOW": how, "FILL": None, "BLOCK": 64})
    assert [o.severity for o in said] == found
    assert all(o.change.startswith("say other=0 (tried") for o in said)
    assert not fills(times_weight, args, {"HOW": how, "FILL": 0.0, "BLOCK": 64})


@triton.jit
def two_halves(x_ptr, y_ptr, n, ADD: tl.constexpr, BLOCK: tl.constexpr):
    """The greatest of a tile whose elements come from two arrays."""
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    z = tl.load(x_ptr + 4096 + offs, mask=offs >= n, other=0.0)
    tl.store(y_ptr, tl.max(x + z if ADD else tl.where(offs < n, x, z), 0))


@pytest.mark.parametrize("add", [True, False])
def test_two_halves_of_one_tile_are_right(add: bool) -> None:
    assert not fills(two_halves, {**XY, "n": 50}, {"ADD": add, "BLOCK": 64})


def test_a_fill_that_spoils_what_was_summed_before_is_an_error() -> None:
    (said,) = fills(times_weight, {**XY, "n": 50}, {"HOW": "rest", "FILL": 1.0, "BLOCK": 64})
    assert said.severity == "error"
    assert "say other=0 (tried" in said.change


@triton.jit
def scaled_product(x_ptr, w_ptr, y_ptr, n, N: tl.constexpr, ALONG: tl.constexpr):
    """A product whose first factor is scaled by a masked vector, along K or along its rows."""
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs[:, None] * N + offs[None, :])
    w = tl.load(w_ptr + offs, mask=offs < n)
    y = tl.dot(x * (w[None, :] if ALONG else w[:, None]), x)
    tl.store(y_ptr + offs[:, None] * N + offs[None, :], y)


@pytest.mark.parametrize("along", [True, False])
def test_a_vector_along_the_inner_dim_of_a_product_is_summed(along: bool) -> None:
    found = fills(scaled_product, {**XY, "w_ptr": "*fp32", "n": 25}, {"N": 32, "ALONG": along})
    assert len(found) == along


def test_a_variable_that_a_masked_round_overwrites_is_an_error() -> None:
    held = np.zeros(300, np.int32)
    held[100] = 7
    args = {"x_ptr": held, "y_ptr": "*i32", "n": 300}
    (found,) = fills(found_anywhere, args, {"KEEP": False, "BLOCK": 256})
    assert found.severity == "error"
    assert "forgets what it held" in found.evidence
    assert "stores y_ptr[0] is 0 and not 1" in found.evidence
    assert not fills(found_anywhere, args, {"KEEP": True, "BLOCK": 256})


def test_integers_of_one_sign_show_a_zero_under_a_minimum() -> None:
    args = {"x_ptr": "*i32", "y_ptr": "*i32", "n": 1500}
    (found,) = fills(least_score, args, {"FILL": 0, "BLOCK": 512})
    assert "stores y_ptr[0] is 0 and not " in found.evidence
    assert not fills(least_score, args, {"FILL": 2147483647, "BLOCK": 512})

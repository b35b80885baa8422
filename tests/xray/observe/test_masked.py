"""`wrong-fill`: true where it is said, with what came out and what should have, and a remedy that was executed."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

from tilefold import xray
from tilefold.xray.observe.fills import Counterexample
from tilefold.xray.observe.masked import literal_of
from tilefold.xray.observe.trials import UntriedError
from tilefold.xray.report.model import Observation
from xray.observe.planted import XY, maximum, running_maximum, sum_of_exponentials
from xray.versions import TRITON


def fills(kernel: Any, args: dict[str, Any], constants: dict[str, Any], **given: Any) -> list[Observation]:
    report = xray.explain(kernel, args, constants, **given)
    return [o for o in report.observations if o.code == "wrong-fill"]


@triton.jit
def scaled_maximum(x_ptr, y_ptr, n, scale, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=float("-inf")) * scale
    tl.store(y_ptr, tl.max(x, 0))


@triton.jit
def two_loops(x_ptr, y_ptr, n, stride, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + start + offs, mask=start + offs < n, other=0.0)
        total += x * x
    most = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + (start + offs) * stride, mask=start + offs < n, other=float("-inf"))
        most = tl.maximum(most, x)
    tl.store(y_ptr + offs, total + most)


@triton.jit
def largest_of_magnitudes(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=9.0)
    tl.store(y_ptr, tl.max(tl.abs(x), 0))


@triton.jit
def sum_of_shifted_squares(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0) - 3.0
    tl.store(y_ptr, tl.sum(x * x, 0))


@triton.jit
def sum_of_two_parts(x_ptr, y_ptr, z_ptr, n, FILL: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=FILL)
    tl.store(z_ptr, tl.sum(x + tl.load(y_ptr + offs), 0))


@triton.jit
def unused_maximum(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    most = tl.max(x, 0)
    tl.store(y_ptr, tl.where(n < BLOCK, 1.0, most))


@pytest.mark.parametrize("run", [True, False], ids=["executed", "static"])
def test_a_scale_that_is_given_is_taken(run: bool) -> None:
    args = {**XY, "n": 1000, "scale": "fp32:0.125"}
    assert not fills(scaled_maximum, args, {"BLOCK": 1024}, run=run)


@pytest.mark.parametrize("run", [True, False], ids=["executed", "static"])
def test_a_negative_scale_makes_minus_infinity_the_largest(run: bool) -> None:
    args = {**XY, "n": 1000, "scale": "fp32:-0.125"}
    (found,) = fills(scaled_maximum, args, {"BLOCK": 1024}, run=run)
    assert "gives inf and should give" in found.evidence


@pytest.mark.parametrize("run", [True, False], ids=["executed", "static"])
def test_loops_that_name_their_values_alike_are_not_mixed(run: bool) -> None:
    report = xray.explain(two_loops, {**XY, "n": 1000, "stride": 2}, {"BLOCK": 256}, run=run)
    assert "wrong-fill" not in report.codes()
    assert "offset-overflow" not in report.codes()


@pytest.mark.parametrize("run", [True, False], ids=["executed", "static"])
@pytest.mark.parametrize("fold", ["welford dim=1 10000x4099 bf16", "welford dim=0 4099x1000 fp32"])
def test_the_library_s_welford_masks_what_it_does_not_count(fold: str, run: bool) -> None:
    """Its first kept element is chosen by a flag; elements before the row's begin have none, and count for nothing."""
    reports = xray.explain_fold(fold, run=run)
    assert all("wrong-fill" not in r.codes() for r in reports)


def test_an_error_says_what_came_out_and_what_should_have() -> None:
    (found,) = fills(maximum, {**XY, "n": 1000}, {"BLOCK": 1024, "FILL": 0.0})
    assert "[masked: 0] gives 0 and should give -" in found.evidence
    assert "executed, program (0, 0, 0) stores y_ptr[0] is 0 and not -" in found.evidence
    assert found.change == "say other=-inf (tried: then it stores what it should)"


@pytest.mark.parametrize(("fill", "found"), [(0.0, 0), (1.0, 1)])
@pytest.mark.parametrize("run", [True, False], ids=["executed", "static"])
def test_elements_of_another_load_count_where_only_one_is_masked(fill: float, found: int, run: bool) -> None:
    args = {**XY, "z_ptr": XY["y_ptr"], "n": 1000}
    assert len(fills(sum_of_two_parts, args, {"BLOCK": 1024, "FILL": fill}, run=run)) == found


def test_a_loop_s_update_is_executed_too() -> None:
    (found,) = fills(running_maximum, {**XY, "n": 1000}, {"BLOCK": 256, "FILL": 0.0})
    assert "executed, program" in found.evidence
    assert "tried" in found.change


def test_a_remedy_that_breaks_the_kernel_is_not_given() -> None:
    """Under a maximum of magnitudes other=-inf is the largest of all, and 0 the least; under a sum of exponentials 0 is 1,
    and -inf is 0. Of squares of x - 3 neither makes 0."""
    (found,) = fills(largest_of_magnitudes, {**XY, "n": 1000}, {"BLOCK": 1024})
    assert found.change == "say other=0 (tried: then it stores what it should)"
    (found,) = fills(sum_of_exponentials, {**XY, "n": 1000}, {"BLOCK": 1024, "FILL": 0.0})
    assert found.change == "say other=-inf (tried: then it stores what it should)"
    (found,) = fills(sum_of_shifted_squares, {**XY, "n": 1000}, {"BLOCK": 1024})
    assert found.change.startswith("fill with tl.where(mask, x, identity) in front of the reduction (tried")


def test_a_fill_that_no_result_depends_on_is_no_error() -> None:
    assert not fills(unused_maximum, {**XY, "n": 1000}, {"BLOCK": 1024})


@triton.jit
def earlier(a, b):
    return a


@triton.jit
def later(a, b):
    return b


@triton.jit
def one_of_a_row(x_ptr, y_ptr, low, high, FIRST: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=(offs >= low) & (offs < high), other=0.0)
    if FIRST:
        tl.store(y_ptr, tl.reduce(x, 0, earlier))
    else:
        tl.store(y_ptr, tl.reduce(x, 0, later))


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_a_fold_of_order_is_spoiled_from_either_side(first: bool) -> None:
    """The first of a row by a masked element ahead of the others, the last by one behind them."""
    args = {**XY, "low": 24, "high": 1000}
    (found,) = fills(one_of_a_row, args, {"FIRST": first, "BLOCK": 1024}, run=False)
    assert re.search(
        r": \[masked: 0\], \d\S* gives 0 " if first else r": \d\S*, \[masked: 0\] gives 0 ", found.evidence
    )


@pytest.mark.parametrize(
    ("value", "element", "text"),
    [
        (float("-inf"), "f32", "0xFF800000"), (float("inf"), "f16", "0x7C00"), (0.0, "bf16", "0.000000e+00"),
        (float("-inf"), "i32", "-2147483648"), (float("inf"), "i8", "127"), (1.0, "i64", "1"),
    ],
)  # fmt: skip
def test_numbers_as_mlir_writes_them(value: float, element: str, text: str) -> None:
    assert literal_of(value, element) == text


def test_a_type_without_a_known_fill_is_not_tried() -> None:
    with pytest.raises(UntriedError, match="a fill of f8E5M2 is not written"):
        literal_of(0.0, "f8E5M2")


@triton.jit
def softmax_of_zeros(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    e = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + offs, e / tl.sum(e, 0), mask=offs < n)


@triton.jit
def sorted_row(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=float("-inf"))
    tl.store(y_ptr + offs, tl.sort(x, descending=True))


def test_a_fill_that_spoils_one_of_two_folds() -> None:
    """Softmax does not depend on which number is subtracted, but on the sum."""
    (found,) = fills(softmax_of_zeros, {**XY, "n": 1000}, {"BLOCK": 1024})
    assert found.severity == "error"
    assert "and the sum in line" in found.evidence
    assert (
        found.change == "say other=-inf (tried: then it stores what it should)" or "tl.where" in found.change
    )


@pytest.mark.parametrize("run", [True, False], ids=["executed", "static"])
def test_elements_that_are_sorted_behind_others_are_no_error(run: bool) -> None:
    assert not fills(sorted_row, {**XY, "n": 100}, {"BLOCK": 128}, run=run)


@triton.jit
def halved_until_small(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=9.0)
    most = tl.max(x, 0)
    while most > 1.0:
        most = most / 2
    tl.store(y_ptr, most)


def test_a_fill_with_which_a_kernel_never_ends_matters() -> None:
    """With +inf in the place of the fill it would go on for ever."""
    (found,) = fills(halved_until_small, {**XY, "n": 100}, {"BLOCK": 128})
    assert "executed, program (0, 0, 0) stores y_ptr[0] is" in found.evidence


def test_a_counterexample_has_as_many_digits_as_it_needs() -> None:
    shown = Counterexample(None, (1.0, 1e-6), 1, 1.000001, 1.0, 0)  # type: ignore[arg-type]
    assert str(shown) == "1, [masked: 1e-06] gives 1.000001 and should give 1"


@triton.jit
def largest_score(
    q_ptr, k_ptr, y_ptr, n, B: tl.constexpr, TURNED: tl.constexpr, MASKED: tl.constexpr, M: tl.constexpr = 16
):
    """The largest product of each of M queries with n keys, whose places behind n are filled with 0."""
    rows, columns = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    q = tl.load(q_ptr + tl.arange(0, M)[:, None] * B + columns)
    if TURNED:
        k = tl.trans(tl.load(k_ptr + rows * B + columns, mask=rows < n, other=0.0))
    else:
        k = tl.load(k_ptr + columns * B + rows, mask=columns < n, other=0.0)
    scores = tl.dot(q, k)
    if MASKED:
        scores = tl.where(columns < n, scores, float("-inf"))
    tl.store(y_ptr + tl.arange(0, M), tl.max(scores, 1))


@pytest.mark.parametrize("turned", [True, False], ids=["keys transposed", "keys as they lie"])
@pytest.mark.parametrize("masked", [True, False], ids=["masked", "not masked"])
@pytest.mark.parametrize("queries", [16, 32], ids=["square", "higher than wide"])
def test_columns_of_a_product_are_masked_as_its_operand(queries: int, masked: bool, turned: bool) -> None:
    args = {"q_ptr": "*fp16", "k_ptr": "*fp16", "y_ptr": "*fp32", "n": 10}
    constants = {"B": 16, "TURNED": turned, "MASKED": masked, "M": queries}
    found = fills(largest_score, args, constants, num_warps=1)
    if masked:
        assert not found
        return
    (one,) = found
    assert one.severity == "error"
    assert "the maximum in line" in one.evidence
    assert "not -inf" not in one.evidence  # the columns are masked, and no rows
    assert "(tried: then it stores what it should)" in one.change


@triton.jit
def maximum_of_a_block(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    block = tl.make_block_ptr(x_ptr, (n,), (1,), (0,), (BLOCK,), (0,))
    x = tl.load(block, boundary_check=(0,), padding_option="zero")
    tl.store(y_ptr, tl.max(x, 0))


@pytest.mark.skipif(TRITON >= (3, 9), reason="this Triton has no block pointers")
def test_a_block_pointer_takes_no_other() -> None:
    (found,) = fills(maximum_of_a_block, {**XY, "n": 100}, {"BLOCK": 128})
    assert found.change.startswith("fill with tl.where(mask, x, identity)")


@triton.jit
def total_of_a_block(x_ptr, y_ptr, n, FOLD: tl.constexpr, BLOCK: tl.constexpr):
    block = tl.make_block_ptr(x_ptr, (n,), (1,), (0,), (BLOCK,), (0,))
    x = tl.load(block, boundary_check=(0,))
    tl.store(y_ptr, tl.sum(x * x, 0) if FOLD == "sum" else tl.sum(tl.exp(x), 0))


@pytest.mark.skipif(TRITON >= (3, 9), reason="this Triton has no block pointers")
@pytest.mark.parametrize(("fold", "change"), [("sum", 'say padding_option="zero" (tried'), ("exp", "")])
def test_a_block_pointer_is_filled_by_its_option(fold: str, change: str) -> None:
    (found,) = fills(total_of_a_block, {**XY, "n": 100}, {"BLOCK": 128, "FOLD": fold})
    assert found.change.startswith(change)
    assert "other=" not in found.change


@triton.jit
def longest(lengths_ptr, y_ptr, n, B: tl.constexpr):
    offs = tl.arange(0, B)
    tl.store(y_ptr, tl.max(tl.load(lengths_ptr + offs, mask=offs < n, other=0), 0))


@pytest.mark.parametrize(
    ("given", "severity"),
    [("*i32", ["warning"]), (np.arange(9), []), (np.arange(9) - 10, ["error"])],
    ids=str,
)
def test_a_fill_that_only_negative_numbers_show(given: Any, severity: list[str]) -> None:
    """Nobody says whether lengths are drawn: where they are given, their own numbers decide."""
    given = given if isinstance(given, str) else given.astype(np.int32)
    found = fills(longest, {"lengths_ptr": given, "y_ptr": "*i32", "n": 9}, {"B": 16})
    assert [o.severity for o in found] == severity

"""`not-associative`: functions of folds and scans that depend on the grouping, and some that look as if they did."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

from tilefold import xray
from tilefold.xray.report.model import Observation
from xray.observe.planted import XY


@triton.jit
def weighted(a, b):
    return a * 0.5 + b


@triton.jit
def mean(a, b):
    return (a + b) / 2


@triton.jit
def apart(a, b):
    return tl.abs(a - b)


@triton.jit
def squares(a, b):
    return a + b * b


@triton.jit
def limited(a, b):
    return tl.minimum(a + b, 1.0)


@triton.jit
def near(a, b):
    return tl.where(b > a + 0.5, b, a)


@triton.jit
def reset(a, b):
    return tl.where(a + b > 1000, 0.0, a + b)


@triton.jit
def either(a, b):
    return a + b - a * b


@triton.jit
def hypotenuse(a, b):
    return tl.sqrt(a * a + b * b)


@triton.jit
def log_sum(a, b):
    most = tl.maximum(a, b)
    return most + tl.log(tl.exp(a - most) + tl.exp(b - most))


@triton.jit
def shifted(a, b):
    return (a + 1) * (b + 1) - 1


@triton.jit
def larger(a, b):
    return tl.where(a > b, a, b)


@triton.jit
def of_one(x_ptr, y_ptr, HOW: tl.constexpr, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    offs = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + offs)
    if HOW == "weighted":
        y = tl.associative_scan(x, AXIS, weighted)
    elif HOW == "mean":
        y = tl.reduce(x, AXIS, mean, keep_dims=True)
    elif HOW == "apart":
        y = tl.reduce(x, AXIS, apart, keep_dims=True)
    elif HOW == "squares":
        y = tl.reduce(x, AXIS, squares, keep_dims=True)
    elif HOW == "limited":
        y = tl.associative_scan(x, AXIS, limited)
    elif HOW == "near":
        y = tl.reduce(x, AXIS, near, keep_dims=True)
    elif HOW == "reset":
        y = tl.associative_scan(x, AXIS, reset)
    elif HOW == "either":
        y = tl.associative_scan(x, AXIS, either)
    elif HOW == "hypotenuse":
        y = tl.reduce(x, AXIS, hypotenuse, keep_dims=True)
    elif HOW == "log_sum":
        y = tl.reduce(x, AXIS, log_sum, keep_dims=True)
    elif HOW == "shifted":
        y = tl.associative_scan(x, AXIS, shifted)
    else:
        y = tl.reduce(x, AXIS, larger, keep_dims=True)
    tl.store(y_ptr + offs, y)


@triton.jit
def recurrence(a0, b0, a1, b1):
    return a0 * a1, b0 * a1 + b1


@triton.jit
def recurrence_turned(a0, b0, a1, b1):
    return a0 * a1, b0 * a0 + b1


@triton.jit
def segments(f0, v0, f1, v1):
    return f0 | f1, tl.where(f1 != 0, v1, v0 + v1)


@triton.jit
def segments_lost(f0, v0, f1, v1):
    return f1, tl.where(f1 != 0, v1, v0 + v1)


@triton.jit
def of_two(x_ptr, f_ptr, y_ptr, HOW: tl.constexpr, B: tl.constexpr):
    offs = tl.arange(0, B)
    f, x = tl.load(f_ptr + offs), tl.load(x_ptr + offs)
    if HOW == "recurrence":
        f, y = tl.associative_scan((f, x), 0, recurrence)
    elif HOW == "turned":
        f, y = tl.associative_scan((f, x), 0, recurrence_turned)
    elif HOW == "segments":
        f, y = tl.associative_scan((f, x), 0, segments)
    else:
        f, y = tl.associative_scan((f, x), 0, segments_lost)
    tl.store(y_ptr + offs, y)


@triton.jit
def moments(n0, m0, s0, n1, m1, s1):
    n, d = n0 + n1, m1 - m0
    w = tl.where(n == 0, 0.0, n1 / n)
    return n, m0 + d * w, s0 + s1 + d * d * n0 * w


@triton.jit
def moments_of_halves(n0, m0, s0, n1, m1, s1):
    d = m1 - m0
    return n0 + n1, m0 + d * 0.5, s0 + s1 + d * d * 0.5


@triton.jit
def of_three(x_ptr, y_ptr, RIGHT: tl.constexpr, ROWS: tl.constexpr, B: tl.constexpr):
    rows, columns = tl.arange(0, ROWS)[:, None], tl.arange(0, B)[None, :]
    x = tl.load(x_ptr + rows * B + columns)
    n, s = tl.full([ROWS, B], 1.0, tl.float32), tl.zeros([ROWS, B], tl.float32)
    if RIGHT:
        n, x, s = tl.reduce((n, x, s), 1, moments)
    else:
        n, x, s = tl.reduce((n, x, s), 1, moments_of_halves)
    tl.store(y_ptr + tl.arange(0, ROWS), s)


def refused(kernel: Any, args: dict[str, Any], constants: dict[str, Any], **given: Any) -> list[Observation]:
    report = xray.explain(kernel, args, constants, **given)
    return [o for o in report.observations if o.code == "not-associative"]


POSITIVE = np.abs(np.random.default_rng(0).normal(size=128)).astype(np.float32)
FLAGS = (np.arange(128) % 7 == 0).astype(np.int32)
LINE = {"M": 1, "N": 128, "AXIS": 1}
# Whole tiles, rows and columns: within a thread, across lanes and across warps.
SHAPES = (
    LINE, {"M": 2, "N": 64, "AXIS": 1}, {"M": 32, "N": 4, "AXIS": 0}, {"M": 1, "N": 1024, "AXIS": 1},
    {"M": 16, "N": 16, "AXIS": 1}, {"M": 64, "N": 32, "AXIS": 0},
)  # fmt: skip
WRONG = ("weighted", "mean", "apart", "squares", "limited", "near")
RIGHT = ("either", "hypotenuse", "log_sum", "shifted", "larger")


@pytest.mark.parametrize(("how", "shape"), [*zip(WRONG, SHAPES, strict=True)], ids=WRONG)
def test_a_function_that_depends_on_the_grouping(how: str, shape: dict[str, int]) -> None:
    (found,) = refused(of_one, XY, {"HOW": how, **shape})
    assert found.severity == "warning", "its elements are random"
    assert "combine(combine(a, b), c) is " in found.evidence
    assert "which come to it" in found.evidence


@pytest.mark.parametrize(("how", "shape"), [*zip(RIGHT, SHAPES[1:], strict=True)], ids=RIGHT)
def test_a_function_that_is_associative(how: str, shape: dict[str, int]) -> None:
    assert not refused(of_one, XY, {"HOW": how, **shape})


def test_elements_that_were_given_make_it_an_error() -> None:
    (found,) = refused(of_one, {**XY, "x_ptr": POSITIVE}, {"HOW": "mean", **LINE})
    assert found.severity == "error"


@pytest.mark.parametrize(("how", "x"), [("reset", "*fp32"), ("limited", POSITIVE)])
def test_what_only_other_elements_show_is_a_note(how: str, x: Any) -> None:
    """A sum that stops at 1 is associative where nothing is negative."""
    (found,) = refused(of_one, {**XY, "x_ptr": x}, {"HOW": how, **LINE})
    assert found.severity == "note"
    assert "elements of the executed programs do not show it, and others do" in found.evidence


@pytest.mark.parametrize(
    ("how", "f", "severity"),
    [
        ("recurrence", "*fp32", None), ("turned", "*fp32", "warning"), ("segments", FLAGS, None), ("lost", FLAGS, "warning"),
    ],
)  # fmt: skip
def test_functions_of_two_values(how: str, f: Any, severity: str | None) -> None:
    found = refused(of_two, {**XY, "f_ptr": f}, {"HOW": how, "B": 128})
    assert [o.severity for o in found] == ([] if severity is None else [severity])


@pytest.mark.parametrize("right", [True, False])
def test_moments_of_rows(right: bool) -> None:
    """Asked with the counts that elements have: of others, 0 or less, there is no mean."""
    assert bool(refused(of_three, XY, {"RIGHT": right, "ROWS": 4, "B": 64})) != right


@pytest.mark.parametrize("fold", ["welford dim=1 100x4099 bf16", "welford dim=0 1000x1000 fp32"])
def test_the_library_s_own_functions_were_checked(fold: str) -> None:
    """Its welford sums about a pivot, which either side may give: such states are forms of one."""
    assert all("not-associative" not in report.codes() for report in xray.explain_fold(fold))

"""uint64 on every backend that a CPU has, against Python's whole numbers modulo 2**64; the narrower unsigned dtypes too."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import numpy as np
import pytest
import torch

import tilefold
from tilefold import math as tm

pytestmark = [  # of numpy's, in Triton's interpreter
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

BACKENDS = ["cpu", "reference", "interpret"]
HALF = 1 << 63
VALUES = [0, 1, 2, 3, 5, 63, 64, 1 << 40, HALF - 1, HALF, HALF + 5, (1 << 64) - 2, (1 << 64) - 1]
CONSTANTS = [1, 3, 5, 63, -1, -3, HALF - 1, HALF, HALF + 3, (1 << 64) - 1]
# Each with what it is on Python's numbers.
OPERATIONS: dict[str, tuple[Any, Any]] = {
    **{f.__name__: (f, f) for f in (
        operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.and_, operator.or_,
        operator.xor, operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
    )},
    "lshift": (operator.lshift, lambda a, b: a << b if b < 64 else 0),
    "rshift": (operator.rshift, operator.rshift),
    "maximum": (tm.maximum, max),
    "minimum": (tm.minimum, min),
}  # fmt: skip
FLOATS = [torch.float32, torch.float64]
# Halfway between two floats or next to it, where rounding twice shows.
TIGHT = [
    *VALUES, (1 << 24) + 1, (1 << 53) + 1, (1 << 60) + (1 << 36) + 1, HALF + 1024, HALF + 1025, HALF + 3072,
    HALF + (1 << 39), HALF + (1 << 39) + 1, (1 << 64) - (1 << 39) - 1,
]  # fmt: skip


def lifted(backend: str, inputs: list[torch.Tensor], lift: Any, fields: list[torch.dtype]) -> list[list[Any]]:
    """What `lift` makes of each element, a list a field."""
    monoid = tilefold.Monoid(
        lambda a, b: tuple(p + q for p, q in zip(a, b, strict=True)),
        (0,) * len(fields),
        lift=lift,
        dtypes=tuple(fields),
        check=False,
    )
    with tilefold.backend(backend):
        got = tilefold.reduce([x[:, None] for x in inputs], monoid, 1)
    return [field.tolist() for field in got]


def tensor(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint64)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_on_both_sides_of_half_the_range(name: str, backend: str) -> None:
    function, python = OPERATIONS[name]
    pairs = list(itertools.product(VALUES, VALUES))
    if name in ("floordiv", "mod"):
        pairs = [(a, b) for a, b in pairs if b]
    if backend == "interpret" and name in ("lshift", "rshift"):
        pairs = [(a, b) for a, b in pairs if b < 64]  # more are no shift that a GPU defines
    left, right = (tensor([pair[side] for pair in pairs]) for side in (0, 1))
    (got,) = lifted(backend, [left, right], lambda a, b: (function(a, b),), [torch.uint64])
    assert got == [python(a, b) % (1 << 64) for a, b in pairs]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_constants_on_either_side(name: str, backend: str) -> None:
    """A constant counts modulo 2**64."""
    function, python = OPERATIONS[name]
    shift = name in ("lshift", "rshift")
    constants = [c for c in CONSTANTS if not shift or 0 <= c < 64]
    values = [v for v in VALUES if v or name not in ("floordiv", "mod")]
    fields = [torch.uint64] * len(constants)
    got = lifted(backend, [tensor(values)], lambda x: tuple(function(x, c) for c in constants), fields)
    for constant, results in zip(constants, got, strict=True):
        assert results == [python(v, constant % (1 << 64)) % (1 << 64) for v in values], constant
    values = [v for v in values if not shift or v < 64]
    fields = [torch.uint64] * len(CONSTANTS)
    got = lifted(backend, [tensor(values)], lambda x: tuple(function(c, x) for c in CONSTANTS), fields)
    for constant, results in zip(CONSTANTS, got, strict=True):
        assert results == [python(constant % (1 << 64), v) % (1 << 64) for v in values], constant


@pytest.mark.parametrize("backend", BACKENDS)
def test_operations_of_one_operand(backend: str) -> None:
    got = lifted(backend, [tensor(VALUES)], lambda x: (-x, ~x, abs(x)), [torch.uint64] * 3)
    assert got == [[-v % (1 << 64) for v in VALUES], [~v % (1 << 64) for v in VALUES], VALUES]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_floats_are_rounded_once(backend: str, dtype: torch.dtype) -> None:
    """By a cast, by the field, and by float arithmetic."""
    exact = np.array(TIGHT, dtype=np.uint64).astype(np.float32 if dtype == torch.float32 else np.float64)
    got = lifted(backend, [tensor(TIGHT)], lambda x: (tm.cast(x, dtype), x), [dtype, dtype])
    assert got == [exact.tolist()] * 2
    (halves,) = lifted(backend, [tensor(TIGHT)], lambda x: (tm.cast(x, dtype) / 2,), [dtype])
    assert halves == (exact / 2).tolist()


@pytest.mark.parametrize("backend", BACKENDS)
def test_division_and_powers_are_float32s(backend: str) -> None:
    got = lifted(
        backend, [tensor(TIGHT)], lambda x: (x / 2, x / HALF, HALF / (x + 1.0), x**2), [torch.float32] * 4
    )
    exact = np.array(TIGHT, dtype=np.uint64).astype(np.float32)
    half, one = np.float32(HALF), np.float32(1)
    assert got == [
        list(map(float, f)) for f in (exact / 2 * one, exact / half, half / (exact + one), exact * exact)
    ]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_floats_become_uint64(backend: str, dtype: torch.dtype) -> None:
    """By a cast and by the field."""
    x = torch.tensor([0.0, 0.5, 7.9, 2.0**62, HALF, 1.5 * HALF, 1.9 * HALF, 2.0**64 - 2.0**41], dtype=dtype)
    got = lifted(backend, [x], lambda v: (tm.cast(v, torch.uint64), v), [torch.uint64] * 2)
    assert got == [[int(v) for v in x.tolist()]] * 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_large_constants_keep_their_sign_among_floats(backend: str) -> None:
    x = torch.tensor([1.0, -2.0])
    got = lifted(
        backend, [x], lambda v: (v * HALF, v + tm.cast(HALF + (1 << 41), torch.uint64)), [torch.float64] * 2
    )
    assert got == [[float(HALF), -2.0 * HALF], [float(HALF + (1 << 41))] * 2]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32], ids=str)
def test_narrower_dtypes(dtype: torch.dtype, backend: str) -> None:
    """Elements are int64 in `lift`, and its results wrap as the field's dtype does."""
    greatest = torch.iinfo(dtype).max
    values = [1, 2, 3, 7, greatest // 2, greatest // 2 + 6, greatest - 1, greatest]

    def lift(x: Any) -> Any:
        shifts = (x >> 1, x >> 7, x << 3, 1 << (x % 8), greatest >> (x % 8))
        divisions = (x // 3, x // -3, -3 // x, (HALF - 1) // x, x % 3, x % -3, -3 % x)
        return *shifts, *divisions, -x, ~x, abs(x), 5 - x

    got = lifted(backend, [torch.tensor(values, dtype=dtype)], lift, [dtype] * len(lift(1)))
    want = [[r % (greatest + 1) for r in lift(v)] for v in values]
    assert [list(row) for row in zip(*got, strict=True)] == want


def test_a_fold_shifts_without_the_sign() -> None:
    x = tensor([HALF + 5, 3])
    monoid = tilefold.Monoid(lambda a, b: a | b, 0, lift=lambda v: v >> 1, dtypes="input")
    assert tilefold.reduce(x, monoid).item() == (1 << 62) + 3

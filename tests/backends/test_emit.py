"""Generated functions where a slip changes no kernel's shape, only its answer: executed from PTX, and interpreted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilefold
from answers import bits_of
from backends.test_operations import BACKENDS, run
from tilefold import math as tm
from tilefold import monoids
from tilefold.algebra.program import specialize

INF, NAN = math.inf, math.nan
pytestmark = [  # of numpy's, in Triton's interpreter
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
LENGTHS = [513, 40]  # a masked tile after whole ones, and one alone


def agrees(
    monoid: tilefold.Monoid, x: torch.Tensor, backend: str, definition: Callable[..., Any] | None = None
) -> list[torch.Tensor]:
    """The fold of each row, which is the definition's bit for bit."""
    program = specialize(monoid.total, (x.dtype,))
    got = run(backend, program, [x])
    for mine, want in zip(got, run("reference", program, [x]), strict=True):
        assert torch.equal(bits_of(mine), bits_of(want))
    return got


def rows(dtype: torch.dtype, length: int) -> torch.Tensor:
    """All the least, all the greatest, and mixed."""
    if dtype == torch.bool:
        mixed = torch.arange(length) % 3 == 0
        return torch.stack([torch.zeros(length).bool(), torch.ones(length).bool(), mixed])
    if dtype.is_floating_point:
        mixed = (torch.arange(length) % 13 - 6).to(dtype)
        return torch.stack([torch.full((length,), end).to(dtype) for end in (-5.0, 6.0)] + [mixed])
    info = torch.iinfo(dtype)
    mixed = ((torch.arange(length) % 13) - (6 if info.min else 0)).to(dtype)
    return torch.stack([torch.full((length,), end, dtype=dtype) for end in (info.min, info.max)] + [mixed])


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.uint64, torch.float16, torch.float32,
    torch.float64,
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_block_operation_on_every_dtype(dtype: torch.dtype, length: int, backend: str) -> None:
    """In an absorb that is given: what a masked tile lacks is neither the greatest nor the least, nor counted."""
    monoid = tilefold.Monoid(
        lambda a, b: (
            a.total + b.total,
            tm.maximum(a.most, b.most),
            tm.minimum(a.least, b.least),
            a.count + b.count,
        ),
        (0, -INF, INF, 0),
        fields=("total", "most", "least", "count"),
        lift=lambda x: (x, x, x, 1),
        dtypes=("compute", "input", "input", torch.int64),
        absorb=lambda s, x: (
            s.total + tm.block_sum(x),
            tm.maximum(s.most, tm.maximum(tm.block_max(x), tm.block_first(x))),
            tm.minimum(s.least, tm.minimum(tm.block_min(x), tm.block_first(x))),
            s.count + tm.block_count(x),
        ),
        commutative=True,
    )
    agrees(monoid, rows(dtype, length), backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_truth_of_a_masked_tile(backend: str) -> None:
    monoid = tilefold.Monoid(
        lambda a, b: a | b,
        False,
        lift=lambda x: x > 2,
        dtypes=torch.bool,
        absorb=lambda s, x: s | tm.block_max(x > 2),
    )
    (got,) = agrees(monoid, torch.zeros(2, 513), backend)
    assert got.tolist() == [False, False]


def often(a: Any, b: Any) -> tuple[Any, Any]:
    """The greatest element and how many there are of it, a combine whose block form is derived."""
    most = tm.maximum(a.most, b.most)
    return most, tm.where(a.most == most, a.count, 0) + tm.where(b.most == most, b.count, 0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int64, torch.float32], ids=str)
def test_a_derived_block(dtype: torch.dtype, length: int, backend: str) -> None:
    """Its sum of int8 wraps, as `project` sees."""
    monoid = tilefold.Monoid(
        often,
        (-INF, 0),
        fields=("most", "count"),
        lift=lambda x: (x, 1),
        project=lambda most, count: (most, tm.cast(count, torch.int64) * 1000),
        dtypes=("input", torch.int8),
        commutative=True,
        check=False,
    )
    x = rows(dtype, length)
    assert specialize(monoid.total, (dtype,)).absorb is not None
    _, count = agrees(monoid, x, backend)
    assert count[1].item() == torch.tensor(length).to(torch.int8).item() * 1000


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "name", ["MAX", "MIN", "MINMAX", "ARGMAX", "ARGMIN", "MAX_WITH_INDEX", "MIN_WITH_INDEX"]
)
def test_extremes_keep_nan(name: str, dtype: torch.dtype, backend: str) -> None:
    """First, last, in the midst and twice; beside infinities; in a row without any."""
    x = (torch.arange(7 * 65) % 11 - 5).to(dtype).view(7, 65)
    for row, places in enumerate([(0,), (64,), (31,), (9, 40), (63,)]):
        x[row, list(places)] = NAN
    x[4, 3], x[4, 4], x[5, 2], x[5, 60] = INF, -INF, INF, -INF
    got = agrees(getattr(monoids, name), x, backend)
    for field in got:
        if field.is_floating_point():
            assert field[:5].isnan().all()
            assert not field[5:].isnan().any()
        else:
            assert field[:5].tolist() == [0, 64, 31, 9, 63]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("length", LENGTHS)
def test_blocks_keep_nan(length: int, backend: str) -> None:
    monoid = tilefold.Monoid(
        lambda a, b: (tm.maximum(a.most, b.most), tm.minimum(a.least, b.least)),
        (-INF, INF),
        fields=("most", "least"),
        lift=lambda x: (x, x),
        absorb=lambda s, x: (tm.maximum(s.most, tm.block_max(x)), tm.minimum(s.least, tm.block_min(x))),
        commutative=True,
    )
    x = torch.arange(3.0 * length).view(3, length)
    x[0, 0] = x[1, length - 1] = NAN
    most, least = agrees(monoid, x, backend)
    assert most.isnan().tolist() == least.isnan().tolist() == [True, True, False]


@pytest.mark.parametrize("backend", BACKENDS)
def test_arithmetic_of_truths_is_int64_s(backend: str) -> None:
    """Lifted, combined and projected: in 32 bits the results would wrap."""
    far = 1 << 40
    monoid = tilefold.Monoid(
        lambda a, b: (a.some | b.some, a.all & b.all, a.sum + b.sum + ((a.some + b.some) * far - (a.some + b.some) * far)),
        (False, True, 0),
        fields=("some", "all", "sum"),
        lift=lambda x: (x > 0, x > 0, ((x > 0) + (x > 1)) * far + ((x > 0) << 40) - (-(x > 0)) * far),
        project=lambda some, all, sum: (sum, (some + all) * far, (some << 33) // 3, -some * far),
        dtypes=(torch.bool, torch.bool, torch.int64),
    )  # fmt: skip
    x = torch.tensor([[0.0, 1.0, 2.0, 3.0], [0.0, 0.0, -1.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    got = agrees(monoid, x, backend)
    assert [field.tolist() for field in got] == [
        [11 * far, 0, 12 * far],
        [far, 0, 2 * far],
        [(1 << 33) // 3, 0, (1 << 33) // 3],
        [-far, 0, -far],
    ]

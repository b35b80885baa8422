"""Folds over no dims on a CPU: in tiles and at once, of layouts that repeat, and choices by bits."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import tilefold
from tilefold import Monoid, math
from tilefold.backends.cpu import cells

INF, NAN = float("inf"), float("nan")
CHOICES = {
    "or 0": lambda x, y: math.where(x > y, x, 0.0),
    "0 or": lambda x, y: math.where(x > y, 0.0, y),
    "-0": lambda x, y: math.where(x > y, x, -0.0),
    "both": lambda x, y: math.where(x > y, x, y),
    "numbers": lambda x, y: math.where(x > y, 3.0, -1.0) * x,
    "several": lambda x, y: math.where(abs(y) == INF, 0.0, math.where(x != x, y, x)),
}


def monoid_of(function: Any) -> Monoid:
    return Monoid(lambda a, b: a + b, 0, lift=function, commutative=True, check=False)


def values(*shape: int) -> torch.Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    flat = made.view(-1)
    flat[::7], flat[1::11], flat[2::13], flat[3::17] = INF, NAN, -0.0, -INF
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("name", CHOICES)
def test_choices(name: str, dtype: torch.dtype) -> None:
    """To the bit what torch chooses, of whole tensors, rows' values and columns'; small, of one tile and of several."""
    choose = monoid_of(CHOICES[name])
    for shape, which in itertools.product(((3, 5), (100, 90), (20, 2000)), range(5)):
        x = values(*shape)
        x = (x if dtype.is_floating_point else x.nan_to_num(0, 5, -5) * 10).to(dtype)
        rows, columns = x[:, :1].expand(shape), x[:1].expand(shape)
        a, b = ((x, x.flip(0)), (x, rows), (rows, x), (rows, columns), (rows, rows))[which]
        got = tilefold.reduce((a, b), choose, ())
        with tilefold.backend("reference"):
            want = tilefold.reduce((a, b), choose, ())
        assert got.dtype == want.dtype
        assert got.is_contiguous()
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.uint64, torch.uint8, torch.bool, torch.float8_e5m2])
def test_dtypes_and_layouts(dtype: torch.dtype) -> None:
    x, same = (torch.arange(90_000).reshape(300, 300) % 3).to(dtype), monoid_of(lambda v: v * 1)
    for given in (x, x.t(), x[::2, 1:], x[:, :1].expand(300, 300), x[:2, :2]):
        got = tilefold.reduce(given, same, ())
        with tilefold.backend("reference"):
            want = tilefold.reduce(given, same, ())
        assert torch.equal(got.double(), want.double())
        assert got.data_ptr() != given.data_ptr()


def test_positions_are_0() -> None:
    placed = Monoid(lambda a, b: a + b, 0, lift=lambda x, i: x + i, index=True)
    assert torch.equal(tilefold.reduce(torch.ones(2, 2), placed, ()), torch.ones(2, 2))


def test_what_rows_make_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in each tile: exponentials of values that repeat are as many as there are values."""
    seen = list[int]()
    own = torch.exp
    x, rows = torch.ones(64, 2048), torch.arange(64.0)[:, None].expand(64, 2048)
    program = tilefold.algebra.program.specialize(
        monoid_of(lambda x, r: x * math.exp(r)).total, (torch.float32, torch.float32)
    )
    settled = cells.Settled(program, (x, rows), 1)
    assert len(settled.tiles) > 1
    for step in settled.kernel._steps:
        if step.function is own:
            object.__setattr__(step, "function", lambda t, **out: seen.append(t.numel()) or own(t, **out))
    (made,) = settled(x, rows)
    assert seen == [64]
    torch.testing.assert_close(made, rows.exp())

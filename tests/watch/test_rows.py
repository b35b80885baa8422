"""The rows of a page: what is drawn for which monoid, and the same elements in orders that are hard on a recurrence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tilefold
from tilefold import math as tm
from tilefold import monoids
from tilefold.errors import ArgumentError, DtypeError, FileError
from tilefold.watch import rows

INF, NAN = math.inf, math.nan


def two_sums(lift: Any) -> tilefold.Monoid:
    return tilefold.Monoid(lambda a, b: a + b, 0, lift=lift, dtypes=(torch.float32,), check=False)


@pytest.mark.parametrize(
    ("monoid", "truths"),
    [
        (monoids.ANY, True),
        (monoids.ALL, True),
        (monoids.COUNT_NONZERO, True),
        (monoids.SUM, False),
        (monoids.MAX, False),
        (two_sums(lambda x, y: tm.where(x != 0, 1.0, 0.0) + tm.where(y == 0, 2.0, 0.0)), True),
        (two_sums(lambda x, y: tm.where(x != 0, y, 0.0)), False),
        (two_sums(lambda x, y: tm.where(x != 0, 1.0, 0.0) + y), False),
        (two_sums(lambda x: tm.where(x > 1, 1.0, 0.0)), False),
        (two_sums(lambda x: 1.0), False),
    ],
)
def test_truths_are_drawn_where_nothing_else_is_asked(monoid: tilefold.Monoid, truths: bool) -> None:
    tensors = rows.draw(monoid.algebra, lambda tensors: 0.0)
    assert len(tensors) == monoid.algebra.inputs
    assert all(len(t) == rows.LENGTH for t in tensors)
    assert {t.dtype for t in tensors} == {torch.bool if truths else torch.float32}


def test_the_row_is_drawn_that_is_rated_highest() -> None:
    mean = lambda tensors: float(tensors[0].double().mean())  # noqa: E731  # a rate
    high = rows.draw(monoids.SUM.algebra, mean)[0]
    low = rows.draw(monoids.SUM.algebra, lambda tensors: -mean(tensors))[0]
    assert bool((high > 0).all())
    assert bool((low < 0).all())
    assert rows.draw(monoids.BITWISE_OR.algebra, lambda tensors: 0.0)[0].dtype == torch.int64


def by_key(found: Sequence[rows.Row]) -> dict[str, torch.Tensor]:
    return {row.key: row.tensors[0] for row in found}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8, torch.uint64], ids=str)
def test_the_same_elements_in_other_orders(dtype: torch.dtype) -> None:
    x = torch.tensor([5, 1, 7, 3, 3, 6, 2]).to(dtype)
    found = by_key(rows.given_rows([x], None))
    assert list(found) == ["given", "random", "rising", "falling", "huge"]
    assert torch.equal(found["given"], x)
    for key in ("random", "rising", "falling"):
        assert sorted(found[key].tolist()) == sorted(x.tolist()), key
    assert found["random"].tolist() != x.tolist()
    assert found["rising"].tolist() == sorted(x.tolist())
    assert found["falling"].tolist() == sorted(x.tolist(), reverse=True)
    huge = found["huge"].double()
    assert int((huge != x.double()).sum()) == 1
    largest = torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max
    assert float(huge[4]) == min(rows.HUGE, largest), "beyond the middle"
    assert list(by_key(rows.drawn_rows([x], None))) == ["random", "rising", "falling", "huge"]


def test_a_huge_value_outweighs_and_stays_in_its_domain() -> None:
    x = torch.tensor([1e3, NAN, -4e3, INF, 2.0])
    assert float(by_key(rows.drawn_rows([x], None))["huge"][3]) == 4e6
    bounded = tilefold.Monoid(lambda a, b: a + b, 0, domain=(-2.0, 50.0), check=False)
    kept = by_key(rows.drawn_rows([torch.ones(5)], bounded.algebra.domain))["huge"]
    assert kept[3] != 1
    assert bool(((kept >= -2) & (kept <= 50)).all())
    assert by_key(rows.drawn_rows([torch.tensor([NAN, 1.0, NAN])], None))["rising"][0] == 1.0


def test_of_truths_one_row_is_true_alone() -> None:
    x = torch.tensor([True, False, False])
    found = by_key(rows.drawn_rows([x], None))
    assert found["true"].tolist() == [True] * 3
    assert found["rising"].tolist() == [False, False, True]
    assert "huge" not in found
    mixed = rows.drawn_rows([x, torch.arange(3.0)], None)[-1]
    assert mixed.key == "huge"
    assert torch.equal(mixed.tensors[0], x)


def test_a_row_of_a_file(tmp_path: Path) -> None:
    for name, array in (
        ("row", np.arange(5.0)),
        ("most", np.zeros(rows.MOST)),
        ("many", np.zeros(rows.MOST + 1)),
        ("none", np.zeros(0)),
        ("flat", np.zeros((2, 2))),
        ("complex", np.zeros(3, dtype=np.complex64)),
    ):
        np.save(tmp_path / name, array)
    (tmp_path / "text.npy").write_text("no array")
    read = lambda name: rows.read_rows([str(tmp_path / f"{name}.npy")])[0]  # noqa: E731  # short
    assert read("row").tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert len(read("most")) == rows.MOST
    for name, error, said in (
        ("many", ArgumentError, f"1 to {rows.MOST} elements, got {rows.MOST + 1}"),
        ("none", ArgumentError, "elements, got 0"),
        ("flat", ArgumentError, "must be 1-D"),
        ("complex", DtypeError, "real numbers or bool"),
        ("text", FileError, "must be a whole .npy file"),
    ):
        with pytest.raises(error, match=said):
            read(name)
    np.savez(tmp_path / "several", row=np.arange(5.0))
    with pytest.raises(FileError, match=r"must be a \.npy file, got another kind"):
        rows.read_rows([str(tmp_path / "several.npz")])

"""What a page says: texts of numbers, rows, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import tilefold
from tilefold import monoids
from tilefold.errors import ArgumentError, DtypeError
from tilefold.watch import read_rows
from tilefold.watch.document import make_document, number_text

CATALOGUE = {name: value for name, value in vars(monoids).items() if isinstance(value, tilefold.Monoid)}


@pytest.mark.parametrize("name", CATALOGUE)
def test_any_monoid_of_the_catalogue_has_a_page(name: str) -> None:
    monoid = CATALOGUE[name]
    document = make_document(monoid)
    json.dumps(document, allow_nan=False)
    values = len(document["fields"]) + len(document["results"])
    assert set(document["answer"]) <= set(range(values))
    for row in document["rows"]:
        assert len(row["truth"]["state"]) + len(row["truth"]["results"]) == values
        for size, stream in row["streams"].items():
            chunks = -(-document["length"] // int(size))
            assert len(stream["own"]) == len(stream["after"]) - 1 == chunks
            assert len(stream["results"]) == chunks + 1
            assert (stream["wrong"] is None) == (document["length"] % int(size) == 0)


@pytest.mark.parametrize("name", ["MAX", "MIN", "LOGSUMEXP", "PROD", "BITWISE_AND", "ARGMAX", "AFFINE"])
def test_a_drawn_row_shows_the_wrong_fill(name: str) -> None:
    document = make_document(CATALOGUE[name])
    assert document["rows"][0]["streams"]["8"]["wrong"]["changed"]


def test_a_fill_that_changes_nothing_is_none() -> None:
    document = make_document(monoids.SUM)
    assert not any(row["streams"]["8"]["wrong"]["changed"] for row in document["rows"])


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (True, torch.bool, "True"),
        (-1, torch.uint64, "18446744073709551615"),
        (-(2**63), torch.int64, "-9223372036854775808"),
        (2**53 + 1, torch.int64, "9007199254740993"),
        (0.1, torch.float32, "0.1"),
        (10000.0, torch.float32, "10000"),
        (1.5e20, torch.float64, "1.5e+20"),
        (float("nan"), torch.float32, "nan"),
        (float("-inf"), torch.float16, "-inf"),
    ],
    ids=lambda value: str(value),
)
def test_numbers_as_they_are_shown(value: float, dtype: torch.dtype, text: str) -> None:
    assert number_text(value, dtype) == text


def test_a_given_row_comes_first_and_then_in_other_orders() -> None:
    row = torch.tensor([3.0, -1.0, 2.0, 5.0])
    document = make_document(monoids.SUM, [row])
    shown = {one["key"]: one["elements"][0] for one in document["rows"]}
    assert list(shown) == ["given", "random", "rising", "falling", "huge"]
    assert shown["given"] == ["3", "-1", "2", "5"]
    assert sorted(shown["random"]) == sorted(shown["given"])
    assert shown["rising"] == ["-1", "2", "3", "5"]
    assert shown["falling"] == ["5", "3", "2", "-1"]
    assert shown["huge"] == ["3", "-1", "10000", "5"]


@pytest.mark.parametrize(
    "dtype",
    [torch.uint8, torch.int8, torch.uint16, torch.uint32, torch.uint64, torch.int64, torch.float16, torch.bfloat16,
     torch.float64],
    ids=str,
)  # fmt: skip
def test_rows_of_every_dtype_are_ordered(dtype: torch.dtype) -> None:
    row = torch.tensor([3, 1, 100, 2, 0]).to(dtype)
    shown = {one["key"]: one["elements"][0] for one in make_document(monoids.MAX, [row])["rows"]}
    assert [float(text) for text in shown["rising"]] == [0, 1, 2, 3, 100]
    assert float(shown["huge"][3]) >= 100


def test_bools_have_a_row_that_is_all_true() -> None:
    document = make_document(monoids.ALL, [torch.tensor([True, False, True])])
    assert document["rows"][-1]["elements"] == [["True"] * 3]
    assert document["rows"][-1]["streams"]["2"]["wrong"]["changed"]


def test_numbers_stay_within_a_declared_domain() -> None:
    logs = tilefold.Monoid(
        lambda a, b: a + b, 0, lift=tilefold.math.log, domain=(0.5, 4.0), check=False, name="logs"
    )
    for row in make_document(logs)["rows"]:
        assert all(0.5 <= float(text) <= 4.0 for text in row["elements"][0])


def test_nan_and_infinities_and_64_bits() -> None:
    values = torch.tensor([1.0, float("nan"), float("inf"), float("-inf")])
    row = make_document(monoids.MAX, [values])["rows"][0]
    assert row["elements"] == [["1", "nan", "inf", "-inf"]]
    assert row["truth"]["state"] == ["nan"]
    large = torch.tensor([2**64 - 1, 5], dtype=torch.uint64)
    row = make_document(monoids.MAX, [large])["rows"][0]
    assert row["truth"]["state"] == ["18446744073709551615"]
    assert row["streams"]["2"]["after"][1] == ["18446744073709551615"]


def test_a_monoid_without_an_identity_begins_with_no_state() -> None:
    document = make_document(monoids.LAST)
    stream = document["rows"][0]["streams"]["8"]
    assert stream["after"][0] == ["none"]
    assert "none" not in stream["after"][1]
    assert document["fields"] == ["value"]


def test_a_result_that_is_a_field_of_its_name_is_drawn_once() -> None:
    document = make_document(monoids.MINMAX)
    assert (document["fields"], document["results"], document["answer"]) == (["min", "max"], [], [0, 1])
    document = make_document(monoids.WELFORD)
    assert document["results"] == ["count", "mean", "M2"]  # its count comes from another field


def test_factors_are_those_of_the_online_softmax() -> None:
    stream = make_document(monoids.LOGSUMEXP, [torch.tensor([0.0, 1.0, 0.0])])["rows"][0]["streams"]["1"]
    kept, taken = stream["factors"][1]
    assert (kept[1], taken[1]) == ("0.367879", "1")
    assert (kept[2], taken[2]) == ("1", "0.367879")


@pytest.mark.parametrize(
    ("monoid", "given", "kind", "said"),
    [
        (monoids.SUM, [torch.zeros(2, 3)], ArgumentError, "a row must be 1-D, got shape"),
        (monoids.SUM, [torch.zeros(0)], ArgumentError, "a row must have 1 to 4096 elements, got 0"),
        (monoids.SUM, [torch.zeros(4097)], ArgumentError, "1 to 4096 elements, got 4097"),
        (monoids.AFFINE, [torch.zeros(3)], ArgumentError, r"a row for each of its inputs \(x, y\), 2 in all, got 1"),
        (monoids.AFFINE, [torch.zeros(3), torch.zeros(4)], ArgumentError, r"of one length, got \[3, 4\]"),
        (monoids.SUM, [torch.zeros(3, dtype=torch.complex64)], DtypeError, "real numbers or bool, got torch.complex64"),
        (monoids.BITWISE_OR, [torch.zeros(3)], DtypeError, "bitwise operations need integers"),
    ],
    ids=["2-D", "empty", "long", "too few", "unequal", "complex", "float bits"],
)  # fmt: skip
def test_what_is_no_row_is_refused(
    monoid: tilefold.Monoid, given: list[torch.Tensor], kind: type, said: str
) -> None:
    with pytest.raises(kind, match=said):
        make_document(monoid, given)


def test_rows_are_read_from_files(tmp_path: object) -> None:
    path = f"{tmp_path}/row.npy"
    np.save(path, np.arange(5, dtype=">i2"))
    assert read_rows([path])[0].tolist() == [0, 1, 2, 3, 4]
    np.save(path, np.arange(6).reshape(2, 3))
    with pytest.raises(ArgumentError, match=r"--row .*: a row must be 1-D, got shape \[2, 3\]"):
        read_rows([path])


def test_a_callers_modes_do_not_matter() -> None:
    with torch.inference_mode(), torch.device("meta"):
        assert make_document(monoids.SUM) == make_document(monoids.SUM)
    assert make_document(monoids.MAX)["rows"][0]["truth"]["state"] == ["-0.55"]

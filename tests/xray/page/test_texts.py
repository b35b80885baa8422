"""Rows of texts: colours that fit, comparisons that lose nothing."""

from __future__ import annotations

import random
import re

import pytest

from tilefold.xray.page.source import source_files
from tilefold.xray.page.texts import Keys, changed_rows, near_changes, plain_ir, python_rows, without_location
from xray.page.shown import CASES, page_of


@pytest.mark.parametrize("case", list(CASES))
def test_colours_fit_their_rows(case: str) -> None:
    page = page_of(case)
    rows = [row for part in (page["files"], page["texts"]) for one in part for row in one["rows"]] + page[
        "rows"
    ]
    coloured = 0
    for _, _, text, colours in rows:
        runs = re.findall(r"([^\d])(\d+)", colours)
        assert "".join(letter + length for letter, length in runs) == colours
        assert sum(int(length) for _, length in runs) <= len(text)
        coloured += bool(runs)
    assert coloured > 0.8 * len(rows)


def test_words_have_their_colours() -> None:
    ((*_, colours),) = python_rows([(1, 0, 'for k in "ab":  # twice')])
    assert colours == "k3.3k2.1s4.3c7"


def test_a_row_with_another_kind_of_end_stays_without_colours() -> None:
    assert python_rows([(1, 0, "a = 1\r"), (2, 0, "b = 2")]) == [(1, 0, "a = 1\r", ""), (2, 0, "b = 2", "")]


@pytest.mark.parametrize("seed", range(8))
def test_a_comparison_has_every_row_of_both(seed: int) -> None:
    draw = random.Random(seed)
    first = [draw.choice("abcd") for _ in range(draw.randrange(12))]
    second = [draw.choice("abcd") for _ in range(draw.randrange(12))]
    marked = list(changed_rows(first, second))
    assert [i for mark, i, _ in marked if mark != "+"] == list(range(len(first)))
    assert [j for mark, _, j in marked if mark != "-"] == list(range(len(second)))
    assert all(first[i] == second[j] for mark, i, j in marked if mark == " ")
    assert all((i < 0) == (mark == "+") and (j < 0) == (mark == "-") for mark, i, j in marked)


def test_rows_near_changes() -> None:
    assert near_changes(list("  -    + "), 1) == [False, True, True, True, False, False, True, True, True]


def test_names_of_loops_and_numbers_tell_no_rows_apart() -> None:
    first = [
        "%acc_4 = scf.for %k = %c0 to %n iter_args(%acc_5 = %cst) -> (i32) {",
        "%x_1 = addf %acc_5, %k : f32",
    ]
    second = [
        "%acc = scf.for %arg4 = %c0 to %n iter_args(%arg5 = %cst_0) -> (i32) {",
        "%x = addf %arg5, %arg4 : f32",
    ]
    assert plain_ir(first) == plain_ir(second)
    assert plain_ir(["%x = addf %a, %b"]) != plain_ir(["%x = addf %a, %c"])
    assert plain_ir(["%0 = tt.load %1 : #blocked1"]) == plain_ir(["%7 = tt.load %8 : #blocked"])
    assert plain_ir(["%0 = arith.constant 1"]) != plain_ir(["%0 = arith.constant 2"])


@pytest.mark.parametrize(
    "location", ["#loc12", '"a (b).py":3:4', "callsite(#loc1 at #loc2)", '"x"(#loc)', "unknown"]
)
def test_locations_are_left_out(location: str) -> None:
    assert (
        without_location(f"%0 = tt.load %1 : tensor<4xf32> loc({location})")
        == "%0 = tt.load %1 : tensor<4xf32>"
    )


def test_source_that_is_gone_is_what_the_report_has() -> None:
    places = {("/nowhere/k.py", 3): "x = 1", ("/nowhere/k.py", 90): "y = 2"}
    ((name, rows),) = source_files(places, Keys(), places)
    assert name == "k.py"
    assert [(n, text) for n, _, text, _ in rows if n] == [(3, "x = 1"), (90, "y = 2")]


@pytest.mark.parametrize(
    "text", ["def broken(:\n" + "x\n" * 40, "x = 1\n" * 40], ids=["no Python", "no function"]
)
def test_a_line_in_no_function_comes_with_a_few_others(text: str, tmp_path) -> None:
    file = tmp_path / "k.py"
    file.write_text(text)
    ((_, rows),) = source_files([(str(file), 20)], Keys(), {})
    assert [n for n, *_ in rows] == [18, 19, 20, 21, 22]

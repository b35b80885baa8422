"""Algebras and graphs as text: read again they are equal; a text of another kind or version is refused in one line."""

from __future__ import annotations

import json
import math as python
import subprocess
import sys

import pytest
import torch

from algebra.drawn import RIGHT, draw
from tilefold import Monoid, math, monoids
from tilefold.algebra import text
from tilefold.algebra.expression import trace
from tilefold.errors import TextError
from tilefold.functional import normalized

CATALOGUE = {name: m for name, m in vars(monoids).items() if isinstance(m, Monoid)}
CATALOGUE |= {f"norm {p}": monoids.NORM(p) for p in (0.5, 1, 2, 3, python.inf)}
CATALOGUE |= {
    f"drawn {k}": draw(RIGHT, 7, k).monoid(check=False, commutative=False) for k in range(0, len(RIGHT), 2)
}


@pytest.mark.parametrize("name", CATALOGUE)
def test_an_algebra_that_is_read_is_the_one_that_was_written(name: str) -> None:
    for algebra in (CATALOGUE[name].algebra, CATALOGUE[name].total):
        written = text.dumps(algebra)
        again = text.loads(written)
        assert again == algebra
        assert hash(again) == hash(algebra)
        assert [repr(n.value) for n in again.combine.nodes] == [repr(n.value) for n in algebra.combine.nodes]
        assert text.dumps(again) == written
        assert "\n" not in written


def test_functions_of_a_row_and_none_travel_together() -> None:
    _, apply = normalized._shares(False)
    assert text.loads(text.dumps((apply.graph, apply.rebase, None))) == (apply.graph, apply.rebase, None)


def test_numbers_of_every_kind_keep_theirs() -> None:
    kept = (1, True, 1.0, -0.0, 0.1, python.inf, -python.inf, 2**63, -(2**63), "a", None, torch.uint16)
    again = text.loads(text.dumps(kept))
    assert [repr(v) for v in again] == [repr(v) for v in kept]
    (nan,) = text.loads(text.dumps((python.nan,)))
    assert python.isnan(nan)


def test_equal_functions_have_one_text_and_others_have_another() -> None:
    texts = [
        text.dumps(trace(f, 2))
        for f in (
            lambda a, b: a + b,
            lambda x, y: x + y,
            lambda a, b: b + a,
            lambda a, b: a + b * 1,
            lambda a, b: a + b * 1.0,
        )
    ]
    assert texts[0] == texts[1]
    assert len(set(texts)) == 4


def test_text_is_the_same_in_another_process() -> None:
    code = "from tilefold import monoids; from tilefold.algebra import text; print(text.dumps(monoids.WELFORD.algebra))"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.strip() == text.dumps(monoids.WELFORD.algebra)


def changed(index: int, value: object) -> str:
    """The text of a sum of two with one part of its third node replaced."""
    version, graph = json.loads(text.dumps(trace(lambda a, b: a + b, 2)))
    graph["Graph"][1][2][index] = value
    return json.dumps([version, graph])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "be a line that tilefold"),
        ("3", "be a line that tilefold"),
        ("__import__('os').abort()", "be a line that tilefold"),
        ("[2, null]", "be of version 1, got version 2"),
        ('["1", null]', "be of version 1, got version '1'"),
        ('[1, {"Popen": ["true"]}]', "hold Graph, Algebra"),
        ('[1, {"Graph": [1]}]', "hold Graph, Algebra"),
        ('[1, {"Graph": [1, [["input", [], 0]], [1]]}]', "give outputs that are nodes"),
        ('[1, {"dtype": "nn"}]', "name dtypes of torch"),
        ('[1, {"dtype": "no_such"}]', "hold Graph, Algebra"),
        ('[1, {"float": "one"}]', "hold Graph, Algebra"),
        ("[1, {}]", "hold Graph, Algebra"),
        (changed(0, "system"), "have operations of this version, got 'system'"),
        (changed(1, [0, 2]), "take what stands before a node"),
        (changed(1, [-1, 0]), "take what stands before a node"),
        (changed(1, 0), "hold Graph, Algebra"),
    ],
)  # fmt: skip
def test_what_is_no_text_is_refused(given: str, message: str) -> None:
    with pytest.raises(
        TextError, match=f"^text: a monoid's text must {message}.*write it again with this version"
    ):
        text.loads(given)


def test_inputs_are_within_the_arity() -> None:
    with pytest.raises(TextError, match=r"take what stands before a node, got \[\] for input"):
        text.loads('[1, {"Graph": [1, [["input", [], 1]], [0]]}]')


def test_a_cast_is_read_as_a_dtype() -> None:
    graph = trace(lambda x: math.cast(x, torch.int32), 1)
    assert text.loads(text.dumps(graph)).nodes[1].value is torch.int32

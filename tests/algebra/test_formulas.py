"""Formulas: Python that computes what the graphs compute."""

from __future__ import annotations

import math
from collections import namedtuple
from typing import Any

import pytest
import torch

from tilefold import math as traced
from tilefold import monoids
from tilefold.algebra import units
from tilefold.algebra.formulas import Formula, combine_formulas, input_names, lift_formulas, project_formulas
from tilefold.algebra.monoid import Monoid


def select(condition: object, a: Any, b: Any) -> Any:
    return a if condition else b


NAMES: dict[str, Any] = {
    "where": select, "unit": units.of_number, "per_unit": units.per_number, "rescale": lambda x, f: x * f,
    "exp": math.exp, "log": math.log, "sqrt": math.sqrt, "isnan": math.isnan, "isinf": math.isinf,
    "isfinite": math.isfinite, "inf": math.inf, "nan": math.nan, "float64": float, "max": max, "min": min, "abs": abs,
}  # fmt: skip


def run(lines: list[Formula], **given: Any) -> dict[str, Any]:
    """Each line as Python, after those before it; a name with a dot is an attribute of `new`."""
    known: dict[str, Any] = {**NAMES, **given}
    found: dict[str, Any] = {}
    for line in lines:
        value = eval(line.text.replace("new.", "new_"), {"__builtins__": {}}, known)  # our own text
        known[line.name.replace(".", "_")] = found[line.name] = value
    return found


@pytest.mark.parametrize(
    "name", ["LOGSUMEXP", "WELFORD", "ARGMAX", "AFFINE", "SUM_COMPENSATED", "DESCRIBE", "MATMUL2X2"]
)
def test_combine_as_it_is_shown_computes_what_the_graph_does(name: str) -> None:
    monoid: Monoid = getattr(monoids, name)
    state = namedtuple("state", monoid.fields)  # type: ignore[misc]  # the fields are not known to a type checker
    old = state(*[0.5 + 0.25 * i for i in range(len(monoid.fields))])
    chunk = state(*[1.5 - 0.125 * i for i in range(len(monoid.fields))])
    values = run(combine_formulas(monoid.algebra), old=old, chunk=chunk)
    expected = monoid.algebra.combine(*old, *chunk)
    assert [values[f"new.{field}"] for field in monoid.fields] == list(expected)


def test_an_element_and_a_result() -> None:
    algebra = monoids.LOGSUMEXP.algebra
    assert run(lift_formulas(algebra), x=3.0) == {"max": 3.0, "sum": 1}
    shown = run(project_formulas(algebra, ["result"]), max=2.0, sum=4.0)
    assert shown["result"] == pytest.approx(2 + math.log(4))
    assert [str(line.text) for line in lift_formulas(monoids.ARGMAX.algebra)] == ["x", "i"]
    assert project_formulas(monoids.SUM.algebra, []) == []


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda a, b: (a - b) - (b - a), "old.value - chunk.value - (chunk.value - old.value)"),
        (lambda a, b: -(a + b) * 2.5, "-(old.value + chunk.value) * 2.5"),
        (lambda a, b: (a < b) & (b < 3), "(old.value < chunk.value) & (chunk.value < 3)"),
        (lambda a, b: (a**b) ** 2.0, "(old.value ** chunk.value) ** 2"),
        (lambda a, b: a / (b / a), "old.value / (chunk.value / old.value)"),
        (lambda a, b: traced.maximum(a, -1.0) + ~(b > 0), "max(old.value, -1) + ~(chunk.value > 0)"),
        (lambda a, b: traced.cast(a, torch.float64) + b, "float64(old.value) + chunk.value"),
    ],
    ids=["minus", "sign", "compare", "power", "quotient", "call", "cast"],
)
def test_brackets_stand_where_they_must(function: Any, text: str) -> None:
    made = Monoid(function, 0, check=False, commutative=False)
    assert [line.text for line in combine_formulas(made.algebra)] == [text]


def test_shared_values_have_a_name_that_no_field_has() -> None:
    made = Monoid(
        lambda a, b: ((a.t1 + b.t1) * (a.t1 + b.t1), a.u + b.u), (0, 0), fields=("t1", "u"),
        lift=lambda x: (x * x + (x * x), x), check=False, commutative=False,
    )  # fmt: skip
    assert [line.name for line in lift_formulas(made.algebra)] == ["v1", "t1", "u"]
    assert [line.name for line in combine_formulas(made.algebra)] == ["t1", "new.t1", "new.u"]


def test_inputs_have_names() -> None:
    assert input_names(1) == ("x",)
    assert input_names(4) == ("x", "y", "z", "w")
    assert input_names(5) == ("x0", "x1", "x2", "x3", "x4")

"""Integers, truths and pointers of TTIR in every program of a grid at once."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilefold.xray.ir import read
from tilefold.xray.ir.programs import Programs

GRID = (5, 3, 2)
X = np.arange(30) % 5
Y = np.arange(30) // 5 % 3


def programs(*lines: str, grid: tuple[int, int, int] = GRID, **options: Any) -> Programs:
    """Of a function whose %x and %y are the program's number along x and y, and %n is 7."""
    start = (
        "%x = tt.get_program_id x : i32",
        "%y = tt.get_program_id y : i32",
        "%three = arith.constant 3 : i32",
    )
    text = "\n".join(f"    {line}" for line in (*start, *lines))
    source = f"module {{\n  tt.func public @kernel(%p: !tt.ptr<f32>, %n: i32) {{\n{text}\n    tt.return\n  }}\n}}\n"
    return Programs(read(source), {"%n": 7}, grid, **options)


def found(found: Any) -> list[Any]:
    assert found is not None
    return list(found.tolist())


def c_quotient(a: int, b: int) -> int:
    return int(a / b) if b else 0


NUMBERS: dict[str, Callable[[int, int], int]] = {
    "addi": operator.add, "subi": operator.sub, "muli": operator.mul, "minsi": min, "maxsi": max, "minui": min, "maxui": max,
    "andi": operator.and_, "ori": operator.or_, "xori": operator.xor, "shli": operator.lshift, "divsi": c_quotient,
    "divui": c_quotient, "remsi": lambda a, b: a - b * c_quotient(a, b) if b else 0,
    "remui": lambda a, b: a - b * c_quotient(a, b) if b else 0,
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_arithmetic(name: str) -> None:
    """Quotients toward 0, as machines divide; by 0 it is 0 here."""
    lines = [f"%a = arith.{name} %n, %x : i32", f"%b = arith.{name} %x, %y : i32"]
    signed = name.endswith("i") and name not in ("minui", "maxui", "divui", "remui", "shli")
    lines += ["%less = arith.subi %y, %n : i32", f"%c = arith.{name} %less, %three : i32"] if signed else []
    made, rule = programs(*lines), NUMBERS[name]
    assert found(made.numbers("%a")) == [rule(7, x) for x in X.tolist()]
    assert found(made.numbers("%b")) == [rule(x, y) for x, y in zip(X.tolist(), Y.tolist(), strict=True)]
    if signed:
        assert found(made.numbers("%c")) == [rule(y - 7, 3) for y in Y.tolist()]


COMPARED: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "slt": operator.lt, "sle": operator.le, "sgt": operator.gt, "sge": operator.ge,
    "ult": operator.lt, "uge": operator.ge,
}  # fmt: skip


@pytest.mark.parametrize("how", COMPARED)
def test_comparisons_and_choices(how: str) -> None:
    made = programs(
        f"%t = arith.cmpi {how}, %x, %three : i32",
        f"%u = arith.cmpi {how}, %y, %x : i32",
        *(f"%{j} = arith.{j} %t, %u : i1" for j in ("andi", "ori", "xori")),
        "%wide = tt.splat %u : i1 -> tensor<4xi1>",
        "%chosen = arith.select %t, %n, %y : i1, i32",
        "%load = tt.load %p : !tt.ptr<i32>",
        f"%open = arith.cmpi {how}, %x, %load : i32",
        f"%other = arith.cmpi {how}, %load, %x : i32",
        "%half = arith.andi %t, %open : i1",
    )
    t, u = COMPARED[how](X, 3), COMPARED[how](Y, X)  # type: ignore[arg-type]  # of arrays, element by element
    assert found(made.truth("%t")) == t.tolist()  # type: ignore[attr-defined]  # an array
    assert found(made.truth("%wide")) == u.tolist()  # type: ignore[attr-defined]  # an array
    for name, joined in (("andi", t & u), ("ori", t | u), ("xori", t ^ u)):
        assert found(made.truth(f"%{name}")) == joined.tolist()  # type: ignore[attr-defined]  # an array
    assert found(made.numbers("%chosen")) == np.where(t, 7, Y).tolist()
    for name in ("%open", "%other", "%half"):
        assert made.truth(name) is None, "what depends on memory is not known"
    assert made.numbers("%load") is None


def test_without_a_word_ranges_stand_for_their_first_element() -> None:
    """And loops for their first round."""
    made = programs(
        "%r = tt.make_range {end = 24 : i32, start = 8 : i32} : tensor<16xi32>",
        "scf.for %k = %three to %n step %three : i32 {",
        "  %seen = arith.addi %k, %x : i32",
        "  scf.yield",
        "}",
    )
    assert found(made.numbers("%r")) == [8] * 30
    assert found(made.numbers("%seen")) == (3 + X).tolist()


@pytest.mark.parametrize(("end", "at"), [(0, 8), (1, 23), (0.5, 15)])
def test_a_range_stands_for_an_element_of_it(end: float, at: int) -> None:
    made = programs(
        "%r = tt.make_range {end = 24 : i32, start = 8 : i32} : tensor<16xi32>",
        "%s = tt.splat %x : i32 -> tensor<16xi32>",
        "%sum = arith.addi %r, %s : tensor<16xi32>",
        "%ps = tt.splat %p : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>",
        "%at = tt.addptr %ps, %sum : tensor<16x!tt.ptr<f32>>, tensor<16xi32>",
        "%again = tt.addptr %at, %s : tensor<16x!tt.ptr<f32>>, tensor<16xi32>",
        "%count = tt.get_num_programs y : i32",
        ends=(end, False),
    )
    assert found(made.numbers("%sum")) == (at + X).tolist()
    assert made.places["%again"].argument == "%p"
    assert np.broadcast_to(made.places["%again"].offset, 30).tolist() == (at + 2 * X).tolist()
    assert found(made.numbers("%count")) == [3] * 30
    assert made.tiles == {"%r", "%s", "%sum", "%ps", "%at", "%again"}


@pytest.mark.parametrize(
    ("last", "counter", "carried"),
    [(False, lambda x: 0 * x, lambda x: x), (True, lambda x: 0 * x + 6, lambda x: x + 9)],
)
def test_a_loop_stands_for_a_round_of_it(last: bool, counter: Any, carried: Any) -> None:
    """From 0 to 7 by 2: four rounds, the last one at 6, after three steps of 3."""
    made = programs(
        "%c0 = arith.constant 0 : i32",
        "%c2 = arith.constant 2 : i32",
        "%end:2 = scf.for %k = %c0 to %n step %c2 iter_args(%s = %x, %t = %p) -> (i32, !tt.ptr<f32>)  : i32 {",
        "  %seen = arith.addi %k, %s : i32",
        "  %more = arith.addi %s, %three : i32",
        "  scf.yield %more, %t : i32, !tt.ptr<f32>",
        "}",
        ends=(0, last),
    )
    assert found(made.numbers("%k")) == counter(X).tolist()
    assert found(made.numbers("%s")) == carried(X).tolist()
    assert found(made.numbers("%seen")) == (counter(X) + carried(X)).tolist()
    assert ("%t" in made.places) is (not last)


def test_a_large_grid_is_seen_in_part() -> None:
    first, spread = (programs(grid=(1000, 10, 1), spread=s, most=11) for s in (False, True))
    assert found(first.numbers("%x")) == list(range(11))
    assert [first.program(k) for k in (0, 10)] == [(0, 0, 0), (10, 0, 0)]
    assert [spread.program(k) for k in (0, 1, 10)] == [(0, 0, 0), (999, 0, 0), (999, 9, 0)]
    assert programs().program(29) == (4, 2, 1)

"""Terms as numbers: functions that are equal as arithmetic have one number, and what differs somewhere has two."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest

from tilefold import math as m
from tilefold.algebra.expression import trace
from tilefold.algebra.proofs.cases import Case, source_of
from tilefold.algebra.proofs.terms import Terms


def term(terms: Terms, function: Callable[..., Any], truths: int = 0) -> int:
    """The number of a function of a, b and c, of which the last so many are truth values."""
    graph = trace(function, 3)
    source = source_of(graph, [i >= 3 - truths for i in range(3)])
    found = Case(terms).run(source, source.needed(graph.outputs), [terms.symbol(n) for n in "abc"])
    return found[graph.outputs[0]]


ALIKE: dict[str, list[Callable[..., Any]]] = {
    "sums": [lambda a, b, c: a + b + c, lambda a, b, c: c + (b + a), lambda a, b, c: a - (-b) + c],
    "products": [lambda a, b, c: a * (b + c), lambda a, b, c: a * b + c * a],
    "quotients": [lambda a, b, c: a, lambda a, b, c: a * b / b, lambda a, b, c: (a / c) * c],
    "powers": [lambda a, b, c: a * a * a, lambda a, b, c: a**3, lambda a, b, c: a**4 / a],
    "inverse powers": [lambda a, b, c: 1 / a, lambda a, b, c: a**-1.0],
    "odd functions": [lambda a, b, c: m.sin(a - b), lambda a, b, c: -m.sin(b - a)],
    "even functions": [lambda a, b, c: abs(a - b), lambda a, b, c: abs(b - a)],
    "cosines": [lambda a, b, c: m.cos(a - b), lambda a, b, c: m.cos(b - a)],
    "exponentials": [lambda a, b, c: m.exp(a + b), lambda a, b, c: m.exp(b + a)],
    "maxima": [
        lambda a, b, c: m.maximum(a, m.maximum(b, c)),
        lambda a, b, c: m.maximum(m.maximum(c, a), m.maximum(b, a)),
    ],
    "minima": [lambda a, b, c: m.minimum(a, m.minimum(b, c)), lambda a, b, c: m.minimum(m.minimum(c, a), b)],
    "bits": [lambda a, b, c: a ^ b ^ a ^ c, lambda a, b, c: c ^ b],
    "bits twice": [lambda a, b, c: (a | b) | a, lambda a, b, c: b | a],
    "bits of both": [lambda a, b, c: (a & b) & c & a, lambda a, b, c: c & (b & a)],
    "bits of all": [lambda a, b, c: a & -1, lambda a, b, c: a | 0, lambda a, b, c: a ^ 0, lambda a, b, c: a],
    "inverted twice": [lambda a, b, c: ~~a, lambda a, b, c: a],
    "choices": [lambda a, b, c: m.where(a < b, a, c), lambda a, b, c: m.where(a >= b, c, a)],
    "mirrored": [lambda a, b, c: m.where(a < b, a, c), lambda a, b, c: m.where(b > a, a, c)],
    "zero": [lambda a, b, c: m.exp(a - a), lambda a, b, c: m.cos(b - b), lambda a, b, c: a / a],
}  # fmt: skip
LOGIC: dict[str, list[Callable[..., Any]]] = {
    "and": [lambda a, b, c: b & c & b, lambda a, b, c: c & b, lambda a, b, c: ~(~b | ~c)],
    "or": [lambda a, b, c: b | c, lambda a, b, c: c | b | c, lambda a, b, c: ~(~b & ~c)],
    "xor": [lambda a, b, c: b ^ c, lambda a, b, c: (b | c) & ~(b & c)],
    "not": [lambda a, b, c: ~~b, lambda a, b, c: b],
    "choice": [lambda a, b, c: m.where(b, a, a * 2), lambda a, b, c: m.where(~b, a + a, a)],
}  # fmt: skip


@pytest.mark.parametrize("name", ALIKE)
def test_equal_functions_have_one_number(name: str) -> None:
    terms = Terms(signed=True)
    assert len({term(terms, f) for f in ALIKE[name]}) == 1


@pytest.mark.parametrize("name", [n for n in LOGIC if n not in ("and", "or", "xor")])
def test_equal_functions_of_truths_have_one_number(name: str) -> None:
    terms = Terms(signed=True)
    assert len({term(terms, f, truths=2) for f in LOGIC[name]}) == 1


@pytest.mark.parametrize("name", ["and", "or", "xor"])
def test_logic_is_that_of_0_and_1(name: str) -> None:
    """Equal as polynomials, where no square comes up."""
    terms = Terms(signed=True)
    one, other = (term(terms, f, truths=2) for f in (LOGIC[name][0], LOGIC[name][-1]))
    values = dict.fromkeys(itertools.product((0, 1), repeat=2))
    for t, u in values:
        zero_one = Terms(signed=True)
        case = Case(zero_one)
        for f in LOGIC[name]:
            graph = trace(f, 3)
            source = source_of(graph, [False, True, True])
            made = case.run(source, source.needed(graph.outputs), [5, t, u])[graph.outputs[0]]
            assert made == {"and": t & u, "or": t | u, "xor": t ^ u}[name]
    assert one != 0 != other


def test_different_functions_have_different_numbers() -> None:
    terms = Terms(signed=True)
    skipped = ("mirrored", "inverted twice", "bits of all")  # choices again, and a itself
    numbers = [term(terms, functions[0]) for name, functions in ALIKE.items() if name not in skipped]
    others = [
        lambda a, b, c: a - b, lambda a, b, c: b - a, lambda a, b, c: a / b, lambda a, b, c: b / a,
        lambda a, b, c: a**2, lambda a, b, c: a**0.5, lambda a, b, c: a**b, lambda a, b, c: m.exp(a),
        lambda a, b, c: m.exp(-a),
        lambda a, b, c: m.log(a), lambda a, b, c: m.floor(a), lambda a, b, c: m.ceil(a), lambda a, b, c: a & b,
        lambda a, b, c: a | c, lambda a, b, c: ~a, lambda a, b, c: a << b, lambda a, b, c: b << a, lambda a, b, c: a // b,
        lambda a, b, c: a % b, lambda a, b, c: m.maximum(a, b), lambda a, b, c: m.minimum(a, b), lambda a, b, c: a < b,
        lambda a, b, c: a <= b, lambda a, b, c: m.where(a < b, a, b), lambda a, b, c: m.where(a < b, b, a),
    ]  # fmt: skip
    numbers += [term(terms, f) for f in others]
    assert len(set(numbers)) == len(numbers)


def test_without_a_sign_a_difference_is_no_mirror() -> None:
    terms = Terms(signed=False)
    one, other = ALIKE["even functions"]
    assert term(terms, one) != term(terms, other)


def test_constants() -> None:
    terms = Terms(signed=True)
    assert terms.values[terms.constant(0.25)] == 0.25
    assert 4 * terms.constant(0.25) % (terms.constant(-1) + 1) == 1
    assert terms.constant(True) == terms.constant(1.0) == 1
    infinite = [terms.constant(v) for v in (math.inf, -math.inf, math.nan)]
    assert len(set(infinite)) == 3
    assert infinite[2] == terms.nan
    assert sum(infinite[:2]) == terms.constant(-1) + 1
    x = terms.symbol("x")
    assert [terms.simpler(t) for t in (1, x, terms.symbol("y"), terms.atom("z"))] == [-1, 0, 1, 2]
    assert terms.symbol("x") == x
    assert terms.many("maximum", [x, x]) == x

"""Terms in cases: what a case says of a graph (bounds, decided comparisons, equal terms) holds at every point of that
case."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch

from tilefold import math as m
from tilefold.algebra.expression import Graph, apply, trace
from tilefold.algebra.operations import OPS
from tilefold.algebra.proofs.cases import ANY, EQUAL, GREATER, LESS, TRUTH, Bounds, Case, source_of
from tilefold.algebra.proofs.terms import Terms

INF = math.inf
OF_NUMBERS = ("add", "sub", "mul", "maximum", "minimum", "neg", "abs", "floor", "ceil")
OF_TRUTHS = ("and", "or", "xor", "invert")


def drawn(rng: random.Random, nodes: int) -> Graph:
    """A graph of three numbers: arithmetic, extremes, comparisons, logic and choices; all values are outputs."""

    def made(*given: Any) -> tuple[Any, ...]:
        numbers, truths, every = [*given, rng.choice((0, 1, 2, -3))], [given[0] < given[1]], list[Any]()
        for _ in range(nodes):
            kind = rng.random()
            if kind < 0.55:
                op = rng.choice(OF_NUMBERS)
                numbers.append(apply(op, *rng.choices(numbers, k=OPS[op].arity)))
                every.append(numbers[-1])
            elif kind < 0.75:
                truths.append(
                    apply(rng.choice(("lt", "le", "gt", "ge", "eq", "ne")), *rng.choices(numbers, k=2))
                )
                every.append(truths[-1])
            elif kind < 0.85:
                op = rng.choice(OF_TRUTHS)
                truths.append(apply(op, *rng.choices(truths, k=OPS[op].arity)))
                every.append(truths[-1])
            else:
                numbers.append(m.where(rng.choice(truths), *rng.choices(numbers, k=2)))
                every.append(numbers[-1])
        return tuple(v + 0 if isinstance(v, bool) else v for v in every)

    return trace(made, 3)


def at(graph: Graph, point: tuple[Any, ...]) -> list[Any]:
    """The value of every node at a point."""
    values = list[Any]()
    for node in graph.nodes:
        if node.op in ("input", "const"):
            values.append(point[node.value] if node.op == "input" else node.value)
        else:
            values.append(OPS[node.op].python(*(values[a] for a in node.args)))
    return values


def started(
    graph: Graph, ends: list[tuple[int, int]], *, signed: bool, whole: bool = True
) -> tuple[Case, list[int], list[int]]:
    """A case of inputs between these ends, their terms, and all nodes' positions."""
    terms = Terms(signed=signed)
    case, inputs = Case(terms), [terms.symbol("x", i) for i in range(graph.arity)]
    for term, (low, high) in zip(inputs, ends, strict=True):
        case.bound(term, Bounds(low, high, whole))
    for a, b in itertools.combinations(inputs, 2):
        terms.differing[case.key(a, b)[0]] = (a, b)
    return case, inputs, list(range(len(graph.nodes)))


def assert_holds(case: Case, graph: Graph, found: dict[int, int], points: list[tuple[Any, ...]]) -> None:
    by_term: dict[int, int] = {}
    for point in points:
        values = at(graph, point)
        for position, term in found.items():
            within, value = case.within(term), values[position]
            assert within.least <= value <= within.most, (graph, point, position)
            assert not within.whole or value == int(value), (graph, point, position)
            other = by_term.setdefault(term, position)
            assert values[other] == value, (graph, point, position, other)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("seed", range(36))
def test_what_a_case_says_holds_at_its_points(seed: int, signed: bool) -> None:
    rng = random.Random(seed)
    graph = drawn(rng, 12)
    ends = []
    for _ in range(3):
        low = rng.randint(-4, 3) if signed else rng.randint(0, 3)
        ends.append((low, low + rng.randint(0, 4)))
    if not signed and any(node.op in ("sub", "neg", "invert") for node in graph.nodes):
        return  # whole numbers without a sign wrap
    case, inputs, nodes = started(graph, ends, signed=signed)
    points = list(itertools.product(*(range(low, high + 1) for low, high in ends)))
    source = source_of(graph, [False] * 3)
    assert_holds(case, graph, case.run(source, nodes, inputs), points)


@pytest.mark.parametrize("seed", range(24))
def test_cases_of_how_two_values_compare_cover_all_points(seed: int) -> None:
    rng = random.Random(100 + seed)
    graph = drawn(rng, 10)
    case, inputs, nodes = started(graph, [(-2, 2), (-1, 3), (0, 2)], signed=True, whole=seed % 2 == 0)
    steps = range(-2, 4) if seed % 2 == 0 else [Fraction(n, 2) for n in range(-4, 7)]
    points = [
        p
        for p in itertools.product(steps, repeat=3)
        if -2 <= p[0] <= 2 and -1 <= p[1] <= 3 and 0 <= p[2] <= 2
    ]
    source, left = source_of(graph, [False] * 3), set(points)
    for one in case.split(inputs[0], inputs[1]):
        outcome = one.outcomes(inputs[0], inputs[1])
        assert outcome in (LESS, EQUAL, GREATER)
        here = [
            p for p in points if (p[0] > p[1]) - (p[0] < p[1]) == {LESS: -1, EQUAL: 0, GREATER: 1}[outcome]
        ]
        assert_holds(one, graph, one.run(source, nodes, [one.same.get(t, t) for t in inputs]), here)
        left -= set(here)
    assert not left


A, B = Bounds(1, 3, whole=True), Bounds(2, 5, whole=True)
S, H, P = Bounds(-2, 3, whole=True), Bounds(-1.5, 0.5), Bounds(0, 4)
KNOWN: list[tuple[str, Callable[..., Any], tuple[Bounds, ...], Bounds]] = [
    ("sum", lambda a, b: a + b, (A, B), Bounds(3, 8, whole=True)),
    ("difference", lambda a, b: a - b, (A, B), Bounds(-4, 1, whole=True)),
    ("product", lambda a, b: a * b, (S, B), Bounds(-10, 15, whole=True)),
    ("product of fractions", lambda a, b: a * b, (H, B), Bounds(-7.5, 2.5)),
    ("negative", lambda a: -a, (S,), Bounds(-3, 2, whole=True)),
    ("magnitude", lambda a: abs(a), (S,), Bounds(0, 3, whole=True)),
    ("magnitude of what has a sign", lambda a: abs(a), (A,), A),
    ("maximum", lambda a, b: m.maximum(a, b), (S, A), Bounds(1, 3, whole=True)),
    ("minimum", lambda a, b: m.minimum(a, b), (S, A), Bounds(-2, 3, whole=True)),
    ("quotient of what has no sign", lambda a, b: a / b, (A, P), Bounds(0)),
    ("quotient", lambda a, b: a / b, (S, B), Bounds()),
    ("floor of whole numbers", lambda a: m.floor(a), (S,), S),
    ("floor", lambda a: m.floor(a), (H,), Bounds()),
    ("choice", lambda a, b, c: m.where(c < 0, a, b), (A, B, S), Bounds(1, 5, whole=True)),
    ("exponential", lambda a: m.exp(a), (S,), Bounds(0, INF)),
    ("a comparison that is open", lambda a, b: a < b, (A, B), TRUTH),
    ("less, by bounds", lambda a, b: a <= b - 1, (Bounds(1, 2), Bounds(3, 5)), Bounds(1, 1, whole=True)),
    ("not less, by bounds", lambda a, b: a > b, (Bounds(1, 2), Bounds(2, 5)), Bounds(0, 0, whole=True)),
    ("infinite", lambda a, b: a + b, (Bounds(-INF, 3), A), Bounds(-INF, 6)),
    ("both infinite", lambda a, b: a + b, (Bounds(-INF, 3), Bounds(1)), Bounds()),
    ("far", lambda a, b: a * b, (Bounds(0, 2.0**150), Bounds(0, 2.0**150)), Bounds(0, INF)),
    ("no infinity", lambda a: m.isinf(a), (S,), Bounds(0, 0, whole=True)),
    ("finite", lambda a: m.isfinite(a), (S,), Bounds(1, 1, whole=True)),
    ("perhaps finite", lambda a: m.isfinite(a), (Bounds(),), TRUTH),
    ("no NaN among whole numbers", lambda a: m.isnan(a), (S,), Bounds(0, 0, whole=True)),
    ("a cast that cuts", lambda a: m.cast(a, torch.int64), (H,), Bounds()),
    ("a cast of whole numbers", lambda a: m.cast(a, torch.int64), (S,), S),
    ("a truth", lambda a: m.cast(a, torch.bool), (A,), Bounds(1, 1, whole=True)),
]  # fmt: skip


@pytest.mark.parametrize(("function", "given", "want"), [k[1:] for k in KNOWN], ids=[k[0] for k in KNOWN])
def test_bounds_are_as_narrow_as_said(function: Any, given: tuple[Bounds, ...], want: Bounds) -> None:
    graph, terms = trace(function, len(given)), Terms(signed=True)
    case, inputs = Case(terms), [terms.symbol("x", i) for i in range(len(given))]
    for term, bounds in zip(inputs, given, strict=True):
        case.bound(term, bounds)
    source = source_of(graph, [False] * len(given))
    found = case.run(source, source.needed(graph.outputs), inputs)
    got = case.within(found[graph.outputs[0]])
    assert (got.least, got.most) == (want.least, want.most)
    assert got.whole or not want.whole


def test_what_is_learnt() -> None:
    terms = Terms(signed=True)
    x, y = terms.symbol("x"), terms.symbol("y")
    case = Case(terms)
    case.bound(x, Bounds(0, 5, whole=True))
    case.bound(y, Bounds(0, 5, whole=True))
    assert case.outcomes(x, y) == ANY
    assert case.outcomes(x, x) == EQUAL
    less = case.learn(x, y, LESS)
    assert (less.within(x).most, less.within(y).least) == (4, 1)
    assert (less.outcomes(x, y), less.outcomes(y, x)) == (LESS, GREATER)
    greater = case.learn(x, y, GREATER)
    assert (greater.within(x).least, greater.within(y).most) == (1, 4)
    assert case.outcomes(x, y) == ANY  # as before
    apart = less.learn(x, terms.constant(4), EQUAL)
    assert apart.same[x] == terms.constant(4)
    assert [c.outcomes(x, y) for c in case.split(x, y)] == [LESS, EQUAL, GREATER]
    assert [c.outcomes(x, y) for c in less.split(x, y)] == [LESS]


def test_a_member_is_on_one_side_of_its_set() -> None:
    terms = Terms(signed=True)
    case, (x, y, z) = Case(terms), [terms.symbol(n) for n in "xyz"]
    two, three = terms.many("maximum", (x, y)), terms.many("maximum", (x, y, z))
    assert case.outcomes(x, two) == LESS | EQUAL
    assert case.outcomes(two, x) == GREATER | EQUAL
    assert case.outcomes(two, three) == LESS | EQUAL
    assert case.outcomes(z, two) == ANY
    least = terms.many("minimum", (x, y))
    assert case.outcomes(x, least) == GREATER | EQUAL
    assert case.outcomes(least, two) == ANY


def test_contradictions_are_no_cases() -> None:
    terms = Terms(signed=True)
    case, x = Case(terms), terms.symbol("x")
    case.bound(x, Bounds(2, 3))
    assert not case.contradicts
    case.bound(x, Bounds(4, 5))
    assert case.contradicts
    again = Case(terms)
    again.bound(x, Bounds(2, 2))
    assert again.same[x] == terms.constant(2)
    assert again.within(terms.constant(2.5)) == Bounds(2.5, 2.5)
    assert again.within(terms.constant(INF)).whole

"""The derivative of a scan by its prefixes' results alone: of states whose fields depend on how they were grouped.

A prefix is a fold. Where the law gives an element's cotangent of a fold as k(x, T) g, of the total T (`folds`), that of a
scan is the sum of k(x, S_t) g_t over the prefixes S_t from the element on. Where k is a polynomial of x, as of moments,

    k(x, S) = sum over powers p of coefficient[p](S) x^p,

these are sums over t of coefficient[p](S_t) g_t, times x^p. Coefficients are a projection like any other: the same of a state
however it was grouped, with a derivative themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tilefold.algebra.algebra import Algebra
from tilefold.algebra.derivatives.folds import Gradient
from tilefold.algebra.derivatives.linear import add, as_float, is_zero, mul
from tilefold.algebra.derivatives.pullback import pullback
from tilefold.algebra.expression import Graph, trace
from tilefold.algebra.typing import infer

DEGREE = 3  # of a polynomial: no more is tried


class Term(NamedTuple):
    """A result, an input, and the inputs (repeated as often as their powers say) whose product this coefficient is of."""

    result: int
    input: int
    powers: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Separated:
    """`states` is the algebra whose results are the coefficients of `terms`."""

    states: Algebra
    terms: tuple[Term, ...]

    def sums(self) -> list[tuple[int, tuple[int, ...]]]:
        """The (input, powers) of which there are coefficients, each once."""
        return sorted({(t.input, t.powers) for t in self.terms})


def separated(gradient: Gradient) -> Separated | None:
    """The polynomials' coefficients, where cotangents are polynomials of elements: samples confirm it."""
    if not gradient.needs_total_alone():
        return None
    k, terms, graphs = gradient.program.lift.graph.arity, list[Term](), list[Graph]()
    for r in gradient.results:
        for i in (i for i, dtype in enumerate(gradient.elements) if dtype.is_floating_point):
            left: dict[tuple[int, ...], Graph] = {(): _slope(gradient, r, i)}
            while left:
                if any(len(powers) > DEGREE for powers in left):
                    return None
                terms += [Term(r, i, powers) for powers in left]
                graphs += [_at_zero(graph, k, powers) for powers, graph in left.items()]
                left = {
                    (*powers, j): slope
                    for powers, graph in left.items()
                    for j in range(max(powers, default=0), k)
                    if (slope := _derivative(gradient, graph, j)) is not None
                }
    project = trace(lambda *s: tuple(graph(*s)[0] for graph in graphs), gradient.n)
    found = Separated(replace(gradient.algebra, project=project, quick=None, sums=None), tuple(terms))
    return found if gradient.agrees_on_rows(_both(gradient, found)) else None


def _slope(gradient: Gradient, result: int, i: int) -> Graph:
    """(elements, total) -> the derivative of a result by the element i."""
    k, project = gradient.program.lift.graph.arity, gradient.program.project

    def run(*v: Any) -> Any:
        g = pullback(project, v[k:], [float(r == result) for r in range(len(project.graph.outputs))])
        return as_float(gradient.by_total(v[:k], v[k:], g)[0][i])

    return trace(run, k + gradient.n)


def _derivative(gradient: Gradient, graph: Graph, j: int) -> Graph | None:
    """The derivative of a function of (elements, total) by the element j, or None where the graph shows 0."""
    typed, kept = infer(graph, [*gradient.program.lift.input_dtypes, *gradient.program.state]), list[Any]()

    def run(*v: Any) -> Any:
        kept[:] = [pullback(typed, v, [1.0])[j]]
        return as_float(kept[0])

    made = trace(run, graph.arity)
    return None if is_zero(kept[0]) else made


def _at_zero(graph: Graph, k: int, powers: Sequence[int]) -> Graph:
    """The coefficient: a function of the total alone, at elements of 0, over the factorials of the powers."""
    factorials = 1.0
    for at, j in enumerate(powers):
        factorials *= powers[: at + 1].count(j)
    return trace(lambda *s: mul(1 / factorials, graph(*[0.0] * k, *s)[0]), graph.arity - k)


def product(x: Sequence[Any], powers: Sequence[int]) -> Any:
    """The product of some elements, 1 of none."""
    made: Any = 1.0
    for j in powers:
        made = mul(made, x[j])
    return made


def _both(gradient: Gradient, found: Separated) -> Graph:
    """(an element, its row's total, a cotangent) -> elements' cotangents by the law, then by the coefficients."""
    k, project = gradient.program.lift.graph.arity, gradient.program.project
    assert found.states.project is not None
    coefficients, inputs = found.states.project, sorted({t.input for t in found.terms})

    def run(*v: Any) -> tuple[Any, ...]:
        x, total, g = v[:k], v[k : k + gradient.n], v[-1]
        gs = pullback(
            project,
            total,
            gradient.of_results([g * (1.0 + at) for at, _ in enumerate(gradient.results)], False),
        )
        one, two = gradient.by_total(x, total, gs)[0], dict[int, Any]()
        for term, c in zip(found.terms, coefficients(*total), strict=True):
            weight = 1.0 + gradient.results.index(term.result)
            part = mul(mul(weight, g), mul(c, product(x, term.powers)))
            two[term.input] = add(two.get(term.input, 0), part)
        return tuple(as_float(v) for v in (*(one[i] for i in inputs), *(two[i] for i in inputs)))

    return trace(run, k + gradient.n + 1)

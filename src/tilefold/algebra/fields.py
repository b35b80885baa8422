"""The dtype of each field of a state, as its rule and the graphs that fill it say.

A "compute" field is what its own lift and combine make of it: a whole number stays one, whatever the fold's other inputs are.
All of them begin as whole numbers, and one turns into a float where

    made       an operation, an element or a field that is a float goes into it;
    literal    nothing but literals goes into it, a float among them (the 1.0 of `lambda x: (x, 1.0)`), or it begins at a
               fraction or NaN, and the fold has floats;
    limited    an integer would wrap on the way to floats: it may hold an infinity that is computed with, or it is a product
               of its own values of which floats are made; and the fold has floats.

A fold has floats where an element is one, or a field has turned into one. Fields only ever turn from whole numbers to floats
and from narrow floats to wide ones, so this ends. Integer literals are weak: they make no field a float, and keep none from
being one.

An "input" field has the dtype of the inputs that its values come from.

What a whole number would lose in a float on no more account than that it stands beside one is refused (`_check_kept`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator

import torch

from tilefold.algebra import typing
from tilefold.algebra.algebra import Algebra, FieldDtype
from tilefold.algebra.dtypes import (
    carried_dtype,
    check_foldable,
    compute_dtype,
    element_dtype,
    is_float,
    promote,
)
from tilefold.algebra.expression import Graph
from tilefold.algebra.flows import Uses, leaves, uses, value_inputs, widths
from tilefold.algebra.narrow import without_infinities
from tilefold.algebra.typing import TypedGraph
from tilefold.errors import DtypeError
from tilefold.runtime.caching import kept_outside_modes


@kept_outside_modes(1024)
def declared_dtypes(algebra: Algebra, elements: tuple[torch.dtype, ...]) -> tuple[torch.dtype, ...]:
    """The dtype of each field for elements of these dtypes.

    Raises:
        DtypeError: whole numbers would lose bits in a field whose dtype was not asked for.
    """
    fields = _Fields(algebra, elements)
    fields.settle()
    _check_kept(fields)
    return tuple(fields.dtypes)


def is_chosen(algebra: Algebra, field: int) -> bool:
    """Whether a field's values are elements, only chosen among and compared, as an index beside a maximum is."""
    n = len(algebra.fields)
    lifted, combined = (
        [graph.nodes[leaf] for leaf in leaves(graph, graph.outputs[field])]
        for graph in (algebra.lift, algebra.combine)
    )
    moved = all(node.op in ("input", "const") for node in (*lifted, *combined))
    return moved and all(node.value % n == field for node in combined if node.op == "input")


class _Fields:
    """The fields' dtypes as far as they are known."""

    def __init__(self, algebra: Algebra, elements: tuple[torch.dtype, ...]) -> None:
        self.algebra, self.elements = algebra, elements
        common = functools.reduce(promote, elements)
        self.float = compute_dtype(common) if is_float(common) else torch.float32
        self.has_floats = is_float(common)
        taken = _taken_dtypes(algebra, elements, common)
        self.dtypes = [_stated(rule, dtype) for rule, dtype in zip(algebra.dtypes, taken, strict=True)]
        self.open = [f for f, rule in enumerate(algebra.dtypes) if rule == "compute"]
        self.numbers = algebra.identity_numbers or (0,) * len(self.dtypes)
        self.limited: set[int] = set()  # floats for an infinity alone, of which no operation makes floats
        self._typed: dict[tuple[str, tuple[torch.dtype, ...]], TypedGraph] = {}

    def settle(self) -> None:
        """Turn whole numbers into floats until nothing changes. What lift makes is known without any field."""
        steps = (
            self._find_literals,
            lambda: self._find_made("lift", "begin"),
            lambda: self._find_made("lift", "begin", "combine", "absorb"),
            self._find_limited,
        )
        while any(self._turns(step) for step in steps):
            self.has_floats = True

    def _turns(self, step: Callable[[], None]) -> bool:
        before = list(self.dtypes)
        step()
        return self.dtypes != before

    def written(self) -> dict[str, Graph]:
        """The graphs that fill a state, as they were written, by role."""
        algebra = self.algebra
        graphs = {
            "lift": algebra.lift,
            "begin": algebra.begin,
            "combine": algebra.combine,
            "absorb": algebra.absorb,
        }
        return {role: graph for role, graph in graphs.items() if graph is not None}

    def held(self, role: str) -> list[torch.dtype]:
        """The dtypes whose values a graph takes."""
        block = [*self.elements, *[torch.int64] * self.algebra.index]
        fields = self.dtypes
        return {"lift": block, "begin": block, "combine": [*fields, *fields], "absorb": [*fields, *block]}[
            role
        ]

    def typed(self, role: str) -> TypedGraph:
        """A graph that fills a state, where an infinity on its way into a whole number is that dtype's limit."""
        key = role, tuple(self.dtypes)
        if key not in self._typed:
            n, held = len(self.dtypes), self.held(role)
            states = {"combine": 2 * n, "absorb": n}.get(role, 0)
            taken = [*map(carried_dtype, held[:states]), *map(element_dtype, held[states:])]
            self._typed[key] = typing.infer(
                without_infinities(self.written()[role], self.dtypes, role), taken
            )
        return self._typed[key]

    def uses(self, field: int) -> list[Uses]:
        """What is done with a field's values."""
        n = len(self.dtypes)
        sides = {"combine": frozenset([field, field + n]), "absorb": frozenset([field])}
        return [uses(self.typed(role), sides[role]) for role in sides if role in self.written()]

    def _find_made(self, *roles: str) -> None:
        """Floats that are made; of more bits than the fold's own, they widen the field."""
        for role in roles:
            if role not in self.written():
                continue
            typed = self.typed(role)
            for f in self.open:
                produced, output = typed.output_dtypes[f], typed.graph.outputs[f]
                if is_float(produced) and typed.graph.nodes[output].op != "const":
                    wide = promote(self.float, compute_dtype(produced))
                    self.dtypes[f] = promote(self.dtypes[f], wide)

    def _find_literals(self) -> None:
        for f in self.open if self.has_floats else ():
            number = self.numbers[f]
            fraction = math.isfinite(number) and number != int(number)
            if (
                math.isnan(number)
                or fraction
                or any(_gives_literal_float(g, f) for g in self.written().values())
            ):
                self.dtypes[f] = promote(self.dtypes[f], self.float)

    def _find_limited(self) -> None:
        for f in self.open if self.has_floats else ():
            infinite, multiplied = self._may_be_infinite(f), f in _multiplied(self.algebra.combine)
            if is_float(self.dtypes[f]) or not (infinite or multiplied):
                continue
            used = self.uses(f)
            computed = any(u.computed for u in used)
            if computed or (infinite and any(u.asked for u in used)):
                self.dtypes[f] = self.float
                self.limited |= set() if computed else {f}

    def _may_be_infinite(self, field: int) -> bool:
        graphs = self.written().values()
        given = [
            g.nodes[leaf].value
            for g in graphs
            for leaf in leaves(g, g.outputs[field])
            if g.nodes[leaf].op == "const"
        ]
        return any(
            isinstance(number, float) and math.isinf(number) for number in (self.numbers[field], *given)
        )


def _stated(rule: FieldDtype, taken: torch.dtype) -> torch.dtype:
    if isinstance(rule, torch.dtype):
        check_foldable(rule, "Monoid dtypes")
        return rule
    return taken if rule == "input" else torch.int64


def _gives_literal_float(graph: Graph, field: int) -> bool:
    """Whether a graph gives a field one of several literals, a float among them."""
    given = [graph.nodes[leaf] for leaf in leaves(graph, graph.outputs[field])]
    return all(node.op == "const" for node in given) and any(isinstance(node.value, float) for node in given)


@kept_outside_modes(256)
def _multiplied(combine: Graph) -> frozenset[int]:
    """The fields whose two values combine multiplies."""
    n, sources = len(combine.outputs), value_inputs(combine)
    factors = [[sources[a] for a in node.args] for node in combine.nodes if node.op == "mul"]
    return frozenset(
        i % n
        for a, b in factors
        for i in a | b
        if ((i + n) % (2 * n) in b and i in a) or ((i + n) % (2 * n) in a and i in b)
    )


def _taken_dtypes(
    algebra: Algebra, elements: tuple[torch.dtype, ...], common: torch.dtype
) -> list[torch.dtype]:
    """What the inputs that a field's values come from promote to; all of them, where none do."""
    n = len(algebra.fields)
    if len(elements) == 1 or "input" not in algebra.dtypes:
        return [common] * n
    lifted, combined = value_inputs(algebra.lift), value_inputs(algebra.combine)
    sources = [lifted[output] - {algebra.inputs} for output in algebra.lift.outputs]
    states = [{i % n for i in combined[output]} for output in algebra.combine.outputs]
    for _ in range(n):
        sources = [s.union(*(sources[g] for g in states[f])) for f, s in enumerate(sources)]
    return [functools.reduce(promote, [elements[i] for i in sorted(s)]) if s else common for s in sources]


def _check_kept(fields: _Fields) -> None:
    """Refuse whole numbers that would be rounded for no more than standing beside floats.

    What is computed with is a float as torch promotes it: exp(x), x * 0.5, a.scale * b.offset. What is only chosen and
    compared (an index, a label) must come out as it went in.
    """
    several = len(fields.elements) > 1
    for f, rule in enumerate(fields.algebra.dtypes):
        if rule == "compute" or (rule == "input" and several):
            dtype = fields.dtypes[f]
            lost = (
                _rounded(fields, f) if is_float(dtype) else _wrapped(fields, f) if rule == "compute" else None
            )
            if lost is not None:
                raise DtypeError(
                    "monoid: whole numbers must fit the dtype that a field has from its own lift and combine, got "
                    f"{lost} for {fields.algebra.fields[f]}, which is {dtype}; give the monoid dtypes=, cast them with "
                    "tilefold.math.cast, or choose them among whole numbers alone"
                )


def _rounded(fields: _Fields, field: int) -> str | None:
    """What a float field would round: whole numbers of more bits than it has, which are not computed with."""
    digits = 1 - round(math.log2(torch.finfo(fields.dtypes[field]).eps))
    wide = next(_wide(fields, field, digits), None)
    computed = field not in fields.limited and any(u.computed for u in fields.uses(field))
    return None if computed else wide


def _wide(fields: _Fields, field: int, digits: int) -> Iterator[str]:
    for role in fields.written():
        typed, held = fields.typed(role), fields.held(role)
        bits = widths(typed, held)
        for leaf in sorted(leaves(typed.graph, typed.graph.outputs[field])):
            node = typed.graph.nodes[leaf]
            if node.op != "const" and not is_float(typed.dtypes[leaf]) and bits[leaf] > digits:
                yield f"{held[node.value] if node.op == 'input' else typed.dtypes[leaf]} in {role}"


def _wrapped(fields: _Fields, field: int) -> str | None:
    """What a field of int64 would take for negative: numbers of uint64 beside floats, or that are chosen and compared.

    A sum of them wraps, as torch's does.
    """
    given = (fields.typed(role).output_dtypes[field] for role in fields.written())
    graphs = [fields.typed(role).graph for role in ("lift", "combine")]
    chosen = {g.nodes[leaf].op for g in graphs for leaf in leaves(g, g.outputs[field])} <= {"input", "const"}
    return "torch.uint64" if torch.uint64 in given and (fields.has_floats or chosen) else None

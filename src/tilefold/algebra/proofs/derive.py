"""The block form of a fold, found in its combine: `absorb` and `begin` for a monoid that was given neither.

A state (m, l) of a max-shifted sum is combined one exponential a side, while a whole block needs one an element and one for
the state. Which combines allow that is seen in the graph. With ⊕ one of +, maximum, minimum, field f must be

    f(a, b) = P(a; S) ⊕ P(b; S)

the same term P of either side, which reads that side's fields (f among them) and S, the combined values of fields already
known to be of this form. A field that is a.f ⊕ b.f is the case P(a; S) = a.f. Then for a block x_1 ... x_k after a state s

    S' = the fields of S after all k elements
    f' = P(s; S') ⊕ P(lift(x_1); S') ⊕ ... ⊕ P(lift(x_k); S')

and a first block is the same without s.

Why this is the fold: by induction over k, wherever a combined state may be taken apart,

    P(combine(a, b); S) = P(a; S) ⊕ P(b; S)    for the S of any fold that a and b are part of.           (1)

The laws almost say so. Take + for ⊕ and call d(a, b; S) what (1) is off by. Both groupings of a, b, c give
P(ab; S) + P(c; S) = P(a; S) + P(bc; S) at S = S(abc), hence d(a, b; S) = d(b, c; S). With the identity e as c this is
d(b, e; S) = -P(e; S). Where S is one maximum or minimum, a and b or b and c alone already have the S of all three, so that
d(a, b; S) = -P(e; S) always: (1) holds if P(e; S) = 0, as it is with l = 0 in (m, l). Without that it need not hold:
a + b - 1 with identity 1 obeys the laws and is (a - 1/2) + (b - 1/2), which is off by 1/2 a step.

A sum that is stored modulo 2**bits of a narrow integer is of the form too: a block's sum is cut the same way at its end. Not
so where another field's term reads it, as it is before it is cut.

So what the structure suggests is tried before it is used: `laws.blocks_agree` compares it with combining one by one, on the
samples of the laws and on NaN. Where they differ, or where nothing could be compared, the fold stays as it is. What
is assumed beyond the samples is what every fold assumes, that the laws hold. The terms are the combine's own, added up in
another grouping: a result differs by rounding, within the bound of a block form that an author gives.

Where no term reads a combined field, as in any fold with one field, nothing is derived: a block would save no arithmetic.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tilefold.algebra import typing
from tilefold.algebra.dtypes import is_float
from tilefold.algebra.expression import Graph, Node, apply, needed, trace
from tilefold.algebra.narrow import what_is_wrapped
from tilefold.algebra.numbers import Number
from tilefold.algebra.operations import values_of
from tilefold.algebra.written import Program
from tilefold.runtime.caching import kept_outside_modes


@dataclass(frozen=True)
class Part:
    """One field of a combine: `op` of one term of either side, and `block`, the operation that folds a block by it.

    `term` is the left side's node, `own` the fields of its side that it reads, `rescales` whether it reads combined ones.
    `node` combines the sides, and `output` is what becomes of it: the same, or its value modulo a narrower dtype's.
    """

    field: int
    op: str
    block: str
    term: int
    own: frozenset[int]
    rescales: bool
    node: int
    output: int


@dataclass(frozen=True)
class Form:
    """A combine as parts, those that others need first. Their nodes are those of `graph`, and mean nothing in another one."""

    graph: Graph
    parts: tuple[Part, ...]


@kept_outside_modes(256)
def form_of(combine: Graph) -> Form | None:
    """Every field of a combine as a part; None where one has another form."""
    found: dict[int, Part] = {}
    while len(found) < len(combine.outputs):
        more = _more_parts(combine, found)
        if not more:
            return None
        found |= more
    return Form(combine, tuple(found.values()))


def _more_parts(combine: Graph, found: dict[int, Part]) -> dict[int, Part]:
    """The fields that are parts given those found, whose combined values terms may read."""
    terms = _Terms(combine, frozenset(part.output for part in found.values()))
    more: dict[int, Part] = {}
    for field, output in enumerate(combine.outputs):
        part = None if field in found else _part(terms, field, output)
        if part is not None:
            more[field] = part
    return more


def _part(terms: _Terms, field: int, output: int) -> Part | None:
    node = what_is_wrapped(terms.combine, output)
    root = terms.combine.nodes[node]
    known = values_of(root.op)
    if known.block is None or (known.linear is None and node != output):
        return None  # of values modulo a number, only sums are sums
    for term, other in (root.args, root.args[::-1]):
        own = terms.own_fields(term)
        if terms.mirror[term] == other and own is not None and field in own:
            return Part(field, root.op, known.block, term, own, terms.reads_shared[term], node, output)
    return None


class _Terms:
    """What each node of a combine is as a term, with some combined values shared by both sides.

    For each node, in one pass: `mirror`, the same term of the other side, if there is one; `read`, the inputs that it reads
    (as bits), and `reads_shared`, whether it reads what is shared. Equal nodes are one in a graph, so that the mirrored term
    is found by its operands.
    """

    def __init__(self, combine: Graph, shared: frozenset[int]) -> None:
        self.combine, self.sides = combine, len(combine.outputs)
        places = {(node.op, node.key, node.args): position for position, node in enumerate(combine.nodes)}
        self.mirror: list[int | None] = []
        self.read: list[int] = []
        self.reads_shared: list[bool] = []
        for position, node in enumerate(combine.nodes):
            inside = position not in shared
            args = node.args if inside else ()
            self.reads_shared.append(not inside or any(self.reads_shared[a] for a in args))
            own = 1 << node.value if node.op == "input" else 0
            self.read.append(functools.reduce(operator.or_, (self.read[a] for a in args), own))
            self.mirror.append(self._mirrored(node, places) if inside else position)

    def _mirrored(self, node: Node, places: dict[tuple[str, str, tuple[int, ...]], int]) -> int | None:
        if node.op == "input":
            return places.get(("input", str((node.value + self.sides) % (2 * self.sides)), ()))
        args = [mirrored for a in node.args if (mirrored := self.mirror[a]) is not None]
        return places.get((node.op, node.key, tuple(args))) if len(args) == len(node.args) else None

    def own_fields(self, term: int) -> frozenset[int] | None:
        """The fields that a term of the left side reads of it; None where it reads the right side's too."""
        read = self.read[term]
        return frozenset(f for f in range(self.sides) if read >> f & 1) if read < 1 << self.sides else None


def by_field(combine: Graph) -> tuple[str, ...] | None:
    """The block operation of each field, where combining is nothing but a.f ⊕ b.f field by field; else None."""
    form = form_of(combine)
    if form is None or not all(
        part.own == {part.field} and combine.nodes[part.term].op == "input" and part.node == part.output
        for part in form.parts
    ):
        return None
    operations = {part.field: part.block for part in form.parts}
    return tuple(operations[f] for f in range(len(operations)))


def with_blocks(program: Program) -> Program | None:
    """The program with `absorb` and `begin` as its combine's structure suggests them, not tried yet; None without such."""
    form = form_of(program.combine.graph)
    if form is None or program.combine.output_dtypes != program.state:
        return None
    blocks = _Blocks(program, form)
    if not any(part.rescales for part in form.parts) or blocks.round_what_they_wrap:
        return None
    n, lifted = len(program.state), program.lift.input_dtypes
    if any(isinstance(c, float) and c - c != 0 and not is_float(d) for c, d in blocks.constants):
        return None  # an infinity that means a whole number's limit
    absorb = trace(lambda *values: blocks.taken(values[n:], values[:n]), n + len(lifted))
    begin = trace(lambda *elements: blocks.taken(elements, None), len(lifted))
    return replace(
        program,
        absorb=typing.infer(absorb, [*program.state, *lifted]),
        begin=typing.infer(begin, lifted),
    )


class _Blocks:
    """Writes absorb and begin of a program whose combine has this form."""

    def __init__(self, program: Program, form: Form) -> None:
        self.program, self.form = program, form
        self.dtypes = typing.infer(form.graph, program.combine.input_dtypes).dtypes
        lift = program.lift.graph
        self.varies = [bool(lift.reads(i)) for i in range(len(program.state))]

    @property
    def round_what_they_wrap(self) -> bool:
        """Whether a sum that wraps is one of floats, of which each step keeps the whole part alone."""
        return any(part.node != part.output and is_float(self.dtypes[part.node]) for part in self.form.parts)

    @property
    def constants(self) -> list[tuple[Number, torch.dtype]]:
        """What lift gives without looking at an element, and the dtype that takes it."""
        lift = self.program.lift.graph
        nodes = zip((lift.nodes[o] for o in lift.outputs), self.program.state, strict=True)
        return [(node.value, dtype) for node, dtype in nodes if node.op == "const"]

    def taken(self, elements: Sequence[Any], state: Sequence[Any] | None) -> tuple[Any, ...]:
        """A block of elements taken into a state, or made one."""
        lifted = self._lifted(elements)
        block: dict[int, Any] = {}  # the terms of lifted elements, and of the state, by their nodes
        before: dict[int, Any] = {}
        for part in self.form.parts:
            value = self._term(part.term, lifted, block)
            if any(self.varies[f] for f in part.own):
                value = apply(part.block, value)
            elif values_of(part.op).linear:  # a sum of as many equal values
                value = _product(apply("block_count", elements[0]), value)
            if state is not None:
                value = apply(part.op, self._term(part.term, state, before), value)
            value = self._term(part.output, (), {part.node: value})
            block[part.output] = before[part.output] = value
        return tuple(block[o] for o in self.form.graph.outputs)

    def _lifted(self, elements: Sequence[Any]) -> list[Any]:
        """The lifted elements in the dtypes that a state carries."""
        values = self.program.lift.graph(*elements)
        typed = zip(values, self.program.lift.output_dtypes, self.program.state, strict=True)
        return [
            v if source == d and not _is_number(v) else apply("cast", v, value=d) for v, source, d in typed
        ]

    def _term(self, position: int, own: Sequence[Any], known: dict[int, Any]) -> Any:
        """A term of one side's fields; `known` are the nodes that have values, and gets those that this one needed."""
        for needs in needed(self.form.graph.nodes, [position], known):
            known[needs] = self._step(needs, own, known)
        return known[position]

    def _step(self, position: int, own: Sequence[Any], known: dict[int, Any]) -> Any:
        node = self.form.graph.nodes[position]
        if node.op == "input":
            return own[node.value]
        if node.op == "const":
            return node.value
        operands = [known[a] for a in node.args]
        if node.op == "mul":
            for factor, other, place in zip(operands, operands[::-1], node.args[::-1], strict=True):
                same = self.dtypes[place] == self.dtypes[position]
                if same and _is_number(factor) and factor == 1:
                    return other
        return apply(node.op, *operands, value=node.value)


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float)


def _product(count: Any, value: Any) -> Any:
    """`value` for every element of a block, summed."""
    return count if _is_number(value) and value == 1 else apply("mul", count, value)

"""The block form of a fold, found in its combine: `absorb` and `begin` for a monoid that was given neither.

A state (m, l) of a max-shifted sum is combined one exponential a side, while a whole block needs one an element and one for
the state. Which combines allow that is seen in the graph. With ⊕ one of +, maximum, minimum, field f must be

    f(a, b) = P(a; S) ⊕ P(b; S)

the same term P of either side, which reads that side's fields (f among them) and S, the combined values of fields already
known to be of this form. A field met as a.f ⊕ b.f is the case P(a; S) = a.f. Then for a block x_1 ... x_k after a state s

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

So what the structure suggests is tried before it is used: `laws.blocks_agree` compares it with combining one by one, on the
samples of the laws and on NaN. Where they differ, or where nothing could be compared, the fold stays as it is. What
is assumed beyond the samples is what every fold assumes, that the laws hold. The terms are the combine's own, added up in
another grouping: a result differs by rounding, within the bound of a block form that an author gives.

Where no term reads a combined field, as in any fold with one field, nothing is derived: a block would save no arithmetic.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tilefold.algebra import typing
from tilefold.algebra.expression import Graph, apply, trace
from tilefold.algebra.operations import Number
from tilefold.algebra.program import Program

_BLOCKS = {"add": "block_sum", "maximum": "block_max", "minimum": "block_min"}


@dataclass(frozen=True)
class Part:
    """One field of a combine: `op` of one term of either side.

    `term` is the left side's node, `own` the fields of its side that it reads, `rescales` whether it reads combined ones.
    """

    field: int
    op: str
    term: int
    own: frozenset[int]
    rescales: bool


@functools.lru_cache(maxsize=256)
def parts(combine: Graph) -> tuple[Part, ...] | None:
    """Every field of a combine as a part, those that others need first; None where one has another form."""
    n = len(combine.outputs)
    found: dict[int, Part] = {}
    while len(found) < n:
        shared = frozenset(combine.outputs[i] for i in found)
        more = {i: p for i in range(n) if i not in found and (p := _part(combine, i, shared)) is not None}
        if not more:
            return None
        found |= more
    return tuple(found.values())


def _part(combine: Graph, field: int, shared: frozenset[int]) -> Part | None:
    root = combine.nodes[combine.outputs[field]]
    if root.op not in _BLOCKS:
        return None
    for term, other in (root.args, root.args[::-1]):
        own = _own_fields(combine, term, other, shared)
        if own is not None and field in own:
            return Part(field, root.op, term, own, _meets(combine, term, shared))
    return None


def _meets(combine: Graph, position: int, shared: frozenset[int]) -> bool:
    return position in shared or any(_meets(combine, a, shared) for a in combine.nodes[position].args)


def _own_fields(combine: Graph, left: int, right: int, shared: frozenset[int]) -> frozenset[int] | None:
    """The fields that a term reads of its own side, if the other is the same term of the other side; else None."""
    n = len(combine.outputs)
    if left in shared or right in shared:
        return frozenset() if left == right else None
    a, b = combine.nodes[left], combine.nodes[right]
    if a.op == "input":
        return frozenset([a.value]) if b.op == "input" and a.value < n and b.value == a.value + n else None
    if (a.op, a.key, len(a.args)) != (b.op, b.key, len(b.args)):
        return None
    read = [_own_fields(combine, *pair, shared) for pair in zip(a.args, b.args, strict=True)]
    return None if None in read else frozenset[int]().union(*(r for r in read if r is not None))


def by_field(combine: Graph) -> tuple[str, ...] | None:
    """The block operation of each field, where combining is nothing but a.f ⊕ b.f field by field; else None."""
    found = parts(combine) or ()
    plain = {
        p.field: _BLOCKS[p.op] for p in found if p.own == {p.field} and combine.nodes[p.term].op == "input"
    }
    return (
        tuple(plain[f] for f in range(len(combine.outputs))) if len(plain) == len(combine.outputs) else None
    )


def absorbing(program: Program) -> Program:
    """The program with derived `absorb` and `begin`, where its combine allows them and samples agree; else as it is."""
    from tilefold.algebra import laws, samples  # need torch evaluation

    derived = with_blocks(program)
    if derived is None:
        return program
    with samples.real_samples():
        agree = laws.blocks_agree(program.algebra, _sampled_as(program.elements))
    return derived if agree else program


def _sampled_as(elements: Sequence[torch.dtype]) -> tuple[torch.dtype, ...]:
    """The dtypes of samples that stand for these elements."""
    return tuple(
        torch.float64 if typing.is_float(e) else torch.bool if e == torch.bool else torch.int64
        for e in elements
    )


def with_blocks(program: Program) -> Program | None:
    """The program with `absorb` and `begin` as its combine's structure suggests them, not tried yet; None without such."""
    found = parts(program.algebra.combine)
    if found is None or not any(p.rescales for p in found) or program.combine.output_dtypes != program.state:
        return None
    n, lifted = len(program.state), program.lift.input_dtypes
    blocks = _Blocks(program, found)
    if any(isinstance(c, float) and c - c != 0 and not typing.is_float(d) for c, d in blocks.constants):
        return None  # an infinity that means a whole number's limit
    absorb = trace(lambda *values: blocks.taken(values[n:], values[:n]), n + len(lifted))
    begin = trace(lambda *elements: blocks.taken(elements, None), len(lifted))
    return replace(
        program,
        absorb=typing.infer(absorb, [*program.state, *lifted]),
        begin=typing.infer(begin, lifted),
    )


class _Blocks:
    """Writes absorb and begin of a program whose combine has these parts."""

    def __init__(self, program: Program, found: Sequence[Part]) -> None:
        self.program, self.parts = program, found
        self.combine = program.combine
        lift = program.lift.graph
        self.varies = [bool(lift.reads(i)) for i in range(len(program.state))]

    @property
    def constants(self) -> list[tuple[Number, torch.dtype]]:
        """What lift gives without looking at an element, and the dtype that takes it."""
        lift = self.program.lift.graph
        nodes = zip((lift.nodes[o] for o in lift.outputs), self.program.state, strict=True)
        return [(node.value, dtype) for node, dtype in nodes if node.op == "const"]

    def taken(self, elements: Sequence[Any], state: Sequence[Any] | None) -> tuple[Any, ...]:
        """A block of elements taken into a state, or made one."""
        lifted = self._lifted(elements)
        results: dict[int, Any] = {}
        for part in self.parts:
            value = self._term(part.term, lifted, results)
            if any(self.varies[f] for f in part.own):
                value = apply(_BLOCKS[part.op], value)
            elif part.op == "add":
                value = _product(apply("block_count", elements[0]), value)
            if state is not None:
                value = apply(part.op, self._term(part.term, state, results), value)
            results[self.combine.graph.outputs[part.field]] = value
        return tuple(results[o] for o in self.combine.graph.outputs)

    def _lifted(self, elements: Sequence[Any]) -> list[Any]:
        """The lifted elements in the dtypes that a state carries."""
        values = self.program.lift.graph(*elements)
        typed = zip(values, self.program.lift.output_dtypes, self.program.state, strict=True)
        return [
            v if source == d and not _is_number(v) else apply("cast", v, value=d) for v, source, d in typed
        ]

    def _term(self, position: int, own: Sequence[Any], results: dict[int, Any]) -> Any:
        """A term of one side's fields, and of the results so far."""
        if position in results:
            return results[position]
        node = self.combine.graph.nodes[position]
        if node.op == "input":
            return own[node.value]
        if node.op == "const":
            return node.value
        operands = [self._term(a, own, results) for a in node.args]
        if node.op == "mul":
            for factor, other, place in zip(operands, operands[::-1], node.args[::-1], strict=True):
                same = self.combine.dtypes[place] == self.combine.dtypes[position]
                if same and _is_number(factor) and factor == 1:
                    return other
        return apply(node.op, *operands, value=node.value)


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float)


def _product(count: Any, value: Any) -> Any:
    """`value` for every element of a block, summed."""
    return count if _is_number(value) and value == 1 else apply("mul", count, value)

"""Whether the graph of a combine shows that combine(a, b) and combine(b, a) are one.

Both are written as terms (`terms`), field by field. Where a field's two terms differ, what decides them is taken apart into
cases (`cases`): how two values compare, whether a truth value holds. A field is shown once its terms are equal in every case
that can be; so are extremes with positions, sums about a larger maximum, moments, the two largest of all. A case that leaves
the terms apart with nothing to decide, or more cases than `_STEPS` allow, show nothing.

Taken for granted is what the laws take: no state is NaN, whole numbers do not overflow but in sums and products, and
results may differ by rounding. Neither state is the identity, with which every state commutes. So a state is a lifted
element or a combination of such, and what follows from that is found before: `reached` gives each field bounds that lift
keeps, and combine where both sides keep them. A count of elements is 1 at least, so that a guard against none is never taken.
Elements are within the monoid's domain: of others nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from tilefold.algebra.algebra import Algebra, FieldDtype
from tilefold.algebra.operations import COMPARISONS, EXTREMES, TESTS
from tilefold.algebra.proofs.cases import (
    ANY,
    EQUAL,
    EVERYTHING,
    TRUTH,
    Bounds,
    Case,
    Source,
    short,
    source_of,
)
from tilefold.algebra.proofs.terms import Term, Terms

_STEPS = 60_000  # nodes evaluated, beside one look at the whole graph: about a tenth of a second
_ROUNDS = 3  # of bounds that may still move, before those that do are given up
_WIDE = ("compute", "index", torch.int64, torch.uint64)


def shown_commutative(algebra: Algebra) -> bool:
    """Whether every field of combine(a, b) is shown to be that of combine(b, a), for all states that elements reach."""
    return _Proof(algebra).holds()


class _Proof:
    def __init__(self, algebra: Algebra) -> None:
        signed = not any(d in ("input", torch.uint64) for d in algebra.dtypes)
        self.algebra, self.terms, n = algebra, Terms(signed=signed), len(algebra.fields)
        truths = [d == torch.bool for d in algebra.dtypes]
        self.source = source_of(algebra.combine, truths * 2)
        self.sides = [[self.terms.symbol(side, field) for field in range(n)] for side in "ab"]
        self.steps = _STEPS

    def holds(self) -> bool:
        case = self._start(reached(self.algebra, self.terms, self.source))
        outputs = self.algebra.combine.outputs
        both = self._both(case, self.source.needed(outputs))
        return all(both[0][o] == both[1][o] or self._shown(case, o) for o in dict.fromkeys(outputs))

    def _start(self, bounds: Sequence[Bounds]) -> Case:
        """What holds of any two states: their fields' bounds, and that two of them hold no position in common."""
        case = Case(self.terms)
        for side in self.sides:
            for term, within in zip(side, bounds, strict=True):
                case.bound(term, within)
        for pair, dtype in zip(zip(*self.sides, strict=True), self.algebra.dtypes, strict=True):
            key, _ = case.key(*pair)
            self.terms.differing[key] = pair
            if dtype == "index" and self.algebra.index_is_label:
                case.order[key] = ANY & ~EQUAL
        return case

    def _both(self, case: Case, nodes: Sequence[int]) -> list[dict[int, Term]]:
        """The terms of combine(a, b) and combine(b, a)."""
        a, b = self.sides
        return [case.run(self.source, nodes, [*one, *other]) for one, other in ((a, b), (b, a))]

    def _shown(self, start: Case, output: int) -> bool:
        nodes, open_cases = self.source.needed([output]), [start]
        while open_cases:
            case = open_cases.pop()
            self.steps -= 2 * len(nodes)
            both = self._both(case, nodes)
            if case.contradicts or both[0][output] == both[1][output]:
                continue
            pair = next(_undecided(self.source, case, both, output), None)
            if pair is None or self.steps < 0:
                return False
            open_cases += case.split(*pair)
        return True


def _undecided(
    source: Source, case: Case, both: Sequence[dict[int, Term]], output: int
) -> Iterator[tuple[Term, Term]]:
    """Pairs of terms whose order would decide something: what is compared and chosen by first, then operands of extremes."""
    nodes = source.graph.nodes
    ways = [(found, _met(source, found, output)) for found in both]
    for found, met in ways:
        for position in met:
            node = nodes[position]
            operands = [found[a] for a in node.args]
            if node.op in COMPARISONS:
                yield from _compared(case, *operands)
            elif node.op in TESTS or (node.op == "input" and source.truths[position]):
                yield from _open(case, found[position], 0)
            elif node.op == "where":
                yield from _open(case, operands[0], 0)
    for found, met in ways:
        for position in met:
            if nodes[position].op in EXTREMES:
                yield from _members(case, found[position])
            elif nodes[position].op == "abs":
                yield from _open(case, found[nodes[position].args[0]], 0)


def _met(source: Source, found: dict[int, Term], output: int) -> list[int]:
    """The nodes that an output needs in a case, without the choices that are not taken."""
    nodes, pending, seen = source.graph.nodes, [output], {output}
    while pending:
        node = nodes[pending.pop()]
        args = node.args
        if node.op == "where" and found[args[0]] in (0, 1):
            args = (args[1] if found[args[0]] else args[2],)
        new = [a for a in args if a not in seen]
        seen.update(new)
        pending.extend(new)
    return sorted(seen)


def _compared(case: Case, x: Term, y: Term) -> Iterator[tuple[Term, Term]]:
    for term in (x, y):
        yield from _members(case, term)
    yield from _open(case, x, y)


def _members(case: Case, term: Term) -> Iterator[tuple[Term, Term]]:
    _, members = case.terms.members.get(term, ("", ()))
    ordered = sorted(members, key=lambda t: (case.terms.simpler(t), t))
    for number, x in enumerate(ordered):
        for y in ordered[:number]:
            yield from _open(case, y, x)


def _open(case: Case, x: Term, y: Term) -> Iterator[tuple[Term, Term]]:
    possible = case.outcomes(x, y)
    if possible & (possible - 1):
        yield x, y


# ---------------------------------------------------------------------------------------------- bounds


def reached(algebra: Algebra, terms: Terms, combine: Source) -> list[Bounds]:
    """Bounds of each field that hold for lifted elements, and for a combination of states that they hold for."""
    lift, n = source_of(algebra.lift, [False] * algebra.lift.arity), len(algebra.fields)
    case, elements = Case(terms), [terms.symbol("element", i) for i in range(algebra.lift.arity)]
    for element, one in zip(elements, algebra.domain or (), strict=False):
        case.bound(element, Bounds(short(one.low), short(one.high)))
    if algebra.index:
        case.bound(elements[-1], Bounds(0, whole=True))
    bounds = _outputs(case, lift, elements, algebra.dtypes)
    for number in range(_ROUNDS + 2 * n):
        case, sides = Case(terms), [terms.symbol(number, i) for i in range(2 * n)]
        for side, within in zip(sides, [*bounds, *bounds], strict=True):
            case.bound(side, within)
        grown = [
            old.join(new)
            for old, new in zip(bounds, _outputs(case, combine, sides, algebra.dtypes), strict=True)
        ]
        if grown == bounds:
            return bounds
        bounds = grown if number < _ROUNDS else [_given_up(*pair) for pair in zip(bounds, grown, strict=True)]
    return [TRUTH if dtype == torch.bool else EVERYTHING for dtype in algebra.dtypes]


def _given_up(old: Bounds, new: Bounds) -> Bounds:
    """Without the ends that moved."""
    least = old.least if old.least == new.least else EVERYTHING.least
    return Bounds(least, old.most if old.most == new.most else EVERYTHING.most, new.whole)


def _outputs(
    case: Case, source: Source, arguments: Sequence[Term], dtypes: Sequence[FieldDtype]
) -> list[Bounds]:
    outputs = source.graph.outputs
    found = case.run(source, source.needed(outputs), arguments)
    return [_stored(case.within(found[o]), dtype) for o, dtype in zip(outputs, dtypes, strict=True)]


def _stored(within: Bounds, dtype: FieldDtype) -> Bounds:
    """The bounds of a value in a field, which may cut its fraction or wrap it."""
    if dtype == torch.bool:
        return TRUTH
    if dtype == "input":  # of any dtype
        return within if within.least >= 0 and within.most <= 1 else EVERYTHING
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
        return within
    if dtype not in _WIDE:
        limits = torch.iinfo(dtype)  # type: ignore[arg-type]  # an integer's
        if within.least < limits.min or within.most > limits.max:
            return Bounds(limits.min, limits.max, whole=True)
    return within if dtype == "compute" or within.whole else _cut(within)


def _cut(within: Bounds) -> Bounds:
    """Toward 0."""
    least, most = (b if math.isinf(b) else int(b) for b in (within.least, within.most))
    return Bounds(least, most, whole=True)

"""Graphs evaluated to terms in one case: in which order some values are, and between which bounds.

A case knows of pairs of terms how they may compare (LESS, EQUAL, GREATER, or several of these) and of terms their bounds.
What that decides is decided: comparisons, the choices of `where`, operands that a maximum leaves out; equal terms are one.
What it does not decide is a term of its own, and `split` makes the cases in which it is decided. Values are compared as if
none were NaN; where a graph asks whether one is, either answer is a case.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from tilefold.algebra.expression import Graph, needed
from tilefold.algebra.flows import taken
from tilefold.algebra.operations import COMPARISONS, EXTREMES, OPS
from tilefold.algebra.proofs.terms import PRIME, Term, Terms

LESS, EQUAL, GREATER = 1, 2, 4
ANY = LESS | EQUAL | GREATER
# Of each comparison: how the two compare for which it holds.
_MASKS = {
    op: LESS * OPS[op].python(0, 1) | EQUAL * OPS[op].python(0, 0) | GREATER * OPS[op].python(1, 0)
    for op in COMPARISONS
}
# Of each extreme: how an operand may compare with it.
_BESIDE = {op: EQUAL | (LESS if OPS[op].python(0, 1) else GREATER) for op in EXTREMES}
_MIRRORED = [0, 4, 2, 6, 1, 5, 3, 7]
_FAR = 1 << 200  # bounds beyond are infinite, so that they stay short


@dataclass(frozen=True)
class Bounds:
    """A closed interval, and whether only whole numbers of it are meant."""

    least: float = -math.inf
    most: float = math.inf
    whole: bool = False

    def join(self, other: Bounds) -> Bounds:
        """What holds both."""
        return Bounds(min(self.least, other.least), max(self.most, other.most), self.whole and other.whole)

    def meet(self, other: Bounds) -> Bounds:
        """What both hold."""
        return Bounds(max(self.least, other.least), min(self.most, other.most), self.whole or other.whole)


EVERYTHING, TRUTH = Bounds(), Bounds(0, 1, whole=True)


@dataclass(frozen=True)
class Source:
    """A graph, which of its nodes are truth values, and the nodes that one output needs, in order."""

    graph: Graph
    truths: Sequence[bool]

    def needed(self, outputs: Sequence[int]) -> list[int]:
        """The nodes that these are made of, in order."""
        return needed(self.graph.nodes, outputs)


def source_of(graph: Graph, true_inputs: Sequence[bool]) -> Source:
    """A graph and its truth values: comparisons, tests and what logic and choices make of them."""
    truths: list[bool] = []
    for node in graph.nodes:
        if node.op == "input":
            truths.append(true_inputs[node.value])
        elif node.op == "const":
            truths.append(isinstance(node.value, bool))
        elif OPS[node.op].keeps_bool:
            truths.append(all(truths[a] for a in taken(node)))
        else:
            truths.append(OPS[node.op].kind in ("compare", "test") or node.value is torch.bool)
    return Source(graph, truths)


@dataclass
class Case:
    """What is known: `order` by the terms compared, `bounds` by term, `same` from a term to an equal one that replaces it."""

    terms: Terms
    order: dict[object, int] = field(default_factory=dict)
    bounds: dict[Term, Bounds] = field(default_factory=dict)
    same: dict[Term, Term] = field(default_factory=dict)
    contradicts: bool = False

    def copy(self) -> Case:
        """A case that may learn more without this one."""
        return Case(self.terms, dict(self.order), dict(self.bounds), dict(self.same))

    # -------------------------------------------------------------------------------------------- what is known

    def within(self, term: Term) -> Bounds:
        """The bounds of a term."""
        number = self.terms.values.get(term)
        if number is not None and number == number:
            return Bounds(number, number, whole=number in (math.inf, -math.inf) or number == int(number))
        return self.bounds.get(term, EVERYTHING)

    def bound(self, term: Term, bounds: Bounds) -> None:
        """Learn that a term is within these bounds; where they leave one value, it is that constant."""
        if bounds == EVERYTHING or term in self.terms.values:
            return
        known = self.within(term).meet(bounds)
        self.contradicts |= known.least > known.most
        self.bounds[term] = known
        if known.least == known.most and math.isfinite(known.least):
            self.same[term] = self.terms.constant(known.least)

    def outcomes(self, x: Term, y: Term) -> int:
        """How x may compare with y."""
        if x == y:
            return EQUAL
        key, mirrored = self.key(x, y)
        known = self.order.get(key, ANY)
        known = _MIRRORED[known] if mirrored else known
        one, other = self.within(x), self.within(y)
        known &= _by_bounds(one, other) & self._by_members(x, y) & _MIRRORED[self._by_members(y, x)]
        self.contradicts |= not known
        return known or ANY

    def key(self, x: Term, y: Term) -> tuple[object, bool]:
        """What the order of two terms is kept under, and whether as that of y and x. Differences have it, with a sign."""
        if not self.terms.signed:
            return (min(x, y), max(x, y)), y < x
        apart = (x - y) % PRIME
        return (apart, False) if apart < PRIME - apart else (PRIME - apart, True)

    def _by_members(self, x: Term, y: Term) -> int:
        """How x may compare with a set y that it is in."""
        op, members = self.terms.members.get(y, ("", frozenset[Term]()))
        mine, others = self.terms.members.get(x, ("", frozenset[Term]()))
        inside = x in members or (mine == op and others <= members)
        return _BESIDE.get(op, ANY) if inside else ANY

    def learn(self, x: Term, y: Term, outcome: int) -> Case:
        """This case, where x and y compare so."""
        case = self.copy()
        key, mirrored = case.key(x, y)
        case.order[key] = case.order.get(key, ANY) & (_MIRRORED[outcome] if mirrored else outcome)
        one, other = case.within(x), case.within(y)
        if outcome == EQUAL:
            for pair in {(x, y), case.terms.differing.get(key, (x, y))}:  # a - b == 0 says that a == b
                kept, dropped = sorted(pair, key=case.terms.simpler)
                case.same[dropped] = kept
                case.bound(kept, case.within(dropped))
        elif outcome == LESS:
            case.bound(x, Bounds(most=_below(other.most, one)))
            case.bound(y, Bounds(least=-_below(-one.least, other)))
        elif outcome == GREATER:
            if x in case.terms.asked:  # whether it is NaN: it is
                case.same[case.terms.asked[x]] = case.terms.nan
            case.bound(y, Bounds(most=_below(one.most, other)))
            case.bound(x, Bounds(least=-_below(-other.least, one)))
        return case

    def split(self, x: Term, y: Term) -> Iterator[Case]:
        """The cases of how x and y may compare, those left out that cannot be."""
        possible = self.outcomes(x, y)
        cases = (self.learn(x, y, outcome) for outcome in (LESS, EQUAL, GREATER) if possible & outcome)
        return (case for case in cases if not case.contradicts)

    # -------------------------------------------------------------------------------------------- evaluation

    def run(self, source: Source, nodes: Sequence[int], arguments: Sequence[Term]) -> dict[int, Term]:
        """The terms of these nodes, which include all that they need."""
        found: dict[int, Term] = {}
        for position in nodes:
            node = source.graph.nodes[position]
            if node.op == "input":
                term = arguments[node.value]
            elif node.op == "const":
                term = self.terms.constant(node.value)
            else:
                operands = [found[a] for a in node.args]
                term = self._step(source, position, operands)
                term = self.same.get(term, term)
                self.bound(term, self._bounds(node.op, operands))
                if source.truths[position]:
                    self.bound(term, TRUTH)
            found[position] = self.same.get(term, term)
        return found

    def _step(self, source: Source, position: int, operands: list[Term]) -> Term:
        node = source.graph.nodes[position]
        if node.op in ("eq", "ne") and node.args[0] == node.args[1]:  # how one asks for NaN without its name
            missing = self._is_nan(operands[0])
            return missing if node.op == "ne" else (1 - missing) % PRIME
        if node.op in _MASKS:
            return self.compared(_MASKS[node.op], *operands)
        if node.op in EXTREMES:
            return self._extreme(node.op, operands)
        if node.op == "where":
            condition = self.truth(operands[0], truth=source.truths[node.args[0]])
            if operands[1] == operands[2]:
                return operands[1]
            return (condition * operands[1] + (1 - condition) * operands[2]) % PRIME
        if node.op == "isnan":
            return self._is_nan(operands[0])
        if node.op in ("isinf", "isfinite"):
            if operands[0] == self.terms.nan:
                return 0
            within = self.within(operands[0])
            if math.isfinite(within.least) and math.isfinite(within.most):
                return int(node.op == "isfinite")
        if node.op == "cast":
            return self._cast(node.value, operands[0], source.truths[node.args[0]])
        if node.op in ("floor", "ceil") and self.within(operands[0]).whole:
            return operands[0]
        truths = all(source.truths[a] for a in node.args)
        if self.terms.nan in operands and not truths:
            return self.terms.nan
        return self.terms.apply(node.op, operands, node.key, truths=truths)

    def _is_nan(self, term: Term) -> Term:
        """What a graph asks for may be: its answer is a case. Whole numbers are none."""
        if term == self.terms.nan or self.within(term).whole:
            return int(term == self.terms.nan)
        asked = self.terms.atom("isnan", term)
        self.terms.asked[asked] = term
        return asked

    def truth(self, term: Term, *, truth: bool) -> Term:
        """Whether a value is true: itself, or that it is not 0."""
        return term if truth else self.compared(_MASKS["ne"], term, 0)

    def compared(self, mask: int, x: Term, y: Term) -> Term:
        """A comparison: 1, 0, or a term for what is not decided, of which the opposite is 1 less that."""
        if self.terms.nan in (x, y):
            return int(mask == _MASKS["ne"])
        possible = self.outcomes(x, y)
        if not possible & mask or not possible & ~mask:
            return int(bool(possible & mask))
        key, mirrored = self.key(x, y)
        mask = _MIRRORED[mask] if mirrored else mask
        if mask & EQUAL:
            return self.terms.atom("compare", key, mask)
        return (1 - self.terms.atom("compare", key, ANY & ~mask)) % PRIME

    def _extreme(self, op: str, operands: Sequence[Term]) -> Term:
        if self.terms.nan in operands:
            return self.terms.nan
        beaten = _BESIDE[op]
        kept: list[Term] = []
        for term in dict.fromkeys(self.terms.flat(op, operands)):
            term = self.same.get(term, term)
            if any(not self.outcomes(term, other) & ~beaten for other in kept):
                continue
            kept = [other for other in kept if self.outcomes(other, term) & ~beaten]
            kept.append(term)
        return self.terms.many(op, kept)

    def _cast(self, to: torch.dtype, operand: Term, truth: bool) -> Term:
        if to.is_floating_point:
            return operand
        if to == torch.bool:
            return self.truth(operand, truth=truth)
        whole = self.within(operand).whole and to == torch.int64
        return operand if whole or truth else self.terms.atom("cast", to, operand)

    def _bounds(self, op: str, operands: Sequence[Term]) -> Bounds:
        """Within what an operation stays, by its operands' bounds."""
        own = Bounds(*OPS[op].values.within)
        if own != EVERYTHING:
            return own
        of = [self.within(operand) for operand in operands]
        if op in EXTREMES:
            pick = OPS[op].python
            ends = (pick(*(b.least for b in of)), pick(*(b.most for b in of)))
            return Bounds(*ends, whole=all(b.whole for b in of))
        if op == "where":
            return of[1].join(of[2])
        if op == "abs" and of[0].least < 0:
            return Bounds(0, max(-of[0].least, of[0].most), of[0].whole) if self.terms.signed else EVERYTHING
        if op in ("abs", "floor", "ceil"):
            return of[0] if op == "abs" or of[0].whole else EVERYTHING
        if op in ("neg", "sub") and not self.terms.signed:
            return EVERYTHING
        return _of_ring(op, of)


def _of_ring(op: str, of: Sequence[Bounds]) -> Bounds:
    whole = all(b.whole for b in of)
    if op == "neg":
        return Bounds(-of[0].most, -of[0].least, whole)
    if op == "sub":
        of = [of[0], Bounds(-of[1].most, -of[1].least)]
    if op in ("add", "sub"):
        return Bounds(_sum(of[0].least, of[1].least, -1), _sum(of[0].most, of[1].most, 1), whole)
    if op == "mul":
        ends = [_product(p, q) for p in (of[0].least, of[0].most) for q in (of[1].least, of[1].most)]
        return Bounds(min(ends), max(ends), whole)
    if op == "truediv" and min(of[0].least, of[1].least) >= 0:
        return Bounds(0)
    return EVERYTHING


def _by_bounds(one: Bounds, other: Bounds) -> int:
    known = ANY
    if one.least >= other.most:
        known &= GREATER if one.least > other.most else GREATER | EQUAL
    if one.most <= other.least:
        known &= LESS if one.most < other.least else LESS | EQUAL
    return known


def _below(most: float, of: Bounds) -> float:
    """The greatest that something less than `most` may be."""
    return most - 1 if of.whole and math.isfinite(most) and most == int(most) else most


def _sum(p: float, q: float, sign: int) -> float:
    if math.isinf(p) or math.isinf(q):
        return sign * math.inf if math.isinf(p) and math.isinf(q) and p != q else p if math.isinf(p) else q
    return short(p + q)


def _product(p: float, q: float) -> float:
    return 0 if p == 0 or q == 0 else short(p * q)


def short(bound: float) -> float:
    """A bound, infinite where it is far."""
    return bound if abs(bound) <= _FAR else math.copysign(math.inf, bound)

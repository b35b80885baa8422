"""Whole numbers as sums: coefficients of values and a constant, exact modulo two to the width."""

from __future__ import annotations

from dataclasses import dataclass

from tilefold.xray.cuda.readable.values import Graph, Value


@dataclass(frozen=True)
class Linear:
    """`sum(coefficient * value) + constant`, modulo two to the power of `bits`; numbers have the smallest magnitude."""

    terms: tuple[tuple[Value, int], ...]
    constant: int
    bits: int

    def without(self, value: Value) -> Linear:
        """The same without one of its values."""
        return Linear(tuple((v, c) for v, c in self.terms if v is not value), self.constant, self.bits)

    def over(self, size: int) -> Linear | None:
        """Divided by a number that divides all of it; None where it does not."""
        if self.constant % size or any(c % size for _, c in self.terms):
            return None
        return Linear(tuple((v, c // size) for v, c in self.terms), self.constant // size, self.bits)


class Sums:
    """The linear form of each value, found once. Sums whose parts have no text, as `whole` has them, are terms of others."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.whole: dict[Value, bool] = {}
        self._found: dict[tuple[Value, ...], dict[Value, Linear]] = {}

    def of(self, value: Value) -> Linear:
        """The form of a value of 32 or 64 bits; one that is no sum is its own only term."""
        held = self._found.setdefault((*self.whole,), {})
        found = held.get(value)
        if found is None:
            found = held[value] = self._made(value)
        return found

    def is_sum(self, value: Value) -> bool:
        """Whether a value is more than its own only term."""
        return value.bits in (32, 64) and self.of(value).terms != ((value, 1),)

    def bounded(self, form: Linear, most: int = 1 << 31) -> bool:
        """Whether a form is known to be from 0 to below a bound, and all of its parts too: then no width wraps it."""
        if form.constant < 0 or any(c < 0 for _, c in form.terms):
            return False
        return sum(c * self._graph.possible(v) for v, c in form.terms) + form.constant < most

    def _made(self, value: Value) -> Linear:
        bits, a = value.bits, value.args
        if value.constant is not None:
            return Linear((), _least(value.constant, bits), bits)
        match "" if value in self.whole else value.op:
            case "add":
                return _sum(self.of(a[0]), self.of(a[1]), 1)
            case "sub":
                return _sum(self.of(a[0]), self.of(a[1]), -1)
            case "neg":
                return _sum(Linear((), 0, bits), self.of(a[0]), -1)
            case "shl" if a[1].constant is not None:
                return _sum(Linear((), 0, bits), self.of(a[0]), 1 << a[1].constant)
            case "mul" if a[1].constant is not None:
                return _sum(Linear((), 0, bits), self.of(a[0]), a[1].constant)
            case "zext" if bits == 64:
                inner = self.of(a[0])
                if self.bounded(inner):
                    return Linear(inner.terms, inner.constant, bits)
        return Linear(((value, 1),), 0, bits)


def _sum(a: Linear, b: Linear, times: int) -> Linear:
    terms = dict(a.terms)
    for value, c in b.terms:
        terms[value] = _least(terms.get(value, 0) + times * c, a.bits)
    kept = sorted(((v, c) for v, c in terms.items() if c), key=lambda term: term[0].number)
    return Linear(tuple(kept), _least(a.constant + times * b.constant, a.bits), a.bits)


def _least(number: int, bits: int) -> int:
    """The number of the smallest magnitude with the same lowest bits."""
    number %= 1 << bits
    return number - (1 << bits) if number >> (bits - 1) else number

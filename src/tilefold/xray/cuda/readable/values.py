"""Pure values as a hash-consed graph: equal values are one object, and simple rules make indices readable.

A value has an operation, the values it is made of, what else decides it (`data`) and a width in bits; predicates have one.
Leaves are constants, parameters, special registers, the address of shared memory, and what an effect gave or a variable
holds. Nothing here has an order: the tree of effects (`tree`) has that.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from tilefold.xray.reach import reached

Point = tuple[str, int, int]  # a file by its name, line and column


class Place(NamedTuple):
    """File, line and column of the kernel's own source, and the points of the user's functions there, the innermost first."""

    file: int
    line: int
    column: int
    points: tuple[Point, ...] = ()


LEAVES = {"const", "parameter", "special", "shared", "local", "table", "undefined", "result", "variable"}
_CONSTANT = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}
OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
# Of sides that change places.
MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "ne": "ne"}


@dataclass(frozen=True, eq=False)
class Value:
    """A node of the graph. Nodes of one graph are equal where they are the same object."""

    op: str
    args: tuple[Value, ...]
    data: tuple[Any, ...]
    bits: int
    number: int
    place: Place | None = field(default=None, repr=False)

    @property
    def constant(self) -> int | None:
        """The bits of a constant; None of others."""
        return self.data[0] if self.op == "const" else None


class Graph:
    """Makes values. `threads` of a block bound the number of a thread; `zeros` says of variables, by their numbers, how many
    of the lowest bits are clear.
    """

    def __init__(self, threads: int, zeros: Mapping[int, int] = MappingProxyType({})) -> None:
        self.threads, self.zeros = threads, zeros
        self.place: Place | None = None
        self._held: dict[tuple[Any, ...], Value] = {}
        self._possible: dict[Value, int] = {}

    def make(self, op: str, *args: Value, data: tuple[Any, ...] = (), bits: int = 32) -> Value:
        """The one value of this operation and these arguments."""
        key = (op, args, data, bits)
        found = self._held.get(key)
        if found is None:
            found = self._held[key] = Value(op, args, data, bits, len(self._held), self.place)
        return found

    def find(self, op: str, args: tuple[Value, ...], data: tuple[Any, ...], bits: int) -> Value | None:
        """The value of this operation, if there is one."""
        return self._held.get((op, args, data, bits))

    def const(self, number: int, bits: int = 32) -> Value:
        """A constant, of which the lowest bits count."""
        return self.make("const", data=(number & ((1 << bits) - 1),), bits=bits)

    def uses(self, value: Value) -> bool:
        """Whether some value is made of another."""
        later = itertools.takewhile(lambda v: v.number > value.number, reversed(self._held.values()))
        return any(value in v.args for v in later)

    # ------------------------------------------------------------------------------------- arithmetic with rules
    def binary(self, op: str, a: Value, b: Value) -> Value:
        """add, sub, mul, and, or, xor of one width."""
        bits = a.bits
        if a.constant is not None and b.constant is not None:
            return self.const(_CONSTANT[op](a.constant, b.constant), bits)
        if a.constant is not None and op != "sub":
            a, b = b, a
        if bits == 1:
            return self._logic(op, a, b)
        if b.constant == 0 and op != "mul":
            return b if op == "and" else a
        if op == "mul" and b.constant == 1:
            return a
        if op == "and" and b.constant is not None:
            return self._masked(a, b.constant)
        if op in ("or", "xor") and not self.possible(a) & self.possible(b):
            op = "add"
            for low, high in ((a, b), (b, a)):
                if low.op == "zext" and high.op == "shl" and high.args[0].op == "zext" and _count(high) == 32:
                    return self.packed(low.args[0], high.args[0].args[0])
        return self.make(op, a, b, bits=bits)

    def _logic(self, op: str, a: Value, b: Value) -> Value:
        """Predicates; a constant decides or goes."""
        if b.constant is not None:
            if op == "xor":
                return self.negated(a) if b.constant else a
            return a if bool(b.constant) == (op == "and") else b
        return self.make(op, a, b, bits=1)

    def negated(self, a: Value) -> Value:
        """The other truth value."""
        if a.constant is not None:
            return self.const(1 - a.constant, 1)
        if a.op == "not":
            return a.args[0]
        if a.op == "compare" and a.data[1] != "f":
            return self.compared(OPPOSITE[a.data[0]], a.data[1], *a.args)
        return self.make("not", a, bits=1)

    def _masked(self, a: Value, mask: int) -> Value:
        """`a & mask`: without effect where the other bits are clear, else shifted down so that the mask begins at bit 0."""
        if not self.possible(a) & ~mask:
            return a
        low = (mask & -mask).bit_length() - 1
        if a.op == "neg" and self.possible(a.args[0]) == 1:  # -bit & mask
            return self.binary("mul", a.args[0], self.const(mask, a.bits))
        if a.op == "shl" and low >= (by := _count(a)):
            return self.shl(self.binary("and", a.args[0], self.const(mask >> by, a.bits)), by)
        whole = mask >> low
        if low and not whole & (whole + 1):
            return self.shl(self.binary("and", self.shr(a, low), self.const(whole, a.bits)), low)
        return self.make("and", a, self.const(mask, a.bits), bits=a.bits)

    def shl(self, a: Value, by: int) -> Value:
        """Shifted left by a constant."""
        if by >= a.bits:
            return self.const(0, a.bits)
        if a.constant is not None:
            return self.const(a.constant << by, a.bits)
        return a if by == 0 else self.make("shl", a, self.const(by), bits=a.bits)

    def shr(self, a: Value, by: int) -> Value:
        """Shifted right by a constant, zeros coming in."""
        if by >= a.bits or not self.possible(a) >> by:
            return self.const(0, a.bits)
        if a.constant is not None:
            return self.const(a.constant >> by, a.bits)
        if a.op == "shl" and not self.possible(a.args[0]) << _count(a) >> a.bits:
            less = _count(a) - by
            return self.shl(a.args[0], less) if less >= 0 else self.shr(a.args[0], -less)
        if a.op == "shr":
            return self.shr(a.args[0], _count(a) + by)
        if a.op == "and" and (mask := a.args[1].constant) is not None:
            return self.binary("and", self.shr(a.args[0], by), self.const(mask >> by, a.bits))
        return a if by == 0 else self.make("shr", a, self.const(by), bits=a.bits)

    def extended(self, a: Value, signed: bool) -> Value:
        """32 bits as 64."""
        if a.constant is not None:
            negative = signed and a.constant >> 31
            return self.const(a.constant - (1 << 32) if negative else a.constant, 64)
        return self.make("sext" if signed and self.possible(a) >> 31 else "zext", a, bits=64)

    def truncated(self, a: Value) -> Value:
        """64 bits as their lowest 32; an address in memory of the block or thread stays one."""
        if a.constant is not None:
            return self.const(a.constant)
        if a.op in ("zext", "sext"):
            return a.args[0]
        if a.op in ("shared", "local"):
            return self.make(a.op, data=a.data)
        if a.op in ("add", "sub") and self.truncated(a.args[0]).op in ("shared", "local", "add", "sub"):
            return self.binary(a.op, self.truncated(a.args[0]), self.truncated(a.args[1]))
        return self.make("trunc", a, bits=32)

    def compared(self, relation: str, kind: str, a: Value, b: Value) -> Value:
        """A predicate; `kind` is s, u or f. Equality has no sign."""
        kind = "u" if kind != "f" and relation in ("eq", "ne") else kind
        return self.make("compare", a, b, data=(relation, kind), bits=1)

    def selected(self, condition: Value, yes: Value, no: Value) -> Value:
        """One of two."""
        if condition.constant is not None:
            return yes if condition.constant else no
        if condition.op == "not":
            condition, yes, no = condition.args[0], no, yes
        if yes is no:
            return yes
        if yes.bits == 1 and yes.constant is not None:
            return (
                self.binary("or", condition, no)
                if yes.constant
                else self.binary("and", self.negated(condition), no)
            )
        if yes.bits == 1 and no.constant is not None:
            return (
                self.binary("or", self.negated(condition), yes)
                if no.constant
                else self.binary("and", condition, yes)
            )
        if condition.op == "or" and (outer := _lanes_first(condition)):
            return self.selected(outer[0], yes, self.selected(outer[1], yes, no))
        if condition.op == "and" and (outer := _lanes_first(condition)):
            return self.selected(outer[0], self.selected(outer[1], yes, no), no)
        return self.make("select", condition, yes, no, bits=yes.bits)

    def narrowed(self, a: Value, bits: int) -> Value:
        """The lowest bits."""
        if a.constant is not None:
            return self.const(a.constant, bits)
        return a.args[0] if a.op == "widen" and a.args[0].bits == bits else self.make("narrow", a, bits=bits)

    def cut(self, a: Value, bits: int) -> Value:
        """The lowest bits of what has more, else the value itself."""
        if a.bits <= bits:
            return a
        if a.bits == 64:
            a = self.truncated(a)
        return a if a.bits == bits else self.part(a, 0, bits)

    def part(self, a: Value, k: int, bits: int) -> Value:
        """The k-th piece of some bits."""
        if a.constant is not None:
            return self.const(a.constant >> (k * bits), bits)
        if a.op == "pack" and a.args[0].bits == bits:
            return a.args[k]
        return self.make("part", a, data=(k,), bits=bits)

    def packed(self, *parts: Value) -> Value:
        """Pieces together, the first lowest."""
        whole = parts[0].args[0] if parts[0].op == "part" else None
        same = whole is not None and whole.bits == sum(p.bits for p in parts)
        if (
            same
            and whole is not None
            and all(p.op == "part" and p.args[0] is whole and p.data == (k,) for k, p in enumerate(parts))
        ):
            return whole
        return self.make("pack", *parts, bits=sum(p.bits for p in parts))

    # ------------------------------------------------------------------------------------------------ known bits
    def possible(self, a: Value) -> int:
        """The bits of a value that may be set."""
        found = self._possible.get(a)
        if found is None:
            full = (1 << a.bits) - 1
            found = self._possible[a] = _possible(self, a, full) & full
        return found

    def small(self, a: Value) -> bool:
        """Whether a value of 32 bits is the same with and without a sign."""
        return not self.possible(a) >> 31


def _of_lanes(condition: Value) -> bool:
    """Whether a condition compares a thread's number with a constant."""
    return condition.op == "compare" and all(
        leaf.op == "const" or leaf.data == ("%tid.x",) for leaf in leaves(condition)
    )


def _lanes_first(condition: Value) -> tuple[Value, Value] | None:
    """Both sides of a condition of which one, which comes first, is of a thread's number alone."""
    a, b = condition.args
    if _of_lanes(b):
        a, b = b, a
    return (a, b) if _of_lanes(a) and not _of_lanes(b) else None


def _count(a: Value) -> int:
    count = a.args[1].constant
    assert count is not None, "shifts of the graph are by constants"
    return count


def _possible(graph: Graph, a: Value, full: int) -> int:
    """See `Graph.possible`; what the rules do not know may have every bit."""
    if a.op == "const":
        return int(a.data[0])
    if a.op == "special":
        bounds = {
            "%tid.x": graph.threads - 1,
            "%tid.y": 0,
            "%tid.z": 0,
            "%ctaid.x": full >> 1,
            "%ctaid.y": 0xFFFF,
            "%ctaid.z": 0xFFFF,
            "%laneid": 31,
        }
        most = bounds.get(a.data[0], full)
        return (1 << most.bit_length()) - 1
    if a.op == "variable":
        return full & -(1 << graph.zeros.get(a.data[0], 0))
    if a.op == "udiv":
        return _below(graph.possible(a.args[0]) // (a.args[1].constant or 1), full)
    if a.op not in ("shl", "shr", "and", "or", "xor", "add", "mul", "select", "zext"):
        return full
    held = [graph.possible(x) for x in a.args]
    match a.op:
        case "shl":
            return held[0] << _count(a)
        case "shr":
            return held[0] >> _count(a)
        case "and":
            return held[0] & held[1]
        case "or" | "xor":
            return held[0] | held[1]
        case "select":
            return held[1] | held[2]
        case "zext":
            return held[0]
        case "mul":
            return _below(held[0] * held[1], full) & -((held[0] & -held[0]) * (held[1] & -held[1]))
    if not held[0] & held[1]:
        return held[0] | held[1]
    low = held[0] | held[1]
    return _below(held[0] + held[1], full) & -(low & -low)


def _below(most: int, full: int) -> int:
    """The bits of all numbers up to one; every bit where it may wrap."""
    return full if most > full else (1 << most.bit_length()) - 1


def apart(values: tuple[Value, ...]) -> bool:
    """Whether none of some values is made of another one of them."""
    least = min(v.number for v in values)
    # What a value is made of has lower numbers.
    made_of = reached((a for v in values for a in v.args), lambda v: v.args if v.number > least else ())
    return {*made_of}.isdisjoint(values)


def leaves(value: Value) -> Iterator[Value]:
    """What a value is made of in the end, each once."""
    return (v for v in reached([value], attrgetter("args")) if v.op in LEAVES)

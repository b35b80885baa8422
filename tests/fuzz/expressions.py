"""Random scalar functions over tilefold.math and Python's operators, as values that print as source and can be shrunk.

An `Expression` is called with traced values or with numbers. `span` says how large its values may be and of what unit they
are whole multiples, so that a test knows where arithmetic in float32 is exact: there every grouping gives the same bits.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from tilefold import math
from tilefold.algebra.expression import apply, trace
from tilefold.algebra.operations import OPS

FLOAT32 = 2.0**24  # whole numbers up to here are float32's
WHOLE = 2.0**62  # and up to here int64's, with room for a sum's sign

# How Python writes an operation, and Python's own of it.
OPERATORS: dict[str, tuple[str, Callable[..., Any]]] = {
    row.name: (
        f"({'{} ' * (row.arity - 1)}{row.symbol}{' ' * (row.arity - 1)}{{}})",
        getattr(operator, f"__{row.name}__"),
    )
    for row in OPS.values()
    if row.symbol is not None and row.name != "pow"
}


@dataclass(frozen=True)
class Expression:
    """An argument (its position in `value`), a number, a cast (its dtype in `value`), or an operation of others."""

    op: str
    args: tuple[Expression, ...] = ()
    value: Any = None

    def __call__(self, *arguments: Any) -> Any:
        if self.op == "argument":
            return arguments[self.value]
        if self.op == "number":
            return self.value
        operands = [a(*arguments) for a in self.args]
        if self.op == "cast":
            return math.cast(operands[0], self.value)
        if self.op in OPERATORS and all(isinstance(o, bool | int | float) for o in operands):
            return apply(
                self.op, *operands
            )  # Python's own operators raise where IEEE has an answer, and ~True is -2
        function = OPERATORS[self.op][1] if self.op in OPERATORS else getattr(math, self.op)
        return function(*operands)

    def __repr__(self) -> str:
        if self.op == "argument":
            return f"x{self.value}"
        if self.op == "number":
            return (
                f"float('{self.value}')"
                if self.value != self.value or abs(self.value) == float("inf")
                else repr(self.value)
            )
        if self.op == "cast":
            return f"cast({self.args[0]!r}, {self.value})"
        if self.op in OPERATORS:
            return OPERATORS[self.op][0].format(*map(repr, self.args))
        return f"{self.op}({', '.join(map(repr, self.args))})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """As hypothesis prints it."""
        printer.text(repr(self))

    @property
    def reads(self) -> frozenset[int]:
        """The arguments that it depends on."""
        if self.op == "argument":
            return frozenset([self.value])
        return frozenset[int]().union(*(a.reads for a in self.args))

    def varies(self, arity: int) -> bool:
        """Whether anything of its arguments is left once constants are settled."""
        return bool(trace(of_arity(self, arity), arity).reads(0))

    @property
    def ops(self) -> frozenset[str]:
        """The operations that it is made of."""
        return frozenset([self.op]).union(*(a.ops for a in self.args))


def of_arity(function: Callable[..., Any], n: int) -> Callable[..., Any]:
    """The function with n arguments of its own, as a monoid counts them."""
    names = ", ".join(f"v{k}" for k in range(n))
    made: Callable[..., Any] = eval(f"lambda {names}: function({names})", {"function": function})
    return made


def argument(position: int) -> Expression:
    return Expression("argument", value=position)


def number(value: float) -> Expression:
    return Expression("number", value=value)


def of(op: str, *args: Expression) -> Expression:
    return Expression(op, args)


# ------------------------------------------------------------------------------------------------ how large values are


@dataclass(frozen=True)
class Span:
    """Values of at most `most`, whole multiples of `unit`; `whole` where integers carry them."""

    most: float
    unit: float = 1.0
    whole: bool = False
    unsigned: bool = False

    @property
    def exact(self) -> bool:
        """Whether its arithmetic loses nothing."""
        return self.most / self.unit <= (WHOLE if self.whole else FLOAT32)

    def times(self, n: int) -> Span:
        """A sum of n such values."""
        return Span(self.most * max(n, 1), self.unit, self.whole, self.unsigned)


TRUTH = Span(1.0, 1.0, whole=True)


def span(expression: Expression, arguments: Sequence[Span]) -> Span | None:
    """How large the values of an expression are; None where something in it may round or wrap."""
    if expression.op == "argument":
        return arguments[expression.value]
    if expression.op == "number":
        return _of_number(expression.value)
    parts = [span(a, arguments) for a in expression.args]
    if any(p is None for p in parts):
        return None
    known = [p for p in parts if p is not None]
    result = _spanned(expression, known)
    return result if result is not None and result.exact else None


def _of_number(value: float) -> Span:
    if isinstance(value, int):
        return Span(abs(value), 1.0, whole=True)
    if value != value or abs(value) == float("inf"):
        return Span(0.0, 1.0)
    unit = 1.0
    while value % unit:
        unit /= 2
    return Span(abs(value), unit)


def _spanned(expression: Expression, parts: Sequence[Span]) -> Span | None:
    op = expression.op
    if op in ("lt", "le", "gt", "ge", "eq", "ne", "isnan", "isinf", "isfinite"):
        return TRUTH
    values = parts[1:] if op == "where" else parts
    if any(p.unsigned for p in values) and any(a.op == "number" and a.value < 0 for a in expression.args):
        return None  # a negative number becomes a huge one
    most, unit = max(p.most for p in values), min(p.unit for p in values)
    whole, unsigned = all(p.whole for p in values), any(p.unsigned for p in values)
    if op in ("maximum", "minimum", "where", "abs"):
        return Span(most, unit, whole, unsigned)
    if unsigned and op in ("sub", "neg", "invert"):
        return None  # wraps
    if op == "neg":
        return Span(most, unit, whole)
    if op in ("add", "sub"):
        return Span(sum(p.most for p in parts), unit, whole, unsigned)
    if op == "mul":
        return Span(parts[0].most * parts[1].most, parts[0].unit * parts[1].unit, whole, unsigned)
    if op in ("floor", "ceil"):
        return Span(most + 1, max(unit, 1.0), whole, unsigned)
    if op == "truediv":  # by a power of two, as the strategies have it
        return Span(most, unit / 4)
    if op in ("floordiv", "mod"):
        return Span(most + 2 * parts[1].most + 1, min(unit, 1.0), whole, unsigned)
    if op in ("and", "or", "xor", "invert"):
        return Span(2 * most + 1, 1.0, whole, unsigned)
    if op in ("lshift", "rshift"):
        return Span(most * 8, 1.0, whole, unsigned)
    if op == "cast":
        return TRUTH if expression.value == torch.bool else Span(most, 1.0, whole=True)
    raise AssertionError(op)


def makes_nan(expression: Expression) -> bool:
    """Whether a number that is none may come of numbers, infinities among them."""
    arity = max(expression.reads, default=-1) + 1
    some = itertools.product((float("inf"), -float("inf"), 0.0, 1.0, -2.5), repeat=arity)
    return any((value := expression(*given)) != value for given in some)


def made_exact(expression: Expression, arguments: Sequence[Span], n: int = 1) -> Expression:
    """The expression, or the largest part of it along its first operands of which a sum of n is exact."""
    known = span(expression, arguments)
    if known is not None and known.times(n).exact:
        return expression
    if expression.op == "argument":
        return expression
    if not expression.args:
        return number(1)
    return made_exact(expression.args[1 if expression.op == "where" else 0], arguments, n)


# ------------------------------------------------------------------------------------------------ strategies

ARITHMETIC = ("add", "sub", "mul", "maximum", "minimum")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
CONSTANTS = (0, 1, 2, -1, 0.5, -1.5, 3, 10, -2.0, 100)
WHOLES = (0, 1, 2, -1, 3, 7, 10, 100)


@functools.cache
def numbers(arguments: tuple[int, ...], whole: tuple[int, ...], depth: int) -> st.SearchStrategy[Expression]:
    """Numbers computed of some arguments, of which those in `whole` are integers or bool; exact operations only."""
    leaves = st.one_of(
        st.sampled_from([argument(a) for a in arguments]) if arguments else st.nothing(),
        st.sampled_from(CONSTANTS).map(number),
    )
    if depth == 0:
        return leaves
    part = numbers(arguments, whole, depth - 1)
    return st.one_of(
        leaves,
        st.builds(of, st.sampled_from(ARITHMETIC), part, part),
        st.builds(of, st.sampled_from(("neg", "abs", "floor", "ceil")), part),
        st.builds(of, st.just("where"), truths(arguments, whole, depth - 1), part, part),
        st.builds(of, st.just("truediv"), part, st.sampled_from((2.0, 4)).map(number)),
        st.builds(
            of, st.sampled_from(("floordiv", "mod")), part, st.sampled_from((2, 3, 0.5, -4)).map(number)
        ),
        wholes(whole, depth - 1) if whole else part,
    )


@functools.cache
def wholes(arguments: tuple[int, ...], depth: int) -> st.SearchStrategy[Expression]:
    """Whole numbers computed of arguments that are whole."""
    leaves = st.one_of(
        st.sampled_from([argument(a) for a in arguments]) if arguments else st.nothing(),
        st.sampled_from(WHOLES).map(number),
    )
    if depth == 0:
        return leaves
    part = wholes(arguments, depth - 1)
    return st.one_of(
        leaves,
        st.builds(of, st.sampled_from((*ARITHMETIC, "and", "or", "xor")), part, part),
        st.builds(of, st.sampled_from(("neg", "abs", "invert")), part),
        st.builds(of, st.sampled_from(("floordiv", "mod")), part, st.sampled_from((1, 3, -4, 7)).map(number)),
        st.builds(of, st.sampled_from(("lshift", "rshift")), part, st.sampled_from((0, 1, 3)).map(number)),
        st.builds(of, st.just("where"), truths(arguments, arguments, depth - 1), part, part),
        st.builds(lambda a, d: Expression("cast", (a,), d), part, st.sampled_from((torch.int64, torch.bool))),
    )


@functools.cache
def truths(arguments: tuple[int, ...], whole: tuple[int, ...], depth: int) -> st.SearchStrategy[Expression]:
    """Conditions."""
    part = numbers(arguments, whole, max(depth - 1, 0))
    compared = st.builds(of, st.sampled_from(COMPARISONS), part, part)
    if depth == 0:
        return compared
    inner = truths(arguments, whole, depth - 1)
    return st.one_of(
        compared,
        st.builds(of, st.sampled_from(("and", "or", "xor")), inner, inner),
        st.builds(of, st.just("invert"), inner),
        st.builds(of, st.sampled_from(("isnan", "isinf", "isfinite")), part),
    )

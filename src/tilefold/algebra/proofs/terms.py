"""Terms as numbers, so that equal terms are found equal without being written out: identity testing by evaluation.

Every symbol gets a random number modulo a prime p of 120 bits. Sums, products and quotients are done modulo p, so two terms
that are equal as fractions of polynomials get one number: a * (b + c) and a * b + a * c, or (x * n) / n and x. Terms that
differ get one number with a chance of their degree over p (Schwartz, 1980; Zippel, 1979). Any other operation draws a new
number for each new tuple of operands, after the rules that hold for it:

    maximum, minimum    a set of operands; nested ones are one set
    and, or, xor        arithmetic of 0 and 1 for truth values; else sets, as above
    where(c, x, y)      c * x + (1 - c) * y, with a truth value c of 0 or 1
    f(x)                of an even function (abs, cos) the same for x and -x, of an odd one (sin, erf) with the sign changed;
                        0 or 1 where f is that at 0 or 1: found by the Python column of the table of operations

So the numbers know arithmetic as it is without rounding and overflow (whole numbers that wrap keep the rules of sums and
products, though). What depends on how values compare is settled by `cases`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Iterable
from fractions import Fraction

from tilefold.algebra.numbers import Number
from tilefold.algebra.operations import OPS
from tilefold.runtime.caching import kept_outside_modes

Term = int
# (PRIME - 1) / 2 is prime too: powers of a number come back to it after that many steps only.
PRIME = 0xC90FDAA22168C00000000000000F4F
_LARGEST_POWER = 64
# Where functions are looked at for what they do to a sign: on both sides of 1, whole numbers and others.
_POINTS = (0.375, 1.0, 1.75, 3.0, 12.25, 100.5)


@kept_outside_modes(1024)
def _at(function: Callable[..., Number], point: float) -> Number | None:
    """The value of an operation's Python column, None where it has none."""
    try:
        return function(point)
    except (ArithmeticError, TypeError, ValueError):
        return None


@kept_outside_modes(1024)
def _sign(function: Callable[..., Number]) -> int:
    """1 of an even function, -1 of an odd one, 0 of any other, by its values."""
    pairs = [(_at(function, x), _at(function, -x)) for x in _POINTS]
    if any(value is None or other is None for value, other in pairs):
        return 0
    return next(
        (sign for sign in (1, -1) if all(v == sign * o for v, o in pairs if v is not None and o is not None)),
        0,
    )


class Terms:
    """The numbers of terms. `members` says of which operands a maximum, minimum or set of bits is made."""

    def __init__(self, *, signed: bool) -> None:
        self.signed = (
            signed  # whether -x is never a large number: abs(a - b) is not abs(b - a) without a sign
        )
        self.members: dict[Term, tuple[str, frozenset[Term]]] = {}
        self.values: dict[Term, Number] = {0: 0, 1: 1}
        self.symbols: dict[Term, int] = {}
        self.differing: dict[Hashable, tuple[Term, Term]] = {}  # the two values that a difference is of
        self._inverted: dict[Term, Term] = {}
        self._drawn: dict[Hashable, Term] = {}
        self._random = random.Random(0)
        self.asked: dict[Term, Term] = {}  # of each question whether a value is NaN, the value
        self.nan = self.constant(math.nan)

    def atom(self, *key: Hashable) -> Term:
        """The number of what only its key tells from others."""
        if key not in self._drawn:
            self._drawn[key] = self._random.randrange(2, PRIME)
        return self._drawn[key]

    def symbol(self, *key: Hashable) -> Term:
        """The number of a value that is given."""
        term = self.atom("symbol", *key)
        self.symbols.setdefault(term, len(self.symbols))
        return term

    def simpler(self, term: Term) -> int:
        """For sorting: constants first, then symbols as they came, then all else."""
        return -1 if term in self.values else self.symbols.get(term, len(self.symbols))

    def constant(self, number: Number) -> Term:
        """The number of a constant; truth values count as 0 and 1."""
        if isinstance(number, float) and not math.isfinite(number):
            term = self.atom("constant", "nan" if number != number else "inf")
            term = PRIME - term if number < 0 else term
        else:
            exact = Fraction(number)
            term = exact.numerator * pow(exact.denominator, -1, PRIME) % PRIME
        self.values.setdefault(term, number)
        return term

    def apply(self, op: str, operands: list[Term], key: str, *, truths: bool) -> Term:
        """An operation that no comparison decides. `truths`: all operands are truth values."""
        if op in _RING:
            return _RING[op](*operands) % PRIME
        if op == "truediv":
            return self._quotient(*operands)
        if op == "pow":
            return self._power(*operands)
        if op in ("and", "or", "xor"):
            return _LOGIC[op](*operands) % PRIME if truths else self.bits(op, operands)
        if op == "invert":
            return (1 - operands[0]) % PRIME if truths else self._invert(operands[0])
        if OPS[op].arity == 1:
            return self._function(op, operands[0], key)
        return self.atom(op, key, *operands)

    def many(self, op: str, operands: Iterable[Term]) -> Term:
        """The maximum or minimum, or the bits, of a set of operands."""
        members = frozenset(operands)
        if len(members) == 1:
            return next(iter(members))
        term = self.atom(op, members)
        self.members[term] = (op, members)
        return term

    def flat(self, op: str, operands: Iterable[Term]) -> list[Term]:
        """The operands, those of nested operations of the same kind in their places."""
        found: list[Term] = []
        for operand in operands:
            kind, members = self.members.get(operand, ("", frozenset()))
            found += members if kind == op else [operand]
        return found

    def bits(self, op: str, operands: Iterable[Term]) -> Term:
        """A bitwise operation on numbers: in any order; what is combined with itself stays, or leaves nothing of an xor."""
        neutral, members = (PRIME - 1 if op == "and" else 0), set[Term]()
        for operand in self.flat(op, operands):
            members = members ^ {operand} if op == "xor" else members | {operand}
        members -= {neutral}
        return self.many(op, members) if members else neutral

    def _quotient(self, x: Term, y: Term) -> Term:
        return x * pow(y, -1, PRIME) % PRIME if y else self.atom("truediv", x, y)

    def _power(self, x: Term, y: Term) -> Term:
        exponent = self.values.get(y)
        if exponent is None or exponent != exponent // 1 or abs(exponent) > _LARGEST_POWER:
            return self.atom("pow", x, y)
        return pow(x, int(exponent), PRIME) if x or exponent >= 0 else self.atom("pow", x, y)

    def _invert(self, x: Term) -> Term:
        """Not known to be a truth value, whose inverse is another number than that of a whole number."""
        if x not in self._inverted:
            self._inverted[x] = self.atom("invert", x)
            self._inverted[self._inverted[x]] = x
        return self._inverted[x]

    def _function(self, op: str, x: Term, key: str) -> Term:
        if OPS[op].kind not in ("arithmetic", "float", "test"):
            return self.atom(op, key, x)
        function = OPS[op].python
        if x in (0, 1) and (known := _at(function, float(x))) in (0, 1):
            return int(known)
        sign = _sign(function)
        if sign > 0 and self.signed:
            x = min(x, PRIME - x)
        if sign < 0 and x > PRIME - x:
            return PRIME - self.atom(op, key, PRIME - x)
        return self.atom(op, key, x)


_RING: dict[str, Callable[..., int]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "neg": lambda x: -x,
}
_LOGIC: dict[str, Callable[[int, int], int]] = {
    "and": lambda x, y: x if x == y else x * y,
    "or": lambda x, y: x if x == y else x + y - x * y,
    "xor": lambda x, y: 0 if x == y else x + y - 2 * x * y,
}

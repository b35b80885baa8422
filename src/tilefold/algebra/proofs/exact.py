"""A monoid's functions without rounding: exact numbers, or numbers of 50 digits with a bound of their error.

Whole numbers are Python's, which never wrap, and a float is a fraction, as far as fractions go. What exp, sqrt and the like
make is a `Ball`, a value and how far the true one may be from it, as are infinities and fractions that get too long. What a
bound does not decide (which of two values is larger, a quotient by what may be 0) is an `UndecidedError`. So two results
whose balls are apart differ in arithmetic itself, however much a float64 has lost on its way to either.
"""

from __future__ import annotations

import decimal
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import torch

from tilefold.algebra import numbers
from tilefold.algebra.algebra import Algebra
from tilefold.algebra.columns import Op
from tilefold.algebra.dtypes import is_float
from tilefold.algebra.expression import Graph
from tilefold.algebra.operations import COMPARISONS, OPS
from tilefold.runtime.caching import kept_outside_modes

_DIGITS = 50
_ULP = Decimal(10) ** (1 - _DIGITS)
_LONGEST, _LONG = 4096, 512  # bits of a whole number, and of a fraction's two
_POWERS = 16  # a whole exponent up to which a power is a product
_FARTHEST = Decimal(10) ** 20  # of which sin and cos are computed
_ZERO, _ONE, _INF, _NAN = Decimal(0), Decimal(1), Decimal("Infinity"), Decimal("NaN")
_CONTEXT = decimal.Context(
    prec=_DIGITS, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX, rounding=decimal.ROUND_HALF_EVEN, traps=[]
)


class UndecidedError(Exception):
    """What follows depends on digits that are not known, or would take too many."""


@dataclass(frozen=True, slots=True)
class Ball:
    """A number within `error` of `value`; an infinity and NaN are themselves."""

    value: Decimal
    error: Decimal = _ZERO


Number = bool | int | Fraction | Ball
State = tuple[Number, ...]


class Exact:
    """The functions of an algebra whose fields are carried in these dtypes: an infinity of a whole field stays one."""

    def __init__(self, algebra: Algebra, state: Sequence[torch.dtype]) -> None:
        self.algebra, self.state = algebra, state
        self.identity = self._stored([_given(n) for n in algebra.identity_numbers or ()])

    def lift(self, element: Sequence[bool | int | float]) -> State:
        """The state of one element of each input (and its position)."""
        return self._stored(run(self.algebra.lift, [_given(e) for e in element]))

    def combine(self, a: State, b: State) -> State:
        """One state of two."""
        return self._stored(run(self.algebra.combine, [*a, *b]))

    def project(self, state: State) -> State:
        """The results of a state."""
        return state if self.algebra.project is None else tuple(run(self.algebra.project, state))

    def _stored(self, values: Sequence[Number]) -> State:
        with decimal.localcontext(_CONTEXT):
            return tuple(_cast(value, dtype) for value, dtype in zip(values, self.state, strict=True))


def run(graph: Graph, arguments: Sequence[Number]) -> list[Number]:
    """A graph's outputs.

    Raises:
        UndecidedError: the digits that are known do not say what they are.
    """
    values: list[Any] = []
    with decimal.localcontext(_CONTEXT):
        for node in graph.nodes:
            if node.op == "input":
                values.append(arguments[node.value])
            elif node.op == "const":
                values.append(_given(node.value))
            else:
                values.append(_step(node.op, [values[a] for a in node.args], node.value))
    return [values[o] for o in graph.outputs]


def apart(one: Number, other: Number, tolerance: float) -> bool:
    """Whether two numbers surely differ by more than that."""
    if isinstance(one, int) and isinstance(other, int):
        return one != other
    a, b = _ball(one), _ball(other)
    if not a.value.is_finite() or not b.value.is_finite():
        return not (a.value == b.value or (a.value.is_nan() and b.value.is_nan()))
    with decimal.localcontext(_CONTEXT):
        return abs(a.value - b.value) > Decimal(tolerance) + a.error + b.error


def size(number: Number) -> float:
    """How large a finite float is; 0 for all else."""
    if isinstance(number, int):
        return 0.0
    value = _ball(number).value
    return abs(float(value)) if value.is_finite() else 0.0


def _given(number: bool | int | float) -> Number:
    if not isinstance(number, float):
        return number
    return Fraction(number) if math.isfinite(number) else Ball(Decimal(number))


def _ball(number: Number) -> Ball:
    if isinstance(number, Ball):
        return number
    with decimal.localcontext(_CONTEXT):
        if isinstance(number, int):
            return Ball(Decimal(int(number)))
        value = Decimal(number.numerator) / Decimal(number.denominator)
        exact = Fraction(value) == number if abs(value.adjusted()) < _LONGEST else False
        return Ball(value, _ZERO if exact else abs(value) * _ULP)


def _step(op: str, operands: Sequence[Number], value: Any) -> Number:
    if op == "where":
        return operands[1] if _truth(operands[0]) else operands[2]
    if op == "cast":
        return _cast(operands[0], value, explicit=True)
    kinds = set(map(type, operands))
    if Ball not in kinds:
        exact = _exact_step(op, operands, whole=Fraction not in kinds)
        if exact is not None:
            return exact
    function = _REAL.get(op)
    if function is None:
        raise UndecidedError
    result: Number = function(*(_ball(o) for o in operands))
    return result


def _exact_step(op: str, operands: Sequence[Any], *, whole: bool) -> Number | None:
    """A step on whole numbers and fractions; None where its value is none of these."""
    table = _WHOLE if whole and op in _WHOLE else _RATIONAL
    if op not in table or (table is _RATIONAL and op in _DIVIDING and not operands[1]):
        return None
    result: Number | None = table[op](*operands)
    if isinstance(result, int) and result.bit_length() > _LONGEST:
        raise UndecidedError
    if (
        isinstance(result, Fraction)
        and result.numerator.bit_length() + result.denominator.bit_length() > _LONG
    ):
        return _ball(result)
    return result


def _whole_power(x: Any, y: Any) -> Fraction | None:
    return Fraction(x) ** int(y) if y == int(y) and abs(y) <= _POWERS and (x or y >= 0) else None


def _truth(number: Number) -> bool:
    return _order(number, Ball(_ZERO)) != 0 if isinstance(number, Ball) else number != 0


def _cast(number: Number, dtype: torch.dtype, *, explicit: bool = False) -> Number:
    """A number in a field, or one that the author has cast, which wraps."""
    if is_float(dtype):
        return Fraction(number) if isinstance(number, int) else number
    if dtype == torch.bool:
        return _truth(number)
    if isinstance(number, Ball):
        if not number.value.is_finite():
            return number if number.value == number.value else 0
        towards = _floor if number.value > 0 else _ceil
        number = int(_ball(towards(number)).value)
    return int(numbers.whole_number(int(number), dtype)) if explicit else int(number)


# ---------------------------------------------------------------------------------------------- operations


def _made(value: Decimal, error: Decimal) -> Ball:
    """The result of one operation of Decimal's, and what its operands' errors make; its own rounding is added."""
    if not value.is_finite() and error:
        raise UndecidedError
    rounds = decimal.getcontext().flags[decimal.Inexact] and value.is_finite()
    return Ball(value, abs(value) * _ULP + error if rounds else error)


def _exactly(function: Callable[..., Ball]) -> Callable[..., Ball]:
    """An operation that begins without a flag."""

    @functools.wraps(function)
    def clean(*operands: Ball) -> Ball:
        decimal.getcontext().clear_flags()
        return function(*operands)

    return clean


@_exactly
def _add(a: Ball, b: Ball) -> Ball:
    return _made(a.value + b.value, a.error + b.error)


def _neg(a: Ball) -> Ball:
    return Ball(a.value.copy_negate(), a.error)


@_exactly
def _mul(a: Ball, b: Ball) -> Ball:
    value = a.value * b.value
    if not a.error and not b.error:
        return _made(value, _ZERO)
    return _made(value, (abs(a.value) + a.error) * b.error + abs(b.value) * a.error)


@_exactly
def _divide(a: Ball, b: Ball) -> Ball:
    if not a.error and not b.error:
        return _made(a.value / b.value, _ZERO)
    least = abs(b.value) - b.error
    if not least > 0:
        raise UndecidedError
    quotient = a.value / b.value
    return _made(quotient, (a.error + abs(quotient) * b.error) / least)


def _order(a: Ball, b: Ball) -> float:
    """A number that compares with 0 as a does with b: -1, 0, 1, or NaN where one of them is."""
    if a.value.is_nan() or b.value.is_nan():
        return math.nan
    if a.value == b.value:
        if a.error or b.error:
            raise UndecidedError
        return 0
    if (a.error or b.error) and abs(a.value - b.value) <= a.error + b.error:
        raise UndecidedError
    return -1 if a.value < b.value else 1


def _comparison(holds: Callable[..., bool]) -> Callable[..., bool]:
    return lambda a, b: holds(_order(a, b), 0)


def _extreme(pick: Callable[..., Decimal]) -> Callable[..., Ball]:
    def of(a: Ball, b: Ball) -> Ball:
        if a.value.is_nan() or b.value.is_nan():
            return Ball(_NAN)
        value = pick(a.value, b.value)
        if (a.error or b.error) and abs(a.value - b.value) <= a.error + b.error:
            return Ball(value, max(a.error, b.error))
        return a if value == a.value else b

    return of


def _rounded(rounding: str) -> Callable[..., Ball]:
    def of(a: Ball) -> Ball:
        if not a.value.is_finite():
            return a
        value = a.value.to_integral_value(rounding)
        if a.error and any((a.value + e).to_integral_value(rounding) != value for e in (a.error, -a.error)):
            raise UndecidedError
        return Ball(value)

    return of


_floor, _ceil = _rounded(decimal.ROUND_FLOOR), _rounded(decimal.ROUND_CEILING)


def _floor_divide(a: Ball, b: Ball) -> Ball:
    if not a.value.is_finite() or not b.value.is_finite() or not b.value:
        raise UndecidedError
    if a.error or b.error:
        return _floor(_divide(a, b))
    quotient, rest = divmod(a.value, b.value)  # toward 0
    if not quotient.is_finite():
        raise UndecidedError
    return Ball(quotient - 1 if rest and (rest < 0) != (b.value < 0) else quotient)


def _remainder(a: Ball, b: Ball) -> Ball:
    return _add(a, _neg(_mul(_floor_divide(a, b), b)))


def _monotone(
    function: Callable[[Decimal], Decimal], *, exact: Callable[[Decimal], bool]
) -> Callable[..., Ball]:
    """A function that rises or falls, its error by its values at both ends. `exact` says at which values it has none."""

    @_exactly
    def of(a: Ball) -> Ball:
        value = function(a.value)
        if not a.error:
            return Ball(value, _ZERO if exact(a.value) or not value.is_finite() else abs(value) * _ULP * 4)
        ends = [function(a.value + a.error), function(a.value - a.error)]
        if not all(v.is_finite() for v in (value, *ends)):
            raise UndecidedError
        return Ball(value, max(abs(end - value) for end in ends) + max(map(abs, (value, *ends))) * _ULP * 4)

    return of


def _wave(function: Callable[[Decimal], Decimal]) -> Callable[..., Ball]:
    """A bounded function that is nowhere steeper than 2."""

    def of(a: Ball) -> Ball:
        if not a.value.is_finite():
            return Ball(function(a.value))
        return Ball(function(a.value), _ZERO if not a.value and not a.error else 2 * a.error + _ULP * 100)

    return of


def _more(digits: int) -> Any:
    return decimal.localcontext(
        decimal.Context(prec=_DIGITS + digits, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX, traps=[])
    )


def _near_zero(function: Callable[[Decimal], Decimal], x: Decimal) -> Decimal:
    """A function that is x near 0, with as many digits there."""
    if not x.is_finite() or abs(x) > 1:
        return function(x)
    with _more(max(0, -x.adjusted()) + 4 if x else 4):
        return function(x) if -x.adjusted() < 400 else x


def _expm1(x: Decimal) -> Decimal:
    return _near_zero(lambda x: x.exp() - 1, x)


def _log1p(x: Decimal) -> Decimal:
    return _near_zero(lambda x: (1 + x).ln(), x)


def _log2(x: Decimal) -> Decimal:
    return x.ln() / Decimal(2).ln()


def _series(first: Decimal, ratio: Callable[[int], Decimal]) -> Decimal:
    """A sum of terms, each the last one's times a ratio, to the context's digits."""
    total = term = first
    for k in range(1, 2000):
        term = term * ratio(k)
        total += term
        if not term or term.adjusted() < total.adjusted() - decimal.getcontext().prec - 2:
            return total
    raise UndecidedError


@kept_outside_modes(1)
def _pi() -> Decimal:
    """By Machin's formula, to some digits more than any angle needs."""
    with _more(40):
        return 4 * (4 * _arc_cotangent(5) - _arc_cotangent(239))


def _arc_cotangent(n: int) -> Decimal:
    return _series(1 / Decimal(n), lambda k: -Decimal(2 * k - 1) / ((2 * k + 1) * n * n))


def _sin(x: Decimal, quarter: int = 0) -> Decimal:
    if not x.is_finite():
        return _NAN
    if abs(x) > _FARTHEST:
        raise UndecidedError
    with _more(30):
        x = (x + quarter * _pi() / 2).remainder_near(2 * _pi())
        return _series(x, lambda k: -x * x / (2 * k * (2 * k + 1))) if x else _ZERO


def _tanh(x: Decimal) -> Decimal:
    if abs(x) > 60:
        return _ONE.copy_sign(x)
    return _expm1(2 * x) / (_expm1(2 * x) + 2)


def _erf(x: Decimal) -> Decimal:
    if abs(x) > 11:
        return _ONE.copy_sign(x)
    with _more(60):
        term = _series(x, lambda k: -x * x * (2 * k - 1) / (k * (2 * k + 1))) if x else _ZERO
        return term * 2 / _pi().sqrt()


def _pow(a: Ball, b: Ball) -> Ball:
    if not b.error and b.value.is_finite() and abs(b.value) <= _POWERS and b.value == int(b.value):
        product = functools.reduce(_mul, [a] * int(abs(b.value)), Ball(_ONE))
        return product if b.value >= 0 else _divide(Ball(_ONE), product)
    if (
        (a.error and a.value <= a.error)
        or (b.error and a.value <= 0)
        or (a.value < 0 and not (a.value.is_finite() and b.value.is_finite()))
    ):
        raise UndecidedError
    if abs(b.value) == Decimal("0.5"):
        return (_sqrt if b.value > 0 else _rsqrt)(a)
    power: Ball = _monotone(lambda x: x**b.value, exact=lambda x: not x or x == 1)(a)
    return (
        Ball(power.value, power.error + 2 * abs(power.value * a.value.ln()) * b.error) if b.error else power
    )


def _is_square(x: Decimal) -> bool:
    """Whether a root of the context's digits is the root: its square is not rounded."""
    root = x.sqrt()
    with _more(_DIGITS):
        return root * root == x


_sqrt = _monotone(Decimal.sqrt, exact=_is_square)
_rsqrt = _monotone(lambda x: 1 / x.sqrt(), exact=lambda x: False)
_DIVIDING = ("truediv", "floordiv", "mod")
_COMPARED = {op: OPS[op].python for op in COMPARISONS}
_REAL: dict[str, Callable[..., Number]] = {
    **{op: _comparison(holds) for op, holds in _COMPARED.items()},
    "add": _add, "sub": lambda a, b: _add(a, _neg(b)), "mul": _mul, "truediv": _divide, "neg": _neg,
    "abs": lambda a: Ball(abs(a.value), a.error),
    "maximum": _extreme(max), "minimum": _extreme(min), "floor": _floor, "ceil": _ceil, "floordiv": _floor_divide,
    "mod": _remainder, "pow": _pow,
    "isnan": lambda a: a.value.is_nan(), "isinf": lambda a: a.value.is_infinite(), "isfinite": lambda a: a.value.is_finite(),
    "exp": _monotone(Decimal.exp, exact=operator.not_), "exp2": _monotone(lambda x: 2**x, exact=operator.not_),
    "expm1": _monotone(_expm1, exact=operator.not_), "log": _monotone(Decimal.ln, exact=lambda x: x == 1),
    "log2": _monotone(_log2, exact=lambda x: x == 1), "log2_approximate": _monotone(_log2, exact=lambda x: x == 1),
    "log1p": _monotone(_log1p, exact=operator.not_),
    "sqrt": _sqrt, "rsqrt": _rsqrt,
    "sin": _wave(_sin), "cos": _wave(lambda x: _sin(x, 1)), "tanh": _wave(_tanh), "erf": _wave(_erf),
    "sigmoid": _monotone(lambda x: 1 / (1 + (-x).exp()), exact=operator.not_),
}  # fmt: skip
_WHOLE: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg, "abs": abs,
    "maximum": max, "minimum": min, "floor": int, "ceil": int,
    "floordiv": lambda a, b: a // b if b else 0, "mod": lambda a, b: a % b if b else 0,
    "and": operator.and_, "or": operator.or_, "xor": operator.xor,
    "lshift": lambda x, n: x << n if 0 <= n < 64 else 0, "rshift": lambda x, n: x >> (n if 0 <= n < 64 else _LONGEST),
    "invert": lambda x: not x if isinstance(x, bool) else ~x,
    **_COMPARED,
    "isnan": lambda x: False, "isinf": lambda x: False, "isfinite": lambda x: True,
}  # fmt: skip
_RATIONAL: dict[str, Callable[..., Any]] = {
    **{op: _WHOLE[op] for op in ("add", "sub", "mul", "neg", "abs", "maximum", "minimum", *_COMPARED)},
    **{op: _WHOLE[op] for op in ("isnan", "isinf", "isfinite")},
    "truediv": lambda a, b: Fraction(a) / b, "floor": lambda x: Fraction(math.floor(x)),
    "ceil": lambda x: Fraction(math.ceil(x)), "floordiv": lambda a, b: Fraction(a // b), "mod": operator.mod,
    "pow": _whole_power,
}  # fmt: skip
# Units of squares are of numbers that are rounded; bits are of whole numbers alone.
_WITHOUT = {"unit", "per_unit", "rescale"}


def untold(ops: Mapping[str, Op]) -> set[str]:
    """The operations of which this module says neither what they are without rounding nor that it does not know."""
    asked = {name for name, row in ops.items() if row.kind not in ("block", "select", "cast")}
    return asked - _REAL.keys() - _WHOLE.keys() - _WITHOUT


assert not untold(OPS), (
    f"exact: arithmetic without rounding is missing for {sorted(untold(OPS))}; add it to the tables above"
)

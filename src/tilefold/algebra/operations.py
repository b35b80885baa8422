"""The scalar operations that a monoid's functions are made of: their operands, how dtypes follow, their value on numbers.

On numbers alone an operation is done while a function is traced, with IEEE's answers where Python raises.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Number = bool | int | float


def _python_where(condition: Number, a: Number, b: Number) -> Number:
    return a if condition else b


def _python_maximum(a: Number, b: Number) -> Number:
    return math.nan if a != a or b != b else max(a, b)


def _python_minimum(a: Number, b: Number) -> Number:
    return math.nan if a != a or b != b else min(a, b)


def _python_float(function: Callable[..., float]) -> Callable[..., float]:
    """IEEE's answers where Python raises: infinity for an overflow, NaN outside the domain."""

    def apply(*operands: Number) -> float:
        try:
            return function(*operands)
        except OverflowError:
            return math.inf
        except ValueError:
            return math.nan

    return apply


def _python_power(x: Number, y: Number) -> float:
    if x == 0 and y < 0:
        return math.copysign(math.inf, x) if y % 2 == 1 else math.inf
    try:
        return math.pow(x, y)
    except OverflowError:
        return -math.inf if x < 0 and y % 2 == 1 else math.inf
    except ValueError:
        return math.nan


def _python_whole(function: Callable[[float], int]) -> Callable[[Number], Number]:
    """Rounding to a whole number that keeps floats floats, infinities and NaN among them."""
    return lambda x: x if not isinstance(x, float) or not math.isfinite(x) else float(function(x))


def _python_log(x: Number, function: Callable[[float], float] = math.log) -> float:
    if x == 0:
        return -math.inf
    return function(x) if x > 0 else math.nan


def _python_divide(a: Number, b: Number) -> float:
    if b == 0:
        return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


def _python_floor_divide(a: Number, b: Number) -> Number:
    """By 0.0 as IEEE divides; whole numbers by 0 are left to raise."""
    return _python_divide(a, b) if b == 0 and float in (type(a), type(b)) else a // b


def _python_remainder(a: Number, b: Number) -> Number:
    return math.nan if b == 0 and float in (type(a), type(b)) else a % b


def _python_log1p(x: Number) -> float:
    return math.log1p(x) if x > -1 else -math.inf if x == -1 else math.nan


def _python_cast(x: Number, dtype: torch.dtype) -> Number:
    return float(x) if dtype.is_floating_point else bool(x) if dtype == torch.bool else int(x)


def _no_number(x: Number) -> Number:
    raise AssertionError("a block operation has no answer on numbers alone")


@dataclass(frozen=True)
class Op:
    """One scalar operation: how many operands, how its dtype follows from theirs, and its value on Python numbers.

    `kind` is one of: "arithmetic" (operands promote, result has their dtype), "float" (as arithmetic, integers become
    float), "compare" (operands promote, result is bool), "test" (bool from one operand), "bitwise" (integers and bool),
    "select", "cast", "block" (a block of elements becomes one value).
    """

    arity: int
    kind: str
    python: Callable[..., Any]


OPS: dict[str, Op] = {
    "add": Op(2, "arithmetic", operator.add),
    "sub": Op(2, "arithmetic", operator.sub),
    "mul": Op(2, "arithmetic", operator.mul),
    "floordiv": Op(2, "arithmetic", _python_floor_divide),
    "mod": Op(2, "arithmetic", _python_remainder),
    "maximum": Op(2, "arithmetic", _python_maximum),
    "minimum": Op(2, "arithmetic", _python_minimum),
    "neg": Op(1, "arithmetic", operator.neg),
    "abs": Op(1, "arithmetic", builtins.abs),
    "floor": Op(1, "arithmetic", _python_whole(math.floor)),
    "ceil": Op(1, "arithmetic", _python_whole(math.ceil)),
    "truediv": Op(2, "float", _python_divide),
    "pow": Op(2, "float", _python_power),
    "exp": Op(1, "float", _python_float(math.exp)),
    "exp2": Op(1, "float", _python_float(lambda x: 2.0**x)),
    "expm1": Op(1, "float", _python_float(math.expm1)),
    "log": Op(1, "float", _python_log),
    "log2": Op(1, "float", lambda x: _python_log(x, math.log2)),
    "log1p": Op(1, "float", _python_log1p),
    "sqrt": Op(1, "float", lambda x: math.sqrt(x) if x >= 0 else math.nan),
    "rsqrt": Op(1, "float", lambda x: _python_divide(1.0, math.sqrt(x)) if x >= 0 else math.nan),
    "sin": Op(1, "float", _python_float(math.sin)),
    "cos": Op(1, "float", _python_float(math.cos)),
    "tanh": Op(1, "float", math.tanh),
    "erf": Op(1, "float", math.erf),
    "lt": Op(2, "compare", operator.lt),
    "le": Op(2, "compare", operator.le),
    "gt": Op(2, "compare", operator.gt),
    "ge": Op(2, "compare", operator.ge),
    "eq": Op(2, "compare", operator.eq),
    "ne": Op(2, "compare", operator.ne),
    "isnan": Op(1, "test", math.isnan),
    "isinf": Op(1, "test", math.isinf),
    "isfinite": Op(1, "test", math.isfinite),
    "and": Op(2, "bitwise", operator.and_),
    "or": Op(2, "bitwise", operator.or_),
    "xor": Op(2, "bitwise", operator.xor),
    "lshift": Op(2, "bitwise", operator.lshift),
    "rshift": Op(2, "bitwise", operator.rshift),
    "invert": Op(1, "bitwise", lambda x: not x if isinstance(x, bool) else ~x),
    "where": Op(3, "select", _python_where),
    "cast": Op(1, "cast", _python_cast),
    "block_sum": Op(1, "block", _no_number),
    "block_max": Op(1, "block", _no_number),
    "block_min": Op(1, "block", _no_number),
    "block_first": Op(1, "block", _no_number),
    "block_count": Op(1, "block", _no_number),
}


def plain_number(number: Number) -> Number:
    """Without what a subclass adds (numpy's float64 is a float with another repr)."""
    return number if isinstance(number, bool) else int(number) if isinstance(number, int) else float(number)


def fits_a_float(number: Number) -> bool:
    """Whether a number is no whole one too large for a float64."""
    return not isinstance(number, int) or abs(number) < 1 << 1023


def short_text(number: Number) -> str:
    """A number for a message: of a very large one its size."""
    return repr(number) if fits_a_float(number) else f"a whole number of {int(number).bit_length()} bits"

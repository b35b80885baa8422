"""Python's numbers as operations see them: with IEEE's answers where Python raises, and as the dtypes hold them.

On numbers alone an operation is done while a function is traced.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import torch

Number = bool | int | float


def where(condition: Number, a: Number, b: Number) -> Number:
    """`a` where the condition holds, else `b`."""
    return a if condition else b


def maximum(a: Number, b: Number) -> Number:
    """The larger; NaN if either is."""
    return math.nan if a != a or b != b else max(a, b)


def minimum(a: Number, b: Number) -> Number:
    """The smaller; NaN if either is."""
    return math.nan if a != a or b != b else min(a, b)


def ieee(function: Callable[..., float]) -> Callable[..., float]:
    """IEEE's answers where Python raises: infinity for an overflow, NaN outside the domain. It serves functions that overflow
    to no negative infinity."""

    def apply(*operands: Number) -> float:
        try:
            return function(*operands)
        except OverflowError:
            return math.inf
        except ValueError:
            return math.nan

    return apply


def power(x: Number, y: Number) -> float:
    """x**y, an infinity for an overflow and NaN outside of the domain."""
    if abs(y) == 0.5:  # a square root, to which -0.0 and -inf are no powers' bases
        power = root(x)
        return power if y > 0 else divide(1.0, power)
    if x == 0 and y < 0:
        return math.copysign(math.inf, x) if y % 2 == 1 else math.inf
    try:
        return math.pow(x, y)
    except OverflowError:
        return -math.inf if x < 0 and y % 2 == 1 else math.inf
    except ValueError:
        return math.nan


def rounded(function: Callable[[float], int]) -> Callable[[Number], Number]:
    """Rounding to a whole number that keeps floats floats, with their sign, infinities and NaN among them."""
    return lambda x: (
        x if not isinstance(x, float) or not math.isfinite(x) else math.copysign(float(function(x)), x)
    )


def log(x: Number, function: Callable[[float], float] = math.log) -> float:
    """A logarithm; -inf of 0, NaN below."""
    if x == 0:
        return -math.inf
    return function(x) if x > 0 else math.nan


def divide(a: Number, b: Number) -> float:
    """The quotient, by 0 as IEEE divides."""
    if b == 0:
        return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


def floor_divide(a: Number, b: Number) -> Number:
    """Floats as torch's: the quotient without its remainder, rounded down. Whole numbers by 0 are left to raise."""
    if float not in (type(a), type(b)):
        return a // b
    if b == 0:
        return divide(a, b)
    below, rest = _remainders(a, b)
    quotient = (a - rest) / b - below
    if quotient == 0:
        return math.copysign(0.0, a / b)
    down = rounded(math.floor)(quotient)
    return down + 1.0 if quotient - down > 0.5 else down


def remainder(a: Number, b: Number) -> Number:
    """What `floor_divide` leaves, of b's sign."""
    if float not in (type(a), type(b)):
        return a % b
    below, rest = _remainders(a, b)
    return rest + b if below else rest


def _remainders(a: Number, b: Number) -> tuple[bool, float]:
    """Whether `fmod(a, b)` has the other sign than b, and it."""
    rest = ieee(math.fmod)(a, b)
    return rest != 0 and (rest < 0) != (b < 0), rest


def shift_left(a: int, b: int) -> int:
    """No dtype holds what is beyond 64 bits, where Python would fill the memory with zeros."""
    return a << min(b, 65)


def log1p(x: Number) -> float:
    """log(1 + x); -inf of -1, NaN below."""
    return math.log1p(x) if x > -1 else -math.inf if x == -1 else math.nan


def cast(x: Number, dtype: torch.dtype) -> Number:
    """A number as one of a dtype that is carried."""
    return float_number(x, dtype) if dtype.is_floating_point else whole_number(x, dtype)


def float_number(x: Number, dtype: torch.dtype) -> float:
    """A number as one that a float of this dtype is carried in: float64, or float32, where a large one is infinite."""
    return float(x) if dtype == torch.float64 else ctypes.c_float(x).value


def whole_number(x: Number, dtype: torch.dtype) -> Number:
    """A number as one of a bool or integer dtype: modulo 2**bits; an infinity is the limit, NaN 0 (and True).

    A float's whole part goes no further than the limits of the register that carries the dtype.
    """
    if dtype == torch.bool:
        return bool(x)
    info = torch.iinfo(dtype)
    if x != x:
        return 0
    if isinstance(x, float) and math.isinf(x):
        return info.max if x > 0 else info.min
    if isinstance(x, float):
        register = torch.iinfo(
            torch.int64 if dtype == torch.uint32 else torch.int32 if info.bits < 32 else dtype
        )
        x = max(register.min, min(int(x), register.max))
    return (int(x) - info.min) % (info.max - info.min + 1) + info.min


def root(x: Number) -> float:
    """The square root; NaN below 0."""
    return math.sqrt(x) if x >= 0 else math.nan


def sigmoid(x: Number) -> float:
    """1 / (1 + e**-x)."""
    return math.exp(min(x, 0.0)) / (1.0 + math.exp(-abs(x)))


def plain_number(number: Number) -> Number:
    """Without what a subclass adds (numpy's float64 is a float with another repr)."""
    return number if isinstance(number, bool) else int(number) if isinstance(number, int) else float(number)


def fits_a_float(number: Number) -> bool:
    """Whether a number is no whole one too large for a float64."""
    return not isinstance(number, int) or abs(number) < 1 << 1023


def short_text(number: Number) -> str:
    """A number for a message: of a very large one its size."""
    return repr(number) if fits_a_float(number) else f"a whole number of {int(number).bit_length()} bits"

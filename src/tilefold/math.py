"""Scalar functions for monoids: they take traced values and Python numbers and return the same.

`maximum` and `minimum` propagate NaN as torch's do. `block_*` functions stand only in a monoid's `absorb`: they turn a
block of elements into one value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from tilefold.algebra.advice import instead_of
from tilefold.algebra.dtypes import CARRIED
from tilefold.algebra.expression import apply
from tilefold.algebra.operations import OPS
from tilefold.errors import MemberError, TraceError, shown

__all__ = [
    "abs", "block_count", "block_first", "block_max", "block_min", "block_sum", "cast", "ceil", "cos", "erf", "exp", "exp2",
    "expm1", "floor", "isfinite", "isinf", "isnan", "log", "log1p", "log2", "maximum", "minimum", "pow", "rsqrt", "sigmoid",
    "sign", "sin", "sqrt", "tanh", "where",
]  # fmt: skip


def exp(x: Any) -> Any:
    """e**x."""
    return apply("exp", x)


def exp2(x: Any) -> Any:
    """2**x."""
    return apply("exp2", x)


def expm1(x: Any) -> Any:
    """e**x - 1, exact near 0."""
    return apply("expm1", x)


def log(x: Any) -> Any:
    """Natural logarithm."""
    return apply("log", x)


def log2(x: Any) -> Any:
    """Logarithm to base 2."""
    return apply("log2", x)


def log1p(x: Any) -> Any:
    """log(1 + x), exact near 0."""
    return apply("log1p", x)


def sqrt(x: Any) -> Any:
    """Square root; NaN below 0."""
    return apply("sqrt", x)


def rsqrt(x: Any) -> Any:
    """1 / sqrt(x)."""
    return apply("rsqrt", x)


def sin(x: Any) -> Any:
    """Sine of x in radians."""
    return apply("sin", x)


def cos(x: Any) -> Any:
    """Cosine of x in radians."""
    return apply("cos", x)


def tanh(x: Any) -> Any:
    """Hyperbolic tangent."""
    return apply("tanh", x)


def erf(x: Any) -> Any:
    """Error function."""
    return apply("erf", x)


def sigmoid(x: Any) -> Any:
    """1 / (1 + e**-x)."""
    return apply("sigmoid", x)


def pow(x: Any, y: Any) -> Any:
    """x**y in floating point; small whole exponents become products."""
    return apply("pow", x, y)


def abs(x: Any) -> Any:
    """Absolute value."""
    return apply("abs", x)


def floor(x: Any) -> Any:
    """Largest whole number not above x, in x's dtype."""
    return apply("floor", x)


def ceil(x: Any) -> Any:
    """Smallest whole number not below x, in x's dtype."""
    return apply("ceil", x)


def sign(x: Any) -> Any:
    """-1, 0 or 1; NaN gives 0."""
    return where(x > 0, 1, where(x < 0, -1, 0))


def maximum(a: Any, b: Any) -> Any:
    """The larger of two values; NaN if either is NaN."""
    return apply("maximum", a, b)


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two values; NaN if either is NaN."""
    return apply("minimum", a, b)


def where(condition: Any, a: Any, b: Any) -> Any:
    """`a` where the condition holds (is non-zero), else `b`. Both sides are computed."""
    return apply("where", condition, a, b)


def isnan(x: Any) -> Any:
    """Whether x is NaN; False for integers."""
    return apply("isnan", x)


def isinf(x: Any) -> Any:
    """Whether x is infinite; False for integers."""
    return apply("isinf", x)


def isfinite(x: Any) -> Any:
    """Whether x is neither NaN nor infinite; True for integers."""
    return apply("isfinite", x)


def cast(x: Any, dtype: torch.dtype) -> Any:
    """X converted to `dtype` (bool, or a signed integer or float of 32 or 64 bits, or uint64).

    A float's fraction is cut off; beyond a whole dtype's limits it is the limit, and NaN is 0.
    """
    if not isinstance(dtype, torch.dtype) or dtype not in CARRIED:
        names = ", ".join(str(d).removeprefix("torch.") for d in CARRIED)
        raise TraceError(
            f"cast: the dtype must be one that a register holds ({names}), got {shown(dtype)}; results are rounded to "
            "narrower dtypes once, at the end"
        )
    return apply("cast", x, value=dtype)


def block_sum(x: Any) -> Any:
    """Sum over the block (in `absorb` only)."""
    return apply("block_sum", x)


def block_max(x: Any) -> Any:
    """Maximum over the block, propagating NaN (in `absorb` only)."""
    return apply("block_max", x)


def block_min(x: Any) -> Any:
    """Minimum over the block, propagating NaN (in `absorb` only)."""
    return apply("block_min", x)


def block_first(x: Any) -> Any:
    """The block's first element (in `absorb` only): a pivot that costs nothing."""
    return apply("block_first", x)


def block_count(x: Any) -> Any:
    """How many elements the block holds (in `absorb` only): a number once the block's size is known."""
    return apply("block_count", x)


def _of_the_table(name: str) -> Callable[..., Any]:
    """A function of an operation's row that has none in `math`."""

    def function(*operands: Any) -> Any:
        return apply(name, *operands)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The table's operation {name!r}, of {OPS[name].arity} operands."
    return function


if not TYPE_CHECKING:  # a checker knows the functions above

    def __getattr__(name: str) -> Any:
        if name in OPS:
            return _of_the_table(name)
        raise MemberError(
            f"math: a function must be one of the table's or made of them, got tilefold.math.{name}; {instead_of(name)}"
        )

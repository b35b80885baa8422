"""The derivative of each operation: the cotangents of its operands.

A rule takes the cotangent g of the result, the operands v and the result r, all in a trace, and gives a cotangent for each
operand, 0 where there is none. `FLAT` are the operations whose derivative is 0 wherever they have one, as torch has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tilefold.algebra.derivatives.linear import add, chosen, div, mul, neg, number
from tilefold.algebra.expression import Value, apply

Rule = Callable[[Any, Sequence[Any], Any], tuple[Any, ...]]


def _last_of_equals(loses: str, equals: str) -> Rule:
    """The right one of two equal operands has it all, as in torch's cummax: which one is, a tree of combinations decides
    alike however it is cut. So has the right one of two NaN, and a NaN beside a number. A constant has none of an equal."""

    def rule(g: Any, v: Sequence[Any], r: Any) -> tuple[Any, ...]:
        right = apply(loses, *v)
        if number(v[1]) is None:
            right = apply(equals, *v) | apply("ne", v[1], v[1])
        return chosen(right, g, False), chosen(right, g)

    return rule


def _difference(g: Any, v: Sequence[Any], r: Any) -> tuple[Any, ...]:
    """Of x - where(c, x, k) nothing is left where c holds: two cotangents that cancel would take smaller ones with them."""
    x, y = v
    if isinstance(x, Value) and isinstance(y, Value) and y.node.op == "where":
        condition, *branches = y.node.args
        for side, branch in zip((True, False), branches, strict=True):
            if branch == x.position:
                g = chosen(Value(y.tracer, condition), g, not side)
    return g, neg(g)


def _power(g: Any, v: Sequence[Any], r: Any) -> tuple[Any, ...]:
    x, y = v
    exponent = number(y)
    if exponent == 0:
        return 0, 0
    if exponent is not None:
        lower = x if exponent == 2 else 1 if exponent == 1 else apply("pow", x, exponent - 1)
        return mul(g, mul(exponent, lower)), 0
    base = chosen(apply("ne", y, 0.0), mul(g, mul(y, apply("pow", x, y - 1.0))))
    return base, chosen(apply("ne", x, 0.0), mul(g, mul(r, apply("log", x))))


def _magnitude(g: Any, v: Sequence[Any], r: Any) -> tuple[Any, ...]:
    """0 of 0 and of NaN, as torch has it."""
    return (add(chosen(apply("gt", v[0], 0.0), g), chosen(apply("lt", v[0], 0.0), neg(g))),)


RULES: dict[str, Rule] = {
    "add": lambda g, v, r: (g, g),
    "sub": _difference,
    "mul": lambda g, v, r: (mul(g, v[1]), mul(g, v[0])),
    "rescale": lambda g, v, r: (mul(g, v[1]), mul(g, v[0])),
    "truediv": lambda g, v, r: (div(g, v[1]), neg(div(mul(g, r), v[1]))),
    "mod": lambda g, v, r: (g, neg(mul(g, apply("floordiv", *v)))),
    "maximum": _last_of_equals("lt", "le"),
    "minimum": _last_of_equals("gt", "ge"),
    "neg": lambda g, v, r: (neg(g),),
    "abs": _magnitude,
    "pow": _power,
    "exp": lambda g, v, r: (mul(g, r),),
    "exp2": lambda g, v, r: (mul(mul(g, math.log(2.0)), r),),
    "expm1": lambda g, v, r: (mul(g, r + 1.0),),
    "log": lambda g, v, r: (div(g, v[0]),),
    "log2": lambda g, v, r: (div(mul(g, 1 / math.log(2.0)), v[0]),),
    "log2_approximate": lambda g, v, r: (div(mul(g, 1 / math.log(2.0)), v[0]),),
    "log1p": lambda g, v, r: (div(g, v[0] + 1.0),),
    # 0 at 0, as torch.linalg.vector_norm has it: torch.sqrt has inf there, of which 0 * inf makes NaN.
    "sqrt": lambda g, v, r: (chosen(apply("ne", r, 0.0), div(mul(g, 0.5), r)),),
    "rsqrt": lambda g, v, r: (mul(mul(g, -0.5), mul(r, mul(r, r))),),
    "sin": lambda g, v, r: (mul(g, apply("cos", v[0])),),
    "cos": lambda g, v, r: (neg(mul(g, apply("sin", v[0]))),),
    "tanh": lambda g, v, r: (mul(g, 1.0 - r * r),),
    "sigmoid": lambda g, v, r: (mul(g, r * (1.0 - r)),),
    "erf": lambda g, v, r: (mul(mul(g, 2 / math.sqrt(math.pi)), apply("exp", -(v[0] * v[0]))),),
    "where": lambda g, v, r: (0, chosen(v[0], g), chosen(v[0], g, False)),
    "cast": lambda g, v, r: (g,),  # between floats; whole numbers have no cotangent
}
# Of floats; what gives truth values or whole numbers needs no rule.
FLAT = frozenset({"floordiv", "floor", "ceil", "unit", "per_unit"})

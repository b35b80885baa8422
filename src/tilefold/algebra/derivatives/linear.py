"""Arithmetic of cotangents in a trace: a 0 that the graph shows is never multiplied.

Where a choice gives 0 on one side, products and sums go into the other: `where(c, x, 0) * y` is `where(c, x * y, 0)`. An
element that a choice leaves out then has the derivative 0, and not 0 * inf. Nothing is multiplied by a unit of squares and by
its inverse: a unit's square is beyond the range that units are there for.
"""

from __future__ import annotations

from typing import Any

from tilefold.algebra.expression import Value, apply, node_of


def number(v: Any) -> Any:
    """The number that a value is, or None."""
    if not isinstance(v, Value):
        return v
    return v.node.value if v.node.op == "const" else None


def is_zero(v: Any) -> bool:
    """Whether the graph shows that the value is 0."""
    return bool(number(v) == 0)


def chosen(condition: Any, x: Any, side: bool = True) -> Any:
    """X where the condition is `side`, else 0."""
    if is_zero(x):
        return 0
    return apply("where", condition, *((x, 0.0) if side else (0.0, x)))


def add(x: Any, y: Any) -> Any:
    """X + y."""
    if is_zero(x) or is_zero(y):
        return y if is_zero(x) else x
    one, other = _choice(x), _choice(y)
    if one is not None and other is not None and one[0].position == other[0].position:
        condition, a, side = one
        _, b, beside = other
        if side == beside:
            return chosen(condition, add(a, b), side)
        return apply("where", condition, *((a, b) if side else (b, a)))
    if isinstance(x, Value) and isinstance(y, Value) and x.position == y.position:
        return mul(2.0, x)
    return apply("add", x, y)


def mul(x: Any, y: Any) -> Any:
    """X * y."""
    for one, other in ((x, y), (y, x)):
        known = number(one)
        if known is not None and known in (0, 1, -1):
            return 0 if known == 0 else other if known == 1 else neg(other)
        if (choice := _choice(one)) is not None:
            return chosen(choice[0], mul(choice[1], other), choice[2])
    for one, other in ((x, y), (y, x)):
        if (rest := _without(one, _inverse(other))) is not None:
            return rest
    if number(x) == 2 and isinstance(y, Value) and y.node.op == "mul":
        first, second = _operands(y)
        return apply("mul", apply("mul", x, first), second)
    return apply("mul", x, y)


def neg(x: Any) -> Any:
    """-x."""
    if (choice := _choice(x)) is not None:
        return chosen(choice[0], neg(choice[1]), choice[2])
    if isinstance(x, Value) and x.node.op == "neg":
        return Value(x.tracer, x.node.args[0])
    return apply("neg", x)


def div(x: Any, y: Any) -> Any:
    """X / y."""
    if is_zero(x) or number(y) == 1:
        return x
    if (choice := _choice(x)) is not None:
        return chosen(choice[0], div(choice[1], y), choice[2])
    return apply("truediv", x, y)


def as_float(v: Any) -> Any:
    """A cotangent that a function can give: a number of Python's int is written as a float."""
    return v * 1.0 if isinstance(v, int) else v


def _inverse(v: Any) -> int | None:
    """Where 1 / v stands in the trace: of a unit, or of the inverse of one."""
    if not isinstance(v, Value):
        return None
    if v.node.op == "per_unit":
        return int(v.node.args[0])
    return v.tracer.positions.get(node_of("per_unit", (v.position,), None))


def _without(v: Any, factor: int | None) -> Any:
    """V without a factor, where it has that; else None."""
    if factor is None or not isinstance(v, Value):
        return None
    if v.position == factor:
        return 1.0
    op, operands = v.node.op, _operands(v)
    if op in ("mul", "rescale"):
        for one, other in (operands, operands[::-1]):
            if (rest := _without(one, factor)) is not None:
                return mul(rest, other)
    if op == "truediv" and (rest := _without(operands[0], factor)) is not None:
        return div(rest, operands[1])
    if op == "neg" and (rest := _without(operands[0], factor)) is not None:
        return neg(rest)
    if op in ("add", "sub"):
        rests = [_without(one, factor) for one in operands]
        if all(rest is not None for rest in rests):
            return add(rests[0], rests[1] if op == "add" else neg(rests[1]))
    if (choice := _choice(v)) is not None and (rest := _without(choice[1], factor)) is not None:
        return chosen(choice[0], rest, choice[2])
    return None


def _operands(v: Value) -> list[Value]:
    return [Value(v.tracer, a) for a in v.node.args]


def _choice(v: Any) -> tuple[Value, Any, bool] | None:
    """(c, x, side) of `where(c, x, 0)` or `where(c, 0, x)`."""
    if not isinstance(v, Value) or v.node.op != "where":
        return None
    condition, x, y = (Value(v.tracer, a) for a in v.node.args)
    if is_zero(y):
        return condition, x, True
    return (condition, y, False) if is_zero(x) else None

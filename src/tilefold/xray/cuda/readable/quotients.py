"""Divisions that the compiler wrote as products and shifts, as quotients again; each rule is exact for all numbers."""

from __future__ import annotations

from tilefold.xray.cuda.readable.values import Graph, Value


def by_product(graph: Graph, a: Value, b: Value) -> Value | None:
    """`x / d` of a + b, the upper half of x times a constant, shifted or not, and its sign; None where they are no such."""
    for high, sign in ((a, b), (b, a)):
        of = _shifted(sign, "shr", 31)
        by = 0 if high is of else _count(high) if high.op == "sar" else None
        if of is None or by is None or (by and high.args[0] is not of):
            continue
        product, more = of, None
        if of.op == "add":  # of a factor from 2 ** 31 on, which is negative: the number is added again
            product, more = next(
                ((p, x) for p, x in (of.args, of.args[::-1]) if _is_high(p, "s")), (of, None)
            )
        if not _is_high(product, "s"):
            continue
        number, factor = product.args[0], product.args[1].constant or 0
        divisor = _divisor(factor, 32 + by, 31)
        if (factor >> 31 == 1) == (more is number) and more in (None, number) and divisor:
            return graph.make("div", number, graph.const(divisor), bits=32)
    return None


def by_unsigned_product(graph: Graph, a: Value, by: int) -> Value | None:
    """`x / d` without signs of the upper half of x times a constant, shifted right."""
    if not _is_high(a, "u"):
        return None
    divisor = _divisor(a.args[1].constant or 0, 32 + by, 32)
    return graph.make("udiv", a.args[0], graph.const(divisor), bits=32) if divisor else None


def by_shift(graph: Graph, a: Value, by: int) -> Value | None:
    """`x / 2 ** by` of x and what makes it round to zero, shifted right with its sign."""
    if a.op != "add" or not 0 < by < 31 or a.bits != 32:
        return None
    for number, more in (a.args, a.args[::-1]):
        sign = number if by == 1 else _shifted_sign(number, graph)
        if sign is not None and more is graph.find("shr", (sign, graph.const(32 - by)), (), 32):
            return graph.make("div", number, graph.const(1 << by), bits=32)
    return None


def by_mask(graph: Graph, a: Value, mask: int | None) -> Value | None:
    """`x / 2 ** k * 2 ** k` of x and what makes it round to zero, without its lowest bits."""
    by = 32 - (mask or 0).bit_count()
    if mask is None or mask != (1 << 32) - (1 << by):
        return None
    quotient = by_shift(graph, a, by)
    return None if quotient is None else graph.shl(quotient, by)


def _shifted_sign(number: Value, graph: Graph) -> Value | None:
    return graph.find("sar", (number, graph.const(31)), (), 32)


def _shifted(value: Value, op: str, by: int) -> Value | None:
    """What is shifted by so many bits."""
    return value.args[0] if value.op == op and value.args[1].constant == by else None


def _count(value: Value) -> int | None:
    return value.args[1].constant


def _is_high(value: Value, sign: str) -> bool:
    """Whether it is the upper half of a product with a constant."""
    return value.op == "ptx" and value.data == (f"mul.hi.{sign}32",) and value.args[1].constant is not None


def _divisor(factor: int, power: int, bits: int) -> int | None:
    """The d for which `x * factor >> power` is `x / d` of all x below 2 ** bits, rounded down; None of none.

    `factor` is (2 ** power + rest) / d: what x * rest adds to x / d must not reach the next quotient.
    """
    divisor = (1 << power) // factor + 1 if factor else 0
    rest = factor * divisor - (1 << power)
    return divisor if divisor > 1 and 0 < rest <= 1 << (power - bits) else None

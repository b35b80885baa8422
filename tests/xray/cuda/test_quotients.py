"""Divisions that the compiler wrote as products and shifts; what is found is right for every number that is tried."""

from __future__ import annotations

import random

import pytest

from tilefold.xray.cuda.readable import quotients
from tilefold.xray.cuda.readable.values import Graph, Value


def magic(divisor: int, bits: int) -> tuple[int, int]:
    """The least factor and power with which a product's upper part is a quotient of numbers below 2 ** bits."""
    power = 32
    while True:
        factor = -(-(1 << power) // divisor)
        if 0 < factor * divisor - (1 << power) <= 1 << (power - bits):
            return factor, power
        power += 1


def signed(graph: Graph, divisor: int) -> Value | None:
    factor, power = magic(divisor, 31)
    x = graph.make("variable", data=(0,))
    high = graph.make("ptx", x, graph.const(factor), data=("mul.hi.s32",))
    of = graph.make("add", high, x) if factor >> 31 else high
    shifted = graph.make("sar", of, graph.const(power - 32)) if power > 32 else of
    return quotients.by_product(graph, shifted, graph.make("shr", of, graph.const(31)))


NUMBERS = [
    3,
    5,
    6,
    7,
    9,
    10,
    11,
    13,
    25,
    100,
    104,
    125,
    625,
    641,
    1000,
    12345,
    65535,
    1 << 20 | 1,
    (1 << 31) - 1,
]


@pytest.mark.parametrize("divisor", NUMBERS)
def test_signed_products(divisor: int) -> None:
    factor, power = magic(divisor, 31)
    made = signed(Graph(128), divisor)
    assert made is not None
    assert (made.op, made.args[1].constant) == ("div", divisor)
    draw = random.Random(divisor)
    for x in (
        0,
        -1,
        1,
        divisor - 1,
        divisor,
        -divisor,
        2**31 - 1,
        -(2**31),
        *(draw.randrange(-(2**31), 2**31) for _ in range(200)),
    ):
        assert (x * factor >> power) + (x < 0) == int(abs(x) // divisor) * (1 if x >= 0 else -1)


@pytest.mark.parametrize("divisor", NUMBERS)
def test_another_factor_is_no_quotient(divisor: int) -> None:
    """One more or less than the factor divides by nothing, or by the same number rightly."""
    factor, power = magic(divisor, 31)
    draw = random.Random(divisor)
    for other in (factor - 1, factor + 1, factor + 12345):
        found = quotients._divisor(other, power, 31)
        for x in () if found is None else (2**31 - 1, *(draw.randrange(2**31) for _ in range(200))):
            assert x * other >> power == x // found


def test_unsigned_products() -> None:
    graph, found = Graph(128), 0
    x = graph.make("variable", data=(0,))
    for divisor in NUMBERS:
        factor, power = magic(divisor, 32)
        if factor >> 32:
            continue
        high = graph.make("ptx", x, graph.const(factor), data=("mul.hi.u32",))
        made = quotients.by_unsigned_product(graph, high, power - 32)
        assert made is not None
        assert (made.op, made.args[1].constant) == ("udiv", divisor)
        found += 1
        for number in (0, 1, divisor - 1, divisor, 2**32 - 1):
            assert number * factor >> power == number // divisor
    assert found > 5


@pytest.mark.parametrize("by", [1, 2, 5, 30])
def test_shifts_that_round_to_zero(by: int) -> None:
    graph = Graph(128)
    x = graph.make("variable", data=(0,))
    sign = x if by == 1 else graph.make("sar", x, graph.const(31))
    more = graph.shr(sign, 32 - by)
    total = graph.make("add", x, more)
    made = quotients.by_shift(graph, total, by)
    assert made is not None
    assert (made.op, made.args[0], made.args[1].constant) == ("div", x, 1 << by)
    assert quotients.by_shift(graph, total, by + 1) is None, "it would round otherwise"
    assert quotients.by_shift(graph, graph.make("add", x, x), by) is None
    whole = quotients.by_mask(graph, total, (1 << 32) - (1 << by))
    assert whole is graph.shl(made, by)
    assert quotients.by_mask(graph, total, (1 << by) - 1) is None


def test_a_product_of_another_number_s_sign_is_no_quotient() -> None:
    graph = Graph(128)
    x, y = (graph.make("variable", data=(k,)) for k in range(2))
    factor, power = magic(104, 31)
    high, other = (graph.make("ptx", v, graph.const(factor), data=("mul.hi.s32",)) for v in (x, y))
    shifted = graph.make("sar", high, graph.const(power - 32))
    assert quotients.by_product(graph, shifted, graph.make("shr", other, graph.const(31))) is None
    assert quotients.by_product(graph, shifted, graph.make("shr", high, graph.const(30))) is None

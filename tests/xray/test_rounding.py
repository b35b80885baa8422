"""One rounding of exact sums, beside exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from tilefold.xray.machine.rounding import directed64, fma32, fma64, to_odd, two_product, two_sum, whole_odd


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers of both signs, near and far from each other, and some that cancel."""
    rng = np.random.default_rng(seed)
    a, b, c = (rng.standard_normal(400) * 2.0 ** rng.integers(-60, 60, 400) for _ in range(3))
    b[:50] = -a[:50] * (1 + 2.0**-50)
    return a, b, c


@pytest.mark.parametrize("seed", range(3))
def test_a_sum_and_what_it_lost(seed: int) -> None:
    a, b, _ = drawn(seed)
    for joined, exact in ((two_sum, Fraction.__add__), (two_product, Fraction.__mul__)):
        for s, rest, x, y in zip(*joined(a, b), a, b, strict=True):
            assert Fraction(s) + Fraction(rest) == exact(Fraction(x), Fraction(y))


@pytest.mark.parametrize("seed", range(3))
def test_rounding_to_odd_keeps_the_side_of_every_number_of_fewer_bits(seed: int) -> None:
    """What is no float64 is one of its two neighbours, that whose last bit is 1."""
    a, b, _ = drawn(seed)
    s, rest = two_sum(a, b)
    for odd, x, y in zip(to_odd(s, rest), s, rest, strict=True):
        exact = Fraction(x) + Fraction(y)
        if exact == Fraction(x):
            assert odd == x
            continue
        assert np.float64(odd).view(np.int64) & 1
        other = math.nextafter(odd, math.inf if exact > Fraction(odd) else -math.inf)
        assert min(Fraction(odd), Fraction(other)) < exact < max(Fraction(odd), Fraction(other))


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
def test_directed_rounding_is_the_neighbour_on_its_side(mode: str) -> None:
    a, b, _ = drawn(5)
    s, rest = two_sum(a, b)
    for got, x, y in zip(directed64(s, rest, mode), s, rest, strict=True):
        exact = Fraction(x) + Fraction(y)
        down = mode == "rm" or (mode == "rz" and exact > 0)
        assert Fraction(got) <= exact if down else Fraction(got) >= exact
        beyond = math.nextafter(got, math.inf if down else -math.inf)
        assert Fraction(beyond) > exact if down else Fraction(beyond) < exact


def test_a_product_and_a_sum_are_rounded_once() -> None:
    a, b, c = drawn(7)
    for got, x, y, z in zip(fma64(a, b, c), a, b, c, strict=True):
        assert got == float(Fraction(x) * Fraction(y) + Fraction(z))


def test_a_product_and_a_sum_in_float32_are_rounded_once() -> None:
    """Also where the product lies halfway between two numbers and the sum is next to it, and among subnormal numbers."""
    a, b, c = (x.astype(np.float32) for x in drawn(8))
    a[:100], b[:100] = 1.5, 1 + np.arange(100) * 2.0**-23
    c[:100] = np.resize([0, 2.0**-80, -(2.0**-80), 2.0**-126], 100)
    a[100:150], c[100:150] = a[100:150] * 2.0**-60, c[100:150] * 2.0**-80
    b[100:150] *= 2.0**-70
    for x, y, z in zip(a, b, c, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        (got,) = fma32(*(np.array([v]) for v in (x, y, z)))
        for other in np.nextafter(got, np.float32([np.inf, -np.inf])):
            error, errs = abs(Fraction(float(got)) - exact), abs(Fraction(float(other)) - exact)
            assert error < errs or (error == errs and not got.view(np.int32) & 1)


def test_whole_numbers_of_64_bits_are_rounded_to_odd() -> None:
    values = np.array([0, 1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), -(2**60) - 7], np.int64)
    for got, value in zip(whole_odd(values), values.tolist(), strict=True):
        assert abs(Fraction(got) - value) < max(1, abs(value) >> 52)
        assert Fraction(got) == value or np.float64(got).view(np.int64) & 1

"""Exact arithmetic and one rounding, in the formats and modes of PTX."""

from __future__ import annotations

import numpy as np

from tilefold.xray.machine.types import Array, Type

_SPLIT = 134217729.0  # 2^27 + 1: cuts a float64 into halves whose products are exact


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The sum in float64 and what its rounding lost, exactly."""
    s = a + b
    back = s - a
    return s, (a - (s - back)) + (b - back)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """The product in float64 and what its rounding lost, exactly unless exponents are extreme."""
    p = a * b
    ca, cb = a * _SPLIT, b * _SPLIT
    ah, bh = ca - (ca - a), cb - (cb - b)
    al, bl = a - ah, b - bh
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def to_odd(s: Array, rest: Array) -> Array:
    """`s + rest` rounded to odd: no later rounding to fewer bits can then err by rounding twice."""
    bits = s.view(np.int64)
    wrong = (rest != 0) & np.isfinite(s) & np.isfinite(rest) & ((bits & 1) == 0)
    step = np.where((rest > 0) == ~np.signbit(s), 1, -1)
    moved = np.where(wrong, bits + step, bits).view(np.float64)
    # From zero the neighbour below has the other sign, which a step in the bits does not give.
    return np.where(wrong & (s == 0), np.copysign(5e-324, rest), moved)


def add_odd(a: Array, b: Array) -> Array:
    """The sum a + b of float64, rounded to odd."""
    return to_odd(*two_sum(a, b))


def fma64(a: Array, b: Array, c: Array) -> Array:
    """The float64 a * b + c with one rounding, where the product neither overflows nor loses bits below 2^-1022."""
    uh, ul = two_product(a, b)
    th, tl = two_sum(c, ul)
    vh, vl = two_sum(uh, th)
    exact = vh + to_odd(*two_sum(tl, vl))
    return np.where(np.isfinite(ul) & np.isfinite(exact), exact, a * b + c)


def fma32(a: Array, b: Array, c: Array) -> Array:
    """The float32 a * b + c with one rounding, to nearest."""
    product, third = a.astype(np.float64) * b, c.astype(np.float64)  # exact
    s = product + third
    # Rounding again errs only where the first lies halfway between two float32, of which subnormal ones lie further apart.
    doubtful = ((s.view(np.int64) & 0x1FFFFFFF) == 0x10000000) | (np.abs(s) < 2.0**-126)
    return canonical((add_odd(product, third) if doubtful.any() else s).astype(np.float32))


def directed64(s: Array, rest: Array, mode: str) -> Array:
    """`s + rest` in float64, rounded in a direction: s is the nearest, rest what it lacks."""
    if mode == "rn":
        return s
    away = {"rz": -np.sign(s), "rm": np.full_like(s, -1.0), "rp": np.ones_like(s)}[mode]
    wrong = (np.sign(rest) == np.sign(away)) & (rest != 0) & np.isfinite(s)
    return np.where(wrong, np.nextafter(s, np.copysign(np.inf, away)), s)


def whole_odd(values: Array) -> Array:
    """64-bit integers as float64, rounded to odd."""
    high = (values >> values.dtype.type(32)).astype(np.float64) * 2.0**32
    return add_odd(high, (values & values.dtype.type(0xFFFFFFFF)).astype(np.float64))


def widen(values: Array, kind: Type) -> Array:
    """Any float type as float64, exactly."""
    if kind.kind == "bf":
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return values.astype(np.float64)


def narrow(values: Array, kind: Type, mode: str = "rn") -> Array:
    """Float64 rounded once to a float type; modes rn, rz, rm, rp."""
    if kind.bits == 64:
        return values
    if kind.kind == "bf":
        return _to_bf16(values, mode)
    rounded: Array = values.astype(kind.dtype)
    if mode != "rn":
        rounded = _directed(rounded, values, mode)
    return canonical(rounded)


def _directed(rounded: Array, values: Array, mode: str) -> Array:
    """The neighbour on the other side, where rounding to nearest went against the mode's direction."""
    back = rounded.astype(np.float64)
    wrong = {
        "rz": np.abs(back) > np.abs(values),
        "rm": back > values,
        "rp": back < values,
    }[mode]
    infinity = rounded.dtype.type(np.inf)
    toward = {"rz": np.zeros_like(rounded), "rm": -infinity, "rp": infinity}[mode]
    return np.where(wrong, np.nextafter(rounded, toward), rounded)


def _to_bf16(values: Array, mode: str) -> Array:
    """Through float32 rounded to odd, then on its bits."""
    cut = values.astype(np.float32)
    cut = _directed(cut, values, "rz")
    bits = cut.view(np.uint32) | (cut.astype(np.float64) != values).astype(np.uint32)
    upper = bits >> np.uint32(16)
    rest, negative = bits & np.uint32(0xFFFF), (bits >> np.uint32(31)) != 0
    up = {
        "rn": (rest > 0x8000) | ((rest == 0x8000) & ((upper & 1) == 1)),
        "rz": np.zeros(bits.shape, bool),
        "rm": (rest != 0) & negative,
        "rp": (rest != 0) & ~negative,
    }[mode]
    result = (upper + up.astype(np.uint32)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FFF), result)


_NANS: dict[int, Array] = {2: np.array(0x7FFF, np.uint16), 4: np.array(0x7FFFFFFF, np.uint32)}


def canonical(values: Array) -> Array:
    """The one NaN that arithmetic in 16 and 32 bits gives, whatever went in."""
    lost = values != values
    if not lost.any():
        return values
    size = values.dtype.itemsize
    kept: Array = np.where(lost, _NANS[size], values.view(f"u{size}")).view(values.dtype)
    return kept


def flush(values: Array) -> Array:
    """Subnormal float32 as zeros of their sign (`.ftz`)."""
    tiny = np.abs(values) < np.float32(2.0**-126)
    return np.where(tiny, np.copysign(np.float32(0), values), values)

"""The two 8-bit float formats, by tables of their values."""

from __future__ import annotations

import numpy as np

from tilefold.xray.machine.types import Array

FORMATS = ("e4m3x2", "e5m2x2")


def _values(name: str) -> Array:
    """The value of each of the 128 codes without sign; infinities and NaN where the format has them."""
    mantissa, bias = (3, 7) if name == "e4m3x2" else (2, 15)
    codes = np.arange(128)
    exponent, fraction = codes >> mantissa, (codes & ((1 << mantissa) - 1)) / (1 << mantissa)
    normal = (1 + fraction) * 2.0 ** (exponent - bias)
    values = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), normal)
    if name == "e4m3x2":
        values[127] = np.nan
    else:
        values[124], values[125:] = np.inf, np.nan
    return values


_TABLES = {name: _values(name) for name in FORMATS}
_FINITE = {name: table[np.isfinite(table)] for name, table in _TABLES.items()}


def decode(codes: Array, name: str) -> Array:
    """8-bit codes as float64."""
    value = _TABLES[name][codes & 127]
    return np.where((codes & 128) != 0, -value, value)


def encode(values: Array, name: str) -> Array:
    """Float64 to the nearest code, ties to even, beyond the largest finite value that value (`.satfinite`)."""
    table = _FINITE[name]
    size = np.minimum(np.abs(values), table[-1])
    upper = np.searchsorted(table, size).clip(0, len(table) - 1)
    lower = np.maximum(upper - 1, 0)
    to_lower, to_upper = size - table[lower], table[upper] - size
    code = np.where((to_lower < to_upper) | ((to_lower == to_upper) & (lower % 2 == 0)), lower, upper)
    code = np.where(np.isnan(values), 127, code)
    sign = np.where(np.signbit(values) & ~np.isnan(values), 128, 0)
    signed: Array = (code | sign).astype(np.uint16)
    return signed

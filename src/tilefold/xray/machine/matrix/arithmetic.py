"""Arithmetic of a tensor core: elements to float64, products summed, one rounding.

A chip multiplies exactly and adds in an order and with a width that its maker does not document. Here every instruction
computes D = A B + C with exact products, summed in float64 and rounded once to the type of D, so that a chip's float32 may
differ in its last bits. (Fasi, Higham, Mikaitis and Pranesh 2021 find addends cut, not rounded, at float32's width or a few
bits more; the report on DeepSeek-V3 finds about 14 bits for fp8 on sm_90.) Tests allow a float32 sum's bound in any order,
K 2^-23 sum |a b|. Integers are exact, as on a chip; float64 products are chains of fma in the order of K.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilefold.xray.machine.fp8 import decode
from tilefold.xray.machine.rounding import canonical, fma64
from tilefold.xray.machine.types import Array

_EIGHT = {
    "e4m3": decode(np.arange(256), "e4m3x2"),
    "e5m2": decode(np.arange(256), "e5m2x2"),
    "s8": np.arange(256).astype(np.uint8).view(np.int8).astype(np.float64),
    "u8": np.arange(256).astype(np.float64),
}
# Bytes of an operand's element.
BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "f64": 8} | dict.fromkeys(_EIGHT, 1)
# What holds an accumulator's element.
SUMS = {"f16": "f2", "f32": "f4", "f64": "f8", "s32": "i4"}


@dataclass(frozen=True)
class Shape:
    """An instruction's sizes: D is [m, n], A [m, k], B [k, n]."""

    m: int
    n: int
    k: int


def shape_of(word: str) -> Shape:
    """The sizes that `m16n8k16` names."""
    m, _, rest = word[1:].partition("n")
    n, _, k = rest.partition("k")
    return Shape(int(m), int(n), int(k))


def elements(raw: Array, kind: str) -> Array:
    """An operand's elements in float64, from unsigned integers of their width. The low 13 bits of tf32 count for nothing."""
    if kind in _EIGHT:
        found: Array = _EIGHT[kind][raw]
        return found
    if kind == "bf16":
        single = (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    elif kind == "tf32":
        single = (raw & np.uint32(0xFFFFE000)).view(np.float32)
    else:
        single = raw.view(f"f{raw.dtype.itemsize}")
    values: Array = single.astype(np.float64)
    return values


def product(a: Array, b: Array, c: Array | None, kind: str, *, saturate: bool = False) -> Array:
    """A [..., m, k] times b [..., n, k] transposed, plus c, as the accumulator's type `kind`."""
    if kind == "f64":
        return _chain(a, b, c)
    sums = np.matmul(a, np.swapaxes(b, -1, -2))
    if c is not None:
        sums += c
    if kind == "s32":
        whole: Array = (sums.clip(-(2.0**31), 2.0**31 - 1) if saturate else sums).astype(np.int64)
        return whole.astype(np.int32)
    return canonical(sums.astype(SUMS[kind]))


def _chain(a: Array, b: Array, c: Array | None) -> Array:
    """Float64: one fma after the other, in the order of K."""
    sums: Array = np.zeros((*a.shape[:-1], b.shape[-2])) if c is None else c
    for k in range(a.shape[-1]):
        sums = fma64(*np.broadcast_arrays(a[..., :, None, k], b[..., None, :, k], sums))
    return sums

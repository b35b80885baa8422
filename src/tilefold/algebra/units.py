"""Units of sums of squares: powers of two in which a float's square neither over- nor underflows.

Of the exponents of a dtype a magnitude's are in one of four quarters, and each has a unit: 2^-98, 2^-34, 2^30 and 2^94 of
float32, and four of float64 that are 2^512 apart. In units of the largest magnitude, elements are below 2^34 (2^256), so that
2^58 of their squares can be added; and where the largest is 2^-30 (2^-256) or more, as it is unless all are subnormal, the
square of its last bit is held too. What is a quarter or more below the largest is lost as it would be in any sum of squares.
Multiplying by a power of two is exact: in the usual range sums have the bits that they have without.

Blue, "A portable Fortran program to find the Euclidean norm of a vector" (1978), has the same with accumulators of its own.
"""

from __future__ import annotations

import struct

import torch

Tensor = torch.Tensor
# For each float: the dtype of its bits, those that tell the quarter, the rest of a unit's, and what a unit's and its inverse's
# add up to.
_BITS = {
    torch.float32: (torch.int32, 3 << 29, 30 << 23, 254 << 23),
    torch.float64: (torch.int64, 3 << 61, 256 << 52, 2046 << 52),
}


def of(x: Tensor) -> Tensor:
    """The unit of magnitudes; that of the last quarter for what is not finite."""
    whole, quarter, rest, _ = _BITS[x.dtype]
    return (x.view(whole) & quarter | rest).view(x.dtype)


def per(unit: Tensor) -> Tensor:
    """1 / unit."""
    whole, *_, both = _BITS[unit.dtype]
    return (both - unit.view(whole)).view(unit.dtype)


def of_number(x: float) -> float:
    """`of` a float64."""
    _, quarter, rest, _ = _BITS[torch.float64]
    return _number(_bits(x) & quarter | rest)


def per_number(unit: float) -> float:
    """`per` of a float64."""
    return _number(_BITS[torch.float64][-1] - _bits(unit))


def _bits(x: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", x))[0])


def _number(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])

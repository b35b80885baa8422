"""Units of sums of squares: powers of two in which a float's square neither over- nor underflows.

Of the exponents of a dtype a magnitude's are in one of four quarters, and each has a unit: 2^-97, 2^-33, 2^31 and 2^95 of
float32, and four of float64 that are 2^512 apart. In units of the largest magnitude, elements are below 2^34 (2^257), so that
2^58 of their squares can be added; and where the largest is 2^-30 (2^-256) or more, as it is unless all are subnormal, the
square of its last bit is held too. What is a quarter or more below the largest is lost as it would be in any sum of squares.
Multiplying by a power of two is exact: in the usual range sums have the bits that they have without.

On a GPU they are made of the bits (kernels/scalars); here they are chosen, which any tracer of torch's can record.

Where elements can be read once more, they are folded without units, and again times a power of two if that state does not
hold them (`powers.following`): 2^97, or 2^-43, and 2^-86 if that is not little enough. Of up to 2^21 elements:

- A sum of squares below 2^-110 an element (2^-80 in all, for norms) is of magnitudes below 2^-20, so that 2^97 times them and
  their squares are in range, and the least square is 2^-104, whose mean is no subnormal number.
- One beyond 2^128 is of a magnitude of 2^53 or more. Times 2^-43 (or 2^-86, which is for 2^96 or more) the root of the mean
  square is 2^-1 or more, so that what elements lose as subnormal numbers, 2^-150, is none of the result's bits. 2^-86 times a
  float32 is below 2^42: squares and their sum are in range.

Blue, "A portable Fortran program to find the Euclidean norm of a vector" (1978), has the same with accumulators of its own.
"""

from __future__ import annotations

import math

import torch

from tilefold.runtime.caching import kept_outside_modes

Tensor = torch.Tensor
# For each float, how far quarters are apart, where the second begins, and the first unit, as powers of two.
_QUARTERS = {torch.float32: (64, -63, -97), torch.float64: (512, -511, -767)}

# The least square, on average, whose last bits a dtype holds: what is lost is below 2^-40 of it.
LEAST_SQUARES = {torch.float32: 2.0**-110, torch.float64: 2.0**-960}
# What elements are multiplied by where they are folded again.
UP, DOWN = 2.0**97, 2.0**-43
# Dtypes of which 2^40 squares, of elements and of their deviations, are in float32's range.
IN_RANGE = frozenset(
    (
        torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.float16,
        torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz,
    )
)  # fmt: skip


FEW = 4096  # elements that are looked up one by one in less time than three choices take


@kept_outside_modes(2)
def _tables(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The units, and where the second and the later quarters begin."""
    apart, begin, first = _QUARTERS[dtype]
    units = torch.tensor([2.0 ** (first + q * apart) for q in range(4)], dtype=dtype, device="cpu")
    return units, torch.tensor([2.0 ** (begin + q * apart) for q in range(3)], dtype=dtype, device="cpu")


def of(x: Tensor) -> Tensor:
    """The unit of magnitudes; that of the last quarter for what is not finite."""
    apart, begin, first = _QUARTERS[x.dtype]
    if x.numel() <= FEW and x.is_cpu and not torch._C._is_tracing():
        quarters, bounds = _tables(x.dtype)
        return quarters[torch.bucketize(x.abs().contiguous(), bounds, right=True)]
    made = torch.full_like(x, 2.0 ** (first + 3 * apart))
    for quarter in (2, 1, 0):
        below = x.abs() < 2.0 ** (begin + quarter * apart)
        made = torch.where(below, 2.0 ** (first + quarter * apart), made)
    return made


def per(unit: Tensor) -> Tensor:
    """1 / unit, of a power of two; of 0, which is no element's, something finite."""
    most = torch.finfo(unit.dtype).max / 2
    return torch.where(unit == 0, 2.0 ** round(math.log2(most)), unit.reciprocal())


def of_number(x: float) -> float:
    """`of` a float64."""
    apart, begin, first = _QUARTERS[torch.float64]
    quarter = next((q for q in range(3) if abs(x) < 2.0 ** (begin + q * apart)), 3)
    return float(2.0 ** (first + quarter * apart))


def per_number(unit: float) -> float:
    """`per` of a float64."""
    return 1.0 / unit if unit else 2.0**1023

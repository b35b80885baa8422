"""Arithmetic on tensors that has one answer where torch's depends on the chip, on an element's place, or raises.

Floats divide by floor as Python's do, from an exact remainder; whole numbers divided by 0 give 0, and the least one divided
by -1 itself, as it wraps; a float becomes the whole number that is nearest to its whole part, NaN becomes 0.
"""

from __future__ import annotations

import torch

from tilefold.algebra.dtypes import carried_dtype, integer_limits, is_float

Tensor = torch.Tensor


def floor_divide(a: Tensor, b: Tensor) -> Tensor:
    """`a // b`: the quotient rounded down."""
    if not is_float(a.dtype):
        return _whole_quotient(a, b)
    below, rest = _remainders(a, b)
    quotient = (a - rest) / b - below.to(a.dtype)
    down = torch.floor(quotient)
    down = torch.where(quotient - down > 0.5, down + 1, down)
    by = a / b
    return torch.where(b == 0, by, torch.where(quotient == 0, torch.copysign(torch.zeros_like(by), by), down))


def remainder(a: Tensor, b: Tensor) -> Tensor:
    """`a % b`: what the rounded quotient leaves, of b's sign; a zero has a's."""
    if not is_float(a.dtype):
        return torch.remainder(a, b if _is_plain(b) else torch.where((b == 0) | (b == -1), 1, b))
    below, rest = _remainders(a, b)
    return torch.where(below, rest + b, rest)


def _remainders(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Whether `fmod(a, b)` has the other sign than b, and it: exact in float64, and a number of a's dtype."""
    rest = _fmod(a, b) if a.dtype == torch.float64 else torch.fmod(a.double(), b.double()).to(a.dtype)
    return (rest != 0) & ((rest < 0) != (b < 0)), rest


def _fmod(a: Tensor, b: Tensor) -> Tensor:
    """Torch's vectors give NaN where a / b is beyond the greatest float: no step's quotient is."""
    large = b * 2.0**700
    return torch.fmod(torch.fmod(torch.fmod(a, large * 2.0**700), large), b)


def _whole_quotient(a: Tensor, b: Tensor) -> Tensor:
    if _is_plain(b):
        return torch.floor_divide(a, b)
    by_itself = (b == 0) | (b == -1)
    return torch.where(by_itself, a * b, torch.floor_divide(a, torch.where(by_itself, 1, b)))


def _is_plain(b: Tensor) -> bool:
    """Whether it is one divisor that every whole number can be divided by."""
    return b.ndim == 0 and int(b) not in (0, -1)


def whole(value: Tensor, dtype: torch.dtype) -> Tensor:
    """A float's whole part: the nearest that the dtype's register holds, 0 for NaN; narrower dtypes keep its low bits.

    uint64 is given as the int64 of the same bits.
    """
    value = value if value.dtype in (torch.float32, torch.float64) else value.float()
    if dtype == torch.uint64:
        return _whole_bits(value)
    register = carried_dtype(dtype)
    least, greatest = integer_limits(register)
    # 2**63 and 2**31, the first beyond the limits, are floats; the greatest itself is none
    part = torch.where(value < -float(least), torch.where(value >= least, value, 0).to(register), greatest)
    part = torch.where(value < least, least, part)
    return torch.where(value == value, part, 0).to(dtype)


def _whole_bits(value: Tensor) -> Tensor:
    large = value >= 2.0**63
    low = torch.where(large, value - 2.0**64, value)
    part = torch.where((value > 0) & (value < 2.0**64), low, 0).to(torch.int64)
    return torch.where(value >= 2.0**64, -1, part)

"""Arithmetic of uint64 on the int64 tensors of the same bits, where it differs from int64's own."""

from __future__ import annotations

import torch

from tilefold.algebra.dtypes import compute_dtype

Tensor = torch.Tensor

SIGN = -(1 << 63)  # flips between unsigned order and the signed order of the same bits
GREATEST = (1 << 63) - 1


def shift_right(a: Tensor, b: Tensor) -> Tensor:
    """`a >> b` with zeros from the left; 0 once 64 bits and more are gone."""
    return torch.where(b == 0, a, _half(a) >> (b - 1))


def floor_divide(a: Tensor, b: Tensor) -> Tensor:
    """`a // b`: twice the quotient of half of `a` is at most 1 short, and half of `a` is no negative number. 0 for 0."""
    wide, none = b < 0, b == 0
    divisor = torch.where(wide | none, 1, b)
    quotient = _half(a) // divisor * 2
    quotient += _reaches(a - quotient * divisor, divisor)
    return torch.where(wide, _reaches(a, b).to(torch.int64), torch.where(none, 0, quotient))


def remainder(a: Tensor, b: Tensor) -> Tensor:
    """`a % b`. 0 for 0."""
    return torch.where(b == 0, 0, a - floor_divide(a, b) * b)


def to_float(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded once: half of a large number is converted, the bit that is lost kept in the last place."""
    large = value < 0
    wide = torch.where(large, _half(value) | (value & 1), value).to(compute_dtype(dtype))
    return torch.where(large, wide * 2, wide).to(dtype)


def _half(value: Tensor) -> Tensor:
    return (value >> 1) & GREATEST


def _reaches(a: Tensor, b: Tensor) -> Tensor:
    """`a >= b`."""
    return (a ^ SIGN) >= (b ^ SIGN)

"""Rules of dtypes: which a fold takes, in which one a state is carried, how they promote, what numbers they hold.

A fold carries bool, int32, int64, uint64, float32 and float64, the dtypes that a register holds. Narrower floats are carried
as float32 and rounded once, at the end.
"""

from __future__ import annotations

import torch

from tilefold.algebra.numbers import Number
from tilefold.errors import DtypeError

CARRIED = (torch.bool, torch.int32, torch.int64, torch.uint64, torch.float32, torch.float64)
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
E8M0 = torch.float8_e8m0fnu
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, E8M0)
FOLDABLE = (
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16,
    torch.uint32, torch.int32, torch.uint64, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, *FLOAT8,
)  # fmt: skip
# What a fold may give. Powers of two, without sign and zero, are read alone: what is computed of them is float32.
GIVEN = tuple(dtype for dtype in FOLDABLE if dtype != E8M0)
_PACKED = tuple(
    getattr(torch, name)
    for name in ("float4_e2m1fn_x2", "quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2")
    if hasattr(torch, name)
)


def check_foldable(dtype: torch.dtype, where: str) -> None:
    """Refuse dtypes no fold takes (complex, quantized) with a clear error."""
    if dtype not in FOLDABLE:
        fix = "convert the tensor first"
        if dtype.is_complex:
            fix = "fold torch.view_as_real(x), its real and imaginary parts, or x.abs(), its magnitudes"
        if dtype in _PACKED:
            fix = "an element is several numbers: view it as torch.uint8 and unpack them first"
        raise DtypeError(
            f"{where}: folds are not implemented for elements other than real numbers or bool, got {dtype}; {fix}"
        )


def result_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of results that would have this one: itself, or float32 where no fold gives it."""
    return dtype if dtype in GIVEN else torch.float32


def is_float(dtype: torch.dtype) -> bool:
    """Whether the dtype is a float of any width."""
    return dtype.is_floating_point


def promote(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """torch.promote_types, with an answer for the pairs torch refuses (float8 and mixed unsigned)."""
    if a == b:
        return a
    if a in FLOAT8 or b in FLOAT8:
        return torch.promote_types(_wide_float(a), _wide_float(b))
    try:
        return torch.promote_types(a, b)
    except RuntimeError:
        return torch.int64


def _wide_float(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in FLOAT8 else dtype


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The "compute" dtype of one input: float32 up to 32 bits, float64 for float64, int64 for integers and bool."""
    if is_float(dtype):
        return torch.float64 if dtype == torch.float64 else torch.float32
    return torch.int64


def element_dtype(dtype: torch.dtype) -> torch.dtype:
    """What `lift` sees for an element: wide floats, int64, uint64; bool stays bool."""
    return dtype if dtype in (torch.bool, torch.uint64) else compute_dtype(dtype)


def carried_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype a state field of this declared dtype is held in while folding."""
    if is_float(dtype):
        return compute_dtype(dtype)
    if dtype in (torch.bool, torch.int32, torch.int64, torch.uint64):
        return dtype
    return torch.int64 if dtype == torch.uint32 else torch.int32


def category(dtype: torch.dtype) -> int:
    """0 for bool, 1 for integers, 2 for floats: the order in which Python numbers are weak."""
    return 2 if is_float(dtype) else 0 if dtype == torch.bool else 1


def number_category(number: Number) -> int:
    """The category of a Python number."""
    return 2 if isinstance(number, float) else 0 if isinstance(number, bool) else 1


def integer_limits(dtype: torch.dtype) -> tuple[int, int]:
    """(least, greatest) value of an integer dtype; bool counts 0 to 1."""
    if dtype == torch.bool:
        return 0, 1
    info = torch.iinfo(dtype)
    return info.min, info.max


def concrete(number: Number, dtype: torch.dtype, what: str) -> Number:
    """A Python number as a value of `dtype`: infinities become an integer type's least or greatest value."""
    if is_float(dtype):
        return float(number)
    if isinstance(number, float) and number != number:
        raise DtypeError(
            f"{what}: an integer field cannot start at NaN, got a {dtype} field; declare the field as a float"
        )
    least, greatest = integer_limits(dtype)
    if number in (float("inf"), float("-inf")):
        number = greatest if number > 0 else least
    if number != int(number):
        raise DtypeError(
            f"{what}: an integer field needs a whole identity, got {number!r} for {dtype}; declare the field as a float"
        )
    bits = 1 if dtype == torch.bool else torch.iinfo(dtype).bits
    if not -(1 << bits - 1) <= number < 1 << bits:
        raise DtypeError(
            f"{what}: an identity must fit its field, got {number!r} for {dtype}; an infinity means the dtype's limit"
        )
    wrapped = (int(number) - least) % (greatest - least + 1) + least  # -1, all ones, is 2**64 - 1 in uint64
    return bool(wrapped) if dtype == torch.bool else wrapped

"""The words that device functions are written in: dtypes, literals, operators, conversions.

Device functions are text from this fixed vocabulary: names of operations from a table, numbered variables, checked
literals. No name, docstring or path of a user reaches it. Where Triton's own operator does not give the one answer that
tilefold defines, the text calls a function of `kernels.scalars`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tilefold.algebra.columns import Op
from tilefold.algebra.dtypes import E8M0, integer_limits, is_float
from tilefold.algebra.numbers import Number, float_number, whole_number

TL_DTYPES = {
    torch.bool: "tl.int32", torch.int32: "tl.int32", torch.int64: "tl.int64", torch.uint64: "tl.uint64",
    torch.float32: "tl.float32", torch.float64: "tl.float64",
}  # fmt: skip
STORED_DTYPES = {
    **TL_DTYPES, torch.bool: "tl.uint8", torch.uint8: "tl.uint8", torch.int8: "tl.int8", torch.uint16: "tl.uint16",
    torch.int16: "tl.int16", torch.uint32: "tl.uint32", torch.float16: "tl.float16", torch.bfloat16: "tl.bfloat16",
    torch.float8_e4m3fn: "tl.float8e4nv", torch.float8_e5m2: "tl.float8e5",
    # Triton has no name for powers of two. This one, which no dtype of torch's has, tells `convert` what the bytes are.
    E8M0: "tl.float8e4b15",
}  # fmt: skip

_LEAST_NORMAL = 2.0**-126


def literal(number: Number, dtype: torch.dtype) -> str:
    """A number as source text in `dtype`: whole ones wrap as torch's do, and an infinity is their greatest or least."""
    if is_float(dtype):
        return _float_literal(float_number(number, dtype), float(number), dtype)
    return repr(int(whole_number(number, dtype)))


def _float_literal(value: float, written: float, dtype: torch.dtype) -> str:
    """As written, where Triton reads that as `value`: 0 loses its sign, and numbers beyond normal float32 are float64."""
    if math.isnan(value):
        return 'float("nan")'
    if math.isinf(value):
        return f'{"-" if value < 0 else ""}float("inf")'
    if value == 0:
        return f"(tl.full([], 0.0, {TL_DTYPES[dtype]}) * -1.0)" if math.copysign(1.0, value) < 0 else "0.0"
    if dtype == torch.float32 and abs(value) < _LEAST_NORMAL:
        return f"tl.full([], {value!r}, {TL_DTYPES[dtype]})"
    normal = dtype != torch.float32 or _LEAST_NORMAL <= abs(written) <= torch.finfo(dtype).max
    return repr(written if normal else value)


def absent(block: Op, dtype: torch.dtype) -> str:
    """The value of a masked element in a block operation: an infinity is the dtype's limit."""
    assert block.triton is not None
    number = block.triton.absent
    assert number is not None, "the first element of a block is chosen by its mask"
    if math.isinf(number) and not is_float(dtype):
        return literal(integer_limits(dtype)[number > 0], dtype)
    return literal(number, dtype)


def converted(text: str, source: torch.dtype, target: torch.dtype, *, stored: bool, interpret: bool) -> str:
    """A value of dtype `source` in another: by `convert` where Triton's own cast has no answer, or another than torch's."""
    name = (STORED_DTYPES if stored else TL_DTYPES)[target]
    if not is_float(target):
        own = not is_float(source)
    elif target.itemsize >= 4:
        own = source.itemsize >= 4 or not (is_float(source) and (interpret or source == E8M0))
    else:
        own = source == torch.float32 and target.itemsize == 2 and not interpret
    return f"{text}.to({name})" if own else f"convert({text}, {name})"


def text_of(row: Op, values: Sequence[str], dtype: torch.dtype, *, interpret: bool) -> str:
    """The table's text of an operation on operands of a dtype."""
    assert row.triton is not None
    bits = 0 if is_float(dtype) or dtype == torch.bool else torch.iinfo(dtype).bits
    return row.triton.of(dtype, interpret=interpret).format(*values, bits=bits)


def shortened(
    op: str, values: Sequence[str], numbers: Sequence[Number | None], dtype: torch.dtype
) -> str | None:
    """A shorter text, with Triton's own operators, where the second operand is a number that they serve; else None."""
    number = numbers[1] if len(numbers) == 2 else None
    if number is None:
        return None
    if op in ("floordiv", "mod") and not is_float(dtype) and whole_number(number, dtype) not in (0, -1):
        return _division(op, values, dtype)
    if op in ("lshift", "rshift") and 0 <= whole_number(number, dtype) < torch.iinfo(dtype).bits:
        return f"{values[0]} {'<<' if op == 'lshift' else '>>'} {values[1]}"
    if op == "pow" and number in (1, 2, 3, 4):
        return " * ".join([values[0]] * int(number))
    return None


def _division(op: str, values: Sequence[str], dtype: torch.dtype) -> str:
    """Whole numbers by floor, where Triton's // and % truncate."""
    a, b = values
    if dtype == torch.uint64:
        return f"({a} {'//' if op == 'floordiv' else '%'} {b})"
    crossing = f"((({a} % {b}) != 0) & ((({a} % {b}) < 0) != ({b} < 0)))"
    if op == "floordiv":
        return f"({a} // {b} - {crossing}.to({TL_DTYPES[dtype]}))"
    return f"({a} % {b} + tl.where({crossing}, {b}, 0))"

"""What Triton's interpreter lacks or computes otherwise than a device: functions of libdevice, and conversions.

By numpy, and rounded by torch: the interpreter has no libdevice and no instructions, truncates to bfloat16 and loses the
carry of what it rounds to float8.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import TensorHandle, interpreter_builder

from tilefold.algebra import arithmetic

Array = Any

# Floats that numpy holds as codes.
_CODED = {
    tl.bfloat16: torch.bfloat16, tl.float8e5: torch.float8_e5m2, tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e4b15: torch.float8_e8m0fnu,
}  # fmt: skip
_FLOATS = {tl.float16: torch.float16, tl.float32: torch.float32, tl.float64: torch.float64, **_CODED}
_WHOLE = {
    tl.int8: torch.int8, tl.uint8: torch.uint8, tl.int16: torch.int16, tl.uint16: torch.uint16, tl.int32: torch.int32,
    tl.uint32: torch.uint32, tl.int64: torch.int64, tl.uint64: torch.uint64,
}  # fmt: skip


def convert(x: Any, TYPE: Any) -> Any:  # what `scalars` calls it
    """`scalars.convert`."""
    target = tl.core._unwrap_if_constexpr(TYPE)
    if x.dtype == target:
        return x
    if x.dtype in _FLOATS and target in _WHOLE:
        whole = arithmetic.whole(_tensor_of(x), _WHOLE[target]).numpy()
        return _value(whole.view(np.uint64) if target == tl.uint64 else whole, target, x)
    if target not in _FLOATS or not {x.dtype, target} & {tl.float16, *_CODED}:
        return x.to(target)
    exact = _tensor_of(x if x.dtype in _FLOATS else x.to(tl.float32)).to(_FLOATS[target])
    codes = {2: torch.uint16, 1: torch.uint8}.get(exact.itemsize) if target in _CODED else None
    return _value((exact if codes is None else exact.view(codes)).numpy(), target, x)


@contextlib.contextmanager
def masks_of_truth() -> Iterator[None]:
    """Within it masks of loads and stores are truth values: `&` of a tensor and a number makes int32 of these, and from
    Triton 3.9 on a mask must not be that."""
    builder = interpreter_builder
    load, store = builder.create_masked_load, builder.create_masked_store

    def of_truth(mask: Any) -> Any:
        return TensorHandle(mask.data.astype(bool), tl.int1)

    builder.create_masked_load = lambda x, mask, *rest: load(x, of_truth(mask), *rest)
    builder.create_masked_store = lambda y, x, mask, *rest: store(y, x, of_truth(mask), *rest)
    try:
        yield
    finally:
        del builder.create_masked_load, builder.create_masked_store


def rescale(x: Any, factor: Any) -> Any:
    """`scalars.rescale`: nothing is fused here."""
    return x * factor


def _tensor_of(x: Any) -> torch.Tensor:
    data = torch.from_numpy(np.ascontiguousarray(x.handle.data))
    return data.view(_CODED[x.dtype]) if x.dtype in _CODED else data


def _value(data: Array, dtype: Any, like: Any) -> Any:
    """A value of Triton's, of another one's shape."""
    return tl.tensor(
        TensorHandle(data, dtype), like.type.with_element_ty(dtype) if like.type.is_block() else dtype
    )


def _elementwise(function: Callable[..., Array]) -> Callable[..., Any]:
    """A function of numpy's for floats of one dtype and one shape, or without any."""

    def apply(*operands: Any) -> Any:
        with np.errstate(all="ignore"):
            data = function(*(o.handle.data for o in operands))
        like = max(operands, key=lambda o: o.handle.data.size)
        return _value(data.astype(like.handle.data.dtype), like.dtype, like)

    return apply


tanh, expm1, log1p = _elementwise(np.tanh), _elementwise(np.expm1), _elementwise(np.log1p)
pow, fmod = _elementwise(np.power), _elementwise(np.fmod)

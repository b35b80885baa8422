"""`transpose`: validate, make a request, dispatch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tilefold.api import dispatch
from tilefold.api.recorded import between_graphs, is_differentiated, recorded_transpose
from tilefold.api.requests import Rearrangement
from tilefold.errors import DtypeError
from tilefold.planner.problem.canonical import one_dim
from tilefold.planner.problem.validate import (
    check_guarantee,
    check_is_tensor,
    check_out,
    check_tensors,
    is_abstract,
    plain,
)
from tilefold.runtime.modes import check_not_recorded, check_not_traced, is_seen
from tilefold.runtime.overrides import overridden, override
from tilefold.runtime.switch import layout

# Dtypes that a kernel moves as they are; it sees others as integers of their width.
_MOVED = frozenset(
    (torch.float16, torch.bfloat16, torch.float32, torch.float64,
     torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
)  # fmt: skip
_BY_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def transpose(
    x: torch.Tensor, dim0: int, dim1: int, *, out: torch.Tensor | None = None, guarantee: str = "run_to_run"
) -> torch.Tensor:
    """Swap two dims of a tensor, in memory too: the result is contiguous.

        result[.., i, .., j, ..] = x[.., j, .., i, ..]

    Args:
        x: a tensor of any shape, strides and dtype of 1 to 16 bytes; it is read in place (a view that conjugates lazily is
            resolved first).
        dim0, dim1: the dims to swap; -1 is the last.
        out: a tensor to write the result into, of its shape and dtype.
        guarantee: as in `reduce`; bits are moved and not computed, so each holds.

    Returns:
        A new contiguous tensor, of `x.transpose(dim0, dim1)`'s shape and elements.

    Raises:
        DimError, KindError, ShapeError, DtypeError, DeviceError, ArgumentError: the call does not fit.
        GradientError: `out` is given while a gradient or a forward derivative is asked.

    Example:
        >>> tilefold.transpose(torch.tensor([[1, 2, 3], [4, 5, 6]]), 0, 1)
        tensor([[1, 4],
                [2, 5],
                [3, 6]])
    """
    if is_dynamo_compiling():
        if out is None:
            return recorded_transpose(x, dim0, dim1, guarantee)
        named = {"out": out, "guarantee": guarantee}
        return between_graphs(transpose, x, dim0, dim1, **named)  # type: ignore[no-any-return]  # this one
    if overridden(x, out):
        return override(transpose, [x, out], x, dim0, dim1, out=out, guarantee=guarantee)  # type: ignore[no-any-return]  # theirs
    key = None
    if out is None and type(x) is Tensor and x.is_cuda and x.dtype in _MOVED:
        key = _key(x, dim0, dim1, guarantee)
        if key is not None and (made := dispatch.repeated(key, x.transpose(dim0, dim1))) is not None:
            return made[0]
    return _transposed(x, dim0, dim1, out, guarantee, key)


def _transposed(x: Any, dim0: Any, dim1: Any, out: Any, guarantee: str, key: Any) -> Tensor:
    if out is None and isinstance(x, Tensor) and is_seen([x]):
        return recorded_transpose(x, dim0, dim1, guarantee)
    first, second = _checked(x, dim0, dim1, guarantee, out is None)
    if out is None and is_differentiated([x]):
        return recorded_transpose(x, dim0, dim1, guarantee)
    view = x.transpose(first, second) if x.ndim else x
    targets = check_out(out, [x.dtype], view.shape, [x], "transpose")
    check_not_recorded("transpose", x.is_cuda)
    if is_abstract(x):
        return view.new_empty(view.shape) if targets is None else targets[0]
    if x.numel() == 0:
        return torch.empty(view.shape, dtype=x.dtype, device=x.device) if targets is None else targets[0]
    if x.dtype not in _MOVED:  # bits seen as another dtype, which a trace does not hold
        check_not_traced("transpose")
    bits = _as_bits(plain(view))
    request = Rearrangement(tuple(bits.shape), bits.dtype, guarantee)
    if targets is None:
        return _as_dtype(dispatch.run(request, [bits], key)[0], x.dtype)
    target = plain(targets[0])
    if target.is_conj() or target.is_neg():  # its memory holds other values than it shows
        target.copy_(_as_dtype(dispatch.run(request, [bits])[0], x.dtype))
    else:
        dispatch.run(request, [bits], None, [_as_bits(target)])
    return targets[0]


def _checked(x: Any, dim0: Any, dim1: Any, guarantee: str, differentiable: bool) -> tuple[int, int]:
    check_is_tensor(x, "transpose")
    check_tensors([x], "transpose", any_dtype=True, differentiable=differentiable)
    check_guarantee(guarantee, "transpose")
    if x.is_quantized:
        raise DtypeError(f"transpose: the input must hold plain numbers, got {x.dtype}; pass int_repr()")
    fix = "name two dims"
    return one_dim(dim0, x.ndim, "transpose", "dim0", fix), one_dim(dim1, x.ndim, "transpose", "dim1", fix)


def _as_bits(x: Tensor) -> Tensor:
    """A tensor's memory as elements that a kernel moves: of its own dtype, or integers; 16 bytes are a pair."""
    x = x.resolve_conj().resolve_neg()
    if x.dtype in _MOVED:
        return x
    if x.element_size() == 16:
        return torch.view_as_real(x)
    return x.view(_BY_WIDTH[x.element_size()])


def _as_dtype(made: Tensor, dtype: torch.dtype) -> Tensor:
    if made.dtype == dtype:
        return made
    return torch.view_as_complex(made) if dtype == torch.complex128 else made.view(dtype)


def _key(x: Tensor, dim0: Any, dim1: Any, guarantee: str) -> tuple[Any, ...] | None:
    """The key of a plain call on a GPU; None where the call must be checked every time."""
    seen = layout(x)
    if seen is None or type(dim0) is not int or type(dim1) is not int:
        return None
    return ("transpose", seen, dim0, dim1, guarantee)

"""`topk`: validate, make a request, dispatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tilefold.algebra.dtypes import E8M0
from tilefold.api import dispatch
from tilefold.api.recorded import SHARDED, between_graphs, is_differentiated, is_sharded, recorded_selection
from tilefold.api.requests import Selected
from tilefold.errors import ArgumentError, KindError, ShapeError, shown
from tilefold.planner.problem.canonical import one_dim, whole_number
from tilefold.planner.problem.validate import (
    check_guarantee,
    check_is_tensor,
    check_out,
    check_tensors,
    is_abstract,
    plain,
)
from tilefold.planner.selections import MOST
from tilefold.runtime.modes import check_not_recorded, is_seen
from tilefold.runtime.overrides import classed, listed, overridden, override, rebuildable
from tilefold.runtime.switch import layout


def topk(
    x: torch.Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
    *,
    out: Sequence[torch.Tensor] | None = None,
    guarantee: str = "run_to_run",
) -> torch.return_types.topk:
    """The k largest elements along a dim, and where they are.

        values[j, m], indices[j, m] = the j-th of x[:, m], ordered by value, then by lower index

    Args:
        x: [K, M], any shape and strides, read in place; bool, integers of 8 to 64 bits or floats of 8 to 64 bits.
        k: how many, at most 32 and at most the dim's length. 0 gives empty results, of a 0-d tensor its element.
        dim: the dim to take them from; -1 is the last.
        largest: False takes the smallest. NaN counts as greater than any number, as in torch; both zeros are equal.
        sorted: the results are sorted either way, best first.
        out: a pair of tensors to write values and indices (torch.int64) into.
        guarantee: as in `reduce`. Elements are compared and never computed with, so each holds.

    Returns:
        torch's named tuple (values, indices), contiguous, with k in place of the dim's length. Of equal elements the one of
        the lower index comes first, on every backend and in every run. Nothing is rounded.

    Raises:
        ShapeError: k is greater than the dim.
        ArgumentError: k is greater than 32.
        DimError, KindError, DtypeError, DeviceError: the call does not fit.
        GradientError: `out` is given while a gradient or a forward derivative is asked.

    Example:
        >>> values, indices = tilefold.topk(torch.tensor([[3, 7, 7, 1]]), 2)
        >>> values, indices
        (tensor([[7, 7]]), tensor([[1, 2]]))

    Source: the k best elements are in the k groups whose own best elements are best; a known first step of selection.
    """
    if is_sharded([x]):
        return torch.return_types.topk(SHARDED["topk"](x, k, dim, largest, sorted, out, guarantee))  # type: ignore[arg-type]  # two
    if is_dynamo_compiling():
        if out is not None:
            named: dict[str, Any] = {"out": out, "guarantee": guarantee}
            return between_graphs(topk, x, k, dim, largest, sorted, **named)  # type: ignore[no-any-return]  # this one
        return torch.return_types.topk(recorded_selection(x, k, dim, largest, guarantee))  # type: ignore[arg-type]  # two
    if overridden(x, *listed(out)):
        named = {"out": out, "guarantee": guarantee}
        return override(topk, [x, *listed(out)], x, k, dim, largest, sorted, **named)  # type: ignore[no-any-return]  # theirs
    key = None
    if out is None and type(x) is Tensor and x.ndim:
        key = _key(x, k, dim, largest, sorted, guarantee)
        if (made := dispatch.repeated(key, x)) is not None:
            return torch.return_types.topk(made)  # type: ignore[arg-type]  # two tensors
    pair = _selected(x, k, dim, largest, sorted, out, guarantee, key)
    results = torch.return_types.topk(pair)  # type: ignore[arg-type]  # two tensors
    return rebuildable(results) if classed([x, *listed(out)]) else results


def _selected(
    x: Any, k: Any, dim: Any, largest: Any, ordered: Any, out: Any, guarantee: str, key: Any
) -> Sequence[Tensor]:
    if out is None and isinstance(x, Tensor) and is_seen([x]):
        return recorded_selection(x, k, dim, largest, guarantee)
    along, k = checked_selection(x, k, dim, largest, ordered, guarantee, out is None)
    if out is None and is_differentiated([x]):
        return recorded_selection(x, k, dim, largest, guarantee)
    shape = tuple(k if d == along else n for d, n in enumerate(x.shape))
    dtypes = (x.dtype, torch.int64)
    targets = check_out(out, dtypes, shape, [x], "topk")
    check_not_recorded("topk", x.is_cuda)
    if is_abstract(x):
        return [x.new_empty(shape, dtype=d) for d in dtypes] if targets is None else targets
    k = max(k, 1) if not shape else k  # a 0-d tensor's only element, as in torch
    if 0 in shape:
        return [torch.empty(shape, dtype=d, device=x.device) for d in dtypes] if targets is None else targets
    seen = plain(x).resolve_neg() if x.is_neg() else plain(x)
    seen = seen if seen.ndim else seen.view(1)
    if x.dtype == E8M0:  # ordered as its codes are, NaN last
        codes = None if targets is None else [targets[0].view(torch.uint8), targets[1]]
        request = Selected(k, along, largest, torch.uint8, guarantee, shape)
        values, places = dispatch.run(request, [seen.view(torch.uint8)], None, codes)
        return [values.view(x.dtype), places] if targets is None else targets
    request = Selected(k, along, largest, x.dtype, guarantee, shape)
    return dispatch.run(request, [seen], key, targets)


def checked_selection(
    x: Any, k: Any, dim: Any, largest: Any, ordered: Any, guarantee: str, differentiable: bool, call: str = "topk",
    whole: bool = True,
) -> tuple[int, int]:  # fmt: skip
    """The dim and k, of a call that may run. `whole`: the tensor has all that k counts.

    Raises:
        ShapeError, ArgumentError, DimError, KindError, DtypeError, DeviceError: it may not.
    """
    check_is_tensor(x, call)
    check_tensors([x], call, differentiable=differentiable)
    check_guarantee(guarantee, call)
    for name, value in (("largest", largest), ("sorted", ordered)):
        if not isinstance(value, bool):
            raise KindError(f"{call}: `{name}` must be True or False, got {shown(value)}; write bool(...)")
    along = one_dim(dim, x.ndim, call)
    number, length = whole_number(k), x.shape[along] if x.ndim else 1
    if number is None:
        raise KindError(f"{call}: `k` must be an int, got {shown(k)}; say how many elements to take")
    if number < 0 or (whole and number > length):
        raise ShapeError(
            f"{call}: `k` must be in [0, {length}], the length of dim {along}, got {shown(number)} (selected index k out of "
            "range); choose one of these"
        )
    if number > MOST:
        raise ArgumentError(f"{call}: `k` must be at most {MOST}, got {number}; use torch.topk for more")
    return along, number


def _key(x: Tensor, k: Any, dim: Any, *rest: Any) -> tuple[Any, ...] | None:
    """The key of a plain call; None where the call must be checked every time."""
    seen = layout(x)
    if seen is None or type(k) is not int or type(dim) is not int:
        return None
    if any(type(flag) is not bool for flag in rest[:2]):
        return None
    return ("topk", seen, k, dim, *rest)

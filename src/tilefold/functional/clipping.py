"""The clip of gradients, with torch's name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tilefold import monoids
from tilefold.algebra.dtypes import compute_dtype, promote
from tilefold.api.recorded import SHARDED, is_sharded
from tilefold.api.reduce_many import fold_many
from tilefold.errors import KindError, NotFiniteError, OrderError, shown
from tilefold.functional.arguments import as_number, need_float
from tilefold.functional.norms import vector_norm
from tilefold.planner.problem.validate import check_flags, check_is_tensor

CALL = "clip_grad_norm_"


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:  # fmt: skip
    """Scale the gradients of parameters in place so that their norm is at most `max_norm`, as torch.nn.utils does.

        total = (sum over the gradients g of norm(g)^p)^(1 / p);   g *= min(1, max_norm / (total + 1e-6))

    The gradients' norms are made by `reduce_many`: on a GPU one launch for each dtype, and one for them all, without waiting
    for it. They are accumulated in float32 (float64 for float64) and rounded once, where torch rounds each of them.

    Gradients may be DTensors, as FSDP2's are, once `tilefold.distributed` is imported: the norm is that of the whole
    gradients. Every rank of their mesh must make the call. Over each dim of the mesh that divides gradients one exchange
    moves a state of each.

    Args:
        parameters: one or several tensors; those without a gradient are left out.
        max_norm: the greatest norm, a number.
        norm_type: p, any real number; "inf" is the greatest magnitude. 0 counts the gradients that are not all zero.
        error_if_nonfinite: raise, and scale nothing, where the norm is NaN or infinite; on a GPU this waits for it.
        foreach: how torch scales the gradients: as in torch.nn.utils.clip_grads_with_norm_, which does so.

    Returns:
        The norm before, a plain 0-d tensor, of DTensors too, the same on every rank; on the first gradient's device, of the
        dtype that holds those of all gradients; 0.0 without any.
        Same bits from run to run.

    Raises:
        NotFiniteError: `error_if_nonfinite`, and the norm is NaN or infinite.
        DtypeError: a gradient is sparse, or holds no floats.
        KindError: a parameter is no tensor.
        OrderError: `max_norm` or `norm_type` is no real number.

    Example:
        >>> p = torch.nn.Parameter(torch.zeros(2))
        >>> p.grad = torch.tensor([3.0, 4.0])
        >>> tilefold.clip_grad_norm_([p], 1.0), p.grad
        (tensor(5.), tensor([0.6000, 0.8000]))
    """
    check_flags(CALL, error_if_nonfinite=error_if_nonfinite)
    # A graph serves all greatest norms: a float is a number as it is, and `_number` would make a constant of a symbol.
    most = max_norm if isinstance(max_norm, float) else _number(max_norm, "max_norm")
    order = _number(norm_type, "norm_type")
    if not isinstance(parameters, Iterable):
        raise KindError(
            f"{CALL}: `parameters` must be tensors, got {type(parameters).__name__}; pass model.parameters()"
        )
    several = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    for p in {type(p): p for p in several}.values():
        check_is_tensor(p, CALL, "a parameter")
    gradients = [g for g in [p.grad for p in several] if g is not None]
    if not gradients:
        return torch.tensor(0.0)
    with torch.no_grad():
        total, gradients = _norm_of_all(gradients, order)
        if error_if_nonfinite and not total.isfinite():
            raise NotFiniteError(
                f"{CALL}: the total norm must be finite with error_if_nonfinite=True, got {total.item()} of order {order}, "
                "which is non-finite; look for it with tilefold.describe(model)"
            )
        held: list[Any] = [_Held(g) for g in gradients]  # torch reads `grad` alone
        torch.nn.utils.clip_grads_with_norm_(held, most, total, foreach)
    return total


def _number(value: Any, name: str) -> float:
    number = as_number(float(value) if isinstance(value, str) and value in ("inf", "-inf") else value)
    if number is None:
        raise OrderError(
            f"{CALL}: `{name}` must be a real number, got {shown(value)}; 2.0 is the usual order"
        )
    return number


class _Held(NamedTuple):
    """What torch scales: this rank's part of a gradient."""

    grad: Tensor


def _norm_of_all(gradients: list[Any], order: float) -> tuple[Tensor, list[Tensor]]:
    """The norm of the gradients' norms, and this rank's parts; those of each device are folded there."""
    parts = gradients
    norms: list[Tensor] = []
    first, dtypes = gradients[0].device, {g.dtype: None for g in gradients}
    held = gradients[0].dtype
    for dtype in dtypes:
        need_float(dtype, CALL)
        held = promote(held, dtype)
    wide, monoid = compute_dtype(held), monoids.NORM(order)
    if is_sharded(gradients):
        norms += SHARDED["norms"](gradients, monoid, held, CALL)
        parts = [g.to_local() if hasattr(g, "to_local") else g for g in gradients]
        gradients = [g for g in gradients if not hasattr(g, "to_local")]
    devices = {g.device: None for g in gradients}
    for device in devices:
        there = gradients if len(devices) == 1 else [g for g in gradients if g.device == device]
        norms += fold_many(there, monoid, None if wide == held else wide, False, call=CALL)
    every = norms[0] if len(norms) == 1 else torch.cat([n.to(first) for n in norms])
    return vector_norm(every, order).to(held), parts

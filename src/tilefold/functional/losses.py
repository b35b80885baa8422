"""Cross-entropy, with torch's names."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tilefold.api import dispatch
from tilefold.api.losses import Loss, as_index, loss_tensors
from tilefold.api.recorded import SHARDED, asks_gradient, is_sharded
from tilefold.errors import ArgumentError, GradientError, KindError, ShapeError, is_one_of, shown
from tilefold.functional.arguments import as_number, need_float, redirected
from tilefold.planner.problem.validate import GUARANTEES, check_flags, check_tensors
from tilefold.runtime.modes import as_widened
from tilefold.runtime.overrides import overridden
from tilefold.runtime.switch import named_key

REDUCTIONS = ("mean", "sum", "none")
CAPS = (2.0**-100, 2.0**100)  # float32 has reciprocals of these in range
OPTIONS = (
    "ignore_index", "reduction", "label_smoothing", "z_loss", "softcap", "return_lse", "inplace_backward", "validate",
    "guarantee",
)  # fmt: skip
_PLAIN = frozenset((float, int, bool, str, type(None)))  # kinds of values of which equal ones mean the same


def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None,
    *, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0, z_loss: float = 0.0,
    softcap: float | None = None, return_lse: bool = False, inplace_backward: bool = False, validate: bool = False,
    guarantee: str = "run_to_run",
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Cross-entropy of logits and targets, as torch.nn.functional has it: one read of the logits.

        c[n, j] = x[n, j], or softcap * tanh(x[n, j] / softcap);   lse[n] = log(sum over j of exp(c[n, j]))
        loss[n] = sum over j of weight[j] q[n, j] (lse[n] - c[n, j]) + z_loss * lse[n]^2
        q[n, j] = (1 - label_smoothing) t[n, j] + label_smoothing / C

    t is 1 at a target's class and 0 elsewhere, or the target's probabilities. "mean" is the sum of the rows' losses over
    that of their weights (of their targets' classes; with probabilities, over the number of rows).

    Args:
        input: logits [N, C], [N, C, d1, ...] or [C]; any strides, read in place.
        target: classes, whole numbers [N], [N, d1, ...] or []; or probabilities, floats of the logits' shape.
        weight: of each class, [C]. It has no gradient.
        ignore_index: rows of this target have loss 0, weight 0 and gradient 0. A mean of such rows alone is NaN, as torch's.
        reduction: "mean", "sum" or "none".
        label_smoothing: from 0 to 1, the part of each target that is shared evenly among the classes.
        z_loss: the factor of each row's squared log-sum-exp, which is added to its loss before the reduction and has no
            class's weight.
        softcap: bounds logits before all else; from 2^-100 to 2^100.
        return_lse: also give each row's log-sum-exp, [N], [N, d1, ...] or []: float32, of float64 logits float64.
        inplace_backward: backward writes the logits' gradient over the logits, and allocates no memory for it. What reads
            them later sees the gradient; autograd refuses to go back through it. Inside of torch.compile and
            torch.func's transforms it is left out.
        validate: check on a GPU, too, that targets are classes, for which the call waits. On a CPU they always are.
        guarantee: as in `reduce`.

    Dtypes: floats, computed in float32 or float64; the loss has the logits' dtype. Backward reads logits once and writes
    their gradient once, in their dtype. Logits are neither copied nor overwritten, unless `inplace_backward` says so. The
    same bits from run to run; no atomics. A row with NaN has loss NaN.

    Raises:
        TargetError: a target is no class. On a GPU without `validate` the row's loss and gradients are NaN.
        ShapeError, DtypeError, ArgumentError, KindError, DeviceError: the call does not fit.
        GradientError: `weight` requires grad.

    Example:
        >>> tilefold.cross_entropy(torch.tensor([[0.0, 0.0], [1.0, -float("inf")]]), torch.tensor([1, 0]), reduction="none")
        tensor([0.6931, 0.0000])

    Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
    """
    options = (
        ignore_index, reduction, label_smoothing, z_loss, softcap, return_lse, inplace_backward, validate, guarantee,
    )  # fmt: skip
    if overridden(input, target, weight):
        return redirected(cross_entropy, {}, input, target, weight, *options)
    key, tensors = None, [input, target] if weight is None else [input, target, weight]
    if not is_dynamo_compiling() and _PLAIN.issuperset(kinds := tuple(map(type, options))):  # 1 == True
        key, made = dispatch.again(named_key, tensors, "cross_entropy", None, (options, kinds))
        if made is not None:
            return _as_asked(made, input.ndim, return_lse)
    if is_sharded(tensors):
        spread = SHARDED["cross_entropy"](input, target, weight, *options)
        return (spread[0], spread[1]) if return_lse else spread[0]
    loss, given = checked_loss("cross_entropy", 1, input, target, weight, *options)
    key = key if weight is None or given[-1] is weight else None  # which is of the tensors as they were given
    return _as_asked(loss_tensors(given, loss, key), input.ndim, return_lse)


def _as_asked(made: list[Tensor], rank: int, return_lse: bool) -> Tensor | tuple[Tensor, Tensor]:
    return (made[0], made[1].squeeze(min(1, rank - 1))) if return_lse else made[0]


def checked_loss(
    call: str, least: int, x: Any, target: Any, weight: Any, ignore_index: Any, reduction: Any, label_smoothing: Any,
    z_loss: Any, softcap: Any, return_lse: Any, inplace_backward: Any, validate: Any, guarantee: Any,
) -> tuple[Loss, list[Tensor]]:  # fmt: skip
    """The loss of at least so many classes, and its tensors.

    Raises:
        As `cross_entropy`.
    """
    given = [x, target] if weight is None else [x, target, weight]
    check_tensors(given, call, names=(None, "target", "weight")[: len(given)], differentiable=True)
    need_float(x.dtype, call)
    check_flags(call, inplace_backward=inplace_backward)
    options = checked_options(
        call, reduction, ignore_index, label_smoothing, z_loss, softcap, return_lse, validate, guarantee
    )
    index = options["ignore_index"]
    dim = min(1, x.ndim - 1)
    if x.ndim == 0 or x.shape[dim] < least:
        raise ShapeError(
            f"{call}: logits must have a dim of classes, one at least, [N, C], [N, C, ...] or [C], got {list(x.shape)}; give "
            "each row its classes' logits"
        )
    soft = target.is_floating_point()
    wanted = x.shape if soft else x.shape[:dim] + x.shape[dim + 1 :]
    if target.shape != wanted or target.dtype == torch.bool:
        got = f"{list(target.shape)} of {target.dtype}"
        raise ShapeError(
            f"{call}: `target` must be classes, ints of shape {[n for d, n in enumerate(x.shape) if d != dim]}, or "
            f"probabilities, floats of the logits' {list(x.shape)}, got {got}; reshape or convert it"
        )
    if soft and index >= 0:
        raise ArgumentError(
            f"{call}: `ignore_index` must be negative where targets are floating point probabilities, got {index} (not "
            "supported for floating point target); give ignored rows a probability of 0"
        )
    check_weight(call, weight, x.shape[dim])
    if weight is not None:
        given[-1] = as_wide(weight, x)
    dtype = as_widened(call, [x]) or x.dtype
    loss = Loss(
        dim=dim, members=0, probabilities=soft, weighted=weight is not None, dtype=dtype, in_place=inplace_backward, **options
    )  # fmt: skip
    return loss, given


def checked_options(
    call: str, reduction: Any, ignore_index: Any, label_smoothing: Any, z_loss: Any, softcap: Any, return_lse: Any,
    validate: Any, guarantee: Any,
) -> dict[str, Any]:  # fmt: skip
    """The fields of a `Loss` that a caller chooses.

    Raises:
        ArgumentError, KindError: one has no such value.
    """
    check_flags(call, return_lse=return_lse, validate=validate)
    for name, value, names in (("reduction", reduction, REDUCTIONS), ("guarantee", guarantee, GUARANTEES)):
        if not is_one_of(value, names):
            raise ArgumentError(
                f"{call}: `{name}` must be one of {', '.join(names)}, got {shown(value)} (not a valid value); name "
                "one of these"
            )
    return {
        "reduction": reduction,
        "ignore_index": as_index(call, ignore_index),
        "label_smoothing": _number(call, label_smoothing, "label_smoothing", 0.0, 1.0),
        "z_loss": _number(call, z_loss, "z_loss", 0.0, 2.0**100),
        "softcap": None if softcap is None else _number(call, softcap, "softcap", *CAPS),
        "shows_lse": return_lse,
        "validate": validate,
        "guarantee": guarantee,
    }


def as_wide(weight: Tensor, x: Tensor) -> Tensor:
    """Weights as the logits are computed: what is made of them alone has float64's precision beside logits of that."""
    return weight.to(x.dtype) if x.dtype == torch.float64 else weight


def check_weight(call: str, weight: Tensor | None, classes: int) -> None:
    """Refuse weights that are not one float a class, or that ask for a gradient.

    Raises:
        ShapeError, GradientError: they are such.
    """
    if weight is None:
        return
    if weight.shape != (classes,) or not weight.is_floating_point():
        got = f"{list(weight.shape)} of {weight.dtype}"
        raise ShapeError(
            f"{call}: `weight` must be floats, one for each of {classes} classes, got {got}; reshape or convert it"
        )
    if asks_gradient([weight]):
        raise GradientError(
            f"{call}: `weight` has no derivative here (nor in torch), got one that requires grad; detach() it"
        )


def _number(call: str, value: Any, name: str, least: float, most: float) -> float:
    number = as_number(value)
    if number is None:
        raise KindError(f"{call}: `{name}` must be a real number, got {shown(value)}; pass a float")
    if not least <= number <= most:
        raise ArgumentError(
            f"{call}: `{name}` must be from {least:g} to {most:g}, got {shown(value)}; pass one between"
        )
    return number

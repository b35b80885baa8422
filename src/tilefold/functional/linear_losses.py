"""Cross-entropy of a product of rows and classes' weights, with torch's names."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tilefold.algebra.expression import trace
from tilefold.algebra.monoid import Monoid
from tilefold.algebra.typing import compute_dtype
from tilefold.api.chosen import map_chosen
from tilefold.api.ends import function_of
from tilefold.api.linear_reduce import check_product, folded_product
from tilefold.api.losses import ARGUMENTS, Loss
from tilefold.api.reduce import fold_tensors
from tilefold.functional.arguments import redirected
from tilefold.functional.losses import as_wide, check_weight, checked_options
from tilefold.planner.problem.validate import check_is_tensor, check_tensors
from tilefold.planner.products.operands import as_autocast
from tilefold.runtime.modes import as_widened
from tilefold.runtime.overrides import overridden
from tilefold.runtime.uncompiled import constant_in_graphs

CALL, GUARANTEE = "linear_cross_entropy", "run_to_run"


def linear_cross_entropy(
    input: Tensor, linear_weight: Tensor, target: Tensor,
    *, linear_bias: Tensor | None = None, weight: Tensor | None = None, reduction: str = "mean",
    ignore_index: int | None = None, label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None,
    return_lse: bool = False, validate: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Cross-entropy of the logits input @ linear_weight.T + linear_bias, which are never held.

    The losses are those of `tilefold.cross_entropy`, the arguments those of torch.nn.functional.linear_cross_entropy (torch
    2.13). It is `tilefold.linear_reduce` with the monoid of that loss, and a function of its results.

    Args:
        input: [N, D], [..., D] or [D], floats.
        linear_weight: [V, D], as torch.nn.Linear has it, of the input's dtype; any strides, read in place.
        target: classes, whole numbers [N], [...] or []. Probabilities of all classes would be as large as the logits: see
            `cross_entropy`.
        linear_bias: [V], of the input's dtype.
        weight: of each class, [V]. It has no gradient.
        ignore_index: as in `cross_entropy`; None is -100.
        reduction, label_smoothing, z_loss, softcap, validate: as in `cross_entropy`.
        return_lse: also give each row's log-sum-exp, of the shape of `target`: float32, of float64 inputs float64.

    Dtypes: the loss has the input's dtype (inside of torch.autocast operands are converted, and the loss is float32). Logits
    are float32, of float64 inputs float64; gradients, memory and what is guaranteed are as in `tilefold.linear_reduce`.

    Raises:
        TargetError: a target is no class. On a GPU without `validate` the row's loss and gradients are NaN.
        ShapeError, DtypeError, ArgumentError, KindError, DeviceError: the call does not fit.
        GradientError: `weight` requires grad; a second or a forward derivative is asked.

    Example:
        >>> x, w, target = torch.randn(8, 4), torch.randn(1000, 4), torch.arange(8)
        >>> loss = tilefold.linear_cross_entropy(x, w, target)
        >>> torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(x @ w.T, target))

    Source: Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models" (2024).
    """
    options = (reduction, ignore_index, label_smoothing, z_loss, softcap, return_lse, validate)
    if not is_dynamo_compiling() and overridden(input, linear_weight, target, linear_bias, weight):
        return redirected(
            linear_cross_entropy, {}, input, linear_weight, target, linear_bias, weight, *options
        )
    check_is_tensor(target, CALL, "`target`")
    index = -100 if ignore_index is None else ignore_index
    x, w, bias, _ = as_autocast(input, linear_weight, linear_bias, None)
    weights = [] if weight is None else [weight]
    check_product(CALL, x, w, target, bias, ())
    check_tensors([x, *weights], CALL, names=(None, "weight")[: 1 + len(weights)], differentiable=True)
    chosen = checked_options(
        CALL, reduction, index, label_smoothing, z_loss, softcap, return_lse, validate, GUARANTEE
    )
    check_weight(CALL, weight, w.shape[0])
    weights = [as_wide(t, x) for t in weights]
    dtype, classes = as_widened("cross_entropy", [x]) or x.dtype, operator.index(w.shape[0])
    loss = Loss(dim=1, members=0, probabilities=False, weighted=weight is not None, dtype=dtype, **chosen)
    wide = compute_dtype(x.dtype)
    of_row, of_rows = _monoids(tuple(getattr(loss, name) for name in ARGUMENTS), classes, wide)
    beside, target = weights if loss.shares else [], target.to(torch.int64)
    made = folded_product(CALL, x, w, of_row, target, bias, beside, loss.ignore_index, validate)
    each = 2 + loss.varies + loss.shares
    values = [*made[:each], target, made[-1], *_of_targets(weights, target)]
    dims = () if reduction == "none" else None
    lost = fold_tensors(values, of_rows, dims, False, dtype=dtype, call=CALL)[0]
    return (lost, made[each]) if return_lse else lost


def _of_targets(weights: list[Tensor], target: Tensor) -> list[Tensor]:
    """The weights of the targets' classes; that of the first class where a target is none."""
    return [
        map_chosen(
            _own(), [], target.unsqueeze(-1), [t.expand(*target.shape, -1)], target.ndim, dtype=t.dtype, guarantee=GUARANTEE,
            call=CALL,
        )[0].squeeze(-1)
        for t in weights
    ]  # fmt: skip


@constant_in_graphs
def _own() -> Monoid:
    """(an index, the element at it) -> that element."""
    return function_of(trace(lambda index, own: own, 2))


@constant_in_graphs
def _monoids(arguments: tuple[Any, ...], classes: int, wide: torch.dtype) -> tuple[Monoid, Monoid]:
    """The folds of a row's logits, and of the rows' values."""
    loss = Loss(**dict(zip(ARGUMENTS, arguments, strict=True)))
    return loss.of_rows(classes), loss.of_losses(loss.beside_rows, classes, wide)

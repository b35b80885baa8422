"""`linear_reduce`: validate, fold the rows of a product chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tilefold.algebra.monoid import Monoid
from tilefold.api.linear import Linear, linear_tensors
from tilefold.api.losses import as_index
from tilefold.api.recorded import asks_gradient
from tilefold.errors import ArgumentError, DtypeError, GradientError, ShapeError
from tilefold.planner.problem.validate import check_flags, check_monoid, check_tensors
from tilefold.planner.products.operands import as_autocast
from tilefold.runtime.overrides import listed, overridden, override

CALL = "linear_reduce"


def linear_reduce(
    input: Tensor, linear_weight: Tensor, monoid: Monoid,
    *, target: Tensor | None = None, linear_bias: Tensor | None = None, beside: Sequence[Tensor] = (),
    ignore_index: int = -100, validate: bool = False,
) -> Any:  # fmt: skip
    """Fold each row of a product with a monoid, without holding the product: the general form of `linear_cross_entropy`.

        logits[n, j] = sum over d of input[n, d] linear_weight[j, d] + linear_bias[j]
        result[n] = project(combine over all classes j of lift(logits[n, j], beside[0][j], ...))

    Logits are made, folded and dropped some thousand classes at a time, and made again backwards. So losses and measures of
    a language model's last layer can be written that read each logit once: log-sum-exp, entropy, focal loss, a z-loss, how
    often the target is among the k largest.

    Args:
        input: [N, D], [..., D] or [D], floats.
        linear_weight: [V, D], as torch.nn.Linear has it, of the input's dtype; any strides, read in place.
        monoid: the monoid to fold with, of the logit and of what is `beside` it. Positions are classes.
        target: a class of each row, whole numbers [N], [...] or []: its logit is returned, too.
        linear_bias: [V], of the input's dtype.
        beside: values of each class, [V] each, that lift takes after the logit. They have no gradient.
        ignore_index: of rows with this target the target's logit is 0, with gradient 0.
        validate: check on a GPU, too, that targets are classes, for which the call waits. On a CPU they always are.

    Returns:
        What `project` gives, of the shape of `target`; with `target` a pair of that and of the targets' logits. Logits are
        float32, of float64 inputs float64, and so are floats among the results: products of bfloat16 and float16 are not
        rounded to these.

    Gradients: of monoids whose derivative a logit and the row's state give (sums, log-sum-exp, moments, and what is
    projected of them; not extremes), and of the targets' logits. Backward rounds the logits' cotangents to the input's
    dtype, as torch's does, sums the input's gradient in float32, and rounds each gradient once. There is no second
    derivative. Saved are the inputs and each row's state.

    Memory: the logits and cotangents of a chunk, and backward the input's gradient in float32: of 8192x4096 in bfloat16 260
    MB, whatever V is (`tilefold.api.linear` has the arithmetic). The same bits from run to run, where torch's products give
    these; no atomics. Chunks depend on the number of rows, so that a row's bits do, too.

    Raises:
        TargetError: a target is no class. On a GPU without `validate` its logit is NaN.
        ShapeError, DtypeError, ArgumentError, KindError, DeviceError: the call does not fit.
        GradientError: the monoid has no such derivative, and one is asked; or `beside` requires grad.

    Example:
        >>> x, w, target = torch.randn(8, 4), torch.randn(1000, 4), torch.arange(8)
        >>> lse, logit = tilefold.linear_reduce(x, w, tilefold.monoids.LOGSUMEXP, target=target)
        >>> torch.testing.assert_close((lse - logit).mean(), torch.nn.functional.cross_entropy(x @ w.T, target))

    Source: Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models" (2024), for folding the logits in place of
    holding them.
    """
    beside = listed(beside)
    if not is_dynamo_compiling() and overridden(input, linear_weight, target, linear_bias, *beside):
        relevant = [input, linear_weight, target, linear_bias, *beside]
        named = {"target": target, "linear_bias": linear_bias, "beside": beside, "ignore_index": ignore_index}
        return override(
            linear_reduce, relevant, input, linear_weight, monoid, **named, validate=validate
        )  # fmt: skip
    check_monoid(monoid, CALL)
    if len(beside) != monoid.algebra.inputs - 1:
        raise ArgumentError(
            f"{CALL}: {monoid.name} takes {monoid.algebra.inputs - 1} value(s) of each class beside the logit, got "
            f"{len(beside)}; give as many tensors as `beside`"
        )
    input, linear_weight, linear_bias, _ = as_autocast(input, linear_weight, linear_bias, None)
    check_product(CALL, input, linear_weight, target, linear_bias, beside)
    made = folded_product(
        CALL, input, linear_weight, monoid, target, linear_bias, beside, ignore_index, validate
    )
    results = len(made) - (target is not None)
    packed = monoid.pack(made[:results])
    return packed if target is None else (packed, made[-1])


def folded_product(
    call: str, x: Tensor, w: Tensor, monoid: Monoid, target: Tensor | None, bias: Tensor | None,
    beside: Sequence[Tensor], ignore_index: Any, validate: Any,
) -> list[Tensor]:  # fmt: skip
    """The monoid's results of each row, and with targets the targets' logits, in the rows' shape: of tensors that fit.

    Raises:
        As `linear_reduce`.
    """
    check_flags(call, validate=validate)
    index = as_index(call, ignore_index)
    rows = x.shape[:-1]
    x = x.flatten(0, -2) if x.ndim > 2 else x if x.ndim == 2 else x.unsqueeze(0)
    given = [x, w, *([] if bias is None else [bias]), *beside]
    given += [] if target is None else [target.reshape(-1).to(torch.int64)]
    linear = Linear(monoid.text, bias is not None, target is not None, index, validate, call)
    made = linear_tensors(given, linear)
    return [t.reshape(rows) for t in made[: len(made) - len(monoid.total.fields)]]


def check_product(call: str, x: Any, w: Any, target: Any, bias: Any, beside: Sequence[Any]) -> None:
    """Refuse what does not multiply, is no value of each class, or no class of each row.

    Raises:
        As `linear_reduce`.
    """
    named = [("linear_weight", w), ("target", target), ("linear_bias", bias)]
    there = [(name, t) for name, t in named if t is not None or name == "linear_weight"]
    there += [("beside", t) for t in beside]
    names, tensors = [name for name, _ in there], [t for _, t in there]
    check_tensors([x, *tensors], call, names=[None, *names], differentiable=True)
    if not x.is_floating_point() or x.dtype.itemsize == 1:
        raise DtypeError(f"{call}: the input must be floats of 16, 32 or 64 bits, got {x.dtype}; convert it")
    if x.ndim == 0 or w.ndim != 2 or w.shape[0] == 0 or w.shape[1] != x.shape[-1]:
        raise ShapeError(
            f"{call}: `linear_weight` must be [V, D] of one class at least, for an input [..., D], got {list(w.shape)} and "
            f"{list(x.shape)}; reshape or transpose it"
        )
    for name, t in there:
        if name in ("linear_weight", "linear_bias") and t.dtype != x.dtype:
            raise DtypeError(f"{call}: `{name}` must have the input's {x.dtype}, got {t.dtype}; convert it")
        if name in ("linear_bias", "beside") and t.shape != w.shape[:1]:
            raise ShapeError(
                f"{call}: `{name}` must have one value for each of {w.shape[0]} classes, got {list(t.shape)}; reshape it"
            )
        if name == "target" and (t.shape != x.shape[:-1] or t.is_floating_point() or t.dtype == torch.bool):
            raise ShapeError(
                f"{call}: `target` must be classes, ints of shape {list(x.shape[:-1])}, got {list(t.shape)} of {t.dtype}; "
                "reshape or convert it"
            )
    if asks_gradient(beside):
        raise GradientError(f"{call}: `beside` has no derivative, got one that requires grad; detach() it")

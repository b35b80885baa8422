"""Ragged folds, folds of many tensors, selections, transposes, products and losses as operations of torch's library.

    tilefold::segment_reduce    the results of each segment
    tilefold::reduce_many       the results of each of many tensors, and of all
    tilefold::topk              the best elements, and where they are
    tilefold::transpose         a tensor with two dims swapped in memory
    tilefold::product           a product with its epilogue and its row's fold
    tilefold::cross_entropy     a loss, and what its backward reads of rows
    tilefold::linear            a fold of a product's rows, the targets' logits, and the rows' states
    tilefold::linear_gradient   the cotangents of its tensors

As in `operations`: schemas have no shapes, and each call on tensors without data gives results of its shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tilefold.algebra.monoid import monoid_of
from tilefold.api import dispatch
from tilefold.api import topk as selections
from tilefold.api import transpose as transposes
from tilefold.api.differentiated import applied
from tilefold.api.linear import SCHEMA as LINEAR
from tilefold.api.linear import Linear, Once
from tilefold.api.losses import ARGUMENTS, SCHEMA, Loss
from tilefold.api.move_gradients import Selection, Swap
from tilefold.api.operations import Tensors, Where, all_mapped, fresh, in_front, register
from tilefold.api.product_gradients import Multiplied
from tilefold.api.products import multiplied
from tilefold.api.recorded import DIFFERENTIATED
from tilefold.api.reduce_many import fold_many, no_gradient
from tilefold.api.segment_gradients import Segmented
from tilefold.api.segment_reduce import Cut, fold_segments
from tilefold.planner.products.functions import of_text
from tilefold.runtime.modes import as_given
from tilefold.runtime.switch import named_key

OPERATIONS: Any = torch.ops.tilefold


# ----------------------------------------------------------------------------------------------------- ragged folds


def _segment_reduce(
    inputs: Tensors, numbers: Tensors, monoid: str, kind: str, count: int | None, dim: int, dtype: Any, partial: bool,
    validate: bool, guarantee: str,
) -> Tensors:  # fmt: skip
    cut = Cut(kind, count, partial, validate)
    with torch.no_grad():
        made = fold_segments(inputs, monoid_of(monoid), numbers[0], cut, dim, dtype, None, guarantee)
        return fresh(made, inputs)


def _mapped_segments(
    info: Any, where: tuple[Where, Where], inputs: Tensors, numbers: Tensors, monoid: str, kind: str, count: int | None,
    dim: int, *rest: Any,
) -> Any:  # fmt: skip
    if where[1][0] is not None:
        options = (monoid, kind, count, dim, *rest)
        return _one_by_one(
            info, where, (inputs, numbers), lambda x, n: OPERATIONS.segment_reduce(x, n, *options)
        )
    given = in_front(inputs, where[0], info.batch_size)
    return all_mapped(OPERATIONS.segment_reduce(given, numbers, monoid, kind, count, dim + 1, *rest))


def _segments_of(
    inputs: Tensors, numbers: Tensors, monoid: str, kind: str, count: int | None, dim: int, dtype: Any, partial: bool,
    validate: bool, guarantee: str,
) -> Segmented:  # fmt: skip
    return Segmented(monoid_of(monoid), Cut(kind, count, partial, validate), dim, guarantee)


def _one_by_one(
    info: Any, where: Sequence[Where], lists: Sequence[Tensors], call: Callable[..., Tensors]
) -> Any:
    """A call for each place of the mapped dim."""
    each = []
    for i in range(info.batch_size):
        given = [
            [t if d is None else t.select(d, i) for t, d in zip(tensors, dims, strict=True)]
            for tensors, dims in zip(lists, where, strict=False)
        ]
        each.append(call(*given))
    return all_mapped([torch.stack(results) for results in zip(*each, strict=True)])


# ------------------------------------------------------------------------------------------------------- many tensors


def _reduce_many(inputs: Tensors, monoid: str, dtype: Any, together: bool, convert: Any) -> Tensors:
    with torch.no_grad():
        return fold_many(inputs, monoid_of(monoid), dtype, together, convert)


def _mapped_many(info: Any, where: tuple[Where], inputs: Tensors, *options: Any) -> Any:
    return _one_by_one(info, where, (inputs,), lambda x: OPERATIONS.reduce_many(x, *options))


def _many_of(*arguments: Any) -> Any:
    raise no_gradient()


# --------------------------------------------------------------------------------------------------------- selections


def _topk(inputs: Tensors, k: int, dim: int, largest: bool, guarantee: str) -> Tensors:
    with torch.no_grad():
        return fresh(selections.topk(inputs[0], k, dim, largest, guarantee=guarantee), inputs)


def _mapped_topk(info: Any, where: tuple[Where], inputs: Tensors, k: int, dim: int, *rest: Any) -> Any:
    (given,) = in_front(inputs, where[0], info.batch_size)
    if given.ndim == 1:  # of numbers, whose dim is no dim
        values, indices = OPERATIONS.topk([given[:, None]], max(k, 1), 1, *rest)
        return all_mapped([values[:, 0], indices[:, 0]])
    return all_mapped(OPERATIONS.topk([given], k, dim + 1, *rest))


def _topk_of(inputs: Tensors, k: int, dim: int, largest: bool, guarantee: str) -> Selection:
    return Selection(dim, tuple(inputs[0].shape))


# --------------------------------------------------------------------------------------------------------- transposes


def _transpose(inputs: Tensors, dim0: int, dim1: int, guarantee: str) -> Tensors:
    with torch.no_grad():
        return fresh([transposes.transpose(inputs[0], dim0, dim1, guarantee=guarantee)], inputs)


def _mapped_transpose(
    info: Any, where: tuple[Where], inputs: Tensors, dim0: int, dim1: int, guarantee: str
) -> Any:
    (given,) = in_front(inputs, where[0], info.batch_size)
    if given.ndim == 1:
        return [given.clone()], [0]
    return all_mapped(OPERATIONS.transpose([given], dim0 + 1, dim1 + 1, guarantee))


def _transpose_of(inputs: Tensors, dim0: int, dim1: int, guarantee: str) -> Swap:
    return Swap(dim0, dim1, guarantee)


# ----------------------------------------------------------------------------------------------------------- products


def _row_of(monoid: str, apply: str) -> Any:
    return (monoid_of(monoid), of_text(apply) if apply else None) if monoid else None


def _product(
    operands: Tensors, extras: Tensors, has_bias: bool, epilogue: str, monoid: str, apply: str, out_dtype: Any,
    precision: str | None, guarantee: str,
) -> Tensors:  # fmt: skip
    bias, beside = (extras[0], extras[1:]) if has_bias else (None, extras)
    function, row = of_text(epilogue) if epilogue else None, _row_of(monoid, apply)
    with torch.no_grad(), as_given(operands[0].device):
        a, b = operands
        return multiplied(a, b, bias, function, tuple(beside), row, out_dtype, precision, guarantee, None)


def _mapped_product(
    info: Any, where: tuple[Where, Where], operands: Tensors, extras: Tensors, *options: Any
) -> Any:
    ranks = [t.ndim - (d is not None) for t, d in zip(operands, where[0], strict=True)]
    if min(ranks) < 2:
        return _one_by_one(
            info, where, (operands, extras), lambda x, beside=extras: OPERATIONS.product(x, beside, *options)
        )
    if where[0][1] is None and ranks[1] == 2:
        a = in_front(operands[:1], where[0][:1], info.batch_size)
        given = [*a, operands[1]]
    else:
        given = in_front(operands, where[0], info.batch_size)
    beside = in_front(extras, where[1], info.batch_size, max(ranks)) if extras else []
    return all_mapped(OPERATIONS.product(given, beside, *options))


def _product_of(
    operands: Tensors, extras: Tensors, has_bias: bool, epilogue: str, monoid: str, apply: str, out_dtype: Any,
    precision: str | None, guarantee: str,
) -> Multiplied:  # fmt: skip
    function = of_text(epilogue) if epilogue else None
    return Multiplied(has_bias, function, _row_of(monoid, apply), out_dtype, precision, guarantee)


def _differentiated_product(
    a: Tensor, b: Tensor, bias: Tensor | None, epilogue: Any, extras: Sequence[Tensor], row: Any, out_dtype: Any,
    precision: str | None, guarantee: str, key: Any,
) -> Tensors:  # fmt: skip
    given, has_bias = [a, b, *([] if bias is None else [bias]), *extras], bias is not None

    def run(given: Sequence[Tensor]) -> Tensors:
        own, beside = (given[2], given[3:]) if has_bias else (None, given[2:])
        with as_given(given[0].device):
            return multiplied(
                given[0], given[1], own, epilogue, tuple(beside), row, out_dtype, precision, guarantee, None
            )

    return applied(Multiplied(has_bias, epilogue, row, out_dtype, precision, guarantee), run, given, key)


# ------------------------------------------------------------------------------------------------------------- losses


def _loss_of(inputs: Tensors, *arguments: Any) -> Loss:
    return Loss(**dict(zip(ARGUMENTS, arguments, strict=True)))


def _cross_entropy(inputs: Tensors, *arguments: Any) -> Tensors:
    with torch.no_grad():
        key, made = dispatch.again(named_key, inputs, "an operation of losses", None, arguments)
        if made is None:
            made = dispatch.replayed(key, _loss_of(inputs, *arguments).run, inputs)
        return fresh(made, inputs)


def _shape_of_losses(inputs: Tensors, *arguments: Any) -> Tensors:
    return _loss_of(inputs, *arguments).unwritten(inputs[0])


def _mapped_losses(
    info: Any, where: tuple[Where], inputs: Tensors, dim: int, members: int, *rest: Any
) -> Any:
    given = in_front(inputs, where[0], info.batch_size)
    return all_mapped(OPERATIONS.cross_entropy(given, dim + 1, members + 1, *rest))


def _differentiated_loss(tensors: Sequence[Tensor], loss: Loss, key: Any) -> Tensors:
    return applied(loss, lambda given: fresh(loss.run(given), given), tensors, None if loss.in_place else key)


# ------------------------------------------------------------------------------------------------ folds of products


def _linear_of(inputs: Tensors, *arguments: Any) -> Linear:
    return Linear(*arguments)


def _linear(inputs: Tensors, *arguments: Any) -> Tensors:
    with torch.no_grad():
        return fresh(Linear(*arguments).run(inputs), inputs)


def _shape_of_linear(inputs: Tensors, *arguments: Any) -> Tensors:
    return Linear(*arguments).unwritten(inputs)


def _mapped_linear(info: Any, where: tuple[Where], inputs: Tensors, *arguments: Any) -> Any:
    return _one_by_one(info, where, (inputs,), lambda x: OPERATIONS.linear(x, *arguments))


def _differentiated_linear(tensors: Sequence[Tensor], linear: Linear) -> Tensors:
    return applied(linear, lambda given: fresh(linear.run(given), given), tensors)


def _linear_gradient(saved: Tensors, grads: Tensors, wrt: list[int], *arguments: Any) -> Tensors:
    with torch.no_grad():
        return fresh(Linear(*arguments).gradients(saved, grads, wrt), [*saved, *grads])


def _shape_of_linear_gradient(saved: Tensors, grads: Tensors, wrt: list[int], *arguments: Any) -> Tensors:
    return [saved[i].new_empty(saved[i].shape) for i in wrt]


def _mapped_linear_gradient(
    info: Any, where: tuple[Where, Where], saved: Tensors, grads: Tensors, *arguments: Any
) -> Any:
    return _one_by_one(
        info, where, (saved, grads), lambda s, g=grads: OPERATIONS.linear_gradient(s, g, *arguments)
    )


def _linear_gradient_of(saved: Tensors, grads: Tensors, wrt: list[int], *arguments: Any) -> Once:
    return Once(Linear(*arguments).call)


DIFFERENTIATED["linear"] = _differentiated_linear
DIFFERENTIATED["product"] = _differentiated_product
DIFFERENTIATED["cross_entropy"] = _differentiated_loss

register(
    "segment_reduce",
    "(Tensor[] inputs, Tensor[] numbers, str monoid, str kind, SymInt? count, int dim, ScalarType? dtype, bool partial, "
    "bool validate, str guarantee)",
    _segment_reduce, _segment_reduce, _mapped_segments, _segments_of,
)  # fmt: skip
register(
    "reduce_many", "(Tensor[] inputs, str monoid, ScalarType? dtype, bool together, ScalarType? convert)",
    _reduce_many, _reduce_many, _mapped_many, _many_of,
)  # fmt: skip
register(
    "topk", "(Tensor[] inputs, SymInt k, int dim, bool largest, str guarantee)", _topk, _topk, _mapped_topk, _topk_of
)  # fmt: skip
register(
    "transpose", "(Tensor[] inputs, int dim0, int dim1, str guarantee)",
    _transpose, _transpose, _mapped_transpose, _transpose_of,
)  # fmt: skip
register(
    "product",
    "(Tensor[] operands, Tensor[] extras, bool has_bias, str epilogue, str monoid, str apply, ScalarType? out_dtype, "
    "str? precision, str guarantee)",
    _product, _product, _mapped_product, _product_of,
)  # fmt: skip
register(
    "cross_entropy",
    f"(Tensor[] inputs, {SCHEMA})",
    _cross_entropy, _shape_of_losses, _mapped_losses, _loss_of,
)  # fmt: skip
register("linear", f"(Tensor[] inputs, {LINEAR})", _linear, _shape_of_linear, _mapped_linear, _linear_of)
register(
    "linear_gradient", f"(Tensor[] saved, Tensor[] grads, int[] wrt, {LINEAR})",
    _linear_gradient, _shape_of_linear_gradient, _mapped_linear_gradient, _linear_gradient_of,
)  # fmt: skip

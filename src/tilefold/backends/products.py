"""Products on torch's own operations: the CPU's way. Sums in the accumulator's dtype, then the epilogue's graph."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from tilefold.algebra.evaluate import evaluate
from tilefold.algebra.typing import TypedGraph
from tilefold.backends import lanes
from tilefold.backends.reference import read
from tilefold.contract.epilogue import Epilogue, accumulator_dtype
from tilefold.validate import shares

Tensor = torch.Tensor


def multiply(
    a: Tensor, b: Tensor, extras: Sequence[Tensor], epilogue: Epilogue, guarantee: str, shape: Sequence[int]
) -> tuple[Tensor, list[Tensor]]:
    """epilogue(a @ b, *extras), accumulated in float32 (float64 of float64, int32 of int8) and rounded once, at the end.

    With it what rows fold to, by the lanes' way.
    """
    accumulator = accumulator_dtype(a.dtype)
    # torch multiplies whole numbers slowly; in float64 these products and sums are exact
    carried = accumulator if accumulator.is_floating_point else torch.float64
    left, right = a.to(carried), b.to(carried)
    product = _row_by_row(left, right) if guarantee == "batch_invariant" else torch.matmul(left, right)
    if not accumulator.is_floating_point:
        product = product.to(torch.int64).to(accumulator)
    value = _evaluated(epilogue.typed, [product, *map(read, extras)])
    folded: list[Tensor] = []
    if epilogue.row is not None:
        value = value.to(epilogue.value).expand(shape)
        folded, _ = lanes.fold([value], epilogue.row.program, (len(shape) - 1,), guarantee)
        value = _evaluated(epilogue.row.apply, [value, *(read(f)[..., None] for f in folded)])
    return _own(value.to(epilogue.result), (a, b, *extras, *folded), shape), folded


def _evaluated(graph: TypedGraph, values: Sequence[Tensor]) -> Tensor:
    (result,) = evaluate(graph, values)
    return result if isinstance(result, Tensor) else torch.tensor(result, device=values[0].device)


def _row_by_row(a: Tensor, b: Tensor) -> Tensor:
    """Each row as a product of its own, from memory of its own: its bits know nothing of the others."""
    if a.ndim == 1:
        return _row_by_row(a[None], b).squeeze(-1 if b.ndim == 1 else -2)
    if b.ndim == 1:
        return _row_by_row(a, b[:, None]).squeeze(-1)
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # type: ignore[no-untyped-call]  # torch's own
    made = a.new_empty([*batch, a.shape[-2], b.shape[-1]])
    lefts, rights = (_listed(t, batch) for t in (a, b))
    for left, right, target in zip(lefts, rights, _listed(made, batch), strict=True):
        for row, result in zip(left, target, strict=True):
            result.copy_(row.clone(memory_format=torch.contiguous_format) @ right)
    return made


def _listed(t: Tensor, batch: Sequence[int]) -> list[Tensor]:
    """The matrices of a batch, one after the other."""
    seen = t.expand(*batch, *t.shape[-2:])
    return [seen[index] for index in itertools.product(*map(range, batch))]


def _own(result: Tensor, inputs: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """A result in its shape (an epilogue may give a constant, or an extra tensor itself) and in memory of its own."""
    if (
        list(result.shape) == list(shape)
        and result.is_contiguous()
        and not any(shares(result, t) for t in inputs)
    ):
        return result
    return result.expand(shape).clone(memory_format=torch.contiguous_format)

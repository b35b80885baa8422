"""Products on torch's own operations: the CPU's way. Sums in the accumulator's dtype, then the epilogue's graph."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch

from tilefold.algebra.evaluate import as_stored, evaluate, stored
from tilefold.algebra.program import Program
from tilefold.algebra.typing import TypedGraph
from tilefold.backends.reference import read
from tilefold.planner.problem.validate import shares
from tilefold.planner.products.epilogue import Epilogue, accumulator_dtype
from tilefold.planner.products.operands import EXACT_IN_FLOAT64, as_matrices, result_shape

Tensor = torch.Tensor
Product = Callable[[Tensor, Tensor, torch.dtype], Tensor]  # of operands, in an accumulator's dtype


def multiply(
    a: Tensor,
    b: Tensor,
    extras: Sequence[Tensor],
    epilogue: Epilogue,
    shape: Sequence[int],
    product: Product,
    fold_rows: Callable[[Tensor, Program], list[Tensor]],
) -> list[Tensor]:
    """epilogue(a @ b, *extras), accumulated as `accumulator_dtype` says and rounded once, at the end.

    Then come the folds of rows: `product` multiplies operands in an accumulator's dtype, `fold_rows` folds the last dim of a
    tensor.
    """
    accumulated = product(a, b, accumulator_dtype(a.dtype))
    value = _evaluated(epilogue.typed, [accumulated, *map(read, extras)])
    folded: list[Tensor] = []
    if epilogue.row is not None:
        value = value.to(epilogue.value).expand(shape)
        folded = fold_rows(value, epilogue.row.program)
        value = _evaluated(epilogue.row.apply, [value, *(read(f)[..., None] for f in folded)])
    return [_own(as_stored(value, epilogue.result), (a, b, *extras, *folded), shape), *folded]


def product_of(guarantee: str) -> Product:
    """Torch's product, of each row by itself where a row's bits may know nothing of others."""

    def product(a: Tensor, b: Tensor, accumulator: torch.dtype) -> Tensor:
        if not accumulator.is_floating_point:
            return _whole_numbers(a, b).to(accumulator)
        multiplied = _row_by_row if guarantee == "batch_invariant" else torch.matmul
        return multiplied(a.to(accumulator), b.to(accumulator))

    return product


def by_elements(a: Tensor, b: Tensor, accumulator: torch.dtype) -> Tensor:
    """The product as it is defined: each sum over k takes one product of two elements after another."""
    left, right = (t.to(accumulator) for t in as_matrices(a, b))
    total = left.new_zeros(result_shape(left, right))
    for column, row in zip(left.unbind(-1), right.unbind(-2), strict=True):
        total += column[..., None] * row[..., None, :]
    return total.view(result_shape(a, b))


def _whole_numbers(a: Tensor, b: Tensor) -> Tensor:
    """The exact product of integers as int64, beyond which it wraps.

    torch multiplies whole numbers slowly, so float64 does it where all its sums are exact.
    """
    exact = EXACT_IN_FLOAT64 | {torch.int8: 1 << 39}
    if a.shape[-1] <= exact.get(a.dtype, 0):
        return torch.matmul(a.to(torch.float64), b.to(torch.float64)).to(torch.int64)
    return torch.matmul(a.to(torch.int64), b.to(torch.int64))


def _evaluated(graph: TypedGraph, values: Sequence[Tensor]) -> Tensor:
    (result,) = evaluate(graph, values)
    if isinstance(result, Tensor):
        return result
    return torch.tensor(result, dtype=stored(graph.output_dtypes[0]), device=values[0].device)


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

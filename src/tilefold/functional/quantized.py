"""Norms of layers whose results are stored in eight bits, with the scales that give them back."""

from __future__ import annotations

import math as numbers
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tilefold import math
from tilefold.algebra import powers
from tilefold.algebra.dtypes import promote, result_dtype
from tilefold.algebra.expression import trace
from tilefold.algebra.monoid import Monoid
from tilefold.api.recorded import asks_gradient, is_differentiated
from tilefold.api.reduce_map import graph_of, kept, map_tensors
from tilefold.errors import DtypeError, GradientError, ShapeError, shown
from tilefold.functional.arguments import redirected
from tilefold.functional.normalized import as_epsilon, checked_sizes, deviation, named
from tilefold.planner.problem.canonical import whole_number
from tilefold.planner.products.functions import Traced
from tilefold.runtime.modes import members
from tilefold.runtime.overrides import overridden

CALL = "rms_norm_quantized"
# The greatest number of each dtype, which a row's or a group's largest magnitude becomes.
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}
_READ = (torch.float16, torch.bfloat16, torch.float32)
# Added to a number below 2^22 it leaves a float32 no bits behind the point: subtracted again, the nearest whole number.
_WHOLE = 1.5 * 2.0**23


def rms_norm_quantized(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None,
    *, residual: Tensor | None = None, dtype: torch.dtype = torch.float8_e4m3fn, group: int | None = None,
    guarantee: str = "run_to_run",
) -> tuple[Tensor, ...]:  # fmt: skip
    """`rms_norm` in eight bits, with a scale for each row, or for each group of neighbours.

        y[k, p]     = x[k, p] / sqrt(mean over q of x[k, q]^2 + eps) * weight[p]
        scale[k, g] = max over q of group g of |y[k, q]| / largest number of `dtype`
        q[k, p]     = y[k, p] / scale[k, g] in `dtype`,   p in group g

    The largest magnitude of a row or group becomes the dtype's largest number: 448 of float8_e4m3fn, 57344 of float8_e5m2,
    127 of int8. Others are rounded to the nearest, ties to even; none is beyond it. Where all x * weight are 0, q is 0 and
    the scale is 1; no other scale has a least value. A NaN makes the scales of its row NaN, an infinity that of its row or
    group; in int8 a NaN is 0.
    With `residual` x is input + residual, and that sum is the third result, as in `rms_norm`.

    Args:
        input, normalized_shape, weight, eps, residual, guarantee: as in `rms_norm`, of float16, bfloat16 or float32.
        dtype: torch.float8_e4m3fn, torch.float8_e5m2 or torch.int8.
        group: how many neighbours along the last dim share a scale; it divides that dim's length. None: a whole row.

    Returns:
        q of the input's shape; the scales, float32, of its rank: of rows 1 in each normalized dim, of groups K / group in the
        last one, of K elements. Then the sum, where there is a `residual`. y is not made: q is
        x * weight * (largest number / max |x * weight|) in float32, and the scale alone has the root. Where all weights of a
        row or a group are below 2^-80, q is coarser.

    Rows that a program or a cluster of them holds (as in `rms_norm`), and groups, are read once. Scales of groups are made in
    a second step of three float32 values a group. Any strides, read in place. The same bits from run to run.

    Raises:
        ShapeError: the tensors do not fit, or `group` does not divide the last dim.
        DtypeError: elements are no floats, or float64; `dtype` is another.
        GradientError: a gradient or a forward derivative is asked; there is none.

    Example:
        >>> q, scale = tilefold.rms_norm_quantized(torch.tensor([[2.0, -4.0]]), (2,), eps=0.0)
        >>> q.float(), scale * 448 * 10.0**0.5
        (tensor([[ 224., -448.]]), tensor([[4.]]))
    """
    if overridden(input, weight, residual):
        return redirected(
            rms_norm_quantized, {}, input, normalized_shape, weight, eps, residual, dtype, group, guarantee
        )
    sizes = checked_sizes(CALL, input, normalized_shape, weight, None, residual)
    every = [t for t in (input, residual, weight) if t is not None]
    _check(every, dtype)
    count, of_sums, weighted = int(numbers.prod(sizes)), residual is not None, weight is not None
    small = as_epsilon(eps, torch.float32, CALL)
    stored = (dtype, result_dtype(promote(input.dtype, residual.dtype))) if residual is not None else (dtype,)
    names = (None, *named(residual=residual, weight=weight))
    along = tuple(range(input.ndim - len(sizes), input.ndim))
    given: dict[str, Any] = {"guarantee": guarantee, "call": CALL, "names": names}
    if group is None:
        monoid, apply = kept(_by_rows, count, small, of_sums, weighted, stored)
        q, *total, scale = map_tensors(every, monoid, apply, along, **given)
        return q, scale, *total
    size = _divisor(group, sizes[-1])
    parts = [t.view(*t.shape[:-1], sizes[-1] // size, size) for t in every]
    monoid, apply = kept(_by_groups, of_sums, weighted, stored)
    made = map_tensors(parts, monoid, apply, input.ndim, **given)
    states = [t.squeeze(-1) for t in made[len(stored) :]]
    monoid, apply = kept(_scales_of_groups, count, small, dtype)
    (scale,) = map_tensors(
        states[:2], monoid, apply, along, extras=states[2:], guarantee=guarantee, call=CALL
    )
    q, *total = (t.flatten(-2) for t in made[: len(stored)])
    return q, scale, *total


def _check(tensors: Sequence[Tensor], dtype: Any) -> None:
    """Refuse other dtypes, and what has no derivative."""
    for t in tensors:
        if t.dtype not in _READ:
            raise DtypeError(
                f"{CALL}: tensors must be float16, bfloat16 or float32, got {t.dtype}; convert them first"
            )
    if not isinstance(dtype, torch.dtype) or dtype not in LARGEST:
        raise DtypeError(
            f"{CALL}: `dtype` must be torch.float8_e4m3fn, torch.float8_e5m2 or torch.int8, got {shown(dtype)}; "
            "take one of these"
        )
    if asks_gradient(tensors) or (not is_dynamo_compiling() and is_differentiated([*map(members, tensors)])):
        raise GradientError(
            f"{CALL}: quantized results have no gradient, got a tensor that asks for one; use torch.no_grad(), or "
            "rms_norm in training"
        )


def _divisor(group: Any, length: int) -> int:
    size = whole_number(group)
    if size is not None and size > 0 and length % size == 0:
        return size
    raise ShapeError(
        f"{CALL}: `group` must divide the last dim's length {length}, got {shown(group)}; pad the rows, or take None"
    )


def _element(of_sums: bool, weighted: bool, stored: tuple[torch.dtype, ...], results: int) -> Traced:
    """The map: of an element, its weight and of so many results of the fold the first two, the factors."""

    def apply(x: Any, *rest: Any) -> Any:
        if of_sums:
            x, rest = x + rest[0], rest[1:]
        made = x * rest[weighted]
        made = made * rest[0] if weighted else made
        made = made * rest[weighted + 1]
        if not stored[0].is_floating_point:
            made = (made + _WHOLE) - _WHOLE
        return (made, x) if of_sums else made

    return graph_of(apply, 1 + of_sums + weighted + results).but(dtypes=stored)


def _factor(largest: Any, most: float) -> Any:
    """What elements in units are multiplied by."""
    return most / math.maximum(largest, powers.LEAST_PRODUCT)


def _scale(largest: Any, root: Any, most: float) -> Any:
    return math.where(largest == 0.0, 1.0, largest * root / most)


def _by_rows(
    count: int, eps: float, of_sums: bool, weighted: bool, stored: tuple[torch.dtype, ...]
) -> tuple[Monoid, Traced]:
    """The factors of a row's elements, and its scale, which is stored."""
    most = LARGEST[stored[0]]

    def project(total: Any, largest: Any, units: powers.Units) -> Any:
        _, size, root = deviation(total / max(1, count), eps, units)
        return units.inverse, _factor(largest, most), _scale(largest, powers.times(root, size), most)

    monoid = powers.squares_and_largest(
        project, CALL, of_sums=of_sums, weighted=weighted, beside=eps * max(1, count)
    )
    rows = trace(lambda inverse, factor, scale: scale, 3)
    return monoid, _element(of_sums, weighted, stored, 3).but(rows=rows)


def _by_groups(of_sums: bool, weighted: bool, stored: tuple[torch.dtype, ...]) -> tuple[Monoid, Traced]:
    """The factors of a group's elements, and its state, which is stored: the unit, and in it the sum of squares and the
    largest product."""
    most = LARGEST[stored[0]]

    def project(total: Any, largest: Any, units: powers.Units) -> Any:
        return units.inverse, _factor(largest, most), units.unit, total, largest

    monoid = powers.squares_and_largest(project, CALL, of_sums=of_sums, weighted=weighted, beside=0.0)
    rows = trace(lambda inverse, factor, *state: state, 5)
    return monoid, _element(of_sums, weighted, stored, 5).but(rows=rows)


def _scales_of_groups(count: int, eps: float, dtype: torch.dtype) -> tuple[Monoid, Traced]:
    """The row's root, of the states of its groups, and each one's scale."""
    most = LARGEST[dtype]

    def project(total: Any, units: powers.Units) -> Any:
        factor, _, root = deviation(total / max(1, count), eps, units)
        return factor, root

    def apply(unit: Any, total: Any, factor: Any, root: Any, largest: Any) -> Any:
        return _scale(largest, (unit * factor) * root, most)

    return powers.squares_together(project, CALL), graph_of(apply, 5)

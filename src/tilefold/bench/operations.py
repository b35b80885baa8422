"""The folds that suites time: each in torch, its least arithmetic, its tolerance and why."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tilefold.algebra.monoid import Monoid
from tilefold.bench.cases import DTYPES, EXACT, Case, Outputs, Tolerance, outputs_of, result_dtypes
from tilefold.bench.layout import Layout

Dim = int | tuple[int, ...]
AlongDim = Callable[[torch.Tensor, Any], Any]


@dataclass(frozen=True)
class Operation:
    """A fold of one dim: torch's form, arithmetic an element, and how a tolerance follows from the reduced length.

    `several`: it takes several dims as well. `whole_numbers`: it folds integers; `floats`: it folds floats. `monoid` makes
    the monoid of a fold for which tilefold has no function.
    """

    name: str
    in_torch: AlongDim
    operations_each: int = 1
    tolerance: Callable[[int], Tolerance] = lambda length: EXACT
    has_index: bool = False
    altered: Callable[[torch.Tensor], torch.Tensor] | None = None
    several: bool = True
    whole_numbers: bool = True
    floats: bool = True
    monoid: Callable[[], Monoid] | None = None


def sum_tolerance(length: int) -> Tolerance:
    """U 256 sqrt(n) beside the output's own rounding."""
    return Tolerance(
        "n normal variates summed in float32 by chains of L additions err by about u sqrt(n L), u = 2^-24; L <= 2^16 is "
        "allowed, less than one typical element at n = 2^28, so a lost tile shows; and eps |want| for the last rounding",
        lambda want, dtype: _rounding(want, dtype) + 2**-24 * 256 * math.sqrt(length),
    )


def relative_tolerance(length: int) -> Tolerance:
    """5e-5 of the answer beside the output's own rounding."""
    return Tolerance(
        "5e-5 |want| lies above the chains of a float32 Welford or sum of squares over 2^28 elements; and eps |want| for "
        "the last rounding",
        lambda want, dtype: _rounding(want, dtype) + 5e-5 * want.abs(),
    )


def logsumexp_tolerance(length: int) -> Tolerance:
    """5e-5 beside the output's own rounding."""
    return Tolerance(
        "the logarithm turns the relative error of the sum, allowed 5e-5, into an absolute one; and eps |want| for the "
        "last rounding",
        lambda want, dtype: _rounding(want, dtype) + 5e-5,
    )


def _rounding(want: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An output's own rounding is eps/2 |want|, of the least normal number below that; eps is allowed."""
    return torch.finfo(dtype).eps * want.abs().clamp_min(torch.finfo(dtype).smallest_normal)


def subarray_tolerance(length: int) -> Tolerance:
    """As of a sum: every candidate is one."""
    return Tolerance(
        "the largest of sums of neighbours, each of n normal variates at most: it errs as a sum does, about u sqrt(n L), and "
        "eps |want| for the last rounding",
        lambda want, dtype: _rounding(want, dtype) + 2**-24 * 256 * math.sqrt(length),
    )


def _some_zeros(x: torch.Tensor) -> torch.Tensor:
    """Zeros here and there, so that some results of an `all` over either dim are False."""
    x.view(-1)[:: max(x.numel() // 64, 1)] = 0
    return x


def wider(x: torch.Tensor) -> torch.Tensor:
    """Random inputs of another seed have nearly the same spread; twice the spread tells them apart."""
    return x.mul_(2)


def rows_of(x: torch.Tensor, dim: Dim) -> torch.Tensor:
    """The reduced dims moved to the end and made one, in their order."""
    dims = (dim,) if isinstance(dim, int) else dim
    return x.movedim(dims, tuple(range(-len(dims), 0))).flatten(-len(dims))


def softmax_pair_in_torch(x: torch.Tensor, dim: Dim) -> Outputs:
    """The maximum, and the sum of exponentials below it, computed in float32 or wider."""
    wide = x if x.dtype == torch.float64 else x.float()
    largest = wide.amax(dim, keepdim=True)
    total = (wide - largest).exp().sum(dim)
    return largest.reshape(total.shape).to(x.dtype), total.to(x.dtype)


def top2_in_torch(x: torch.Tensor, dim: Dim) -> Outputs:
    """The two largest elements."""
    largest: torch.Tensor = rows_of(x, dim).topk(2, dim=-1).values
    return largest[..., 0], largest[..., 1]


def max_subarray_in_torch(x: torch.Tensor, dim: Dim) -> torch.Tensor:
    """The largest sum of neighbours: of prefix sums, the largest rise above the least before it."""
    wide = x if x.dtype == torch.float64 else x.float()
    sums = rows_of(wide, dim).cumsum(-1)
    least = torch.nn.functional.pad(sums[..., :-1], (1, 0)).cummin(-1).values
    return (sums - least).amax(-1).to(x.dtype)


@functools.cache
def softmax_pair() -> Monoid:
    """The online softmax pair as a user writes it."""
    from tilefold.math import exp, maximum, where

    def combine(a: Any, b: Any) -> Any:
        m = maximum(a.m, b.m)
        safe = where(m == -math.inf, 0.0, m)
        return m, a.l * exp(a.m - safe) + b.l * exp(b.m - safe)

    return Monoid(combine, identity=(-math.inf, 0), fields=("m", "l"), lift=lambda x: (x, 1.0))


@functools.cache
def top2() -> Monoid:
    """The two largest elements as a user writes it."""
    from tilefold.math import maximum, minimum

    def combine(a: Any, b: Any) -> Any:
        return maximum(a.first, b.first), maximum(minimum(a.first, b.first), maximum(a.second, b.second))

    return Monoid(
        combine,
        identity=(-math.inf, -math.inf),
        fields=("first", "second"),
        lift=lambda x: (x, -math.inf),
        dtypes=("input", "input"),
    )


@functools.cache
def max_subarray() -> Monoid:
    """The largest sum of neighbours, at least one: total, best prefix, best suffix, best of all. Order matters."""
    from tilefold.math import maximum

    def combine(a: Any, b: Any) -> Any:
        return (
            a.total + b.total,
            maximum(a.prefix, a.total + b.prefix),
            maximum(b.suffix, b.total + a.suffix),
            maximum(maximum(a.best, b.best), a.suffix + b.prefix),
        )

    return Monoid(
        combine,
        identity=(0, -math.inf, -math.inf, -math.inf),
        fields=("total", "prefix", "suffix", "best"),
        lift=lambda x: (x, x, x, x),
        project=lambda total, prefix, suffix, best: best,
        name="max_subarray",
    )


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("sum", lambda x, dim: x.sum(dim), 1, sum_tolerance),
        Operation("amax", lambda x, dim: x.amax(dim)),
        Operation("argmax", lambda x, dim: x.argmax(dim), has_index=True, several=False),
        Operation("max", lambda x, dim: x.max(dim), has_index=True, several=False),
        # A maximum, a difference, an exponential and a sum.
        Operation(
            "logsumexp",
            lambda x, dim: torch.logsumexp(x, dim),
            4,
            logsumexp_tolerance,
            altered=wider,
            whole_numbers=False,
        ),
        # A difference, its square and a sum.
        Operation(
            "var", lambda x, dim: x.var(dim), 3, relative_tolerance, altered=wider, whole_numbers=False
        ),
        Operation("all", lambda x, dim: x.all(dim), altered=_some_zeros),
        Operation("aminmax", lambda x, dim: torch.aminmax(x, dim=dim), 2, several=False),
        Operation(
            "vector_norm",
            lambda x, dim: torch.linalg.vector_norm(x, dim=dim),
            2,
            relative_tolerance,
            altered=wider,
            whole_numbers=False,
        ),
        # torch has no such fold; this is the form that its compiler fuses into one kernel.
        Operation(
            "bitwise_or",
            lambda x, dim: functools.reduce(torch.bitwise_or, x.unbind(dim)),
            several=False,
            floats=False,
        ),
        # A maximum, a difference, an exponential and a sum.
        Operation(
            "softmax_pair",
            softmax_pair_in_torch,
            4,
            relative_tolerance,
            altered=wider,
            whole_numbers=False,
            monoid=softmax_pair,
        ),
        # A minimum and two maxima.
        Operation("top2", top2_in_torch, 3, monoid=top2),
        # Four sums and four maxima.
        Operation(
            "max_subarray",
            max_subarray_in_torch,
            8,
            subarray_tolerance,
            altered=wider,
            whole_numbers=False,
            monoid=max_subarray,
        ),
    )
}


def fold_case(
    name: str,
    dim: Dim,
    shape: tuple[int, ...],
    dtype: str,
    group: str,
    headline: bool = False,
    layout: Layout | None = None,
) -> Case:
    """The case of one operation of the table, with its reference in float64 where it rounds."""
    operation = OPERATIONS[name]
    length = math.prod(shape[d] for d in ((dim,) if isinstance(dim, int) else dim))
    tolerance = operation.tolerance(length) if DTYPES[dtype].is_floating_point else EXACT
    in_torch = functools.partial(along, operation.in_torch, dim)
    return Case(
        operation=name,
        dim=dim,
        shape=shape,
        dtype=dtype,
        torch_call=in_torch,
        reference=in_reference(in_torch, wide=not tolerance.exact),
        tolerance=tolerance,
        result_dtypes=_dtypes_of(name, dim, len(shape), dtype),
        operations_each=operation.operations_each,
        group=group,
        headline=headline,
        has_index=operation.has_index,
        altered=operation.altered,
        layout=layout,
    )


def make_fold(
    name: str, dim: Dim | None, shape: tuple[int, ...], dtype: str, layout: Layout | None = None
) -> Case | None:
    """A case of any shape, for suites of this table's operations; None where the operation has no such dims or dtype."""
    operation, dims = OPERATIONS[name], tuple(range(len(shape))) if dim is None else dim
    several = isinstance(dims, tuple) and len(dims) > 1
    fits = operation.floats if DTYPES[dtype].is_floating_point else operation.whole_numbers
    if not fits or (several and not operation.several):
        return None
    over = ",".join(map(str, dims)) if isinstance(dims, tuple) else dims
    return fold_case(name, dims, shape, dtype, f"{name}, dim {over}, {dtype}", layout=layout)


@functools.cache
def _dtypes_of(name: str, dim: Dim, ndim: int, dtype: str) -> tuple[torch.dtype, ...]:
    return result_dtypes(functools.partial(along, OPERATIONS[name].in_torch, dim), ndim, dtype)


def along(function: AlongDim, dim: Any, x: torch.Tensor) -> Any:
    """A function of x and dims, as a call of x once they are bound: `partial(along, function, dim)`."""
    return function(x, dim)


def in_reference(call: Callable[[torch.Tensor], Any], wide: bool) -> Callable[[torch.Tensor], Outputs]:
    """Torch's own answer, of the float64 input where the operation rounds."""
    return lambda x: outputs_of(call(x.double() if wide else x))


def in_tilefold(case: Case) -> Callable[[torch.Tensor], Any]:
    """The case's operation by tilefold's function of that name, or by `reduce` with its monoid."""
    import tilefold

    operation = OPERATIONS.get(case.operation)
    monoid = case.monoid or (operation.monoid() if operation and operation.monoid else None)
    if monoid:
        return functools.partial(tilefold.reduce, monoid=monoid, dim=case.dim)
    return functools.partial(getattr(tilefold, case.operation), dim=case.dim)

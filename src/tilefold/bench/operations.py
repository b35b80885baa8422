"""The folds that suites time: what each is in torch, its least arithmetic, its tolerance and why."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tilefold.bench.cases import EXACT, Case, Outputs, Tolerance, outputs_of, result_dtypes

OneDim = Callable[[torch.Tensor, int], Any]


@dataclass(frozen=True)
class Operation:
    """A fold of one dim: torch's form, arithmetic an element, and how a tolerance follows from the folded length."""

    name: str
    in_torch: OneDim
    operations_each: int = 1
    tolerance: Callable[[int], Tolerance] = lambda length: EXACT
    has_index: bool = False
    altered: Callable[[torch.Tensor], torch.Tensor] | None = None


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
    """An output's own rounding is eps/2 |want|; eps is allowed."""
    return torch.finfo(dtype).eps * want.abs()


def _some_zeros(x: torch.Tensor) -> torch.Tensor:
    """Zeros here and there, so that some results of an `all` over either dim are False."""
    x.view(-1)[:: max(x.numel() // 64, 1)] = 0
    return x


def _wider(x: torch.Tensor) -> torch.Tensor:
    """Random inputs of another seed have nearly the same spread; twice the spread tells them apart."""
    return x.mul_(2)


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("sum", lambda x, dim: x.sum(dim), 1, sum_tolerance),
        Operation("amax", lambda x, dim: x.amax(dim)),
        Operation("argmax", lambda x, dim: x.argmax(dim), has_index=True),
        Operation("max", lambda x, dim: x.max(dim), has_index=True),
        # A maximum, a difference, an exponential and a sum.
        Operation(
            "logsumexp", lambda x, dim: torch.logsumexp(x, dim), 4, logsumexp_tolerance, altered=_wider
        ),
        # A difference, its square and a sum.
        Operation("var", lambda x, dim: x.var(dim), 3, relative_tolerance, altered=_wider),
        Operation("all", lambda x, dim: x.all(dim), altered=_some_zeros),
        Operation("aminmax", lambda x, dim: torch.aminmax(x, dim=dim), 2),
        Operation(
            "vector_norm",
            lambda x, dim: torch.linalg.vector_norm(x, dim=dim),
            2,
            relative_tolerance,
            altered=_wider,
        ),
        # torch has no such fold; this is the form that its compiler fuses into one kernel.
        Operation("bitwise_or", lambda x, dim: functools.reduce(torch.bitwise_or, x.unbind(dim))),
    )
}


def fold_case(
    name: str, dim: int, shape: tuple[int, ...], dtype: str, group: str, headline: bool = False
) -> Case:
    """The case of one operation of the table, with its reference in float64 where it rounds."""
    operation = OPERATIONS[name]
    tolerance = operation.tolerance(shape[dim])
    in_torch = functools.partial(_along, operation.in_torch, dim)
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
    )


@functools.cache
def _dtypes_of(name: str, dim: int, ndim: int, dtype: str) -> tuple[torch.dtype, ...]:
    return result_dtypes(functools.partial(_along, OPERATIONS[name].in_torch, dim), ndim, dtype)


def _along(function: OneDim, dim: int, x: torch.Tensor) -> Any:
    return function(x, dim)


def in_reference(call: Callable[[torch.Tensor], Any], wide: bool) -> Callable[[torch.Tensor], Outputs]:
    """Torch's own answer, of the float64 input where the operation rounds."""
    return lambda x: outputs_of(call(x.double() if wide else x))


def in_tilefold(case: Case) -> Callable[[torch.Tensor], Any]:
    """The case's operation by tilefold's function of that name."""
    import tilefold

    return functools.partial(getattr(tilefold, case.operation), dim=case.dim)

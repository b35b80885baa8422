"""Cases of maps: softmax and the norms of layers, with and without a residual."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tilefold.bench.cases import DTYPES, Case, Outputs, Tolerance
from tilefold.bench.layout import Layout

Tensor = torch.Tensor
EPS = 1e-5
WITH_RESIDUAL = "+residual"
OPERATIONS = ("softmax", "layer_norm", "rms_norm", f"layer_norm{WITH_RESIDUAL}", f"rms_norm{WITH_RESIDUAL}")


@dataclass(frozen=True)
class MapCase(Case):
    """y[M, N] of x[M, N], along one dim; norms are over the last one and have a weight.

    With a residual the one tensor that is drawn holds x and then the residual, and the sum is a second result.
    """

    @property
    def tensors(self) -> int:
        """How many tensors of the shape are read."""
        return 1 + self.operation.endswith(WITH_RESIDUAL)

    @property
    def result_shape(self) -> tuple[int, ...]:
        """The shape of the input."""
        return self.shape

    @property
    def elements(self) -> int:
        """Elements of the input and the residual."""
        return self.tensors * super().elements

    @property
    def drawn_shape(self) -> tuple[int, ...]:
        """Of the input, and of the residual behind it."""
        return (*[2] * (self.tensors - 1), *self.shape)

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        """The input, and the residual where there is one."""
        return tuple(x.unbind(0)) if self.tensors > 1 else (x,)


@functools.cache
def weight_of(length: int, dtype: torch.dtype, device: str) -> Tensor:
    """The weight of all norms of rows so long."""
    return torch.linspace(0.5, 1.5, length, dtype=torch.float64).to(dtype=dtype, device=device)


def map_case(
    operation: str, dim: int, shape: tuple[int, ...], dtype: str, group: str, headline: bool = False
) -> MapCase:
    """A case of one of `OPERATIONS`, with torch's function in float64 for reference."""

    def in_torch(x: Tensor) -> Any:
        x, *residual = case.parts(x)
        if operation == "softmax":
            return torch.softmax(x, dim)
        x = x + residual[0] if residual else x
        length = x.shape[-1]
        weight = weight_of(length, DTYPES[dtype], str(x.device)).to(x.dtype)
        norm: Callable[..., Tensor] = getattr(torch.nn.functional, operation.removesuffix(WITH_RESIDUAL))
        made = norm(x, (length,), weight, eps=EPS)
        return (made, x) if residual else made

    def reference(x: Tensor) -> Outputs:
        made = in_torch(x.double())
        return made if isinstance(made, tuple) else (made,)

    case = MapCase(
        operation=operation,
        dim=dim,
        shape=shape,
        dtype=dtype,
        torch_call=in_torch,
        reference=reference,
        tolerance=tolerance(operation, dtype),
        result_dtypes=(DTYPES[dtype],) * (1 + operation.endswith(WITH_RESIDUAL)),
        operations_each=5,
        group=group,
        headline=headline,
    )
    return case


def in_tilefold(case: MapCase) -> Callable[[Tensor], Any]:
    """Tilefold's function."""
    import tilefold

    operation = case.operation.removesuffix(WITH_RESIDUAL)
    if operation == "softmax":
        assert isinstance(case.dim, int)
        dim = case.dim
        return lambda x: tilefold.softmax(x, dim)
    length = case.shape[-1]
    norm: Callable[..., Any] = getattr(tilefold, operation)

    def call(x: Tensor) -> Any:
        x, *residual = case.parts(x)
        weight = weight_of(length, x.dtype, str(x.device))
        return norm(x, (length,), weight, eps=EPS, residual=residual[0] if residual else None)

    return call


def tolerance(operation: str, dtype: str) -> Tolerance:
    """Of shares, or of numbers about 1."""
    if operation == "softmax":
        return Tolerance(
            "5e-5 |want| lies above what float32 sums of 2^20 exponentials and their own rounding lose; and eps |want| for "
            "the last rounding, of a subnormal float16 the least there is",
            lambda want, dtype: (
                (5e-5 + torch.finfo(dtype).eps) * want.abs()
                + torch.finfo(dtype).eps * torch.finfo(dtype).smallest_normal
            ),
        )
    rounded = torch.finfo(DTYPES[dtype]).eps if operation.endswith(WITH_RESIDUAL) else 0.0
    return Tolerance(
        "5e-5 (1 + |want|) lies above the chains of a float32 mean of squares; eps |want| for the last rounding, and twice "
        "eps (1 + |want|) where the sum with the residual may be rounded first, as torch does",
        lambda want, dtype: (
            5e-5 * (1 + want.abs()) + torch.finfo(dtype).eps * want.abs() + 2 * rounded * (1 + want.abs())
        ),
    )


def make_map(
    operation: str, dim: Any, shape: tuple[int, ...], dtype: str, layout: Layout | None = None
) -> MapCase | None:
    """A case of another shape, contiguous; None where there is no such."""
    fits = (
        operation in OPERATIONS
        and isinstance(dim, int)
        and layout is None
        and DTYPES[dtype].is_floating_point
    )
    if not fits or not -len(shape) <= dim < len(shape):
        return None
    dim %= len(shape)
    if operation != "softmax" and dim != len(shape) - 1:
        return None
    return map_case(operation, dim, shape, dtype, f"{operation}, dim {dim}, {dtype}")

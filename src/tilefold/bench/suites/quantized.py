"""rms_norm of rows in float8, with a scale for each row or each group of 128, with and without a residual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import tilefold
from tilefold.bench.cases import DTYPES, Case, Choice, Outputs, Suite, Tolerance, grid
from tilefold.bench.layout import Layout
from tilefold.bench.map_cases import EPS, WITH_RESIDUAL, MapCase, weight_of
from tilefold.bench.ours import OURS

Tensor = torch.Tensor
ROWS = ((32768, 1024), (16384, 4096), (16384, 8192), (4096, 65536), (128, 7168))
SMALL_ROWS = ((32, 256), (8, 4096))
HEADLINE = (16384, 8192)
GROUP, LARGEST = 128, 448.0
OPERATIONS = tuple(f"rms_norm of {of}{beside}" for of in ("rows", "groups") for beside in ("", WITH_RESIDUAL))


@dataclass(frozen=True)
class QuantizedCase(MapCase):
    """q[M, N], the scales [M, 1] or [M, N / 128] and, with a residual, the sum, of x[M, N]."""

    @property
    def size(self) -> int | None:
        """How many elements share a scale; None: a row."""
        return GROUP if "groups" in self.operation else None

    @property
    def result_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of q, of the scales, of the sum."""
        rows, length = self.shape
        return (self.shape, (rows, length // (self.size or length)), *[self.shape] * (self.tensors - 1))


def in_torch(case: QuantizedCase, x: Tensor) -> Outputs:
    """As one writes it in torch, in float32; of float64 in float64, and q not rounded."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    total, *residual = (t.to(wide) for t in case.parts(x))
    total = total + residual[0] if residual else total
    rows, length = case.shape
    weight = weight_of(length, DTYPES[case.dtype], str(x.device)).to(wide)
    y = torch.nn.functional.rms_norm(total, (length,), weight, EPS).view(rows, -1, case.size or length)
    scale = y.abs().amax(-1, keepdim=True) / LARGEST
    q = (y / scale).view(rows, length)
    made = (q if x.dtype == torch.float64 else q.to(torch.float8_e4m3fn)), scale.squeeze(-1)
    return (*made, total.to(x.dtype)) if residual else made


def quantized_case(operation: str, shape: tuple[int, ...], dtype: str) -> QuantizedCase:
    """A case of one of `OPERATIONS`, with the definition in float64 for reference."""
    case = QuantizedCase(
        operation=operation,
        dim=1,
        shape=shape,
        dtype=dtype,
        torch_call=lambda x: in_torch(case, x),
        reference=lambda x: in_torch(case, x.double()),
        tolerance=Tolerance(
            "half a step of float8_e4m3fn, 2^-4 |want|, or 2^-10 below its normal numbers, and eps |want| of other results; "
            "5e-5 |want| lies above the chains of a float32 mean of squares and the roundings of quotients",
            lambda want, dtype: (
                want.abs() * (torch.finfo(dtype).eps / 2 + 5e-5) + 2.0**-10 * (dtype == torch.float8_e4m3fn)
            ),
        ),
        result_dtypes=(
            torch.float8_e4m3fn,
            torch.float32,
            *[DTYPES[dtype]] * operation.endswith(WITH_RESIDUAL),
        ),
        operations_each=8,
        group=f"{operation}, {dtype}",
        headline=shape == HEADLINE,
    )
    return case


def cases(size: str = "full") -> tuple[Case, ...]:
    """Every operation of every shape, in bf16; headline cases first."""
    return grid(quantized_case, OPERATIONS, ROWS if size == "full" else SMALL_ROWS, ("bf16",))


def make_quantized(
    operation: str, dim: Any, shape: tuple[int, ...], dtype: str, layout: Layout | None = None
) -> Case | None:
    """A case of another shape of rows; None where there is no such."""
    narrow = DTYPES[dtype].is_floating_point and DTYPES[dtype].itemsize <= 4
    fits = operation in OPERATIONS and len(shape) == 2 and layout is None and narrow
    whole = "rows" in operation or (fits and shape[1] % GROUP == 0)
    return quantized_case(operation, shape, dtype) if fits and whole and dim in (1, -1, None) else None


def build_ours(case: Case, x: Tensor) -> Sequence[Choice]:
    """Tilefold's function."""
    assert isinstance(case, QuantizedCase)
    length = case.shape[-1]
    weight = weight_of(length, x.dtype, str(x.device))

    def call(x: Tensor) -> Any:
        x, *residual = case.parts(x)
        beside = residual[0] if residual else None
        return tilefold.rms_norm_quantized(x, (length,), weight, EPS, residual=beside, group=case.size)

    return [Choice("default", call)]


SUITE = Suite(
    "quantized",
    str(__doc__).strip(),
    cases,
    (replace(OURS, build=build_ours),),
    against=("torch", "compile"),
    make=make_quantized,
)

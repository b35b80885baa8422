"""Cases of matmul: what a product costs, its reference and its tolerance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from tilefold.bench.cases import DTYPES, Case, Outputs, Tolerance
from tilefold.bench.layout import Layout

Tensor = torch.Tensor
ALIGNED = 256  # elements
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class ProductCase(Case):
    """c[M, N] = a[M, K] @ b[K, N], with ReLU or without: `shape` is (M, N, K).

    The one tensor that is drawn, timed and compared holds a and then b; `pair` shows both in it.
    """

    relu: bool = False

    @property
    def result_shape(self) -> tuple[int, ...]:
        """[M, N]."""
        return self.shape[:2]

    @property
    def elements(self) -> int:
        """Elements of a and b."""
        rows, columns, depth = self.shape
        return (rows + columns) * depth

    @property
    def operations(self) -> int:
        """A multiplication and an addition for each of M N K."""
        return 2 * math.prod(self.shape)

    def draw(self, device: str, seed: int = 0) -> Tensor:
        """Normal variates, none of them zero."""
        generator = torch.Generator(device).manual_seed(seed)
        elements = self._begin + self.shape[1] * self.shape[2]
        x = torch.randn(elements, device=device, dtype=DTYPES[self.dtype], generator=generator)
        return x.masked_fill_(x == 0, 1)

    def pair(self, x: Tensor) -> Pair:
        """Views of the tensor that holds a and b."""
        rows, columns, depth = self.shape
        return x[: rows * depth].view(rows, depth), x[self._begin :].view(depth, columns)

    @property
    def _begin(self) -> int:
        """Where b begins: aligned, as memory of its own would be."""
        rows, _, depth = self.shape
        return math.ceil(rows * depth / ALIGNED) * ALIGNED


def product_case(
    rows: int, columns: int, depth: int, dtype: str, relu: bool, group: str, headline: bool = False
) -> ProductCase:
    """A case of those sizes, in float64 for reference."""

    def in_torch(x: Tensor) -> Tensor:
        return finished(*case.pair(x), relu)

    def reference(x: Tensor) -> Outputs:
        return (in_torch(x.double()),)

    case = ProductCase(
        operation="matmul+relu" if relu else "matmul",
        dim=None,
        shape=(rows, columns, depth),
        dtype=dtype,
        torch_call=in_torch,
        reference=reference,
        tolerance=tolerance(depth, dtype),
        result_dtypes=(DTYPES[dtype],),
        group=group,
        headline=headline,
        relu=relu,
    )
    return case


def make_product(
    operation: str, dim: object, shape: tuple[int, ...], dtype: str, layout: Layout | None = None
) -> ProductCase | None:
    """A case of any M, N and K, for suites of products; None where the shape is no such or the dtype no float's."""
    if len(shape) != 3 or not DTYPES[dtype].is_floating_point:
        return None
    rows, columns, depth = shape
    relu = operation == "matmul+relu"
    return product_case(rows, columns, depth, dtype, relu, f"{rows}x{columns}, {dtype}{' + ReLU' * relu}")


def finished(a: Tensor, b: Tensor, relu: bool) -> Tensor:
    """Torch's own call."""
    return torch.relu(a @ b) if relu else a @ b


def tolerance(depth: int, dtype: str) -> Tolerance:
    """Of products of normal variates, whose sums are about sqrt(K)."""
    if dtype == "fp32":
        least = 1e-3 * max(1.0, depth / 2**15)
        return Tolerance(
            "1e-4 |want| + 1e-3, beyond K = 2^15 as many times more, which float32 sums keep and products of tf32 (2^-11) "
            "do not",
            lambda want, dtype: 1e-4 * want.abs() + least,
        )
    return Tolerance(
        "eps |want| for the last rounding, and 2 eps sqrt(K), since torch lets cuBLAS round the sums of its own splits to "
        "half precision; a lost split of 256 would be sqrt(K) / 16",
        lambda want, dtype: torch.finfo(dtype).eps * (want.abs() + 2 * math.sqrt(depth)),
    )

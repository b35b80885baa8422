"""A product's operands: what is asked of them, and the canonical problem they make.

a [.., M, K] @ b [.., K, N]   ->   batch dims that both walk, rows (M and the batch dims that b does not see), N, K
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilefold.algebra.typing import FLOAT8
from tilefold.contract.row import Row
from tilefold.errors import ArgumentError, DtypeError, EmptyError, KindError, ShapeError
from tilefold.problem import Dim, alignment, coalesce
from tilefold.validate import check_tensors

OPERANDS = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int8,
    *(d for d in FLOAT8 if d in (torch.float8_e4m3fn, torch.float8_e5m2)),
)
PRECISIONS = ("ieee", "tf32")
ROW_COLUMNS = 16384  # of a row that one program's registers hold
ORDERED_COLUMNS = (
    1024  # of a row folded in a written tree: twice as many take the compiler five seconds, 8192 minutes
)


@dataclass(frozen=True)
class Contraction:
    """A product made canonical. Each `Dim` holds a stride for a, for b and for every extra tensor, then the result's.

    `batch` are dims that b walks too; `rows` are M and the batch dims that join it. `aligned` holds, for each tensor, the
    largest power of two up to 16 that divides its address.
    """

    batch: tuple[Dim, ...]
    rows: Dim
    columns: Dim
    depth: Dim
    dtypes: tuple[torch.dtype, ...]
    aligned: tuple[int, ...]

    @property
    def batches(self) -> int:
        """How many matrices there are."""
        return math.prod(d.size for d in self.batch)

    @property
    def outputs(self) -> int:
        """How many results there are."""
        return self.batches * self.rows.size * self.columns.size


def check_operands(a: Any, b: Any, bias: Any, extras: Sequence[Any]) -> None:
    """Refuse operands that have no product.

    Raises:
        DeviceError, DtypeError, GradientError, KindError, ShapeError: a rule is broken; the message says which.
    """
    if not isinstance(extras, tuple | list):
        raise KindError(
            f"matmul: `epilogue_args` must be a tuple of tensors, got {type(extras).__name__}; write (x,) for one"
        )
    check_tensors([a, b, *([] if bias is None else [bias]), *extras], "matmul")
    if a.dtype != b.dtype:
        raise DtypeError(
            f"matmul: both operands must have one dtype, got {a.dtype} and {b.dtype}; convert one of them"
        )
    if a.dtype not in OPERANDS:
        names = ", ".join(str(d).removeprefix("torch.") for d in OPERANDS)
        raise DtypeError(f"matmul: operands must be of {names}, got {a.dtype}; convert both")
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError(
            f"matmul: operands must have a dim to fold, got shapes {list(a.shape)} and {list(b.shape)}; multiply numbers "
            "with *"
        )
    depth = b.shape[-2] if b.ndim > 1 else b.shape[0]
    if a.shape[-1] != depth:
        raise ShapeError(
            f"matmul: the last dim of a and the last but one of b must be the same K, got {a.shape[-1]} and {depth} of "
            f"shapes {list(a.shape)} and {list(b.shape)}; transpose one"
        )


def check_row_fits(
    row: Row | None, a: torch.Tensor, b: torch.Tensor, shape: Sequence[int], out: Any, guarantee: str
) -> None:
    """Refuse rows that no program can hold, and what has no rows.

    Raises:
        ArgumentError, EmptyError, ShapeError: a rule is broken; the message says which.
    """
    if row is None:
        return
    if b.ndim < 2:
        raise ShapeError(
            f"matmul: with `row` b must have columns, got shape {list(b.shape)}; fold one value with unsqueeze(-1)"
        )
    in_order = guarantee == "batch_invariant" or not row.monoid.commutative
    most = ORDERED_COLUMNS if in_order else ROW_COLUMNS
    if shape[-1] > most:
        why = " where they meet in order" if in_order else ""
        raise ShapeError(
            f"matmul: with `row` there must be at most {most} columns{why}, got {shape[-1]}; leave `row` out and fold "
            "the result with tilefold.reduce(result, monoid, dim=-1)"
        )
    if shape[-1] == 0 and row.monoid.algebra.identity is None:
        raise EmptyError(
            f"matmul: folding nothing needs an identity, got rows of no columns and {row.monoid.name} without one; give the "
            "monoid an identity or b columns"
        )
    if out is not None:
        raise ArgumentError(
            "matmul: `out` must be left out with `row`, which gives several results, got both; copy them"
        )


def check_precision(precision: str | None, dtype: torch.dtype) -> str:
    """The precision of float32 products: "ieee" unless "tf32" is asked for.

    Raises:
        ArgumentError: it has another name, or other products than those of float32 are asked to be rounded.
    """
    if precision is not None and precision not in PRECISIONS:
        raise ArgumentError(
            f"matmul: `precision` must be one of {', '.join(PRECISIONS)} or None, got {precision!r}; take one of these"
        )
    if precision == "tf32" and dtype != torch.float32:
        raise ArgumentError(
            f'matmul: precision "tf32" must be asked of float32 operands, got {dtype}; leave it out'
        )
    return precision or "ieee"


def result_shape(a: torch.Tensor, b: torch.Tensor) -> list[int]:
    """The shape of a @ b; a vector's missing dim is missing in the result, as in torch.matmul.

    Raises:
        ShapeError: the batch dims do not broadcast.
    """
    try:
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # type: ignore[no-untyped-call]  # torch's own
    except RuntimeError:
        raise ShapeError(
            f"matmul: dims before the last two must broadcast, got shapes {list(a.shape)} and {list(b.shape)}; "
            "reshape or unsqueeze one"
        ) from None
    return [*batch, *a.shape[-2:-1], *(b.shape[-1:] if b.ndim > 1 else ())]


def expand_extras(
    extras: Sequence[torch.Tensor], shape: Sequence[int], names: Sequence[str]
) -> list[torch.Tensor]:
    """Extra tensors seen in the result's shape.

    Raises:
        ShapeError: one does not broadcast to it.
    """
    return [_expanded(extra, shape, name) for extra, name in zip(extras, names, strict=True)]


def _expanded(extra: torch.Tensor, shape: Sequence[int], name: str) -> torch.Tensor:
    try:
        return extra.expand(shape)
    except RuntimeError:
        raise ShapeError(
            f"matmul: {name} must broadcast to the result's shape {list(shape)}, got shape {list(extra.shape)}; "
            "reshape or unsqueeze it"
        ) from None


def canonical_product(a: torch.Tensor, b: torch.Tensor, extras: Sequence[torch.Tensor]) -> Contraction:
    """The problem of validated operands; extras have the result's shape. The result is contiguous."""
    left, right = as_matrices(a, b)
    seen = [_as_matrix(e, a.ndim > 1, b.ndim > 1) for e in extras]
    *lengths, rows, columns = result_shape(left, right)
    walks = [left.expand(*lengths, *left.shape[-2:]), right.expand(*lengths, *right.shape[-2:]), *seen]
    outer, step = [], rows * columns
    for d in reversed(range(len(lengths))):
        if lengths[d] != 1:
            outer.append(Dim(lengths[d], tuple(t.stride(d) for t in walks), step))
        step *= lengths[d]
    if rows != 1:
        strides = (left.stride(-2), 0, *(e.stride(-2) for e in seen))
        outer.insert(0, Dim(rows, strides, columns))
    joined = coalesce(outer[::-1])
    by_rows = bool(joined) and joined[-1].strides[1] == 0
    return Contraction(
        batch=joined[:-1] if by_rows else joined,
        rows=joined[-1] if by_rows else Dim(1, (0,) * len(walks), 0),
        columns=Dim(columns, (0, right.stride(-1), *(e.stride(-1) for e in seen)), 1),
        depth=Dim(left.shape[-1], (left.stride(-1), right.stride(-2), *(0 for _ in seen)), 0),
        dtypes=tuple(t.dtype for t in walks),
        aligned=tuple(alignment(t.data_ptr()) for t in walks),
    )


def as_matrices(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The operands with the dims that vectors lack put back: a row, a column."""
    return a if a.ndim > 1 else a[None], b if b.ndim > 1 else b[:, None]


def _as_matrix(extra: torch.Tensor, has_rows: bool, has_columns: bool) -> torch.Tensor:
    """An extra tensor in the result's shape, with the dims that vectors lack put back."""
    seen = extra if has_columns else extra[..., None]
    return seen if has_rows else seen.unsqueeze(-2)

"""Which operands a product takes, and the canonical problem that they make.

a [.., M, K] @ b [.., K, N]   ->   batch dims of both, rows (M and the batch dims that b does not have), N, K
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from tilefold.algebra.monoid import Monoid
from tilefold.algebra.typing import FLOAT8
from tilefold.errors import ArgumentError, DtypeError, EmptyError, KindError, ShapeError, is_one_of, shown
from tilefold.planner.problem.canonical import Dim, Problem, alignment, merged
from tilefold.planner.problem.validate import check_tensors
from tilefold.planner.sizes import VECTOR_BYTES
from tilefold.runtime.modes import converted, is_converted

OPERANDS = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    *(d for d in FLOAT8 if d in (torch.float8_e4m3fn, torch.float8_e5m2)),
)
# Dtypes of whole numbers, and up to which K float64 adds their products exactly: 2**53 over the largest product.
EXACT_IN_FLOAT64 = {torch.uint8: 1 << 37, torch.int16: 1 << 23}
PRECISIONS = ("ieee", "tf32")
# Limits of the hardware, and of Triton's compiler: a row folded in a written tree takes it 5 s of 2048 columns, minutes of
# 8192.
ASYNCHRONOUS_BYTES = 4  # the fewest that a thread copies to shared memory asynchronously
ROW_COLUMNS = 16384  # columns of a row at most, which one program's registers hold
ORDERED_COLUMNS = 1024  # columns at most of a row folded in a written tree


class Contraction(Problem):
    """A product made canonical: batch dims of both operands, rows (M and the batch dims that join it), columns, and K.

    Each `Dim` holds a stride for a, for b and for every extra tensor; the last three dims are always rows, columns and K.
    """

    @property
    def batch(self) -> tuple[Dim, ...]:
        """The dims along which both operands change."""
        return self.dims[:-3]

    @property
    def rows(self) -> Dim:
        """M."""
        return self.dims[-3]

    @property
    def columns(self) -> Dim:
        """N."""
        return self.dims[-2]

    @property
    def depth(self) -> Dim:
        """K, along which products are summed."""
        return self.dims[-1]

    @property
    def batches(self) -> int:
        """How many matrices there are."""
        return math.prod(d.size for d in self.batch)


def check_operands(a: Any, b: Any, bias: Any, extras: Sequence[Any], differentiable: bool = False) -> None:
    """Refuse operands that have no product. A `differentiable` call may be asked for a gradient.

    Raises:
        DeviceError, DtypeError, GradientError, KindError, ShapeError: a rule is broken; the message says which.
    """
    if not isinstance(extras, tuple | list):
        raise KindError(
            f"matmul: `epilogue_args` must be a tuple of tensors, got {type(extras).__name__}; write (x,) for one"
        )
    biases = [] if bias is None else [bias]
    called: list[str | None] = [None, None, *["bias"] * len(biases), *["epilogue_args"] * len(extras)]
    check_tensors([a, b, *biases, *extras], "matmul", names=called, differentiable=differentiable)
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


def check_on_gpu(a: torch.Tensor) -> None:
    """Refuse dtypes that no kernel multiplies. Whole numbers are multiplied as int8 on tensor cores, or exactly in float64.

    Raises:
        DtypeError, ShapeError: there is no kernel for the dtype, or K is too long for exact sums.
    """
    dtype, depth = a.dtype, a.shape[-1]
    if dtype in (torch.int32, torch.int64):
        raise DtypeError(
            f"matmul: whole numbers multiplied on a GPU must be of int8, uint8 or int16, got {dtype}; convert to int16 where "
            "they fit, to float64 where sums stay below 2**53, or multiply on a CPU"
        )
    if depth > EXACT_IN_FLOAT64.get(dtype, depth):
        raise ShapeError(
            f"matmul: sums of {dtype} on a GPU are exact for K of at most {EXACT_IN_FLOAT64[dtype]}, got {depth}; split K "
            "and add the products"
        )


def as_autocast(a: Any, b: Any, bias: Any, precision: str | None) -> tuple[Any, Any, Any, str | None]:
    """Operands and a bias in the dtypes that torch.autocast, if it is on, gives torch.nn.functional.linear, and the
    precision.

    The precision is None if autocast converted float32 operands: it is a precision of float32 products.
    """
    if not isinstance(a, torch.Tensor) or not is_converted(a.device):
        return a, b, bias, precision
    made = [converted(t) if isinstance(t, torch.Tensor) else t for t in (a, b, bias)]
    narrowed = made[0] is not a and a.dtype == torch.float32 and is_one_of(precision, PRECISIONS)
    return made[0], made[1], made[2], None if narrowed else precision


def check_row_fits(
    monoid: Monoid | None, b: torch.Tensor, shape: Sequence[int], out: Any, guarantee: str
) -> None:
    """Refuse a row's fold if one program cannot hold a row, or if there are no columns to fold.

    Raises:
        ArgumentError, EmptyError, ShapeError: a rule is broken; the message says which.
    """
    if monoid is None:
        return
    if b.ndim < 2:
        raise ShapeError(
            f"matmul: with `row` b must have columns, got shape {list(b.shape)}; fold one value with unsqueeze(-1)"
        )
    in_order = guarantee == "batch_invariant" or not monoid.commutative
    most = ORDERED_COLUMNS if in_order else ROW_COLUMNS
    if shape[-1] > most:
        why = " where they are combined in order" if in_order else ""
        raise ShapeError(
            f"matmul: with `row` there must be at most {most} columns{why}, got {shape[-1]}; leave `row` out and fold "
            "the result with tilefold.reduce(result, monoid, dim=-1)"
        )
    if shape[-1] == 0 and monoid.algebra.identity is None:
        raise EmptyError(
            f"matmul: folding nothing needs an identity, got rows of no columns and {monoid.name} without one; give the "
            "monoid an identity or b columns"
        )
    if out is not None:
        raise ArgumentError(
            "matmul: `out` must be left out with `row`, which gives several results, got both; copy them"
        )


def check_precision(precision: str | None, dtype: torch.dtype) -> str:
    """The precision of float32 products: "ieee" unless "tf32" is asked for.

    Raises:
        ArgumentError: the name is another one, or "tf32" is asked for another dtype than float32.
    """
    if precision is not None and not is_one_of(precision, PRECISIONS):
        raise ArgumentError(
            f"matmul: `precision` must be one of {', '.join(PRECISIONS)} or None, got {shown(precision)}; take one of these"
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
            outer.append(Dim("map", lengths[d], tuple(t.stride(d) for t in walks), step))
        step *= lengths[d]
    if rows != 1:
        strides = (left.stride(-2), 0, *(e.stride(-2) for e in seen))
        outer.insert(0, Dim("map", rows, strides, columns))
    joined = merged(outer[::-1])
    by_rows = bool(joined) and joined[-1].strides[1] == 0
    batch = joined[:-1] if by_rows else joined
    return Contraction(
        dims=(
            *batch,
            joined[-1] if by_rows else Dim("map", 1, (0,) * len(walks)),
            Dim("map", columns, (0, right.stride(-1), *(e.stride(-1) for e in seen)), 1),
            Dim(
                "reduce", left.shape[-1], (left.stride(-1), right.stride(-2), *(0 for _ in seen)), position=1
            ),
        ),
        dtypes=tuple(t.dtype for t in walks),
        aligned=tuple(alignment(t.data_ptr()) for t in walks),
        residues=tuple(t.data_ptr() % 16 for t in walks),
    )


def loads_of_elements(problem: Contraction) -> tuple[bool, bool]:
    """For a and b, whether elements are loaded one by one. An asynchronous copy takes 4 bytes at least, so the address, the
    other strides and the masked length must be multiples of 4 bytes."""
    a, b = _vector_bytes(problem)
    return a < ASYNCHRONOUS_BYTES, b < ASYNCHRONOUS_BYTES


def narrow_vectors(problem: Contraction) -> tuple[bool, bool]:
    """For a and b, whether elements are known to be aligned to fewer than 16 bytes, which cuBLAS's fast kernels need."""
    a, b = _vector_bytes(problem)
    return a < VECTOR_BYTES, b < VECTOR_BYTES


def _vector_bytes(problem: Contraction) -> tuple[int, int]:
    """For a and b, the bytes that one load takes at most: the number divides the address, the other strides and the
    length."""
    return (
        _bytes_of_vector(problem, 0, problem.rows, problem.depth),
        _bytes_of_vector(problem, 1, problem.depth, problem.columns),
    )


def _bytes_of_vector(problem: Contraction, operand: int, *dims: Dim) -> int:
    itemsize = problem.dtypes[operand].itemsize
    if operand == 1 and problem.columns.size == 1:  # a column is read as a row of one
        return itemsize
    along = min(dims, key=lambda d: (d.strides[operand] != 1, d.size == 1))
    if along.size == 1:
        return VECTOR_BYTES
    others = (d.strides[operand] for d in (*problem.batch, *dims) if d is not along and d.size > 1)
    elements = math.gcd(*others, along.size) if along.strides[operand] == 1 else 1
    return max(itemsize, math.gcd(problem.aligned[operand], elements * itemsize))


def neighbours_across(problem: Contraction) -> tuple[bool, bool]:
    """For a and b, whether neighbours in memory lie along M or N, not along K."""
    depth = problem.depth
    across = [
        dim.size > 1 and dim.strides[operand] == 1 and (depth.size == 1 or depth.strides[operand] != 1)
        for operand, dim in enumerate((problem.rows, problem.columns))
    ]
    return across[0], across[1]


def as_matrices(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The operands as matrices: a vector a is a row, a vector b a column."""
    return a if a.ndim > 1 else a[None], b if b.ndim > 1 else b[:, None]


def _as_matrix(extra: torch.Tensor, has_rows: bool, has_columns: bool) -> torch.Tensor:
    """An extra tensor in the result's shape, with the dims that vector operands lack."""
    seen = extra if has_columns else extra[..., None]
    return seen if has_rows else seen.unsqueeze(-2)

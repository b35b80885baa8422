"""Vector norms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import Unpack  # torch depends on it

from tilefold import monoids
from tilefold.algebra.typing import FLOAT8
from tilefold.api.recorded import is_sharded
from tilefold.api.reduce import fold_tensors
from tilefold.errors import DtypeError, OrderError, shown
from tilefold.functional.arguments import (
    INFINITY,
    Dims,
    NumpyNames,
    as_number,
    every,
    need_elements,
    need_float,
    redirected,
)
from tilefold.planner.problem.canonical import normalize_dims
from tilefold.planner.problem.validate import as_dtype, check_is_tensor, check_memory
from tilefold.runtime.modes import is_known
from tilefold.runtime.overrides import overridden


def vector_norm(
    x: Tensor, ord: float = 2, dim: Dims = None, keepdim: bool = False,
    *, dtype: torch.dtype | None = None, out: Tensor | None = None, **names: Unpack[NumpyNames],
) -> Tensor:  # fmt: skip
    """Norm of order `ord` of the elements.

        y[k] = (sum over p of |x[k, p]|^ord)^(1 / ord);  inf: max |x[k, p]|;  -inf: min |x[k, p]|;  0: how many are not 0

    Shapes: [M, K] to [M]. Of nothing it is 0, where `ord` is finite and not negative.
    Dtypes: floats as they came, accumulated in float32 or float64; `dtype`, no narrower than the input's, converts each
    element first and is the result's.
    Any strides, read in place. Same bits from run to run; docs/guarantees.md has the bound for ord=2.

    Raises:
        DtypeError: elements or `dtype` are no floats, or `dtype` would narrow them.
        EmptyError: a reduced dim has length 0, and `ord` is negative or inf.
        OrderError: `ord` is no real number.

    Example:
        >>> tilefold.vector_norm(torch.tensor([[3.0, -4.0], [0.0, 2.0]]), dim=1)
        tensor([5., 2.])
    """
    if names or overridden(x, out):
        return redirected(vector_norm, names, x, ord, dim, keepdim, dtype, out)
    return _vector_norm(x, ord, dim, keepdim, dtype, out, "vector_norm")


def norm(
    input: Tensor, p: float | str | None = "fro", dim: Dims = None, keepdim: bool = False,
    out: Tensor | None = None, dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """Norm of order `p` of the elements: `vector_norm` by torch.norm's arguments.

        y[k] = (sum over the reduced j of |x[k, j]|^p)^(1 / p);  inf, -inf and 0 as in `vector_norm`

    "fro" and None are p = 2. "nuc" is a sum of singular values, no fold over elements.
    Shapes: [M, K] to [M]. Of nothing it is 0, where `p` is finite and not negative.
    Dtypes: floats as they came, accumulated in float32 or float64; `dtype` as in `vector_norm`.
    Any strides, read in place. Same bits from run to run; docs/guarantees.md has the bound for p=2.

    Raises:
        OrderError: `p` is complex, or a string other than "fro".
        DtypeError: elements or `dtype` are no floats, or `dtype` would narrow them.
        EmptyError: a reduced dim has length 0, and `p` is negative or inf.

    Example:
        >>> tilefold.norm(torch.tensor([[3.0, -4.0], [0.0, 2.0]]), p=1, dim=1)
        tensor([7., 2.])
    """
    if overridden(input, out):
        return redirected(norm, {}, input, p, dim, keepdim, out, dtype)
    if isinstance(p, str) and p != "fro":
        fix = "use torch.linalg.matrix_norm" if p == "nuc" else "2 is the Euclidean norm"
        raise OrderError(
            f'norm: Order {shown(p)} not supported, `p` must be a real number or "fro", got {shown(p)}; {fix}'
        )
    order = 2.0 if p is None or isinstance(p, str) else p
    return _vector_norm(input, order, dim, keepdim, dtype, out, "norm")


def _vector_norm(
    x: Tensor,
    order: float,
    dim: Dims,
    keepdim: bool,
    dtype: torch.dtype | None,
    out: Tensor | None,
    call: str,
) -> Tensor:
    check_is_tensor(x, call)
    if not is_sharded([x]):
        check_memory(x, call)
    order = _number(order, call)
    need_float(x.dtype, call)
    dtype = as_dtype(dtype, call)
    if dtype is not None:
        need_float(dtype, call)
        if not _holds(dtype, x.dtype):
            raise DtypeError(
                f"{call}: `dtype` must hold {x.dtype} without narrowing, got {dtype}; convert the result"
            )
    dim = every(dim)
    if order < 0 or order == INFINITY:
        need_elements(x, dim, call)
    alone = order not in (0, 1) and all(
        is_known(x.shape[d] == 1) for d in normalize_dims(dim, x.ndim, call) if x.ndim
    )
    # One element's norm is its magnitude: no power overflows.
    monoid = monoids.NORM(INFINITY if alone else order)
    return fold_tensors([x], monoid, dim, keepdim, dtype=dtype, convert=dtype, out=out, call=call)[0]


def _number(order: Any, call: str) -> float:
    number = as_number(order)
    if number is None:
        raise OrderError(
            f"{call}: the order must be a real number, a non-complex scalar, got {shown(order)}; 2 is the Euclidean norm"
        )
    return number


def _holds(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """Whether every float of one dtype is one of another: any wider dtype has all floats of 8 bits."""
    if narrow in FLOAT8 or wide in FLOAT8:
        return wide == narrow or wide.itemsize > 1
    return torch.promote_types(narrow, wide) == wide

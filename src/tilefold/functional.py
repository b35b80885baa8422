"""torch's reductions by torch's names, folded by this library: same arguments, result dtypes, NaN rules and error kinds.

Each function is one `fold_tensors` with a monoid made beforehand; which backend runs is decided there. `dim=()` folds all
dims, as in torch, except in `any` and `all`, where it folds none. Conversions (`dtype=`, integers in `logsumexp`) happen
as elements are read. torch's warning about degrees of freedom <= 0 is not repeated: the NaN or inf says it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tilefold import math
from tilefold.algebra import catalogue
from tilefold.algebra.monoid import Monoid
from tilefold.errors import ArgumentError, DeviceError, DtypeError, EmptyError, KindError, ShapeError
from tilefold.fold import fold_tensors
from tilefold.problem import normalize_dims

__all__ = [
    "all", "amax", "amin", "aminmax", "any", "argmax", "argmin", "bitwise_and", "bitwise_or", "bitwise_xor",
    "count_nonzero", "logsumexp", "max", "mean", "min", "norm", "prod", "std", "std_mean", "sum", "var", "var_mean",
    "vector_norm",
]  # fmt: skip

Dims = int | Sequence[int] | None
INFINITY = float("inf")
UNSET: Any = type("Unset", (), {"__repr__": lambda self: "None"})()  # tells dim=None from no dim at all


def _every(dim: Dims) -> Dims:
    """Torch's reading of an empty `dim`: all dims."""
    return None if isinstance(dim, Sequence) and not dim else dim


def _need_elements(x: Tensor, dim: Dims, call: str) -> None:
    """Refuse to choose among no elements."""
    dims = normalize_dims(dim, x.ndim, call)
    lengths = [x.shape[d] for d in dims]
    if 0 in lengths:
        raise EmptyError(
            f"{call}: every folded dim needs at least one element, got shape {list(x.shape)}; "
            "fold another dim or give it elements"
        )


def _no_dim(keepdim: bool, call: str) -> None:
    """The default `dim` was left: torch has no such overload with `keepdim`."""
    if keepdim:
        raise KindError(
            f"{call}: `keepdim` needs a `dim`, got keepdim={keepdim} alone; pass dim=None for all dims"
        )


def _is_whole(number: Any) -> bool:
    """An int, numpy's and others' included; True and False are none."""
    return hasattr(number, "__index__") and not isinstance(number, bool)


def _one_dim(dim: Any, call: str) -> None:
    if dim is not None and not _is_whole(dim):
        raise KindError(f"{call}: `dim` must be one int, got {dim!r}; fold one dim at a time")


def _need_float(dtype: torch.dtype, call: str) -> None:
    if not dtype.is_floating_point:
        raise DtypeError(
            f"{call}: elements must be floats, got {dtype}; convert the input, or pass a float dtype= where it is taken"
        )


def sum(
    input: Tensor,
    dim: Dims = UNSET,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Sum over `dim`; integers and bool give int64 and wrap. `dtype` converts each element first, as torch does."""
    if dim is UNSET:
        _no_dim(keepdim, "sum")
        dim = None
    return fold_tensors(
        [input], catalogue.SUM, _every(dim), keepdim, dtype=dtype, convert=dtype, out=out, call="sum"
    )[0]


def prod(
    input: Tensor,
    dim: Dims = UNSET,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Product over one dim or all; integers and bool give int64 and wrap."""
    if dim is UNSET:
        _no_dim(keepdim, "prod")
        dim = None
    elif not _is_whole(dim):
        raise KindError(f"prod: `dim` must be one int, got {dim!r}; leave it out to fold all dims")
    return fold_tensors(
        [input], catalogue.PROD, dim, keepdim, dtype=dtype, convert=dtype, out=out, call="prod"
    )[0]


def mean(
    input: Tensor,
    dim: Dims = UNSET,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Mean over `dim`, of floats or with a float `dtype`; NaN of nothing.

    The sum is kept in the wide dtype and divided there, so that halves do not overflow. Dividing the (small) result
    costs a launch on a GPU; a projection that knew the length would cost a compilation for each length.
    """
    if dim is UNSET:
        _no_dim(keepdim, "mean")
        dim = None
    result = dtype or input.dtype
    if not result.is_floating_point:
        raise DtypeError(f"mean: elements must be floats, got {result}; pass a float dtype=")
    wide = torch.float64 if result == torch.float64 else torch.float32
    total = fold_tensors(
        [input], catalogue.SUM, _every(dim), keepdim, dtype=wide, convert=dtype, call="mean"
    )[0]
    count = input.numel() // total.numel() if total.numel() else 1
    value = (total / count).to(result)
    return value if out is None else _into(out, value, input)


def _into(out: Tensor, value: Tensor, input: Tensor) -> Tensor:
    if out.dtype != value.dtype:
        raise DtypeError(
            f"mean: `out` must have the result's dtype {value.dtype}, got {out.dtype}; pass another out"
        )
    if out.shape != value.shape:
        raise ShapeError(
            f"mean: `out` must have shape {list(value.shape)}, got {list(out.shape)}; pass another out"
        )
    if out.device != value.device:
        raise DeviceError(
            f"mean: `out` must be on the input's device {value.device}, got {out.device}; move it"
        )
    itself = [s for s, n in zip(out.stride(), out.shape, strict=True) if n > 1 and s == 0]
    if itself or (out.numel() and out.untyped_storage().data_ptr() == input.untyped_storage().data_ptr()):
        raise ShapeError(
            "mean: `out` must overlap neither the input nor itself, got shared memory; use a fresh tensor"
        )
    return out.copy_(value)


def amax(input: Tensor, dim: Dims = (), keepdim: bool = False, *, out: Tensor | None = None) -> Tensor:
    """Largest element over `dim`; NaN if there is one."""
    return _extreme(input, catalogue.MAX, dim, keepdim, out, "amax")


def amin(input: Tensor, dim: Dims = (), keepdim: bool = False, *, out: Tensor | None = None) -> Tensor:
    """Smallest element over `dim`; NaN if there is one."""
    return _extreme(input, catalogue.MIN, dim, keepdim, out, "amin")


def _extreme(x: Tensor, monoid: Monoid, dim: Dims, keepdim: bool, out: Tensor | None, call: str) -> Tensor:
    dim = _every(dim)
    if x.ndim > 64:
        raise ShapeError(f"{call}: tensors may have up to 64 dims, got {x.ndim}; reshape the input")
    if not x.numel():
        _need_elements(x, dim, call)
    return fold_tensors([x], monoid, dim, keepdim, out=out, call=call)[0]


def max(
    input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Tensor | None = None, out: Any = None
) -> Any:
    """`max(x)`: largest element. `max(x, dim)`: values and first indices. `max(x, other)`: torch.maximum, no fold."""
    if isinstance(dim, Tensor) or other is not None:
        return torch.maximum(input, dim if other is None else other, out=out)
    if dim is None:
        return _extreme(input, catalogue.MAX, None, keepdim, out, "max")
    return torch.return_types.max(_located(input, catalogue.MAX_WITH_INDEX, dim, keepdim, out, "max"))  # type: ignore[arg-type]  # any sequence of two will do


def min(
    input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Tensor | None = None, out: Any = None
) -> Any:
    """`min(x)`: smallest element. `min(x, dim)`: values and first indices. `min(x, other)`: torch.minimum, no fold."""
    if isinstance(dim, Tensor) or other is not None:
        return torch.minimum(input, dim if other is None else other, out=out)
    if dim is None:
        return _extreme(input, catalogue.MIN, None, keepdim, out, "min")
    return torch.return_types.min(_located(input, catalogue.MIN_WITH_INDEX, dim, keepdim, out, "min"))  # type: ignore[arg-type]  # the same


def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Position of the first largest element (or first NaN): along `dim`, or in the flattened tensor."""
    return _located(input, catalogue.ARGMAX, dim, keepdim, None, "argmax")[0]


def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Position of the first smallest element (or first NaN): along `dim`, or in the flattened tensor."""
    return _located(input, catalogue.ARGMIN, dim, keepdim, None, "argmin")[0]


def _located(x: Tensor, monoid: Monoid, dim: Any, keepdim: bool, out: Any, call: str) -> list[Tensor]:
    _one_dim(dim, call)
    if x.ndim > 64:
        raise ShapeError(f"{call}: tensors may have up to 64 dims, got {x.ndim}; reshape the input")
    if not x.numel():
        _need_elements(x, dim, call)
    return fold_tensors([x], monoid, dim, keepdim, out=out, call=call)


def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False, out: Any = None) -> Any:
    """Smallest and largest element in one read."""
    return torch.return_types.aminmax(_located(input, catalogue.MINMAX, dim, keepdim, out, "aminmax"))  # type: ignore[arg-type]  # the same


def any(input: Tensor, dim: Dims = None, keepdim: bool = False, *, out: Tensor | None = None) -> Tensor:
    """Whether any element is not zero (NaN is not); bool, but uint8 for uint8."""
    return _test(input, catalogue.ANY, dim, keepdim, out, "any")


def all(input: Tensor, dim: Dims = None, keepdim: bool = False, *, out: Tensor | None = None) -> Tensor:
    """Whether no element is zero; bool, but uint8 for uint8."""
    return _test(input, catalogue.ALL, dim, keepdim, out, "all")


def _test(x: Tensor, monoid: Monoid, dim: Dims, keepdim: bool, out: Tensor | None, call: str) -> Tensor:
    if x.dtype != torch.uint8:
        return fold_tensors([x], monoid, dim, keepdim, out=out, call=call)[0]
    if out is not None and out.dtype == torch.uint8:
        fold_tensors([x], monoid, dim, keepdim, out=out.view(torch.bool), call=call)
        return out
    result = fold_tensors([x], monoid, dim, keepdim, out=out, call=call)[0]
    return result.view(torch.uint8) if out is None else out  # bool's bytes are 0 and 1


def count_nonzero(input: Tensor, dim: Dims = None) -> Tensor:
    """How many elements are not zero, as int64."""
    return fold_tensors([input], catalogue.COUNT_NONZERO, _every(dim), False, call="count_nonzero")[0]


@functools.lru_cache(maxsize=64)
def _moments(correction: float, root: bool, with_mean: bool) -> Monoid:
    """WELFORD that ends in M2 / max(0, count - correction): its root, and the mean beside it, if asked for."""

    def project(count: Any, mean: Any, squares: Any) -> Any:
        spread = squares / math.maximum(count - correction, 0.0)
        spread = math.sqrt(spread) if root else spread
        if not with_mean:
            return spread
        # torch's mean beside a variance is NaN too where several elements have no variance (monoids.WELFORD keeps it).
        lost = (count == 0) | (math.isnan(squares) & (count > 1))
        return spread, math.where(lost, float("nan"), mean)

    name = ("std" if root else "var") + ("_mean" if with_mean else "")
    return catalogue.welford(project, name)


def _spread(
    x: Tensor,
    dim: Any,
    unbiased: bool | None,
    keepdim: bool,
    correction: float | None,
    root: bool,
    with_mean: bool,
    out: Any,
) -> list[Tensor]:
    call = ("std" if root else "var") + ("_mean" if with_mean else "")
    _need_float(x.dtype, call)
    if isinstance(dim, bool):  # torch's overload var(x, unbiased)
        dim, unbiased = None, dim
    if unbiased is not None and correction is not None:
        raise KindError(f"{call}: give `unbiased` or `correction`, got both; unbiased=True is correction=1")
    if correction is None:
        correction = 0 if unbiased is False else 1
    monoid = _moments(float(correction), root, with_mean)
    return fold_tensors([x], monoid, _every(dim), keepdim, out=out, call=call)


def var(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False,
    *, correction: float | None = None, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Variance: M2 / max(0, count - correction), correction being 1 unless told (0 with unbiased=False)."""
    return _spread(input, dim, unbiased, keepdim, correction, False, False, out)[0]


def std(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False,
    *, correction: float | None = None, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Square root of `var`."""
    return _spread(input, dim, unbiased, keepdim, correction, True, False, out)[0]


def var_mean(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False,
    *, correction: float | None = None, out: Any = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Variance and mean in one read."""
    variance, average = _spread(input, dim, unbiased, keepdim, correction, False, True, out)
    return variance, average


def std_mean(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False,
    *, correction: float | None = None, out: Any = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Standard deviation and mean in one read."""
    deviation, average = _spread(input, dim, unbiased, keepdim, correction, True, True, out)
    return deviation, average


def logsumexp(input: Tensor, dim: Dims, keepdim: bool = False, *, out: Tensor | None = None) -> Tensor:
    """log(sum(exp(x))) without overflow; integers and bool are read as float32."""
    convert = None if input.dtype.is_floating_point or input.dtype.is_complex else torch.get_default_dtype()
    return fold_tensors(
        [input], catalogue.LOGSUMEXP, _every(dim), keepdim, convert=convert, out=out, call="logsumexp"
    )[0]


@functools.lru_cache(maxsize=64)
def _norm(order: float) -> Monoid:
    return catalogue.NORM(order)


def vector_norm(
    x: Tensor, ord: float = 2, dim: Dims = None, keepdim: bool = False,
    *, dtype: torch.dtype | None = None, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """(sum |x|^ord)^(1/ord) over `dim`; inf and -inf give the largest and smallest |x|, 0 counts non-zeros."""
    return _vector_norm(x, ord, dim, keepdim, dtype, out, "vector_norm")


def norm(
    input: Tensor, p: float | str | None = "fro", dim: Dims = None, keepdim: bool = False,
    out: Tensor | None = None, dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """The p-norm of the elements over `dim`; "fro" and None are p = 2. "nuc" needs singular values: no fold."""
    if isinstance(p, str) and p != "fro":
        raise ArgumentError(f'norm: `p` must be a number or "fro", got {p!r}; use torch.linalg.matrix_norm')
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
    _need_float(x.dtype, call)
    if dtype is not None:
        _need_float(dtype, call)
        if torch.promote_types(x.dtype, dtype) != dtype:
            raise DtypeError(
                f"{call}: `dtype` must hold {x.dtype} without narrowing, got {dtype}; convert the result"
            )
    dim = _every(dim)
    if not x.numel() and (order < 0 or order == INFINITY):
        _need_elements(x, dim, call)
    return fold_tensors(
        [x], _norm(float(order)), dim, keepdim, dtype=dtype, convert=dtype, out=out, call=call
    )[0]


def bitwise_or(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, out: Tensor | None = None
) -> Tensor:
    """Bits set in any element, in the input's integer dtype or bool; 0 of nothing."""
    return fold_tensors([input], catalogue.BITWISE_OR, _every(dim), keepdim, out=out, call="bitwise_or")[0]


def bitwise_and(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, out: Tensor | None = None
) -> Tensor:
    """Bits set in every element, in the input's integer dtype or bool; all ones of nothing."""
    return fold_tensors([input], catalogue.BITWISE_AND, _every(dim), keepdim, out=out, call="bitwise_and")[0]


def bitwise_xor(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, out: Tensor | None = None
) -> Tensor:
    """Bits set in an odd number of elements, in the input's integer dtype or bool; 0 of nothing."""
    return fold_tensors([input], catalogue.BITWISE_XOR, _every(dim), keepdim, out=out, call="bitwise_xor")[0]

"""Truth, counts and bits: any, all, count_nonzero, bitwise_or, bitwise_and, bitwise_xor."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack  # torch depends on it

from tilefold import monoids
from tilefold.algebra.monoid import Monoid
from tilefold.api.reduce import fold_tensors
from tilefold.errors import DtypeError
from tilefold.functional.arguments import Dims, NumpyNames, every, redirected
from tilefold.planner.problem.validate import check_is_tensor
from tilefold.runtime.overrides import overridden


def any(
    input: Tensor, dim: Dims = None, keepdim: bool = False,
    *, out: Tensor | None = None, **names: Unpack[NumpyNames],
) -> Tensor:  # fmt: skip
    """Whether any element is not zero. NaN is not zero, so NaN counts as true.

        y[k] = or over p of (x[k, p] != 0)

    Shapes: [M, K] to [M]. `dim=()` folds nothing: each element is tested. Of nothing it is False.
    Dtypes: any in, bool out, but uint8 for uint8, as in torch (`out` may be of either then).
    Any strides, read in place. Exact: the same on every backend.

    Raises:
        DtypeError: elements are complex.

    Example:
        >>> tilefold.any(torch.tensor([[0.0, float("nan")], [0.0, 0.0]]), dim=1)
        tensor([ True, False])
    """
    if names or overridden(input, out):
        return redirected(any, names, input, dim, keepdim, out)
    return _test(input, monoids.ANY, dim, keepdim, out, "any")


def all(
    input: Tensor, dim: Dims = None, keepdim: bool = False,
    *, out: Tensor | None = None, **names: Unpack[NumpyNames],
) -> Tensor:  # fmt: skip
    """Whether no element is zero. NaN is not zero, so NaN counts as true.

        y[k] = and over p of (x[k, p] != 0)

    Shapes: [M, K] to [M]. `dim=()` folds nothing: each element is tested. Of nothing it is True.
    Dtypes: any in, bool out, but uint8 for uint8, as in torch (`out` may be of either then).
    Any strides, read in place. Exact: the same on every backend.

    Raises:
        DtypeError: elements are complex.

    Example:
        >>> tilefold.all(torch.tensor([[1.0, float("nan")], [1.0, 0.0]]), dim=1)
        tensor([ True, False])
    """
    if names or overridden(input, out):
        return redirected(all, names, input, dim, keepdim, out)
    return _test(input, monoids.ALL, dim, keepdim, out, "all")


def _test(x: Tensor, monoid: Monoid, dim: Dims, keepdim: bool, out: Tensor | None, call: str) -> Tensor:
    check_is_tensor(x, call)
    if x.dtype != torch.uint8 or (out is not None and not isinstance(out, Tensor)):
        return fold_tensors([x], monoid, dim, keepdim, out=out, call=call)[0]
    if out is not None and out.dtype == torch.uint8:
        fold_tensors([x], monoid, dim, keepdim, out=out.view(torch.bool), call=call)
        return out
    result = fold_tensors([x], monoid, dim, keepdim, out=out, call=call)[0]
    return result.view(torch.uint8) if out is None else out  # bool's bytes are 0 and 1


def count_nonzero(input: Tensor, dim: Dims = None, **names: Unpack[NumpyNames]) -> Tensor:
    """How many elements are not zero; NaN is not zero and is counted.

        y[k] = how many p have x[k, p] != 0

    Shapes: [M, K] to [M]; torch has no `keepdim` here. Of nothing it is 0.
    Dtypes: any in, counted and returned in int64.
    Any strides, read in place. Exact: the same on every backend.

    Raises:
        DtypeError: elements are complex.

    Example:
        >>> tilefold.count_nonzero(torch.tensor([[0, 3], [0, 0]]), dim=1)
        tensor([1, 0])
    """
    if names or overridden(input):
        return redirected(count_nonzero, names, input, dim)
    return fold_tensors([input], monoids.COUNT_NONZERO, every(dim), False, call="count_nonzero")[0]


def bitwise_or(
    input: Tensor, dim: Dims = None, keepdim: bool = False,
    *, out: Tensor | None = None, **names: Unpack[NumpyNames],
) -> Tensor:  # fmt: skip
    """Bits set in any element.

        y[k] = or over p of x[k, p]

    Shapes: [M, K] to [M]. Of nothing it is 0.
    Dtypes: integers and bool, in and out. torch does not have this reduction.
    Any strides, read in place. Exact: the same on every backend.

    Raises:
        DtypeError: elements are floats or complex.

    Example:
        >>> tilefold.bitwise_or(torch.tensor([[3, 5], [8, 9]]), dim=1)
        tensor([7, 9])
    """
    if names or overridden(input, out):
        return redirected(bitwise_or, names, input, dim, keepdim, out)
    return _bits(input, monoids.BITWISE_OR, dim, keepdim, out, "bitwise_or")


def bitwise_and(
    input: Tensor, dim: Dims = None, keepdim: bool = False,
    *, out: Tensor | None = None, **names: Unpack[NumpyNames],
) -> Tensor:  # fmt: skip
    """Bits set in every element.

        y[k] = and over p of x[k, p]

    Shapes: [M, K] to [M]. Of nothing it is all ones (-1 where signed, True for bool).
    Dtypes: integers and bool, in and out. torch does not have this reduction.
    Any strides, read in place. Exact: the same on every backend.

    Raises:
        DtypeError: elements are floats or complex.

    Example:
        >>> tilefold.bitwise_and(torch.tensor([[3, 5], [8, 9]]), dim=1)
        tensor([1, 8])
    """
    if names or overridden(input, out):
        return redirected(bitwise_and, names, input, dim, keepdim, out)
    return _bits(input, monoids.BITWISE_AND, dim, keepdim, out, "bitwise_and")


def bitwise_xor(
    input: Tensor, dim: Dims = None, keepdim: bool = False,
    *, out: Tensor | None = None, **names: Unpack[NumpyNames],
) -> Tensor:  # fmt: skip
    """Bits set in an odd number of elements.

        y[k] = xor over p of x[k, p]

    Shapes: [M, K] to [M]. Of nothing it is 0.
    Dtypes: integers and bool, in and out. torch does not have this reduction.
    Any strides, read in place. Exact: the same on every backend.

    Raises:
        DtypeError: elements are floats or complex.

    Example:
        >>> tilefold.bitwise_xor(torch.tensor([[3, 5], [8, 9]]), dim=1)
        tensor([6, 1])
    """
    if names or overridden(input, out):
        return redirected(bitwise_xor, names, input, dim, keepdim, out)
    return _bits(input, monoids.BITWISE_XOR, dim, keepdim, out, "bitwise_xor")


def _bits(x: Tensor, monoid: Monoid, dim: Dims, keepdim: bool, out: Tensor | None, call: str) -> Tensor:
    check_is_tensor(x, call)
    if x.is_floating_point():
        raise DtypeError(
            f"{call}: elements must be integers or bool, got {x.dtype}; convert the input, or view its bits as integers"
        )
    return fold_tensors([x], monoid, every(dim), keepdim, out=out, call=call)[0]

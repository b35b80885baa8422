"""Sums and folds like them: sum, prod, mean, logsumexp."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack  # torch depends on it

from tilefold import monoids
from tilefold.algebra.dtypes import result_dtype
from tilefold.api.reduce import fold_tensors
from tilefold.errors import DtypeError, KindError, shown
from tilefold.functional.arguments import (
    LEFT,
    NEEDED,
    UNSET,
    Dims,
    NumpyNames,
    asked_dtype,
    every,
    given,
    is_whole,
    no_dim,
    redirected,
)
from tilefold.planner.problem.instead import of_complex
from tilefold.planner.problem.validate import as_dtype, check_is_tensor, check_out
from tilefold.runtime.modes import is_known
from tilefold.runtime.overrides import overridden


def sum(
    input: Tensor, dim: Dims = UNSET, keepdim: bool = LEFT,
    *, dtype: torch.dtype | None = None, out: Tensor | None = None, **names: Unpack[NumpyNames],
) -> Tensor:  # fmt: skip
    """Sum of the elements.

        y[k] = sum over p of x[k, p]

    Shapes: [M, K] to [M]. Nothing sums to 0.
    Dtypes: floats as they came, accumulated in float32 or float64; integers and bool give int64 and wrap. `dtype`, or
    without it `out`'s, converts each element first, as in torch, and is the result's.
    Any strides, read in place. Integers are exact; floats have the same bits from run to run and the bound of `sum` in
    docs/guarantees.md.

    Raises:
        DtypeError: elements are complex.
        KindError: `keepdim` without a `dim`, as in torch.

    Example:
        >>> tilefold.sum(torch.tensor([[1, 2], [3, 4]], dtype=torch.int8), dim=1)
        tensor([3, 7])
    """
    if names or overridden(input, out):
        return redirected(sum, names, input, dim, keepdim, dtype, out)
    if dim is UNSET:
        no_dim(keepdim, "sum")
        dim = None
    dtype = asked_dtype(dtype, out)
    return fold_tensors(
        [input], monoids.SUM, every(dim), given(keepdim), dtype=dtype, convert=dtype, out=out, call="sum"
    )[0]


def prod(
    input: Tensor, dim: Dims = UNSET, keepdim: bool = LEFT,
    *, dtype: torch.dtype | None = None, out: Tensor | None = None, **names: Unpack[NumpyNames],
) -> Tensor:  # fmt: skip
    """Product of the elements, over one dim or all.

        y[k] = product over p of x[k, p]

    Shapes: [M, K] to [M]; to fold all dims leave `dim` out. Nothing multiplies to 1.
    Dtypes: floats as they came, accumulated in float32 or float64; integers and bool give int64 and wrap. `dtype`, or
    without it `out`'s, converts each element first and is the result's.
    Any strides, read in place. Integers are exact; floats have the same bits from run to run and the bound of `prod` in
    docs/guarantees.md.

    Raises:
        DtypeError: elements are complex.
        KindError: `dim` is given and not one int, or `keepdim` without a `dim`, both as in torch.

    Example:
        >>> tilefold.prod(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), dim=0)
        tensor([3., 8.])
    """
    if names or overridden(input, out):
        return redirected(prod, names, input, dim, keepdim, dtype, out)
    if dim is UNSET:
        no_dim(keepdim, "prod")
        dim = None
    elif not is_whole(dim):
        raise KindError(f"prod: `dim` must be one int, got {shown(dim)}; leave it out to fold all dims")
    dtype = asked_dtype(dtype, out)
    return fold_tensors(
        [input], monoids.PROD, dim, given(keepdim), dtype=dtype, convert=dtype, out=out, call="prod"
    )[0]


def mean(
    input: Tensor, dim: Dims = UNSET, keepdim: bool = LEFT,
    *, dtype: torch.dtype | None = None, out: Tensor | None = None, **names: Unpack[NumpyNames],
) -> Tensor:  # fmt: skip
    """Mean of the elements, which are floats or made so by `dtype`.

        y[k] = (sum over p of x[k, p]) / n

    Shapes: [M, K] to [M]. The mean of nothing is NaN.
    Dtypes: floats as they came; `dtype`, or without it `out`'s, converts each element first and is the result's. The sum is
    kept in float32 or float64 and divided there, so that halves do not overflow. Dividing the (small) result costs a launch
    on a GPU; a projection that knew the length would cost a compilation for each length.
    Any strides, read in place. Same bits from run to run; the bound of `mean` in docs/guarantees.md.

    Raises:
        DtypeError: elements are no floats and no float `dtype` is given.
        KindError: `keepdim` without a `dim`, as in torch.

    Example:
        >>> tilefold.mean(torch.tensor([60000.0, 60000.0], dtype=torch.float16))
        tensor(60000., dtype=torch.float16)
    """
    if names or overridden(input, out):
        return redirected(mean, names, input, dim, keepdim, dtype, out)
    check_is_tensor(input, "mean")
    if dim is UNSET:
        no_dim(keepdim, "mean")
        dim = None
    dtype = as_dtype(asked_dtype(dtype, out) if input.is_floating_point() else dtype, "mean")
    result = dtype or result_dtype(input.dtype)
    if not result.is_floating_point:
        raise DtypeError(
            f"mean: could not infer output dtype, elements must be floating point, got {result}; "
            f"{of_complex() if result.is_complex else 'pass a float dtype='}"
        )
    wide = torch.float64 if result == torch.float64 else torch.float32
    total = fold_tensors(
        [input], monoids.SUM, every(dim), given(keepdim), dtype=wide, convert=dtype, call="mean"
    )[0]
    count = 1 if is_known(total.numel() == 0) else input.numel() // total.numel()
    value = (total / count).to(result)
    targets = check_out(out, [result], value.shape, [input], "mean")
    return value if targets is None else targets[0].copy_(value)


def logsumexp(
    input: Tensor, dim: Dims = NEEDED, keepdim: bool = False,
    *, out: Tensor | None = None, **names: Unpack[NumpyNames],
) -> Tensor:  # fmt: skip
    """Logarithm of the sum of exponentials, without overflow on the way.

        y[k] = log(sum over p of exp(x[k, p]))

    Shapes: [M, K] to [M]; `dim` must be given, None for all. Of nothing it is -inf.
    Dtypes: floats as they came; integers and bool are read as torch's default dtype. The largest element and the sum
    rescaled to it are accumulated in float32 or float64.
    Any strides, read in place. Same bits from run to run; the bound of `logsumexp` in docs/guarantees.md.

    Raises:
        DtypeError: elements are complex.

    Example:
        >>> tilefold.logsumexp(torch.tensor([[1000.0, -1000.0], [float("-inf"), 2.0]]), dim=1)
        tensor([1000.,    2.])

    Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
    """
    if names or overridden(input, out):
        return redirected(logsumexp, names, input, dim, keepdim, out)
    if dim is NEEDED:
        raise KindError("logsumexp: `dim` must be given, got none; pass dim=None to fold all dims")
    check_is_tensor(input, "logsumexp")
    convert = None if input.dtype.is_floating_point or input.dtype.is_complex else torch.get_default_dtype()
    return fold_tensors(
        [input], monoids.LOGSUMEXP, every(dim), keepdim, convert=convert, out=out, call="logsumexp"
    )[0]

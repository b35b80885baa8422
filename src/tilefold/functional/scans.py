"""Every prefix along a dim: cumsum, cumprod, cummax, cummin, logcumsumexp."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import Unpack  # torch depends on it

from tilefold import monoids
from tilefold.algebra.monoid import Monoid
from tilefold.api import dispatch
from tilefold.api.scan import scan_tensors
from tilefold.errors import KindError, shown
from tilefold.functional.arguments import NEEDED, NumpyNames, asked_dtype, is_whole, need_float, redirected
from tilefold.planner.problem.validate import check_is_tensor
from tilefold.runtime.overrides import listed, overridden
from tilefold.runtime.switch import named_key


def cumsum(
    input: Tensor, dim: int = NEEDED, *, dtype: torch.dtype | None = None, out: Tensor | None = None,
    guarantee: str = "run_to_run", **names: Unpack[NumpyNames],
) -> Tensor:  # fmt: skip
    """Sum of the elements up to each one.

        y[m, p] = sum over q <= p of x[m, q]

    Shapes: [M, K] to [M, K]; an empty dim gives an empty result.
    Dtypes: floats as they came, accumulated in float32 or float64; integers and bool give int64 and wrap. `dtype`, or
    without it `out`'s, converts each element first and is the result's.
    Any strides, read in place on a GPU. Same bits from run to run, however many programs share a row; with guarantee
    "batch_invariant" a row's bits do not depend on how many rows there are.

    Raises:
        DtypeError: elements are complex.

    Example:
        >>> tilefold.cumsum(torch.tensor([[1, 2, 3], [4, 5, 6]]), dim=1)
        tensor([[ 1,  3,  6],
                [ 4,  9, 15]])
    """
    if names or overridden(input, out):
        return redirected(cumsum, names, input, dim, dtype, out, guarantee)
    dtype = asked_dtype(dtype, out)
    return _prefixes(input, monoids.SUM, dim, dtype, dtype, out, guarantee, "cumsum")[0]


def cumprod(
    input: Tensor, dim: int = NEEDED, *, dtype: torch.dtype | None = None, out: Tensor | None = None,
    guarantee: str = "run_to_run", **names: Unpack[NumpyNames],
) -> Tensor:  # fmt: skip
    """Product of the elements up to each one.

        y[m, p] = product over q <= p of x[m, q]

    Shapes: [M, K] to [M, K]; an empty dim gives an empty result.
    Dtypes: floats as they came, accumulated in float32 or float64; integers and bool give int64 and wrap. `dtype`, or
    without it `out`'s, converts each element first and is the result's.
    Any strides, read in place on a GPU. Same bits from run to run, however many programs share a row; with guarantee
    "batch_invariant" a row's bits do not depend on how many rows there are.

    Raises:
        DtypeError: elements are complex.

    Example:
        >>> tilefold.cumprod(torch.tensor([1.0, 2.0, 3.0, 4.0]), dim=0)
        tensor([ 1.,  2.,  6., 24.])
    """
    if names or overridden(input, out):
        return redirected(cumprod, names, input, dim, dtype, out, guarantee)
    dtype = asked_dtype(dtype, out)
    return _prefixes(input, monoids.PROD, dim, dtype, dtype, out, guarantee, "cumprod")[0]


def cummax(
    input: Tensor, dim: int = NEEDED, *, out: Any = None, guarantee: str = "run_to_run",
    **names: Unpack[NumpyNames],
) -> torch.return_types.cummax:  # fmt: skip
    """Largest element up to each one, and where it last stands; NaN from the first one on.

        y[m, p] = max over q <= p of x[m, q],  i[m, p] = the last q <= p with x[m, q] = y[m, p], or with NaN

    Shapes: [M, K] to twice [M, K], torch's named tuple (values, indices); `out` is a pair.
    Dtypes: the input's, and int64. Elements are compared, never computed with.
    Any strides, read in place on a GPU. Values and indices are exact on every backend.

    Raises:
        DtypeError: elements are complex.

    Example:
        >>> tilefold.cummax(torch.tensor([1, 3, 2, 3]), dim=0).indices
        tensor([0, 1, 1, 3])
    """
    if names or overridden(input, *listed(out)):
        return redirected(cummax, names, input, dim, out, guarantee)
    values, indices = _prefixes(
        input, monoids.CUMMAX, dim, None, None, out, guarantee, "cummax", any_dim=True
    )
    return torch.return_types.cummax((values, indices))


def cummin(
    input: Tensor, dim: int = NEEDED, *, out: Any = None, guarantee: str = "run_to_run",
    **names: Unpack[NumpyNames],
) -> torch.return_types.cummin:  # fmt: skip
    """Smallest element up to each one, and where it last stands; NaN from the first one on.

        y[m, p] = min over q <= p of x[m, q],  i[m, p] = the last q <= p with x[m, q] = y[m, p], or with NaN

    Shapes: [M, K] to twice [M, K], torch's named tuple (values, indices); `out` is a pair.
    Dtypes: the input's, and int64. Elements are compared, never computed with.
    Any strides, read in place on a GPU. Values and indices are exact on every backend.

    Raises:
        DtypeError: elements are complex.

    Example:
        >>> tilefold.cummin(torch.tensor([3.0, 1.0, 2.0]), dim=0).values
        tensor([3., 1., 1.])
    """
    if names or overridden(input, *listed(out)):
        return redirected(cummin, names, input, dim, out, guarantee)
    values, indices = _prefixes(
        input, monoids.CUMMIN, dim, None, None, out, guarantee, "cummin", any_dim=True
    )
    return torch.return_types.cummin((values, indices))


def logcumsumexp(
    input: Tensor, dim: int = NEEDED, *, out: Tensor | None = None, guarantee: str = "run_to_run",
    **names: Unpack[NumpyNames],
) -> Tensor:  # fmt: skip
    """Logarithm of the sum of exponentials up to each element, without overflow on the way.

        y[m, p] = log(sum over q <= p of exp(x[m, q]))

    Shapes: [M, K] to [M, K]; an empty dim gives an empty result.
    Dtypes: floats as they came. The largest element and the sum rescaled to it are accumulated in float32 or float64.
    Any strides, read in place on a GPU. Same bits from run to run, however many programs share a row; with guarantee
    "batch_invariant" a row's bits do not depend on how many rows there are.

    Raises:
        DtypeError: elements are no floats.

    Example:
        >>> tilefold.logcumsumexp(torch.tensor([1000.0, 1000.0, -1000.0]), dim=0)
        tensor([1000.0000, 1000.6932, 1000.6932])
    """
    if names or overridden(input, out):
        return redirected(logcumsumexp, names, input, dim, out, guarantee)
    check_is_tensor(input, "logcumsumexp")
    need_float(input.dtype, "logcumsumexp")
    return _prefixes(input, monoids.LOGSUMEXP, dim, None, None, out, guarantee, "logcumsumexp")[0]


def _prefixes(
    x: Tensor,
    monoid: Monoid,
    dim: Any,
    dtype: torch.dtype | None,
    convert: torch.dtype | None,
    out: Any,
    guarantee: str,
    call: str,
    any_dim: bool = False,
) -> list[Tensor]:
    """The scan of a function of torch's; with `any_dim` torch looks at the dim where there are elements only."""
    key, made = dispatch.again(named_key, [x], call, dim, (dtype, guarantee)) if out is None else (None, None)
    if made is not None:
        return made
    check_is_tensor(x, call)
    if any_dim and not x.numel() and is_whole(dim):
        dim = 0
    if dim is NEEDED or not is_whole(dim):
        got = "none" if dim is NEEDED else shown(dim)
        raise KindError(f"{call}: `dim` must be one int, got {got}; name the dim to scan")
    return scan_tensors(
        [x], monoid, int(dim), dtype=dtype, convert=convert, out=out, guarantee=guarantee, call=call, key=key
    )

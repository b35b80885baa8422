"""Variance and standard deviation, with and without the mean."""

from __future__ import annotations

import warnings
from math import isnan
from typing import Any

from torch import Tensor
from torch.compiler import is_dynamo_compiling
from typing_extensions import Unpack  # torch depends on it

from tilefold.algebra import powers
from tilefold.api.reduce import fold_tensors
from tilefold.errors import DtypeError, KindError, shown
from tilefold.functional.arguments import (
    INFINITY,
    LEFT,
    USUAL,
    NumpyNames,
    as_number,
    every,
    given,
    is_complex,
    need_float,
    redirected,
)
from tilefold.planner.problem.validate import check_is_tensor, is_abstract
from tilefold.runtime.overrides import listed, overridden


def _spread(
    x: Tensor,
    dim: Any,
    unbiased: bool,
    keepdim: bool,
    correction: float | None,
    root: bool,
    with_mean: bool,
    out: Any,
) -> list[Tensor]:
    call = ("std" if root else "var") + ("_mean" if with_mean else "")
    check_is_tensor(x, call)
    need_float(x.dtype, call)
    if isinstance(dim, bool):  # torch's overload var(x, unbiased), which takes nothing else
        if unbiased is not USUAL or keepdim is not LEFT or out is not None:
            raise KindError(
                f"{call}: `{call}(x, {dim})` takes no other arguments, got more; pass dim=None, unbiased={dim}"
            )
        dim, unbiased = None, dim
    if correction is None:
        freedom = _correction(unbiased, call)
    elif unbiased is USUAL:
        freedom = _number(correction, call)
    else:
        raise KindError(f"{call}: give `unbiased` or `correction`, got both; unbiased=True is correction=1")
    monoid = powers.spread(freedom, root, with_mean)
    results = fold_tensors([x], monoid, every(dim), given(keepdim), out=out, call=call)
    if is_dynamo_compiling():  # a graph warns of nothing when it runs
        return results
    elements, kept = x.numel(), results[0].numel()
    if type(elements) is int and (elements <= freedom * kept or not kept):  # a symbol would be guarded
        _warn_of_freedom(x, kept, correction, freedom, call)
    return results


def _warn_of_freedom(x: Tensor, kept: int, correction: Any, freedom: float, call: str) -> None:
    """Say, where torch does and in its words, that deviations have no degrees of freedom to be divided by."""
    elements = x.numel() // kept if kept else 0
    of_nan = correction is not None and isnan(as_number(correction) or 0.0)
    if elements <= freedom and not of_nan and not is_abstract(x):
        warnings.warn(
            f"{call}(): degrees of freedom is <= 0. Correction should be strictly less than the reduction factor (input "
            "numel divided by output numel).",
            UserWarning,
            stacklevel=4,
        )


def _correction(unbiased: Any, call: str) -> float:
    """The correction that `unbiased` stands for."""
    if unbiased is True or unbiased is USUAL:
        return 1.0
    if unbiased is False:
        return 0.0
    raise KindError(
        f"{call}: `unbiased` must be True or False, got {shown(unbiased)}; pass correction= for a number"
    )


def _number(correction: Any, call: str) -> float:
    """A correction that was given. NaN leaves no degrees of freedom, as in torch, and as infinity does."""
    number = as_number(correction)
    if number is None:
        kind = DtypeError if is_complex(correction) else KindError
        raise kind(
            f"{call}: `correction` must be a real number, got {shown(correction)}; 1 is the unbiased variance, 0 the other"
        )
    return INFINITY if isnan(number) else number


def var(
    input: Tensor, dim: Any = None, unbiased: bool = USUAL, keepdim: bool = LEFT,
    *, correction: float | None = None, out: Tensor | None = None, **names: Unpack[NumpyNames],
) -> Tensor:  # fmt: skip
    """Variance: the sum of squared deviations from the mean, over the degrees of freedom.

        y[k] = (sum over p of (x[k, p] - mean[k])^2) / max(0, n - correction)

    `correction` is 1 unless told; `unbiased=False` is 0, and `var(x, False)` too, torch's older form. With n <= correction it
    is NaN, or inf where deviations are not 0, and a UserWarning says so, as torch's does, but in a compiled graph. The
    variance of nothing is NaN.
    Shapes: [M, K] to [M].
    Dtypes: floats, which come back as they came; accumulated in float32 or float64.
    Any strides, read in place. Same bits from run to run; the bound of `var` in docs/guarantees.md: data far from zero
    cost no accuracy.

    Raises:
        DtypeError: elements are no floats.
        KindError: both `unbiased` and `correction` are given, `unbiased` is no bool, or `correction` no number.

    Example:
        >>> tilefold.var(torch.tensor([[1.0, 3.0], [2.0, 6.0]]), dim=1)
        tensor([2., 8.])

    Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
    """
    if names or overridden(input, out):
        return redirected(var, names, input, dim, unbiased, keepdim, correction, out)
    return _spread(input, dim, unbiased, keepdim, correction, False, False, out)[0]


def std(
    input: Tensor, dim: Any = None, unbiased: bool = USUAL, keepdim: bool = LEFT,
    *, correction: float | None = None, out: Tensor | None = None, **names: Unpack[NumpyNames],
) -> Tensor:  # fmt: skip
    """Standard deviation: the square root of `var`, with its arguments.

        y[k] = sqrt((sum over p of (x[k, p] - mean[k])^2) / max(0, n - correction))

    Shapes: [M, K] to [M].
    Dtypes: floats, which come back as they came; the root is taken in float32 or float64, before the one rounding.
    Any strides, read in place. Same bits from run to run; the bound of `std` in docs/guarantees.md.

    Raises:
        DtypeError: elements are no floats.
        KindError: both `unbiased` and `correction` are given, `unbiased` is no bool, or `correction` no number.

    Example:
        >>> tilefold.std(torch.tensor([1.0, 3.0, 5.0]))
        tensor(2.)
    """
    if names or overridden(input, out):
        return redirected(std, names, input, dim, unbiased, keepdim, correction, out)
    return _spread(input, dim, unbiased, keepdim, correction, True, False, out)[0]


def var_mean(
    input: Tensor, dim: Any = None, unbiased: bool = USUAL, keepdim: bool = LEFT,
    *, correction: float | None = None, out: Any = None, **names: Unpack[NumpyNames],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Variance and mean in one read; arguments as in `var`.

        mean[k] = (sum over p of x[k, p]) / n,  y[k] = as in `var`

    Shapes: [M, K] to [M] twice: the tuple (variance, mean), with `out` a pair.
    Dtypes: floats, which come back as they came; accumulated in float32 or float64.
    Any strides, read in place. Same bits from run to run; the bound of `var` in docs/guarantees.md. The mean is
    NaN too where several elements have no variance, infinite ones for instance (in torch, unless the infinity is last).

    Raises:
        DtypeError: elements are no floats.
        KindError: both `unbiased` and `correction` are given, `unbiased` is no bool, or `correction` no number.

    Example:
        >>> tilefold.var_mean(torch.tensor([1.0, 3.0, 5.0]))
        (tensor(4.), tensor(3.))
    """
    if names or overridden(input) or (out is not None and overridden(*listed(out))):
        return redirected(var_mean, names, input, dim, unbiased, keepdim, correction, out)
    variance, average = _spread(input, dim, unbiased, keepdim, correction, False, True, out)
    return variance, average


def std_mean(
    input: Tensor, dim: Any = None, unbiased: bool = USUAL, keepdim: bool = LEFT,
    *, correction: float | None = None, out: Any = None, **names: Unpack[NumpyNames],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Standard deviation and mean in one read; arguments as in `var`.

        mean[k] = (sum over p of x[k, p]) / n,  y[k] = as in `std`

    Shapes: [M, K] to [M] twice: the tuple (standard deviation, mean), with `out` a pair.
    Dtypes: floats, which come back as they came; accumulated in float32 or float64.
    Any strides, read in place. Same bits from run to run; the bound of `std` in docs/guarantees.md. The mean is that of
    `var_mean`.

    Raises:
        DtypeError: elements are no floats.
        KindError: both `unbiased` and `correction` are given, `unbiased` is no bool, or `correction` no number.

    Example:
        >>> tilefold.std_mean(torch.tensor([1.0, 3.0, 5.0]))
        (tensor(2.), tensor(3.))
    """
    if names or overridden(input) or (out is not None and overridden(*listed(out))):
        return redirected(std_mean, names, input, dim, unbiased, keepdim, correction, out)
    deviation, average = _spread(input, dim, unbiased, keepdim, correction, True, True, out)
    return deviation, average

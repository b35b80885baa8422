"""torch's reductions by torch's names, folded by this library: same arguments, result dtypes, NaN rules and error kinds.

Each function is one `fold_tensors` with a monoid made beforehand; which backend runs is decided there. What they share:

    dims      One, several where torch takes several, or None for all (not in `prod`). `dim=()` folds all dims, as in torch,
              except in `any` and `all`, where it folds none. In the equations k are the kept dims, p the folded ones, n how
              many elements they hold. Shapes are for `x` of [M, K] and `dim=1`; `keepdim=True` makes [M] an [M, 1].
    dtypes    bool, integers of 8 to 64 bits and floats of 8 to 64 bits, unless a function says otherwise; no complex ones.
              Floats are carried in float32 (float64 in float64) and rounded once, at the end. Conversions (`dtype=`,
              integers in `logsumexp`) happen as elements are read; Python's float, int and bool are torch.float64, int64
              and bool there, as in torch. NaN stays NaN, counts as non-zero, and is the
              extreme of all.
    strides   Any, overlapping and expanded ones too, read in place: the kernels and the lanes copy no input. Two things
              do: a view with the negative bit set has no memory of its own values, and a fold that torch itself runs
              (on a CPU; `last_plan` says so) may take temporary copies there.
    out       Is written from the finished result. It must have the result's dtype, shape and device, and overlap neither
              an input nor itself nor another `out`; it may stand beside the input in one buffer.
    bits      The same from run to run ("run_to_run"); docs/guarantees.md says what they depend on, and has the error bounds.
    errors    Those of `tilefold.errors`, which are of torch's kinds as well. Everywhere: DimError, RepeatedDimError and
              KindError for `dim`; KindError for a `keepdim` that is no bool; DtypeError, ShapeError and DeviceError for
              inputs and `out`; GradientError for an input that requires grad while grad mode is on, is a dual tensor, or is
              inside torch.func. Below, `Raises` names what a function adds or what is likeliest.

torch's warning about degrees of freedom <= 0 is not repeated: the NaN or inf says it.
"""

from __future__ import annotations

import builtins
import functools
import numbers
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tilefold import math
from tilefold.algebra import catalogue
from tilefold.algebra.monoid import Monoid
from tilefold.algebra.typing import FLOAT8
from tilefold.errors import DtypeError, EmptyError, KindError, OrderError, ShapeError
from tilefold.fold import fold_tensors
from tilefold.problem import normalize_dims, wrapped_dims
from tilefold.validate import as_dtype, check_is_tensor, check_out

__all__ = [
    "all", "amax", "amin", "aminmax", "any", "argmax", "argmin", "bitwise_and", "bitwise_or", "bitwise_xor",
    "count_nonzero", "logsumexp", "max", "mean", "min", "norm", "prod", "std", "std_mean", "sum", "var", "var_mean",
    "vector_norm",
]  # fmt: skip

Dims = int | Sequence[int] | None
INFINITY = float("inf")
UNSET: Any = type("Unset", (), {"__repr__": lambda self: "None"})()  # tells dim=None from no dim at all
LEFT: Any = type("Left", (), {"__repr__": lambda self: "False"})()  # tells keepdim=False from none at all


def _every(dim: Dims) -> Dims:
    """Torch's reading of an empty `dim`: all dims."""
    return None if isinstance(dim, Sequence) and not dim else dim


def _need_elements(x: Tensor, dim: Dims, call: str) -> None:
    """Refuse to choose among no elements: before a dim that is named twice, as in torch."""
    lengths = [x.shape[d] for d in wrapped_dims(dim, x.ndim, call)]
    if 0 in lengths:
        raise EmptyError(
            f"{call}: every folded dim needs at least one element, got shape {list(x.shape)}; "
            "fold another dim or give it elements"
        )


def _need_choice(x: Tensor, dim: Dims, call: str) -> None:
    """What torch asks of a tensor whose elements are chosen among: at most 64 dims, and something to choose."""
    if x.ndim > 64:
        raise ShapeError(f"{call}: tensors may have up to 64 dims, got {x.ndim}; reshape the input")
    if not x.numel():
        _need_elements(x, dim, call)


def _no_dim(keepdim: bool, call: str) -> None:
    """The default `dim` was left: torch has no such overload with `keepdim`."""
    if keepdim is not LEFT:
        raise KindError(
            f"{call}: `keepdim` needs a `dim`, got keepdim={keepdim} alone; pass the dims to fold"
        )


def _given(keepdim: bool) -> bool:
    return keepdim is not LEFT and keepdim


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
    keepdim: bool = LEFT,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Sum of the elements.

        y[k] = sum over p of x[k, p]

    Shapes: [M, K] to [M]. Nothing sums to 0.
    Dtypes: floats as they came, carried in float32 or float64; integers and bool give int64 and wrap. `dtype` converts
    each element first, as torch does, and is the result's.
    Any strides, read in place. Integers are exact; floats have the same bits from run to run and the bound of `sum` in
    docs/guarantees.md.

    Raises:
        DtypeError: elements are complex.
        KindError: `keepdim` without a `dim`, as in torch.

    Example:
        >>> tilefold.sum(torch.tensor([[1, 2], [3, 4]], dtype=torch.int8), dim=1)
        tensor([3, 7])
    """
    if dim is UNSET:
        _no_dim(keepdim, "sum")
        dim = None
    return fold_tensors(
        [input], catalogue.SUM, _every(dim), _given(keepdim), dtype=dtype, convert=dtype, out=out, call="sum"
    )[0]


def prod(
    input: Tensor,
    dim: Dims = UNSET,
    keepdim: bool = LEFT,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Product of the elements, over one dim or all.

        y[k] = product over p of x[k, p]

    Shapes: [M, K] to [M]; to fold all dims leave `dim` out. Nothing multiplies to 1.
    Dtypes: floats as they came, carried in float32 or float64; integers and bool give int64 and wrap. `dtype` converts
    each element first and is the result's.
    Any strides, read in place. Integers are exact; floats have the same bits from run to run and the bound of `prod` in
    docs/guarantees.md.

    Raises:
        DtypeError: elements are complex.
        KindError: `dim` is given and not one int, or `keepdim` without a `dim`, both as in torch.

    Example:
        >>> tilefold.prod(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), dim=0)
        tensor([3., 8.])
    """
    if dim is UNSET:
        _no_dim(keepdim, "prod")
        dim = None
    elif not _is_whole(dim):
        raise KindError(f"prod: `dim` must be one int, got {dim!r}; leave it out to fold all dims")
    return fold_tensors(
        [input], catalogue.PROD, dim, _given(keepdim), dtype=dtype, convert=dtype, out=out, call="prod"
    )[0]


def mean(
    input: Tensor,
    dim: Dims = UNSET,
    keepdim: bool = LEFT,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Mean of the elements, which are floats or made so by `dtype`.

        y[k] = (sum over p of x[k, p]) / n

    Shapes: [M, K] to [M]. The mean of nothing is NaN.
    Dtypes: floats as they came; `dtype` converts each element first and is the result's. The sum is kept in float32 or
    float64 and divided there, so that halves do not overflow. Dividing the (small) result costs a launch on a GPU; a
    projection that knew the length would cost a compilation for each length.
    Any strides, read in place. Same bits from run to run; the bound of `mean` in docs/guarantees.md.

    Raises:
        DtypeError: elements are no floats and no float `dtype` is given.
        KindError: `keepdim` without a `dim`, as in torch.

    Example:
        >>> tilefold.mean(torch.tensor([60000.0, 60000.0], dtype=torch.float16))
        tensor(60000., dtype=torch.float16)
    """
    check_is_tensor(input, "mean")
    if dim is UNSET:
        _no_dim(keepdim, "mean")
        dim = None
    dtype = as_dtype(dtype, "mean")
    result = dtype or input.dtype
    if not result.is_floating_point:
        raise DtypeError(f"mean: elements must be floats, got {result}; pass a float dtype=")
    wide = torch.float64 if result == torch.float64 else torch.float32
    total = fold_tensors(
        [input], catalogue.SUM, _every(dim), _given(keepdim), dtype=wide, convert=dtype, call="mean"
    )[0]
    count = input.numel() // total.numel() if total.numel() else 1
    value = (total / count).to(result)
    targets = check_out(out, [result], value.shape, [input], "mean")
    return value if targets is None else targets[0].copy_(value)


def amax(input: Tensor, dim: Dims = (), keepdim: bool = False, *, out: Tensor | None = None) -> Tensor:
    """Largest element; NaN if there is one.

        y[k] = max over p of x[k, p]

    Shapes: [M, K] to [M].
    Dtypes: the input's, in and out. Elements are compared, never computed with, so nothing is rounded.
    Any strides, read in place. The value is exact on every backend (of equal zeros, which sign is left open).

    Raises:
        EmptyError: there is nothing to choose among: a folded dim has length 0.
        ShapeError: the input has more than 64 dims, as in torch.

    Example:
        >>> tilefold.amax(torch.tensor([[1, 5], [7, 2]]), dim=(0, 1))
        tensor(7)
    """
    return _extreme(input, catalogue.MAX, dim, keepdim, out, "amax")


def amin(input: Tensor, dim: Dims = (), keepdim: bool = False, *, out: Tensor | None = None) -> Tensor:
    """Smallest element; NaN if there is one.

        y[k] = min over p of x[k, p]

    Shapes: [M, K] to [M].
    Dtypes: the input's, in and out. Elements are compared, never computed with, so nothing is rounded.
    Any strides, read in place. The value is exact on every backend (of equal zeros, which sign is left open).

    Raises:
        EmptyError: there is nothing to choose among: a folded dim has length 0.
        ShapeError: the input has more than 64 dims, as in torch.

    Example:
        >>> tilefold.amin(torch.tensor([[1, 5], [7, 2]]), dim=(0, 1))
        tensor(1)
    """
    return _extreme(input, catalogue.MIN, dim, keepdim, out, "amin")


def _extreme(x: Tensor, monoid: Monoid, dim: Dims, keepdim: bool, out: Tensor | None, call: str) -> Tensor:
    check_is_tensor(x, call)
    dim = _every(dim)
    _need_choice(x, dim, call)
    return fold_tensors([x], monoid, dim, keepdim, out=out, call=call)[0]


def _is_elementwise(dim: Any, keepdim: bool, other: Tensor | None, call: str) -> bool:
    """Whether two tensors are compared: `dim` is a tensor, and no number by its being given with `keepdim`."""
    if other is not None and (dim is not None or keepdim is not LEFT):
        raise KindError(
            f"{call}: `other` takes neither `dim` nor `keepdim`, got one; fold first, then compare"
        )
    return other is not None or (isinstance(dim, Tensor) and keepdim is LEFT)


def max(
    input: Tensor, dim: Any = None, keepdim: bool = LEFT, *, other: Tensor | None = None, out: Any = None
) -> Any:
    """Largest element of all, or the largest along one dim and where it first stands; NaN if there is one.

        y[k] = max over p of x[k, p],  i[k] = the first p with x[k, p] = y[k], or with NaN

    `max(x)` gives y alone, `max(x, dim)` torch's named tuple (values, indices), with `out` a pair. `max(x, other)` is
    torch.maximum: no fold, and all of torch's rules, gradients too.
    Shapes: [M, K] to [M], both.
    Dtypes: values in the input's, compared and not computed with; indices int64.
    Any strides, read in place. Values and indices are exact on every backend (of equal zeros, which sign is left open).

    Raises:
        EmptyError: a folded dim has length 0.
        KindError: `dim` is not one int.
        ShapeError: the input has more than 64 dims, as in torch.

    Example:
        >>> tilefold.max(torch.tensor([[1, 5], [7, 2]]), dim=1).indices
        tensor([1, 0])
    """
    if _is_elementwise(dim, keepdim, other, "max"):
        return torch.maximum(input, dim if other is None else other, out=out)
    if dim is None:
        _no_dim(keepdim, "max")
        return _extreme(input, catalogue.MAX, None, False, out, "max")
    return torch.return_types.max(_located(input, catalogue.MAX_WITH_INDEX, dim, keepdim, out, "max"))  # type: ignore[arg-type]  # any sequence of two will do


def min(
    input: Tensor, dim: Any = None, keepdim: bool = LEFT, *, other: Tensor | None = None, out: Any = None
) -> Any:
    """Smallest element of all, or the smallest along one dim and where it first stands; NaN if there is one.

        y[k] = min over p of x[k, p],  i[k] = the first p with x[k, p] = y[k], or with NaN

    `min(x)` gives y alone, `min(x, dim)` torch's named tuple (values, indices), with `out` a pair. `min(x, other)` is
    torch.minimum: no fold, and all of torch's rules, gradients too.
    Shapes: [M, K] to [M], both.
    Dtypes: values in the input's, compared and not computed with; indices int64.
    Any strides, read in place. Values and indices are exact on every backend (of equal zeros, which sign is left open).

    Raises:
        EmptyError: a folded dim has length 0.
        KindError: `dim` is not one int.
        ShapeError: the input has more than 64 dims, as in torch.

    Example:
        >>> tilefold.min(torch.tensor([[1, 5], [7, 2]]), dim=1).indices
        tensor([0, 1])
    """
    if _is_elementwise(dim, keepdim, other, "min"):
        return torch.minimum(input, dim if other is None else other, out=out)
    if dim is None:
        _no_dim(keepdim, "min")
        return _extreme(input, catalogue.MIN, None, False, out, "min")
    return torch.return_types.min(_located(input, catalogue.MIN_WITH_INDEX, dim, keepdim, out, "min"))  # type: ignore[arg-type]  # the same


def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Position of the first largest element, or of the first NaN.

        i[k] = the first p with x[k, p] = max over p of x[k, p]

    Shapes: [M, K] to [M]. Along `dim`; without one, the position in the flattened tensor (row-major, whatever the strides).
    Dtypes: any element dtype that folds, bool included; int64 out.
    Any strides, read in place. The position is exact: the same on every backend.

    Raises:
        EmptyError: a folded dim has length 0.
        KindError: `dim` is not one int.
        ShapeError: the input has more than 64 dims, as in torch.

    Example:
        >>> tilefold.argmax(torch.tensor([4, 9, 4, 9]))
        tensor(1)
    """
    return _located(input, catalogue.ARGMAX, dim, keepdim, None, "argmax")[0]


def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Position of the first smallest element, or of the first NaN.

        i[k] = the first p with x[k, p] = min over p of x[k, p]

    Shapes: [M, K] to [M]. Along `dim`; without one, the position in the flattened tensor (row-major, whatever the strides).
    Dtypes: any element dtype that folds, bool included; int64 out.
    Any strides, read in place. The position is exact: the same on every backend.

    Raises:
        EmptyError: a folded dim has length 0.
        KindError: `dim` is not one int.
        ShapeError: the input has more than 64 dims, as in torch.

    Example:
        >>> tilefold.argmin(torch.tensor([4, 9, 4, 9]))
        tensor(0)
    """
    return _located(input, catalogue.ARGMIN, dim, keepdim, None, "argmin")[0]


def _located(x: Tensor, monoid: Monoid, dim: Any, keepdim: bool, out: Any, call: str) -> list[Tensor]:
    check_is_tensor(x, call)
    _one_dim(dim, call)
    _need_choice(x, dim, call)
    return fold_tensors([x], monoid, dim, _given(keepdim), out=out, call=call)


def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False, out: Any = None) -> Any:
    """Smallest and largest element in one read; both NaN if there is one.

        low[k] = min over p of x[k, p],  high[k] = max over p of x[k, p]

    Shapes: [M, K] to [M] twice: torch's named tuple (min, max), with `out` a pair. One dim, or all.
    Dtypes: the input's, in and out. Elements are compared, never computed with, so nothing is rounded.
    Any strides, read in place. Values are exact on every backend (of equal zeros, which sign is left open).

    Raises:
        EmptyError: a folded dim has length 0.
        KindError: `dim` is not one int.
        ShapeError: the input has more than 64 dims, as in torch.

    Example:
        >>> low, high = tilefold.aminmax(torch.tensor([3, -1, 8]))
        >>> low, high
        (tensor(-1), tensor(8))
    """
    return torch.return_types.aminmax(_located(input, catalogue.MINMAX, dim, keepdim, out, "aminmax"))  # type: ignore[arg-type]  # the same


def any(input: Tensor, dim: Dims = None, keepdim: bool = False, *, out: Tensor | None = None) -> Tensor:
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
    return _test(input, catalogue.ANY, dim, keepdim, out, "any")


def all(input: Tensor, dim: Dims = None, keepdim: bool = False, *, out: Tensor | None = None) -> Tensor:
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
    return _test(input, catalogue.ALL, dim, keepdim, out, "all")


def _test(x: Tensor, monoid: Monoid, dim: Dims, keepdim: bool, out: Tensor | None, call: str) -> Tensor:
    check_is_tensor(x, call)
    if x.dtype != torch.uint8 or (out is not None and not isinstance(out, Tensor)):
        return fold_tensors([x], monoid, dim, keepdim, out=out, call=call)[0]
    if out is not None and out.dtype == torch.uint8:
        fold_tensors([x], monoid, dim, keepdim, out=out.view(torch.bool), call=call)
        return out
    result = fold_tensors([x], monoid, dim, keepdim, out=out, call=call)[0]
    return result.view(torch.uint8) if out is None else out  # bool's bytes are 0 and 1


def count_nonzero(input: Tensor, dim: Dims = None) -> Tensor:
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
    return fold_tensors([input], catalogue.COUNT_NONZERO, _every(dim), False, call="count_nonzero")[0]


@functools.lru_cache(maxsize=64)
def _moments(correction: float, root: bool, with_mean: bool) -> Monoid:
    """WELFORD that ends in M2 / max(0, count - correction): its root, and the mean beside it, if asked for."""

    def project(count: Any, mean: Any, squares: Any) -> Any:
        spread = squares / math.maximum(count - correction, 0.0)
        if correction < 0:  # else 0 / 0 says it
            spread = math.where(count == 0, float("nan"), spread)
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
    check_is_tensor(x, call)
    _need_float(x.dtype, call)
    if isinstance(dim, bool):  # torch's overload var(x, unbiased), which takes nothing else
        if unbiased is not None or keepdim is not LEFT or out is not None:
            raise KindError(
                f"{call}: `{call}(x, {dim})` takes no other arguments, got more; pass dim=None, unbiased={dim}"
            )
        dim, unbiased = None, dim
    if unbiased is not None and correction is not None:
        raise KindError(f"{call}: give `unbiased` or `correction`, got both; unbiased=True is correction=1")
    if correction is None:
        correction = 0 if unbiased is False else 1
    monoid = _moments(float(correction), root, with_mean)
    return fold_tensors([x], monoid, _every(dim), _given(keepdim), out=out, call=call)


def var(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = LEFT,
    *, correction: float | None = None, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Variance: the sum of squared deviations from the mean, over the degrees of freedom.

        y[k] = (sum over p of (x[k, p] - mean[k])^2) / max(0, n - correction)

    `correction` is 1 unless told; `unbiased=False` is 0, and `var(x, False)` too, torch's older form. With n <= correction it
    is NaN, or inf where deviations are not 0. The variance of nothing is NaN.
    Shapes: [M, K] to [M].
    Dtypes: floats, which come back as they came; carried in float32 or float64.
    Any strides, read in place. Same bits from run to run; the bound of `var` in docs/guarantees.md: data far from zero
    cost no accuracy.

    Raises:
        DtypeError: elements are no floats.
        KindError: both `unbiased` and `correction` are given.

    Example:
        >>> tilefold.var(torch.tensor([[1.0, 3.0], [2.0, 6.0]]), dim=1)
        tensor([2., 8.])

    Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
    """
    return _spread(input, dim, unbiased, keepdim, correction, False, False, out)[0]


def std(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = LEFT,
    *, correction: float | None = None, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Standard deviation: the square root of `var`, with its arguments.

        y[k] = sqrt((sum over p of (x[k, p] - mean[k])^2) / max(0, n - correction))

    Shapes: [M, K] to [M].
    Dtypes: floats, which come back as they came; the root is taken in float32 or float64, before the one rounding.
    Any strides, read in place. Same bits from run to run; the bound of `std` in docs/guarantees.md.

    Raises:
        DtypeError: elements are no floats.
        KindError: both `unbiased` and `correction` are given.

    Example:
        >>> tilefold.std(torch.tensor([1.0, 3.0, 5.0]))
        tensor(2.)
    """
    return _spread(input, dim, unbiased, keepdim, correction, True, False, out)[0]


def var_mean(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = LEFT,
    *, correction: float | None = None, out: Any = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Variance and mean in one read; arguments as in `var`.

        mean[k] = (sum over p of x[k, p]) / n,  y[k] = as in `var`

    Shapes: [M, K] to [M] twice: the tuple (variance, mean), with `out` a pair.
    Dtypes: floats, which come back as they came; carried in float32 or float64.
    Any strides, read in place. Same bits from run to run; the bound of `var` in docs/guarantees.md. The mean is
    NaN too where several elements have no variance, infinite ones for instance (in torch, unless the infinity is last).

    Raises:
        DtypeError: elements are no floats.
        KindError: both `unbiased` and `correction` are given.

    Example:
        >>> tilefold.var_mean(torch.tensor([1.0, 3.0, 5.0]))
        (tensor(4.), tensor(3.))
    """
    variance, average = _spread(input, dim, unbiased, keepdim, correction, False, True, out)
    return variance, average


def std_mean(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = LEFT,
    *, correction: float | None = None, out: Any = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Standard deviation and mean in one read; arguments as in `var`.

        mean[k] = (sum over p of x[k, p]) / n,  y[k] = as in `std`

    Shapes: [M, K] to [M] twice: the tuple (standard deviation, mean), with `out` a pair.
    Dtypes: floats, which come back as they came; carried in float32 or float64.
    Any strides, read in place. Same bits from run to run; the bound of `std` in docs/guarantees.md. The mean is that of
    `var_mean`.

    Raises:
        DtypeError: elements are no floats.
        KindError: both `unbiased` and `correction` are given.

    Example:
        >>> tilefold.std_mean(torch.tensor([1.0, 3.0, 5.0]))
        (tensor(2.), tensor(3.))
    """
    deviation, average = _spread(input, dim, unbiased, keepdim, correction, True, True, out)
    return deviation, average


def logsumexp(input: Tensor, dim: Dims, keepdim: bool = False, *, out: Tensor | None = None) -> Tensor:
    """Logarithm of the sum of exponentials, without overflow on the way.

        y[k] = log(sum over p of exp(x[k, p]))

    Shapes: [M, K] to [M]; `dim` must be given, None for all. Of nothing it is -inf.
    Dtypes: floats as they came; integers and bool are read as torch's default dtype. The largest element and the sum
    rescaled to it are carried in float32 or float64.
    Any strides, read in place. Same bits from run to run; the bound of `logsumexp` in docs/guarantees.md.

    Raises:
        DtypeError: elements are complex.

    Example:
        >>> tilefold.logsumexp(torch.tensor([[1000.0, -1000.0], [float("-inf"), 2.0]]), dim=1)
        tensor([1000.,    2.])

    Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
    """
    check_is_tensor(input, "logsumexp")
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
    """Norm of order `ord` of the elements.

        y[k] = (sum over p of |x[k, p]|^ord)^(1 / ord);  inf: max |x[k, p]|;  -inf: min |x[k, p]|;  0: how many are not 0

    Shapes: [M, K] to [M]. Of nothing it is 0, where `ord` is finite and not negative.
    Dtypes: floats as they came, carried in float32 or float64; `dtype`, no narrower than the input's, converts each
    element first and is the result's.
    Any strides, read in place. Same bits from run to run; docs/guarantees.md has the bound for ord=2.

    Raises:
        DtypeError: elements or `dtype` are no floats, or `dtype` would narrow them.
        EmptyError: a folded dim has length 0, and `ord` is negative or inf.
        OrderError: `ord` is no real number.

    Example:
        >>> tilefold.vector_norm(torch.tensor([[3.0, -4.0], [0.0, 2.0]]), dim=1)
        tensor([5., 2.])
    """
    return _vector_norm(x, ord, dim, keepdim, dtype, out, "vector_norm")


def norm(
    input: Tensor, p: float | str | None = "fro", dim: Dims = None, keepdim: bool = False,
    out: Tensor | None = None, dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """Norm of order `p` of the elements: `vector_norm` by torch.norm's arguments.

        y[k] = (sum over the folded j of |x[k, j]|^p)^(1 / p);  inf, -inf and 0 as in `vector_norm`

    "fro" and None are p = 2. "nuc" is a sum of singular values, no fold over elements.
    Shapes: [M, K] to [M]. Of nothing it is 0, where `p` is finite and not negative.
    Dtypes: floats as they came, carried in float32 or float64; `dtype` as in `vector_norm`.
    Any strides, read in place. Same bits from run to run; docs/guarantees.md has the bound for p=2.

    Raises:
        OrderError: `p` is complex, or a string other than "fro".
        DtypeError: elements or `dtype` are no floats, or `dtype` would narrow them.
        EmptyError: a folded dim has length 0, and `p` is negative or inf.

    Example:
        >>> tilefold.norm(torch.tensor([[3.0, -4.0], [0.0, 2.0]]), p=1, dim=1)
        tensor([7., 2.])
    """
    if isinstance(p, str) and p != "fro":
        fix = "use torch.linalg.matrix_norm" if p == "nuc" else "2 is the Euclidean norm"
        raise OrderError(f'norm: `p` must be a real number or "fro", got {p!r}; {fix}')
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
    _need_number(order, call)
    _need_float(x.dtype, call)
    dtype = as_dtype(dtype, call)
    if dtype is not None:
        _need_float(dtype, call)
        if not _holds(dtype, x.dtype):
            raise DtypeError(
                f"{call}: `dtype` must hold {x.dtype} without narrowing, got {dtype}; convert the result"
            )
    dim = _every(dim)
    if not x.numel() and (order < 0 or order == INFINITY):
        _need_elements(x, dim, call)
    alone = order != 0 and builtins.all(x.shape[d] == 1 for d in normalize_dims(dim, x.ndim, call) if x.ndim)
    monoid = _norm(
        INFINITY if alone else float(order)
    )  # one element's norm is its magnitude: no power overflows
    return fold_tensors([x], monoid, dim, keepdim, dtype=dtype, convert=dtype, out=out, call=call)[0]


def _need_number(order: Any, call: str) -> None:
    if not isinstance(order, numbers.Real):
        raise OrderError(f"{call}: the order must be a real number, got {order!r}; 2 is the Euclidean norm")


def _holds(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """Whether every float of one dtype is one of another: any wider dtype has all of those of 8 bits."""
    if narrow in FLOAT8 or wide in FLOAT8:
        return wide == narrow or wide.itemsize > 1
    return torch.promote_types(narrow, wide) == wide


def bitwise_or(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, out: Tensor | None = None
) -> Tensor:
    """Bits set in any element.

        y[k] = or over p of x[k, p]

    Shapes: [M, K] to [M]. Of nothing it is 0.
    Dtypes: integers and bool, in and out. torch has no such reduction.
    Any strides, read in place. Exact: the same on every backend.

    Raises:
        DtypeError: elements are floats or complex.

    Example:
        >>> tilefold.bitwise_or(torch.tensor([[3, 5], [8, 9]]), dim=1)
        tensor([7, 9])
    """
    return fold_tensors([input], catalogue.BITWISE_OR, _every(dim), keepdim, out=out, call="bitwise_or")[0]


def bitwise_and(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, out: Tensor | None = None
) -> Tensor:
    """Bits set in every element.

        y[k] = and over p of x[k, p]

    Shapes: [M, K] to [M]. Of nothing it is all ones (-1 where signed, True for bool).
    Dtypes: integers and bool, in and out. torch has no such reduction.
    Any strides, read in place. Exact: the same on every backend.

    Raises:
        DtypeError: elements are floats or complex.

    Example:
        >>> tilefold.bitwise_and(torch.tensor([[3, 5], [8, 9]]), dim=1)
        tensor([1, 8])
    """
    return fold_tensors([input], catalogue.BITWISE_AND, _every(dim), keepdim, out=out, call="bitwise_and")[0]


def bitwise_xor(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, out: Tensor | None = None
) -> Tensor:
    """Bits set in an odd number of elements.

        y[k] = xor over p of x[k, p]

    Shapes: [M, K] to [M]. Of nothing it is 0.
    Dtypes: integers and bool, in and out. torch has no such reduction.
    Any strides, read in place. Exact: the same on every backend.

    Raises:
        DtypeError: elements are floats or complex.

    Example:
        >>> tilefold.bitwise_xor(torch.tensor([[3, 5], [8, 9]]), dim=1)
        tensor([6, 1])
    """
    return fold_tensors([input], catalogue.BITWISE_XOR, _every(dim), keepdim, out=out, call="bitwise_xor")[0]

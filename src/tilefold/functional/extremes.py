"""The largest and the smallest, and where they are."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import Unpack  # torch depends on it

from tilefold import monoids
from tilefold.algebra.monoid import Monoid
from tilefold.api.reduce import fold_tensors
from tilefold.errors import KindError
from tilefold.functional.arguments import (
    LEFT,
    Dims,
    NumpyNames,
    every,
    given,
    need_elements,
    no_dim,
    one_dim,
    redirected,
)
from tilefold.planner.problem.validate import check_is_tensor
from tilefold.runtime.overrides import listed, overridden


def amax(
    input: Tensor, dim: Dims = (), keepdim: bool = False,
    *, out: Tensor | None = None, **names: Unpack[NumpyNames],
) -> Tensor:  # fmt: skip
    """Largest element; NaN if there is one.

        y[k] = max over p of x[k, p]

    Shapes: [M, K] to [M].
    Dtypes: the input's, in and out. Elements are compared, never computed with, so nothing is rounded.
    Any strides, read in place. The value is exact on every backend (of equal zeros, which sign is left open).

    Raises:
        EmptyError: there is nothing to choose among: a reduced dim has length 0.

    Example:
        >>> tilefold.amax(torch.tensor([[1, 5], [7, 2]]), dim=(0, 1))
        tensor(7)
    """
    if names or overridden(input, out):
        return redirected(amax, names, input, dim, keepdim, out)
    return _extreme(input, monoids.MAX, dim, keepdim, out, "amax")


def amin(
    input: Tensor, dim: Dims = (), keepdim: bool = False,
    *, out: Tensor | None = None, **names: Unpack[NumpyNames],
) -> Tensor:  # fmt: skip
    """Smallest element; NaN if there is one.

        y[k] = min over p of x[k, p]

    Shapes: [M, K] to [M].
    Dtypes: the input's, in and out. Elements are compared, never computed with, so nothing is rounded.
    Any strides, read in place. The value is exact on every backend (of equal zeros, which sign is left open).

    Raises:
        EmptyError: there is nothing to choose among: a reduced dim has length 0.

    Example:
        >>> tilefold.amin(torch.tensor([[1, 5], [7, 2]]), dim=(0, 1))
        tensor(1)
    """
    if names or overridden(input, out):
        return redirected(amin, names, input, dim, keepdim, out)
    return _extreme(input, monoids.MIN, dim, keepdim, out, "amin")


def _extreme(x: Tensor, monoid: Monoid, dim: Dims, keepdim: bool, out: Tensor | None, call: str) -> Tensor:
    check_is_tensor(x, call)
    dim = every(dim)
    need_elements(x, dim, call)
    return fold_tensors([x], monoid, dim, keepdim, out=out, call=call)[0]


def _read_second(
    second: Any, dim: Any, keepdim: bool, other: Tensor | None, out: Any, call: str
) -> tuple[Any, Tensor | None]:
    """The dim that is reduced and the tensor that is compared with: a second argument without a name is one of them.

    A tensor there is compared with, unless `keepdim` or a pair `out` stands beside it: then it is a dim, as by name.
    """
    if other is not None and not (second is dim is None and keepdim is LEFT):
        raise KindError(
            f"{call}: `other` takes no `dim`, `keepdim` or second argument, got one; fold first, then compare"
        )
    if second is None:
        return dim, other
    if dim is not None:
        raise KindError(f"{call}: `dim` is given once, got a second argument and `dim=`; leave one out")
    is_other = isinstance(second, Tensor) and keepdim is LEFT and not isinstance(out, (tuple, list))
    return (None, second) if is_other else (second, None)


class _Side(NamedTuple):
    """One side of max and min: the elementwise function, and the folds."""

    name: str
    elementwise: Any
    value: Monoid
    located: Monoid
    pair: Any


_LARGEST = _Side("max", torch.maximum, monoids.MAX, monoids.MAX_WITH_INDEX, torch.return_types.max)
_SMALLEST = _Side("min", torch.minimum, monoids.MIN, monoids.MIN_WITH_INDEX, torch.return_types.min)


def _one_or_two(
    x: Tensor, second: Any, keepdim: bool, dim: Any, other: Tensor | None, out: Any, side: _Side
) -> Any:
    folded, other = _read_second(second, dim, keepdim, other, out, side.name)
    if other is not None:
        check_is_tensor(x, side.name)
        check_is_tensor(other, side.name, "`other`")
        return side.elementwise(x, other, out=out)
    if folded is None:
        no_dim(keepdim, side.name)
        return _extreme(x, side.value, None, False, out, side.name)
    return side.pair(_located(x, side.located, folded, keepdim, out, side.name))


def max(
    input: Tensor, dim_or_other: Any = None, keepdim: bool = LEFT,
    *, dim: int | None = None, other: Tensor | None = None, out: Any = None, **names: Unpack[NumpyNames],
) -> Any:  # fmt: skip
    """Largest element of all, or the largest along one dim and where it first stands; NaN if there is one.

        y[k] = max over p of x[k, p],  i[k] = the first p with x[k, p] = y[k], or with NaN

    `max(x)` gives y alone, `max(x, dim)` torch's named tuple (values, indices), with `out` a pair. `max(x, other)` is
    torch.maximum: no fold, and all of torch's rules, gradients too. A 0-d tensor is a dim by name, `dim=`, or beside
    `keepdim`.
    Shapes: [M, K] to [M], both.
    Dtypes: values in the input's, compared and not computed with; indices int64.
    Any strides, read in place. Values and indices are exact on every backend (of equal zeros, which sign is left open).

    Raises:
        EmptyError: a reduced dim has length 0.
        KindError: `dim` is not one int.

    Example:
        >>> tilefold.max(torch.tensor([[1, 5], [7, 2]]), dim=1).indices
        tensor([1, 0])
    """
    if names or overridden(input, dim_or_other, other) or (out is not None and overridden(*listed(out))):
        return redirected(max, names, input, dim_or_other, keepdim, dim, other, out)
    return _one_or_two(input, dim_or_other, keepdim, dim, other, out, _LARGEST)


def min(
    input: Tensor, dim_or_other: Any = None, keepdim: bool = LEFT,
    *, dim: int | None = None, other: Tensor | None = None, out: Any = None, **names: Unpack[NumpyNames],
) -> Any:  # fmt: skip
    """Smallest element of all, or the smallest along one dim and where it first stands; NaN if there is one.

        y[k] = min over p of x[k, p],  i[k] = the first p with x[k, p] = y[k], or with NaN

    `min(x)` gives y alone, `min(x, dim)` torch's named tuple (values, indices), with `out` a pair. `min(x, other)` is
    torch.minimum: no fold, and all of torch's rules, gradients too. A 0-d tensor is a dim by name, `dim=`, or beside
    `keepdim`.
    Shapes: [M, K] to [M], both.
    Dtypes: values in the input's, compared and not computed with; indices int64.
    Any strides, read in place. Values and indices are exact on every backend (of equal zeros, which sign is left open).

    Raises:
        EmptyError: a reduced dim has length 0.
        KindError: `dim` is not one int.

    Example:
        >>> tilefold.min(torch.tensor([[1, 5], [7, 2]]), dim=1).indices
        tensor([0, 1])
    """
    if names or overridden(input, dim_or_other, other) or (out is not None and overridden(*listed(out))):
        return redirected(min, names, input, dim_or_other, keepdim, dim, other, out)
    return _one_or_two(input, dim_or_other, keepdim, dim, other, out, _SMALLEST)


def argmax(
    input: Tensor, dim: int | None = None, keepdim: bool = False,
    *, out: Tensor | None = None, **names: Unpack[NumpyNames],
) -> Tensor:  # fmt: skip
    """Position of the first largest element, or of the first NaN.

        i[k] = the first p with x[k, p] = max over p of x[k, p]

    Shapes: [M, K] to [M]. Along `dim`; without one, the position in the flattened tensor (row-major, whatever the strides).
    Dtypes: any element dtype that folds, bool included; int64 out.
    Any strides, read in place. The position is exact: the same on every backend.

    Raises:
        EmptyError: a reduced dim has length 0.
        KindError: `dim` is not one int.

    Example:
        >>> tilefold.argmax(torch.tensor([4, 9, 4, 9]))
        tensor(1)
    """
    if names or overridden(input, out):
        return redirected(argmax, names, input, dim, keepdim, out)
    return _located(input, monoids.ARGMAX, dim, keepdim, out, "argmax")[0]


def argmin(
    input: Tensor, dim: int | None = None, keepdim: bool = False,
    *, out: Tensor | None = None, **names: Unpack[NumpyNames],
) -> Tensor:  # fmt: skip
    """Position of the first smallest element, or of the first NaN.

        i[k] = the first p with x[k, p] = min over p of x[k, p]

    Shapes: [M, K] to [M]. Along `dim`; without one, the position in the flattened tensor (row-major, whatever the strides).
    Dtypes: any element dtype that folds, bool included; int64 out.
    Any strides, read in place. The position is exact: the same on every backend.

    Raises:
        EmptyError: a reduced dim has length 0.
        KindError: `dim` is not one int.

    Example:
        >>> tilefold.argmin(torch.tensor([4, 9, 4, 9]))
        tensor(0)
    """
    if names or overridden(input, out):
        return redirected(argmin, names, input, dim, keepdim, out)
    return _located(input, monoids.ARGMIN, dim, keepdim, out, "argmin")[0]


def _located(x: Tensor, monoid: Monoid, dim: Any, keepdim: bool, out: Any, call: str) -> list[Tensor]:
    check_is_tensor(x, call)
    one_dim(dim, call)
    need_elements(x, dim, call)
    return fold_tensors([x], monoid, dim, given(keepdim), out=out, call=call)


def aminmax(
    input: Tensor,
    *, dim: int | None = None, keepdim: bool = False, out: Any = None, **names: Unpack[NumpyNames],
) -> Any:  # fmt: skip
    """Smallest and largest element in one read; both NaN if there is one.

        low[k] = min over p of x[k, p],  high[k] = max over p of x[k, p]

    Shapes: [M, K] to [M] twice: torch's named tuple (min, max), with `out` a pair. One dim, or all.
    Dtypes: the input's, in and out. Elements are compared, never computed with, so nothing is rounded.
    Any strides, read in place. Values are exact on every backend (of equal zeros, which sign is left open).

    Raises:
        EmptyError: a reduced dim has length 0.
        KindError: `dim` is not one int.

    Example:
        >>> low, high = tilefold.aminmax(torch.tensor([3, -1, 8]))
        >>> low, high
        (tensor(-1), tensor(8))
    """
    if names or overridden(input) or (out is not None and overridden(*listed(out))):
        return redirected(aminmax, names, input, dim, keepdim, out)
    return torch.return_types.aminmax(_located(input, monoids.MINMAX, dim, keepdim, out, "aminmax"))  # type: ignore[arg-type]  # the same

"""The usual folds of sharded tensors: `reduce` with a monoid of the catalogue each.

They take `sharded_dim`, `group`, `mesh` and `guarantee` as `tilefold.distributed.reduce` does, and the rest as the function
of tilefold of the same name, whose dtypes and NaN rules they have. Of no elements at all a largest or smallest one is the
monoid's identity (torch raises an error): no rank knows of the others' lengths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import torch
from torch import Tensor
from typing_extensions import Required, Unpack  # torch depends on it

from tilefold import monoids
from tilefold.algebra import powers
from tilefold.algebra.monoid import Monoid
from tilefold.distributed.reduce import Axes, fold_shards
from tilefold.errors import KindError
from tilefold.functional.arguments import Dims, every, need_float, one_dim

MEAN = Monoid(
    lambda a, b: (a.sum + b.sum, a.count + b.count),
    (0, 0),
    fields=("sum", "count"),
    dtypes=("compute", torch.int64),
    lift=lambda x: (x, 1),
    project=lambda total, count: total / count,
    commutative=True,
    check=False,
    name="mean",
)


class Shards(TypedDict, total=False):
    """How a tensor is spread."""

    sharded_dim: Required[Axes]
    group: Any
    mesh: Any
    guarantee: str


def check_names(call: str, shards: Mapping[str, Any]) -> None:
    """Refuse keywords that a call does not take.

    Raises:
        KindError: there is one.
    """
    names = tuple(Shards.__annotations__)
    for name in shards:
        if name not in names:
            raise KindError(
                f"{call}: further keywords must be among {', '.join(names)}, got {name!r}; leave it out"
            )


def sum(
    x: Tensor, dim: Dims = None, keepdim: bool = False,
    *, dtype: torch.dtype | None = None, **shards: Unpack[Shards],
) -> Tensor:  # fmt: skip
    """Sum of the elements of all ranks."""
    return _one(x, monoids.SUM, dim, keepdim, "sum", shards, dtype)


def prod(
    x: Tensor, dim: Dims = None, keepdim: bool = False,
    *, dtype: torch.dtype | None = None, **shards: Unpack[Shards],
) -> Tensor:  # fmt: skip
    """Product of the elements of all ranks."""
    return _one(x, monoids.PROD, dim, keepdim, "prod", shards, dtype)


def mean(
    x: Tensor, dim: Dims = None, keepdim: bool = False,
    *, dtype: torch.dtype | None = None, **shards: Unpack[Shards],
) -> Tensor:  # fmt: skip
    """Mean of the elements of all ranks, which are floats or made so by `dtype`. States are a sum and a count."""
    need_float(dtype or x.dtype, "distributed.mean")
    return _one(x, MEAN, dim, keepdim, "mean", shards, dtype)


def amax(x: Tensor, dim: Dims = None, keepdim: bool = False, **shards: Unpack[Shards]) -> Tensor:
    """Largest element of all ranks; NaN if there is one."""
    return _one(x, monoids.MAX, dim, keepdim, "amax", shards)


def amin(x: Tensor, dim: Dims = None, keepdim: bool = False, **shards: Unpack[Shards]) -> Tensor:
    """Smallest element of all ranks; NaN if there is one."""
    return _one(x, monoids.MIN, dim, keepdim, "amin", shards)


def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False, **shards: Unpack[Shards]) -> Tensor:
    """Position, in the whole tensor, of the first largest element or of the first NaN."""
    one_dim(dim, "distributed.argmax")
    return _one(x, monoids.ARGMAX, dim, keepdim, "argmax", shards)


def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False, **shards: Unpack[Shards]) -> Tensor:
    """Position, in the whole tensor, of the first smallest element or of the first NaN."""
    one_dim(dim, "distributed.argmin")
    return _one(x, monoids.ARGMIN, dim, keepdim, "argmin", shards)


def logsumexp(x: Tensor, dim: Dims, keepdim: bool = False, **shards: Unpack[Shards]) -> Tensor:
    """Logarithm of the sum of all ranks' exponentials. Integers and bool are read as torch's default dtype."""
    dtype = None if x.dtype.is_floating_point or x.dtype.is_complex else torch.get_default_dtype()
    return _one(x, monoids.LOGSUMEXP, dim, keepdim, "logsumexp", shards, dtype)


def var(
    x: Tensor, dim: Dims = None, keepdim: bool = False, *, correction: float = 1, **shards: Unpack[Shards]
) -> Tensor:
    """Variance of the elements of all ranks."""
    need_float(x.dtype, "distributed.var")
    return _one(x, powers.spread(float(correction).__float__(), False, False), dim, keepdim, "var", shards)


def std(
    x: Tensor, dim: Dims = None, keepdim: bool = False, *, correction: float = 1, **shards: Unpack[Shards]
) -> Tensor:
    """Standard deviation of the elements of all ranks."""
    need_float(x.dtype, "distributed.std")
    return _one(x, powers.spread(float(correction).__float__(), True, False), dim, keepdim, "std", shards)


def vector_norm(
    x: Tensor, ord: float = 2, dim: Dims = None, keepdim: bool = False,
    *, dtype: torch.dtype | None = None, **shards: Unpack[Shards],
) -> Tensor:  # fmt: skip
    """Norm of order `ord` of the elements of all ranks."""
    need_float(x.dtype, "distributed.vector_norm")
    return _one(x, monoids.NORM(float(ord)), dim, keepdim, "vector_norm", shards, dtype)


def _one(
    x: Tensor, monoid: Monoid, dim: Dims, keepdim: bool, call: str, shards: Shards, dtype: torch.dtype | None = None
) -> Tensor:  # fmt: skip
    check_names(f"distributed.{call}", shards)
    return fold_shards(
        [x], monoid, every(dim), keepdim, dtype=dtype, convert=dtype, call=f"distributed.{call}", **shards
    )[0]

"""A call made canonical: which elements meet which, as few dims as the strides allow, in a frozen value.

    x[2, 3, 4] contiguous, dim=1   ->   kept [2, 4], folded [3]
    x[2, 3, 4] contiguous, dim=None ->  kept [],     folded [24]

Dims of length 1 vanish. Neighbouring dims that one stride can walk become one. Kept dims are ordered by stride, so that
the last is the one to run along; folded dims too when order does not matter, with `position_stride` remembering which
element each is.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from tilefold.errors import DimError, KindError, RepeatedDimError, ShapeError


@dataclass(frozen=True)
class Dim:
    """One canonical dim: its length, a stride (in elements) for each input, and one for what it walks besides.

    `other` is the output's stride for a kept dim, the position's stride for a folded one.
    """

    size: int
    strides: tuple[int, ...]
    other: int


@dataclass(frozen=True)
class Problem:
    """What a fold is over: kept and folded dims of every input, and how far each input's storage is aligned.

    `aligned` holds, for each input, the largest power of two up to 16 that divides its address in bytes; `residues` the
    address modulo 16.
    """

    kept: tuple[Dim, ...]
    folded: tuple[Dim, ...]
    dtypes: tuple[torch.dtype, ...]
    aligned: tuple[int, ...]
    residues: tuple[int, ...] = ()

    @property
    def outputs(self) -> int:
        """How many results there are."""
        return math.prod(d.size for d in self.kept)

    @property
    def length(self) -> int:
        """How many elements meet in one result."""
        return math.prod(d.size for d in self.folded)

    @property
    def positions_ascend(self) -> bool:
        """Whether elements are walked in the order of their positions: folded dims may be sorted by stride."""
        steps = [d.other for d in self.folded]
        return steps == sorted(steps, reverse=True)

    @property
    def bytes_read(self) -> int:
        """Bytes of input that must be read once (dims of stride 0 are read once)."""
        dims = (*self.kept, *self.folded)
        return sum(
            dtype.itemsize * math.prod(d.size for d in dims if d.strides[i] != 0)
            for i, dtype in enumerate(self.dtypes)
        )

    def alone(self) -> Problem:
        """The same problem knowing nothing of neighbouring results: addresses are aligned as rows end to end would be."""
        lengths = (self.length * dtype.itemsize for dtype in self.dtypes)
        return replace(
            self, aligned=tuple(math.gcd(a, n) for a, n in zip(self.aligned, lengths, strict=True))
        )


def normalize_dims(dim: int | Sequence[int] | None, ndim: int, call: str = "reduce") -> tuple[int, ...]:
    """Dims as sorted non-negative numbers; None means all. A 0-d tensor has the one dim 0 (and -1)."""
    if dim is None:
        return tuple(range(ndim))
    result = wrapped_dims(dim, ndim, call)
    if len(set(result)) != len(result):
        raise RepeatedDimError(
            f"{call}: each dim may be named once, got {dim}; "
            f"dim {next(d for d in result if result.count(d) > 1)} appears multiple times in the list of dims"
        )
    return tuple(sorted(result)) if ndim else ()


def wrapped_dims(dim: int | Sequence[int] | None, ndim: int, call: str = "reduce") -> list[int]:
    """Dims as non-negative numbers in the order given, one given twice twice; None means all."""
    limit = max(ndim, 1)
    result = []
    for d in range(ndim) if dim is None else _numbers(dim, call):
        if not -limit <= d < limit:
            raise DimError(
                f"{call}: `dim` must be in [{-limit}, {limit - 1}] for a {ndim}-D tensor, got {d} (Dimension out of range); "
                "count dims from 0, or from -1 backwards"
            )
        result.append(d % limit)
    return result


def _numbers(dim: int | Sequence[int], call: str) -> tuple[int, ...]:
    several = tuple(dim) if isinstance(dim, Sequence) else (dim,)
    try:
        if not any(isinstance(d, bool) for d in several):
            return tuple(map(operator.index, several))
    except TypeError:  # no whole number; a tensor of several has __index__, too
        pass
    raise KindError(
        f"{call}: `dim` must be an int, a sequence of ints or None, got {dim!r}; count dims from 0, or from -1 backwards"
    )


def broadcast_shape(tensors: Sequence[torch.Tensor], call: str = "reduce") -> tuple[int, ...]:
    """The common shape of inputs that are folded together."""
    try:
        return tuple(torch.broadcast_shapes(*(t.shape for t in tensors)))  # type: ignore[no-untyped-call]  # torch's own
    except RuntimeError:
        shapes = " and ".join(str(list(t.shape)) for t in tensors)
        raise ShapeError(
            f"{call}: inputs folded together must broadcast, got shapes {shapes}; reshape or unsqueeze one"
        ) from None


def canonical(
    tensors: Sequence[torch.Tensor], dims: tuple[int, ...], *, ordered: bool, batches: bool = False
) -> Problem:
    """Make the problem of folding `dims` of tensors of one (broadcast) shape.

    With `ordered`, folded dims keep their order: the fold is not commutative. With `batches`, kept dims of length 1 stay:
    their strides say how the results' elements would lie if there were more.
    """
    shape = tensors[0].shape
    strides = [t.stride() for t in tensors]
    kept = _walk([d for d in range(len(shape)) if d not in dims], shape, strides, ones=batches)
    folded = _walk(list(dims), shape, strides)
    if not ordered:
        folded.sort(key=_reach, reverse=True)
    kept.sort(key=_reach, reverse=True)
    return Problem(
        kept=coalesce(kept),
        folded=coalesce(folded),
        dtypes=tuple(t.dtype for t in tensors),
        aligned=tuple(alignment(t.data_ptr()) for t in tensors),
        residues=tuple(t.data_ptr() % 16 for t in tensors),
    )


def _walk(
    dims: list[int], shape: Sequence[int], strides: Sequence[Sequence[int]], ones: bool = False
) -> list[Dim]:
    """The dims with their row-major step among themselves; those of length 1 only on request."""
    walk, step = [], 1
    for d in reversed(dims):
        if ones or shape[d] != 1:
            walk.append(Dim(shape[d], tuple(s[d] for s in strides), step))
        step *= shape[d]
    return walk[::-1]


def _reach(dim: Dim) -> tuple[int, int]:
    """Sort key: far strides first; a dim that only broadcasts counts by what else it walks."""
    return max(abs(s) for s in dim.strides), dim.other


def coalesce(dims: Sequence[Dim]) -> tuple[Dim, ...]:
    """Join neighbours where the outer stride is the inner stride times the inner size, for every operand."""
    joined: list[Dim] = []
    for dim in dims:
        if joined and _joins(joined[-1], dim):
            outer = joined.pop()
            dim = Dim(outer.size * dim.size, dim.strides, dim.other)
        joined.append(dim)
    return tuple(joined)


def _joins(outer: Dim, inner: Dim) -> bool:
    strides = zip((*outer.strides, outer.other), (*inner.strides, inner.other), strict=True)
    return all(far == near * inner.size for far, near in strides)


def alignment(address: int) -> int:
    """The largest power of two up to 16 that divides an address in bytes."""
    return min(address & -address, 16) if address else 16

"""A call made canonical: which elements are combined with which, as few dims as the strides allow, in a frozen value.

    x[2, 3, 4] contiguous, dim=1   ->   output dims [2, 4], reduced dims [3]
    x[2, 3, 4] contiguous, dim=None ->  output dims [],     reduced dims [24]

Dims of length 1 vanish. Neighbouring dims that one stride can walk become one (`merged`). Output dims are ordered by stride
(`by_stride`), so that the last is the one to run along; reduced dims too when order does not matter, with `Dim.position`
remembering which element each is.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeGuard

import torch

from tilefold.errors import DimError, KindError, RepeatedDimError, ShapeError, shown
from tilefold.planner.problem.validate import is_beyond_memory

Role = Literal["map", "reduce", "scan", "segment", "shard"]


@dataclass(frozen=True)
class Dim:
    """One canonical dim: its role, its length, and the step along it, in elements.

    `strides` are those of the inputs, `output` is that of the results (0 along a dim that results do not have), `position`
    that of an element's row-major position among those that it is combined with (0 along a dim of role "map").
    """

    role: Role
    size: int
    strides: tuple[int, ...]
    output: int = 0
    position: int = 0

    @property
    def steps(self) -> tuple[int, ...]:
        """Every stride: the inputs', the results' and the position's."""
        return (*self.strides, self.output, self.position)


@dataclass(frozen=True)
class Problem:
    """The problem of a call: the dims of all inputs together, output dims first, and how each input's storage is aligned.

    `aligned` holds, for each input, the largest power of two up to 16 that divides its address in bytes; `residues` the
    address modulo 16. `ragged` results, the first ones along the last output dim, have as many elements as the reduced dims
    say, the others one less (0: all have as many). Results along the last output dim may have positions of their own:
    `places` are the sizes of the dims that are merged in it and their steps among positions.
    """

    dims: tuple[Dim, ...]
    dtypes: tuple[torch.dtype, ...]
    aligned: tuple[int, ...]
    residues: tuple[int, ...] = ()
    ragged: int = 0
    places: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    @functools.cached_property
    def output_dims(self) -> tuple[Dim, ...]:
        """The dims along which nothing is combined: a fold has a result, a scan a row, for each of their places."""
        return tuple(d for d in self.dims if d.role == "map")

    @functools.cached_property
    def reduced_dims(self) -> tuple[Dim, ...]:
        """The dims along which elements are combined: into one result, or in a scan's prefixes."""
        return tuple(d for d in self.dims if d.role != "map")

    @functools.cached_property
    def nearest(self) -> Dim:
        """The dim along which results are neighbours, of at least one."""
        return min(self.dims, key=lambda d: d.output)

    @functools.cached_property
    def outputs(self) -> int:
        """How many results there are."""
        return math.prod(d.size for d in self.output_dims)

    @functools.cached_property
    def length(self) -> int:
        """How many elements are combined into one result."""
        return math.prod(d.size for d in self.reduced_dims)

    @functools.cached_property
    def positions_ascend(self) -> bool:
        """Whether elements are walked in the order of their positions: reduced dims may be sorted by stride."""
        steps = [d.position for d in self.reduced_dims]
        return steps == sorted(steps, reverse=True)

    @functools.cached_property
    def bytes_read(self) -> int:
        """Bytes of input that must be read once (dims of stride 0 are read once)."""
        return sum(
            dtype.itemsize * math.prod(d.size for d in self.dims if d.strides[i] != 0)
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
            f"{call}: each dim may be named once, got {shown(dim)}; "
            f"dim {next(d for d in result if result.count(d) > 1)} appears multiple times in the list of dims"
        )
    return tuple(sorted(result)) if ndim else ()


def wrapped_dims(dim: int | Sequence[int] | None, ndim: int, call: str = "reduce") -> list[int]:
    """Dims as non-negative numbers in the order given, one given twice twice; None means all."""
    return [_wrapped(d, ndim, call) for d in (range(ndim) if dim is None else _numbers(dim, call))]


def whole_number(value: Any) -> int | None:
    """A whole number as an int, numpy's and a tensor's only element included; None for others, truth values too."""
    is_truth = isinstance(value, bool) or (isinstance(value, torch.Tensor) and value.dtype == torch.bool)
    try:
        return None if is_truth else operator.index(value)
    except Exception:  # of a tensor of several, of floats, or without data; of a class of the caller's
        return None


def is_listed(value: Any) -> TypeGuard[Sequence[Any]]:
    """Whether a value is a sequence of things; text and bytes are none."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def one_dim(dim: Any, ndim: int, call: str, name: str = "dim", fix: str = "name one dim") -> int:
    """One dim as a non-negative number; `name` is the argument's and `fix` the advice, for messages.

    Raises:
        DimError, KindError: it is no dim of so many, or none at all.
    """
    number = whole_number(dim)
    if number is None:
        raise KindError(f"{call}: `{name}` must be one int, got {shown(dim)}; {fix}")
    return _wrapped(number, ndim, call, name)


def _wrapped(dim: int, ndim: int, call: str, name: str = "dim") -> int:
    limit = max(ndim, 1)
    if not -limit <= dim < limit:
        raise DimError(
            f"{call}: `{name}` must be in [{-limit}, {limit - 1}] for a {ndim}-D tensor, got {shown(dim)} (Dimension out of "
            "range); count dims from 0, or from -1 backwards"
        )
    return dim % limit


def _numbers(dim: int | Sequence[int], call: str) -> tuple[int, ...]:
    numbers = tuple(map(whole_number, dim if is_listed(dim) else (dim,)))
    whole = tuple(n for n in numbers if n is not None)
    if len(whole) < len(numbers):
        raise KindError(
            f"{call}: `dim` must be an int, a sequence of ints or None, got {shown(dim)}; count dims from 0, or from -1 "
            "backwards"
        )
    return whole


def broadcast_shape(tensors: Sequence[torch.Tensor], call: str = "reduce") -> tuple[int, ...]:
    """The common shape of inputs that are folded together."""
    if len(tensors) == 1:
        return tuple(tensors[0].shape)
    try:
        shape = tuple(torch.broadcast_shapes(*(t.shape for t in tensors)))  # type: ignore[no-untyped-call]  # torch's own
    except RuntimeError:
        shapes = " and ".join(str(list(t.shape)) for t in tensors)
        raise ShapeError(
            f"{call}: inputs folded together must broadcast, got shapes {shapes}; reshape or unsqueeze one"
        ) from None
    if is_beyond_memory(shape):
        raise ShapeError(
            f"{call}: inputs must broadcast to fewer than 2**63 elements, got the shape {list(shape)}; fold one of them first"
        )
    return shape


def canonical(
    tensors: Sequence[torch.Tensor],
    dims: tuple[int, ...],
    *,
    ordered: bool,
    batches: bool = False,
    role: Role = "reduce",
    whole: bool = False,
) -> Problem:
    """Make the problem of a call along `dims` of tensors of one (broadcast) shape.

    With `ordered`, these dims keep their order: the monoid is not commutative. With `batches`, other dims of length 1 stay:
    their strides say how more of them would lie. With `whole`, results have the tensors' shape, contiguous.
    """
    shape = tensors[0].shape
    strides = [t.stride() for t in tensors]
    results = contiguous_strides(shape) if whole else None
    outer = _walk(
        "map", [d for d in range(len(shape)) if d not in dims], shape, strides, results, ones=batches
    )
    inner = _walk(role, list(dims), shape, strides, results)
    return Problem(
        dims=merged(by_stride(outer)) + merged(inner if ordered else by_stride(inner)),
        dtypes=tuple(t.dtype for t in tensors),
        aligned=tuple(alignment(t.data_ptr()) for t in tensors),
        residues=tuple(t.data_ptr() % 16 for t in tensors),
    )


def _walk(
    role: Role,
    dims: list[int],
    shape: Sequence[int],
    strides: Sequence[Sequence[int]],
    results: Sequence[int] | None,
    ones: bool = False,
) -> list[Dim]:
    """The dims with their row-major step among themselves, and the results' (`results`, or the same step along output dims).

    Dims of length 1 only on request.
    """
    walk, step = [], 1
    for d in reversed(dims):
        if ones or shape[d] != 1:
            output = results[d] if results is not None else step if role == "map" else 0
            position = 0 if role == "map" else step
            walk.append(Dim(role, shape[d], tuple(s[d] for s in strides), output, position))
        step *= shape[d]
    return walk[::-1]


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor, in elements; dims of length 0 count as 1."""
    sizes = [max(1, n) for n in shape]
    return tuple(math.prod(sizes[d + 1 :]) for d in range(len(sizes)))


def by_stride(dims: Sequence[Dim]) -> list[Dim]:
    """Dims in the order of memory: far strides first; a dim that only broadcasts counts by its other steps."""
    return sorted(dims, key=lambda d: (max(map(abs, d.strides)), d.output + d.position), reverse=True)


def merged(dims: Sequence[Dim]) -> tuple[Dim, ...]:
    """Neighbours of one role as one dim, where every outer stride is the inner stride times the inner size."""
    joined: list[Dim] = []
    for dim in dims:
        if joined and _merges(joined[-1], dim):
            outer = joined.pop()
            dim = replace(dim, size=outer.size * dim.size)
        joined.append(dim)
    return tuple(joined)


def _merges(outer: Dim, inner: Dim) -> bool:
    return outer.role == inner.role and all(
        far == near * inner.size for far, near in zip(outer.steps, inner.steps, strict=True)
    )


def split(dim: Dim, length: int) -> tuple[Dim, Dim]:
    """One dim as two: whole parts of `length` elements, and the elements of a part. Those left at its end are dropped."""
    parts = replace(
        dim,
        size=dim.size // length,
        strides=tuple(s * length for s in dim.strides),
        output=dim.output * length,
        position=dim.position * length,
    )
    return parts, replace(dim, size=length)


def residue_classes(dim: Dim, modulus: int) -> tuple[Dim, Dim]:
    """One dim as two: the elements of a residue class, `modulus` steps apart, and the classes, one step apart.

    Where `modulus` does not divide the size, only the first `size % modulus` classes have as many elements as the first dim
    says; the others have one less (`Problem.ragged`).
    """
    elements = replace(
        dim,
        size=math.ceil(dim.size / modulus),
        strides=tuple(s * modulus for s in dim.strides),
        output=dim.output * modulus,
        position=dim.position * modulus,
    )
    return elements, replace(dim, size=modulus)


def of_input(problem: Problem, number: int) -> Problem:
    """The dims as one input alone has them, of elements that stay what they are: a copy into the results' order."""
    dims = [replace(d, role="map", strides=(d.strides[number],), position=0) for d in problem.dims]
    return Problem(
        dims=merged(by_stride(dims)),
        dtypes=(problem.dtypes[number],),
        aligned=(problem.aligned[number],),
        residues=(problem.residues[number],),
    )


def inputs_apart(problem: Problem) -> tuple[int, ...]:
    """The inputs whose neighbours lie along another dim than those of the results: reads or writes are sectors in part."""
    if not problem.dims:
        return ()
    return tuple(
        i
        for i in range(len(problem.dtypes))
        if all(d.strides[i] for d in problem.dims)
        and problem.nearest.strides[i] > min(d.strides[i] for d in problem.dims)
    )


def in_results_order(problem: Problem, numbers: Sequence[int]) -> Problem:
    """The problem with these inputs copied into the order of the results, which have the inputs' shape."""
    dims = [
        replace(d, strides=tuple(d.output if i in numbers else s for i, s in enumerate(d.strides)))
        for d in problem.dims
    ]
    outer = [d for d in dims if d.role == "map"]
    inner = sorted((d for d in dims if d.role != "map"), key=lambda d: d.position, reverse=True)
    return replace(
        problem,
        dims=merged(by_stride(outer)) + merged(inner),
        aligned=tuple(16 if i in numbers else a for i, a in enumerate(problem.aligned)),
        residues=tuple(0 if i in numbers else r for i, r in enumerate(problem.residues)),
    )


def alignment(address: int) -> int:
    """The largest power of two up to 16 that divides an address in bytes."""
    return min(address & -address, 16) if address else 16

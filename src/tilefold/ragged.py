"""`segment_reduce`: validate, make a request, dispatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tilefold import dispatch
from tilefold.algebra import program as programs
from tilefold.algebra.monoid import Monoid
from tilefold.errors import ArgumentError, DtypeError, EmptyError, KindError, ShapeError, shown
from tilefold.modes import as_given, check_not_recorded
from tilefold.overrides import classed, listed, overridden, override, rebuildable
from tilefold.problem import broadcast_shape, one_dim, whole_number
from tilefold.requests import Segments
from tilefold.uncompiled import uncompiled
from tilefold.validate import (
    as_dtype,
    as_inputs,
    check_count,
    check_inputs,
    check_is_tensor,
    check_memory,
    check_out,
    check_tensors,
    is_abstract,
    plain,
)

CALL = "segment_reduce"
_LEAST = torch.iinfo(
    torch.int64
).min  # the bit that turns the order of unsigned numbers into that of signed ones


class Keyed(NamedTuple):
    """What segments of equal keys fold to: each key, and the result beside it."""

    keys: Tensor
    results: Any


@uncompiled
def segment_reduce(
    inputs: Tensor | Sequence[Tensor],
    monoid: Monoid,
    offsets: Tensor | None = None,
    *,
    by: Tensor | None = None,
    num_segments: int | None = None,
    dim: int = 0,
    dtype: torch.dtype | None = None,
    out: Tensor | Sequence[Tensor] | None = None,
    validate: bool = False,
    guarantee: str = "run_to_run",
) -> Any:
    """Fold each segment of one dim with a monoid.

        result[.., s, ..] = project(combine over p in [offsets[s], offsets[s + 1]) of lift(x[.., p, ..], ..., p - offsets[s]))

    Args:
        inputs: a tensor [.., N, ..], or tensors that broadcast against each other; any strides, read in place. Or jagged
            tensors of torch.nested that share their offsets: rows of the ragged dim are folded.
        monoid: what to fold with. Combined in order unless it is commutative; positions count from the segment's beginning.
        offsets: S + 1 ascending positions, int32 or int64, copied if they are not contiguous. Elements before the first and
            from the last on belong to no segment. An empty segment gives the projected identity.
        by: instead of offsets, a key for each position [N]. Without `num_segments` each run of equal keys is a segment.
        num_segments: with `by`: keys are sorted numbers, and segment s holds those equal to s in [0, num_segments).
        dim: which dim is cut. Others stay: each of their places is a fold of its own.
        dtype: the dtype of computed results, as in `reduce`.
        out: tensor(s) to write the results into, of the results' shape and dtype.
        validate: have offsets (and keys) looked at on a GPU as well, which waits for it. They always are on a CPU.
            Without it, on a GPU, offsets are clamped to [0, N]: nothing outside of a tensor is read or written; where
            they do not ascend, results are unspecified.
        guarantee: as in `reduce`. With "batch_invariant" a segment's bits depend on its own elements alone; on a GPU a
            segment is then folded by one program, however long.

    Returns:
        What `project` gives, in the inputs' shape with S in place of N; for jagged inputs the batch comes first. For `by`
        without `num_segments`: `(keys, results)`, of each run of equal keys; on a GPU this waits for their number.

    Raises:
        DimError, ShapeError, DtypeError, DeviceError, ArgumentError, KindError: the call does not fit, or offsets that are
            looked at do not ascend in [0, N].
        EmptyError: a segment that is looked at is empty, and the monoid has no identity. On a GPU, without `validate`,
            such a segment's result is unspecified.
        GradientError: an input requires grad outside `torch.no_grad()`.

    Example:
        >>> x = torch.tensor([3, 5, 8, 1])
        >>> tilefold.segment_reduce(x, tilefold.monoids.SUM, torch.tensor([0, 2, 2, 4]))
        tensor([8, 0, 9])

    Source of the sharing of work by elements: D. Merrill, M. Garland, "Merge-based parallel sparse matrix-vector
    multiplication", SC 2016.
    """
    options = {"num_segments": num_segments, "dtype": dtype, "validate": validate, "guarantee": guarantee}
    ragged = [t for t in listed(inputs) if isinstance(t, Tensor) and t.is_nested]
    if ragged:
        return _of_jagged(listed(inputs), monoid, offsets, by, dim, out, options)
    tensors = as_inputs(inputs, monoid, CALL)
    relevant = [*tensors, *listed(offsets), *listed(by), *listed(out)]
    if overridden(*relevant):
        return override(segment_reduce, relevant, inputs, monoid, offsets, by=by, dim=dim, out=out, **options)
    check_count(tensors, monoid, CALL)
    if not isinstance(validate, bool):
        raise KindError(f"{CALL}: `validate` must be True or False, got {shown(validate)}; write bool(...)")
    keys, borders = _borders(tensors, offsets, by, num_segments, dim, validate)
    results = monoid.pack(_fold(tensors, monoid, borders, dim, dtype, out, validate, guarantee))
    results = rebuildable(results) if classed(relevant) else results
    return results if keys is None else Keyed(keys, results)


def _fold(
    tensors: list[Tensor],
    monoid: Monoid,
    offsets: Tensor,
    dim: int,
    dtype: Any,
    out: Any,
    validate: bool,
    guarantee: str,
) -> list[Tensor]:
    """Results of checked arguments' segments, unpacked."""
    check_inputs(tensors, monoid, guarantee, CALL)
    check_tensors([tensors[0], offsets], CALL, names=(None, "offsets"))
    dtype = as_dtype(dtype, CALL)
    shape = broadcast_shape(tensors, CALL)
    place = _dim_of(dim, len(shape))
    program = programs.specialize(monoid.total, tuple(t.dtype for t in tensors), dtype)
    result_shape = (*shape[:place], offsets.shape[0] - 1, *shape[place + 1 :])
    targets = check_out(out, program.outputs, result_shape, [*tensors, offsets], CALL)
    check_not_recorded(CALL, tensors[0].is_cuda)
    abstract = next((t for t in (*tensors, offsets) if is_abstract(t)), None)
    if abstract is not None:
        empty = [abstract.new_empty(result_shape, dtype=d) for d in program.outputs]
        return empty if targets is None else list(targets)
    if (validate or not offsets.is_cuda) and not offsets.is_meta:
        _check_offsets(offsets, shape[place], monoid)
    given = [plain(t.expand(shape)).resolve_neg() for t in tensors]
    given.append(plain(offsets).contiguous())
    key = None
    if offsets.is_cuda:
        layouts = tuple((t.shape, t.stride(), t.dtype, t.data_ptr() & 15) for t in given)
        key = (CALL, monoid, layouts, offsets.device, place, dtype, guarantee)
    return dispatch.run(Segments(program, place, guarantee, result_shape), given, key, targets)


def _dim_of(dim: Any, ndim: int) -> int:
    if ndim == 0:
        raise ShapeError(f"{CALL}: inputs must have a dim to cut into segments, got 0-D; give at least one")
    return one_dim(dim, ndim, CALL, fix="call once for each dim")


# ------------------------------------------------------------------------------------------------ offsets


def _borders(
    tensors: Sequence[Tensor], offsets: Any, by: Any, num_segments: Any, dim: Any, validate: bool
) -> tuple[Tensor | None, Tensor]:
    """The offsets, given or made of keys, and the keys where they are a result."""
    if (offsets is None) == (by is None):
        got = "neither" if by is None else "both"
        raise ArgumentError(
            f"{CALL}: segments must be given by `offsets` or by `by`, got {got}; pass one of them"
        )
    if offsets is not None:
        check_is_tensor(offsets, CALL, "`offsets`")
        check_memory(offsets, CALL, "offsets")
        if num_segments is not None:
            raise ArgumentError(
                f"{CALL}: `num_segments` must come with `by`, got offsets, which have {offsets.numel() - 1}; leave it out"
            )
        if offsets.dtype not in (torch.int32, torch.int64):
            raise DtypeError(
                f"{CALL}: `offsets` must be int32 or int64, got {offsets.dtype}; convert with .to(torch.int64)"
            )
        if offsets.ndim != 1 or offsets.shape[0] < 1:
            raise ShapeError(
                f"{CALL}: `offsets` must have the shape [S + 1] for S segments, got {list(offsets.shape)}; flatten it, and "
                "let it begin with the first segment's beginning"
            )
        return None, offsets
    return _of_keys(tensors, by, num_segments, dim, validate)


def _of_keys(
    tensors: Sequence[Tensor], by: Any, num_segments: Any, dim: Any, validate: bool
) -> tuple[Tensor | None, Tensor]:
    """(keys, offsets) of runs of equal keys; or offsets of the keys 0 ... num_segments - 1, found by bisection."""
    check_is_tensor(by, CALL, "`by`")
    check_tensors([*tensors, by], CALL, names=(*[None] * len(tensors), "by"))
    shape = broadcast_shape(tensors, CALL)
    length = shape[_dim_of(dim, len(shape))]
    if by.shape != (length,):
        raise ShapeError(
            f"{CALL}: `by` must have one key for each of {length} positions, got shape {list(by.shape)}; make it so"
        )
    by = plain(by)
    with torch.no_grad(), as_given(by.device):
        if num_segments is not None:
            return None, _bisected(by, _number_of(num_segments), validate)
        if is_abstract(by) or by.is_meta:
            raise ArgumentError(
                f"{CALL}: the number of keys must be known where there is no data, got num_segments=None; pass it"
            )
        seen = by.float() if by.is_floating_point() and by.itemsize == 1 else by  # torch compares no float8
        keys, counts = torch.unique_consecutive(seen, return_counts=True)
        return keys.to(by.dtype), torch.nn.functional.pad(counts.cumsum(0), (1, 0))


def _number_of(num_segments: Any) -> int:
    number = whole_number(num_segments)
    if number is None:
        raise KindError(
            f"{CALL}: `num_segments` must be an int, got {shown(num_segments)}; pass how many keys there are"
        )
    if not 0 <= number < 2**63 - 1:  # there is one more offset
        raise ArgumentError(
            f"{CALL}: `num_segments` must not be negative or beyond int64, got {number}; pass how many keys there are"
        )
    return number


def _bisected(by: Tensor, number: int, validate: bool) -> Tensor:
    if by.is_floating_point() or by.dtype == torch.bool:
        raise DtypeError(
            f"{CALL}: with num_segments, `by` must hold whole numbers, got {by.dtype}; convert it, or leave num_segments out"
        )
    keys = by.view(torch.int64) ^ _LEAST if by.dtype == torch.uint64 else by.to(torch.int64)
    if (
        (validate or not by.is_cuda)
        and not (is_abstract(by) or by.is_meta)
        and bool((keys[1:] < keys[:-1]).any())
    ):
        at = int((keys[1:] < keys[:-1]).nonzero()[0])
        raise ArgumentError(
            f"{CALL}: with num_segments, `by` must be sorted, got {by[at].tolist()} before {by[at + 1].tolist()} at position "
            f"{at}; sort the keys, and the inputs by them"
        )
    wanted = torch.arange(number + 1, dtype=torch.int64, device=by.device)
    return torch.searchsorted(keys, wanted ^ _LEAST if by.dtype == torch.uint64 else wanted)


def _check_offsets(offsets: Tensor, length: int, monoid: Monoid) -> None:
    """Refuse offsets that do not ascend inside the dim, and empty segments of what has no identity."""
    low, high = (int(v) for v in offsets.aminmax())
    if low < 0 or high > length:
        raise ArgumentError(
            f"{CALL}: `offsets` must be in [0, {length}], got {low if low < 0 else high}; clamp them"
        )
    lengths = offsets.diff()
    if bool((lengths < 0).any()):
        at = int((lengths < 0).nonzero()[0])
        raise ArgumentError(
            f"{CALL}: `offsets` must ascend, got {int(offsets[at])} before {int(offsets[at + 1])} at position {at}; sort them"
        )
    if monoid.algebra.identity is None and bool((lengths == 0).any()):
        at = int((lengths == 0).nonzero()[0])
        raise EmptyError(
            f"{CALL}: folding nothing needs an identity, got the empty segment {at} and {monoid.name} without one; give the "
            "monoid an identity or the segment elements"
        )


# ------------------------------------------------------------------------------------------------ torch.nested


def _of_jagged(
    tensors: list[Any], monoid: Monoid, offsets: Any, by: Any, dim: Any, out: Any, options: dict[str, Any]
) -> Any:
    """A fold of the rows of jagged tensors: of their values, at their offsets."""
    if offsets is not None or by is not None:
        got = " and ".join(name for name, value in (("offsets", offsets), ("by", by)) if value is not None)
        raise ArgumentError(
            f"{CALL}: jagged inputs must come without `offsets` and `by`, got {got}; fold values() to use others"
        )
    first = tensors[0]
    for t in tensors:
        if not isinstance(t, Tensor) or not t.is_nested or t.layout != torch.jagged:
            raise KindError(
                f"{CALL}: nested inputs must all be of layout torch.jagged, got {getattr(t, 'layout', type(t).__name__)}; "
                "use torch.nested.nested_tensor(..., layout=torch.jagged)"
            )
        nested: Any = t
        if nested._lengths is not None:
            raise ArgumentError(
                f"{CALL}: jagged inputs must have no gaps between rows, got one with lengths of its own; call contiguous()"
            )
        if nested.offsets() is not first.offsets() or nested._ragged_idx != first._ragged_idx:
            raise ShapeError(
                f"{CALL}: jagged inputs must share their offsets, got several; make one from the other's offsets"
            )
    if one_dim(dim, first.ndim, CALL) not in (0, first._ragged_idx):
        raise ArgumentError(
            f"{CALL}: jagged inputs are folded along their ragged dim {first._ragged_idx}, got dim={dim}; leave it out"
        )
    place, values = first._ragged_idx - 1, [t.values() for t in tensors]
    if not place:
        return segment_reduce(values, monoid, first.offsets(), out=out, **options)
    targets = None if out is None else _moved(listed(out), place, (first.shape[0], values))
    results = segment_reduce(values, monoid, first.offsets(), dim=place, out=targets, **options)
    if targets is not None:
        return monoid.pack(listed(out))
    if isinstance(results, Tensor):
        return results.movedim(place, 0)
    moved = [r.movedim(place, 0) for r in results]
    return tuple(moved) if type(results) is tuple else type(results)(*moved)


def _moved(targets: list[Any], place: int, of: tuple[int, list[Tensor]]) -> list[Any]:
    """Targets whose rows come first, as results have them; what is no tensor is left to the checks."""
    batch, values = of
    shape = list(broadcast_shape(values, CALL))
    del shape[place]
    for t in targets:
        if isinstance(t, Tensor) and list(t.shape) != [batch, *shape]:
            raise ShapeError(
                f"{CALL}: `out` must have the result's shape {[batch, *shape]}, got {list(t.shape)}; make it so"
            )
    return [t.movedim(0, place) if isinstance(t, Tensor) else t for t in targets]

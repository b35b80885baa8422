"""`segment_reduce`: validate, make a request, dispatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tilefold.algebra import program as programs
from tilefold.algebra.monoid import Monoid
from tilefold.api import dispatch
from tilefold.api.recorded import SHARDED, between_graphs, is_differentiated, is_sharded, recorded_segments
from tilefold.api.requests import Segments
from tilefold.errors import ArgumentError, DtypeError, EmptyError, KindError, ShapeError, shown
from tilefold.planner.problem.canonical import broadcast_shape, one_dim, whole_number
from tilefold.planner.problem.validate import (
    as_dtype,
    as_inputs,
    check_count,
    check_flags,
    check_inputs,
    check_is_tensor,
    check_memory,
    check_out,
    check_tensors,
    is_abstract,
    plain,
)
from tilefold.runtime.modes import as_given, check_not_recorded, is_seen
from tilefold.runtime.overrides import classed, listed, overridden, override, rebuildable
from tilefold.runtime.switch import layouts_once_checked

CALL = "segment_reduce"
_LEAST = torch.iinfo(
    torch.int64
).min  # the bit that turns the order of unsigned numbers into that of signed ones


class Cut(NamedTuple):
    """How one dim is cut: by "offsets", "lengths" or keys ("by", this `number` of them), and what is asked of these."""

    kind: str
    number: int | None = None
    partial: bool = False
    validate: bool = False


class Keyed(NamedTuple):
    """What segments of equal keys fold to: each key, and the result beside it."""

    keys: Tensor
    results: Any


def segment_reduce(
    inputs: Tensor | Sequence[Tensor],
    monoid: Monoid,
    offsets: Tensor | None = None,
    *,
    lengths: Tensor | None = None,
    by: Tensor | None = None,
    num_segments: int | None = None,
    dim: int = 0,
    dtype: torch.dtype | None = None,
    out: Tensor | Sequence[Tensor] | None = None,
    partial: bool = False,
    validate: bool = False,
    guarantee: str = "run_to_run",
) -> Any:
    """Fold each segment of one dim with a monoid.

        result[.., s, ..] = project(combine over p in [offsets[s], offsets[s + 1]) of lift(x[.., p, ..], ..., p - offsets[s]))

    Args:
        inputs: a tensor [.., N, ..], or tensors that broadcast against each other; any strides, read in place. Or jagged
            tensors of torch.nested that share their offsets: rows of the ragged dim are folded.
        monoid: the monoid to fold with. Elements are combined in order unless it is commutative; positions count from the
            segment's beginning.
        offsets: S + 1 ascending positions, int32 or int64, copied if they are not contiguous: the first is 0, the last is N.
            An empty segment gives the projected identity.
        lengths: instead of offsets, how many elements each of S segments has, int32 or int64: N in all.
        by: instead of offsets, a key for each position [N]. Without `num_segments` each run of equal keys is a segment.
        num_segments: with `by`: keys are sorted numbers in [0, num_segments), and segment s holds those equal to s.
        dim: which dim is cut. Others stay: each of their places is a fold of its own.
        dtype: the dtype of computed results, as in `reduce`.
        out: tensor(s) to write the results into, of the results' shape and dtype.
        partial: offsets may begin after 0 and end before N, lengths sum to less, and keys be outside of [0, num_segments):
            elements outside belong to no segment. Without it that is an error, since elements would be lost in silence.
        validate: have offsets, lengths and keys looked at on a GPU as well, which waits for it. They always are on a CPU.
            Without it, on a GPU, offsets are clamped to [0, N]: nothing outside of a tensor is read or written; where
            they do not ascend (lengths are negative, keys not sorted), results are unspecified, and `partial` is as if it
            were True.
        guarantee: as in `reduce`. With "batch_invariant" a segment's bits depend on its own elements alone; on a GPU a
            segment is then folded by one program, however long.

    Returns:
        What `project` gives, in the inputs' shape with S in place of N; for jagged inputs the batch comes first. For `by`
        without `num_segments`: `(keys, results)`, of each run of equal keys; on a GPU this waits for their number.

    Raises:
        DimError, ShapeError, DtypeError, DeviceError, ArgumentError, KindError: the call does not fit, or offsets that are
            looked at do not ascend from 0 to N (with `partial` in [0, N]), or keys are not in [0, num_segments).
        EmptyError: a segment that is looked at is empty, and the monoid has no identity. On a GPU, without `validate`,
            the result of this segment is unspecified.
        GradientError: `out` is given while a gradient or a forward derivative is asked; or without a project fields of
            states depend on how they were grouped.

    Example:
        >>> x = torch.tensor([3, 5, 8, 1])
        >>> tilefold.segment_reduce(x, tilefold.monoids.SUM, torch.tensor([0, 2, 2, 4]))
        tensor([8, 0, 9])
        >>> tilefold.segment_reduce(x, tilefold.monoids.SUM, lengths=torch.tensor([2, 0, 2]))
        tensor([8, 0, 9])

    Source of the sharing of work by elements: D. Merrill, M. Garland, "Merge-based parallel sparse matrix-vector
    multiplication", SC 2016.
    """
    options = {
        "num_segments": num_segments, "dtype": dtype, "partial": partial, "validate": validate, "guarantee": guarantee
    }  # fmt: skip
    if is_dynamo_compiling():
        return _in_a_graph(
            inputs, monoid, {"offsets": offsets, "lengths": lengths, "by": by}, dim, out, options
        )
    given = {"offsets": offsets, "lengths": lengths, "by": by}
    ragged = [t for t in listed(inputs) if isinstance(t, Tensor) and t.is_nested]
    if ragged:
        return _of_jagged(listed(inputs), monoid, given, dim, out, options)
    tensors = as_inputs(inputs, monoid, CALL)
    relevant = [*tensors, *(t for value in given.values() for t in listed(value)), *listed(out)]
    if overridden(*relevant):
        named = {"lengths": lengths, "by": by, "dim": dim, "out": out, **options}
        return override(segment_reduce, relevant, inputs, monoid, offsets, **named)
    check_count(tensors, monoid, CALL)
    check_flags(CALL, partial=partial, validate=validate)
    keys, (kind, numbers) = None, only_one(given)
    if kind == "by" and num_segments is None:
        keys, numbers = _runs(tensors, numbers, dim)
        kind, partial = "offsets", True  # keys say themselves which elements they name
    cut = Cut(kind, num_segments, partial, validate)
    results = monoid.pack(fold_segments(tensors, monoid, numbers, cut, dim, dtype, out, guarantee))
    results = rebuildable(results) if classed(relevant) else results
    return results if keys is None else Keyed(keys, results)


def _in_a_graph(
    inputs: Any, monoid: Monoid, given: dict[str, Any], dim: Any, out: Any, options: dict[str, Any]
) -> Any:
    """A call that torch.compile traces: one operation, or made between graphs where its results' shapes are its elements' or
    it writes into `out`."""
    tensors = listed(inputs)
    named = [(kind, numbers) for kind, numbers in given.items() if numbers is not None]
    is_run = len(named) == 1 and named[0][0] == "by" and options["num_segments"] is None
    if out is not None or is_run or len(named) != 1 or any(t.is_nested for t in tensors):
        return between_graphs(segment_reduce, inputs, monoid, dim=dim, out=out, **given, **options)
    kind, numbers = named[0]
    cut = Cut(kind, options["num_segments"], options["partial"], options["validate"])
    dtype, guarantee = options["dtype"], options["guarantee"]
    if is_sharded([*tensors, numbers]):
        return monoid.pack(
            SHARDED["segment_reduce"](tensors, monoid, numbers, cut, dim, dtype, None, guarantee)
        )
    return monoid.pack(recorded_segments(tensors, monoid, numbers, cut, dim, dtype, guarantee))


def fold_segments(
    tensors: Sequence[Tensor],
    monoid: Monoid,
    numbers: Tensor,
    cut: Cut,
    dim: int,
    dtype: Any,
    out: Any,
    guarantee: str,
) -> list[Tensor]:
    """Results of each segment, unpacked. `numbers` are offsets, lengths or keys, as `cut` says."""
    if is_sharded([*tensors, numbers]):
        return SHARDED["segment_reduce"](tensors, monoid, numbers, cut, dim, dtype, out, guarantee)
    if out is None and is_seen([*tensors, numbers]):
        return recorded_segments(tensors, monoid, numbers, cut, dim, dtype, guarantee)
    offsets = offsets_of(tensors, numbers, cut, dim)
    check_inputs(tensors, monoid, guarantee, CALL, differentiable=out is None)
    check_tensors([tensors[0], offsets], CALL, names=(None, "offsets"), differentiable=out is None)
    dtype = as_dtype(dtype, CALL)
    if out is None and is_differentiated(tensors):
        return recorded_segments(tensors, monoid, numbers, cut, dim, dtype, guarantee)
    shape = broadcast_shape(tensors, CALL)
    place = dim_of(dim, len(shape))
    program = programs.specialize(monoid.total, tuple(t.dtype for t in tensors), dtype)
    result_shape = (*shape[:place], offsets.shape[0] - 1, *shape[place + 1 :])
    targets = check_out(out, program.outputs, result_shape, [*tensors, offsets], CALL)
    check_not_recorded(CALL, tensors[0].is_cuda)
    abstract = next((t for t in (*tensors, offsets) if is_abstract(t)), None)
    if abstract is not None:
        empty = [abstract.new_empty(result_shape, dtype=d) for d in program.outputs]
        return empty if targets is None else list(targets)
    if are_looked_at(offsets, cut.validate):
        _check_offsets(offsets, shape[place], name_without(monoid), cut.kind != "by" and not cut.partial)
    given = [plain(t.expand(shape)).resolve_neg() for t in tensors]
    given.append(plain(offsets).contiguous())
    seen = layouts_once_checked(given)
    key = None if seen is None else (CALL, monoid, seen, place, dtype, guarantee)
    if targets is None and offsets.is_cpu and (made := dispatch.repeated(key, *given)) is not None:
        return made
    return dispatch.run(Segments(program, place, guarantee, result_shape), given, key, targets)


def dim_of(dim: Any, ndim: int) -> int:
    """The dim that is cut, counted from the front.

    Raises:
        DimError, KindError, ShapeError: there is none.
    """
    if ndim == 0:
        raise ShapeError(f"{CALL}: inputs must have a dim to cut into segments, got 0-D; give at least one")
    return one_dim(dim, ndim, CALL, fix="call once for each dim")


# ------------------------------------------------------------------------------------------------ offsets


def only_one(given: dict[str, Any], call: str = CALL) -> tuple[str, Any]:
    """By what segments are given, and the numbers."""
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        got = {0: "neither", 2: "both"}.get(len(names), "all")
        raise ArgumentError(
            f"{call}: segments must be given by `offsets`, by `lengths` or by `by`, got {got}; pass one of them"
        )
    return names[0], given[names[0]]


def offsets_of(tensors: Sequence[Tensor], numbers: Any, cut: Cut, dim: Any) -> Tensor:
    """The offsets, given or made of lengths or keys, of numbers that fit.

    Raises:
        ArgumentError, DeviceError, DtypeError, KindError, ShapeError: they do not.
    """
    if cut.kind == "by":
        numbers = keys_of(tensors, numbers, dim)
        cut = cut._replace(number=number_of(cut.number))
        check_keys(numbers, cut)
        return unchecked_offsets(numbers, cut)
    check_whole(tensors, numbers, cut.kind, cut.number)
    if cut.kind == "offsets":
        return numbers  # type: ignore[no-any-return]  # a tensor
    offsets = unchecked_offsets(plain(numbers), cut)
    check_tensors([*tensors, numbers], CALL, names=(*[None] * len(tensors), "lengths"), differentiable=True)
    shape = broadcast_shape(tensors, CALL)
    if are_looked_at(numbers, cut.validate):
        _check_lengths(numbers, offsets, shape[dim_of(dim, len(shape))], cut)
    return offsets


def unchecked_offsets(numbers: Tensor, cut: Cut) -> Tensor:
    """`offsets_of` numbers that were checked before.

    Raises:
        ArgumentError: they do not fit in memory.
    """
    with torch.no_grad(), as_given(numbers.device):
        if cut.kind == "offsets":
            return numbers
        if cut.kind == "lengths":
            return torch.nn.functional.pad(numbers.cumsum(0, dtype=torch.int64), (1, 0))
        return _bisected(numbers, cut.number or 0)


def check_whole(tensors: Sequence[Tensor], numbers: Any, name: str, num_segments: Any) -> None:
    """Refuse offsets or lengths that are not a vector of whole numbers."""
    check_is_tensor(numbers, CALL, f"`{name}`")
    check_memory(numbers, CALL, name)
    beyond = int(name == "offsets")
    if num_segments is not None:
        raise ArgumentError(
            f"{CALL}: `num_segments` must come with `by`, got {name}, which have {numbers.numel() - beyond}; leave it out"
        )
    if numbers.dtype not in (torch.int32, torch.int64):
        raise DtypeError(
            f"{CALL}: `{name}` must be int32 or int64, got {numbers.dtype}; convert with .to(torch.int64)"
        )
    if numbers.ndim != 1 or numbers.shape[0] < beyond:
        size = "S + 1" if beyond else "S"
        fix = "flatten it" + (", and let it begin with the first segment's beginning" if beyond else "")
        raise ShapeError(
            f"{CALL}: `{name}` must have the shape [{size}] for S segments, got {list(numbers.shape)}; {fix}"
        )


def check_ends(numbers: Tensor, offsets: Tensor, sizes: Tensor, without: str, cut: Cut) -> None:
    """Refuse offsets or lengths, where they are looked at, that do not fit a dim of `sizes` elements together.

    `without` names a monoid without identity; it is empty of others.
    """
    if not are_looked_at(numbers, cut.validate):
        return
    length = int(sizes.sum())
    if cut.kind == "lengths":
        _check_lengths(numbers, offsets, length, cut)
    _check_offsets(offsets, length, without, not cut.partial)


def _check_lengths(lengths: Tensor, offsets: Tensor, length: int, cut: Cut) -> None:
    """Refuse lengths beyond the dim, and `offsets`, their sums, that do not end with it."""
    low, high = (int(v) for v in lengths.aminmax()) if lengths.numel() else (0, 0)
    if low < 0 or high > length:
        raise ArgumentError(
            f"{CALL}: each of `lengths` must be in [0, {length}], got {low if low < 0 else high}; count the elements of "
            "each segment"
        )
    total = int(offsets[-1])
    if total > length or (total < length and not cut.partial):
        fix = (
            ", or pass partial=True where the elements behind belong to no segment" if total < length else ""
        )
        raise ArgumentError(
            f"{CALL}: `lengths` must sum to the dim's length {length}, got {total}; give every segment's{fix}"
        )


def are_looked_at(numbers: Tensor, validate: bool) -> bool:
    """Whether the values of offsets, lengths or keys are checked: on a GPU, where that waits for it, if asked to."""
    return (validate or not numbers.is_cuda) and not (is_abstract(numbers) or numbers.is_meta)


def keys_of(tensors: Sequence[Tensor], by: Any, dim: Any) -> Tensor:
    """One key for each position."""
    check_is_tensor(by, CALL, "`by`")
    check_tensors([*tensors, by], CALL, names=(*[None] * len(tensors), "by"), differentiable=True)
    shape = broadcast_shape(tensors, CALL)
    length = shape[dim_of(dim, len(shape))]
    if by.shape != (length,):
        raise ShapeError(
            f"{CALL}: `by` must have one key for each of {length} positions, got shape {list(by.shape)}; make it so"
        )
    return plain(by)


def _runs(tensors: Sequence[Tensor], by: Any, dim: Any) -> tuple[Tensor, Tensor]:
    """The keys and offsets of runs of equal keys."""
    if is_sharded([*tensors, by]):
        raise ArgumentError(
            f"{CALL}: the number of keys must be known of DTensors, got num_segments=None; pass it"
        )
    by = keys_of(tensors, by, dim)
    with torch.no_grad(), as_given(by.device):
        if is_abstract(by) or by.is_meta:
            raise ArgumentError(
                f"{CALL}: the number of keys must be known where there is no data, got num_segments=None; pass it"
            )
        seen = by.float() if by.is_floating_point() and by.itemsize == 1 else by  # torch compares no float8
        keys, counts = torch.unique_consecutive(seen, return_counts=True)
        return keys.to(by.dtype), torch.nn.functional.pad(counts.cumsum(0), (1, 0))


def number_of(num_segments: Any) -> int:
    """How many segments keys have.

    Raises:
        ArgumentError, KindError: it is no such number.
    """
    number = whole_number(num_segments)
    if number is None:
        raise KindError(
            f"{CALL}: `num_segments` must be an int, got {shown(num_segments)}; pass how many keys there are"
        )
    if not 0 <= number < 2**63 - 1:  # there is one more offset
        raise ArgumentError(
            f"{CALL}: `num_segments` must not be negative or beyond int64, got {shown(number)}; pass how many keys there are"
        )
    return number


def check_keys(by: Tensor, cut: Cut) -> None:
    """Refuse keys that are no sorted whole numbers, or none of a segment."""
    if by.is_floating_point() or by.dtype == torch.bool:
        raise DtypeError(
            f"{CALL}: with num_segments, `by` must hold whole numbers, got {by.dtype}; convert it, or leave num_segments out"
        )
    if not by.numel() or not are_looked_at(by, cut.validate):
        return
    keys = _ordered(by)
    if bool((keys[1:] < keys[:-1]).any()):
        at = int((keys[1:] < keys[:-1]).nonzero()[0])
        raise ArgumentError(
            f"{CALL}: with num_segments, `by` must be sorted, got {by[at].tolist()} before {by[at + 1].tolist()} at position "
            f"{at}; pass by[order] and x.index_select(dim, order) with order = by.argsort(stable=True)"
        )
    ends: list[Any] = by[:: max(len(by) - 1, 1)].tolist()  # int() of a tensor fails beyond int64
    low, high = ends[0], ends[-1]
    if not cut.partial and (low < 0 or high >= (cut.number or 0)):
        raise ArgumentError(
            f"{CALL}: with num_segments={cut.number}, keys in `by` must be in [0, {cut.number}), got "
            f"{low if low < 0 else high}; pass partial=True where elements of other keys belong to no segment"
        )


def _ordered(by: Tensor) -> Tensor:
    """Keys as signed numbers of the same order."""
    return by.view(torch.int64) ^ _LEAST if by.dtype == torch.uint64 else by.to(torch.int64)


def _bisected(by: Tensor, number: int) -> Tensor:
    try:
        wanted = torch.arange(number + 1, dtype=torch.int64, device=by.device)
    except RuntimeError:  # torch's error where the memory does not suffice
        raise ArgumentError(
            f"{CALL}: `num_segments` offsets must fit in memory, got {shown(number)}; pass how many keys there are"
        ) from None
    return torch.searchsorted(_ordered(by), wanted ^ _LEAST if by.dtype == torch.uint64 else wanted)


def name_without(monoid: Monoid) -> str:
    """The name of a monoid without identity, which folds no empty segment; nothing of others."""
    return monoid.name if monoid.algebra.identity is None else ""


def _check_offsets(offsets: Tensor, length: int, without: str, whole: bool) -> None:
    """Refuse offsets that do not ascend inside the dim (`whole`: from its begin to its end), and empty segments of what has
    no identity."""
    low, high = (int(v) for v in offsets.aminmax())
    if low < 0 or high > length:
        raise ArgumentError(
            f"{CALL}: `offsets` must be in [0, {length}], got {low if low < 0 else high}; clamp them"
        )
    lengths = offsets.diff()
    if bool((lengths < 0).any()):
        at = int((lengths < 0).nonzero()[0])
        raise ArgumentError(
            f"{CALL}: `offsets` must ascend, got {int(offsets[at])} before {int(offsets[at + 1])} at position {at}"
            f"{_as_lengths(offsets, length) or '; sort them'}"
        )
    if whole and (low > 0 or high < length):
        raise ArgumentError(
            f"{CALL}: `offsets` must begin at 0 and end at the dim's length {length}, got {low} and {high}"
            f"{_as_lengths(offsets, length) or '; add these ends'}, or pass partial=True where elements outside belong to "
            "no segment"
        )
    if without:
        check_filled(lengths > 0, without)


def check_filled(filled: Tensor, without: str, call: str = CALL) -> None:
    """Refuse an empty segment of what has no identity: `filled` says of each one whether it has elements."""
    if not bool(filled.all()):
        at = int((~filled).nonzero()[0])
        raise EmptyError(
            f"{call}: folding nothing needs an identity, got the empty segment {at} and {without} without one; give the "
            "monoid an identity or the segment elements"
        )


def _as_lengths(offsets: Tensor, length: int) -> str:
    """The fix for offsets that may be meant as lengths."""
    return "; these look like lengths: pass lengths=" if int(offsets.sum()) == length else ""


# ------------------------------------------------------------------------------------------------ torch.nested


def _of_jagged(
    tensors: list[Any], monoid: Monoid, given: dict[str, Any], dim: Any, out: Any, options: dict[str, Any]
) -> Any:
    """A fold of the rows of jagged tensors: of their values, at their offsets."""
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise ArgumentError(
            f"{CALL}: jagged inputs must come without `offsets`, `lengths` and `by`, got {' and '.join(names)}; fold "
            "values() to use others"
        )
    options = {**options, "partial": True}  # rows may be some of the values
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
    """Targets whose rows come first, as results have them; the checks refuse values that are not tensors."""
    batch, values = of
    shape = list(broadcast_shape(values, CALL))
    del shape[place]
    for t in targets:
        if isinstance(t, Tensor) and list(t.shape) != [batch, *shape]:
            raise ShapeError(
                f"{CALL}: `out` must have the result's shape {[batch, *shape]}, got {list(t.shape)}; make it so"
            )
    return [t.movedim(0, place) if isinstance(t, Tensor) else t for t in targets]

"""`reduce_many`: validate, make tables of addresses and a request, dispatch.

On a GPU tables on the device name the tensors (`planner.tables`). They are kept with the executable: a call of tensors that
have the layouts and the addresses of an earlier call's launches at once, and one of the layouts alone copies new addresses.
Each stream has tables of its own, since they are copied on it. Elsewhere each tensor is folded by itself.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tilefold.algebra import program as programs
from tilefold.algebra.dtypes import promote
from tilefold.algebra.monoid import Monoid
from tilefold.api import dispatch
from tilefold.api.recorded import is_differentiated, recorded_many
from tilefold.api.reduce import fold_tensors
from tilefold.api.requests import Many, Reduction
from tilefold.errors import ArgumentError, EmptyError, GradientError, KindError
from tilefold.planner.problem.validate import (
    as_dtype,
    check_flags,
    check_monoid,
    check_tensors,
    is_abstract,
    plain,
)
from tilefold.planner.tables import Group, blocks_of, rows_of
from tilefold.runtime.modes import check_not_recorded, is_seen, outside_modes
from tilefold.runtime.overrides import overridden, override
from tilefold.runtime.switch import Alike, forced_backend, is_explaining

CALL = "reduce_many"
SMALL = 1 << 14  # elements of a tensor that is copied to others of its size, off a GPU (not measured)
_is_nested = attrgetter("is_nested")  # docs/experiments/losses.md#many-tensors
KEPT = 4  # tables of one site: of parameters and their gradients, say


class Folded(NamedTuple):
    """What tensors fold to with `together`: `each` of them, and all `together`."""

    each: Any
    together: Any


class _Unplaced(NamedTuple):
    """Tables of tensors without their addresses, one behind the other on the host.

    `shapes` are the tables'; `owners` say which tensor each address is of, and stand where these begin.
    """

    rows: Any
    shapes: list[tuple[int, ...]]
    owners: dict[int, Any]

    def placed(self, addresses: Sequence[int], device: torch.device) -> list[Tensor]:
        """The tables of tensors at these addresses, on the device: in one copy."""
        rows, each = self.rows.copy(), np.array(addresses, np.int64)
        for begin, owners in self.owners.items():
            rows[begin : begin + len(owners)] += each[owners]
        with outside_modes():
            held = torch.from_numpy(rows)
            if device.type == "cuda":
                held = held.pin_memory()
            there = held.to(device, non_blocking=True)
            parts = torch.split(there, [math.prod(shape) for shape in self.shapes])
            tables = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            _captured.append((held, tables))
        return tables


class _Known(NamedTuple):
    """An earlier call on a GPU: what knows tensors of its layouts, where its own lay, and what answers for them."""

    alike: Alike
    addresses: list[int]
    executable: Any
    unplaced: _Unplaced
    tables: list[Tensor]


# Tables that a graph of CUDA's reads whenever it is replayed, and what they are copied from: as long as the process lives.
_captured: list[tuple[Tensor, list[Tensor]]] = []


def reduce_many(
    tensors: Iterable[Tensor], monoid: Monoid, *, dtype: torch.dtype | None = None, together: bool = False
) -> Any:
    """Fold each of any number of tensors whole, to one value; on a GPU in two launches.

        results[i] = project(combine over all elements p of tensors[i], in row-major order, of lift(tensors[i][p]))

    Args:
        tensors: at least one tensor, on one device, of any shapes. Where dtypes differ, elements are read as the one that
            holds all (torch.promote_types). On a GPU a tensor with gaps in memory is copied first, and so is one whose order
            in memory is another than its elements', unless the monoid is commutative and sees no positions. Others are
            read in place, in whole vectors: up to 15 bytes on either side of a tensor are read and not used.
        monoid: the monoid to fold with, of one input. Positions count from 0 in each tensor.
        dtype: the dtype of computed results, as in `reduce`.
        together: also fold all tensors, one behind the other, to one value, without waiting for the device. Not with a
            monoid that sees positions.

    Returns:
        What `project` gives, of the shape [len(tensors)]; with `together` a named tuple `(each, together)` of that and of
        what all tensors fold to, 0-d. An empty tensor gives the projected identity. Dtypes are as in `reduce`.
        The same input gives the same bits; on a GPU a tensor's bits depend on its own elements, their layout, the dtype that
        they are read as and the address modulo 16 bytes, not on the other tensors or the chip's number of SMs.

    A call on a GPU whose tensors have the layouts and the addresses of an earlier one copies nothing. Others copy a table of
    addresses to the device: 32 bytes for 32 KB of elements, at least for each tensor.

    Raises:
        ArgumentError, DeviceError, DtypeError, KindError: the call does not fit.
        EmptyError: a tensor is empty, and the monoid has no identity.
        GradientError: a gradient or a forward derivative is asked: use `reduce` of each tensor.

    Example:
        >>> gradients = [torch.tensor([3.0, 4.0]), torch.tensor([[1.0], [float("nan")]]), torch.tensor(-2.0)]
        >>> tilefold.reduce_many(gradients, tilefold.monoids.NORM(2))
        tensor([5., nan, 2.])
        >>> tilefold.reduce_many(gradients[::2], tilefold.monoids.MAX, together=True)
        Folded(each=tensor([ 4., -2.]), together=tensor(4.))
    """
    if (
        isinstance(tensors, Tensor)
        or not isinstance(tensors, Iterable)
        or getattr(tensors, "shape", None) == ()
    ):
        raise KindError(
            f"{CALL}: `tensors` must be several tensors, got {type(tensors).__name__}; pass a list, or use tilefold.reduce"
        )
    tensors = tensors if type(tensors) is list else list(tensors)
    if not is_dynamo_compiling() and overridden(*tensors):
        return override(reduce_many, tensors, tensors, monoid, dtype=dtype, together=together)
    made = fold_many(tensors, monoid, dtype, together)
    if not together:
        return monoid.pack(made)
    n = len(made) // 2
    return Folded(monoid.pack(made[:n]), monoid.pack(made[n:]))


def fold_many(
    tensors: list[Tensor],
    monoid: Monoid,
    dtype: Any,
    together: bool,
    convert: torch.dtype | None = None,
    call: str = CALL,
) -> list[Tensor]:
    """`reduce_many` without packing: the results of each tensor, then those of all. `convert`: elements are read as that."""
    if is_dynamo_compiling():
        return recorded_many(tensors, monoid, dtype, together, convert)
    site = _site(tensors, monoid, (dtype, convert), together)
    made = _again(tensors, site) if site else None
    if made is not None:
        return made
    _check(tensors, monoid, together, call)
    dtype = as_dtype(dtype, CALL)
    if is_seen(tensors):
        return recorded_many(tensors, monoid, dtype, together, convert)
    if is_differentiated(tensors):
        raise no_gradient()
    check_not_recorded(CALL, tensors[0].is_cuda)
    elements = convert or functools.reduce(promote, {t.dtype: None for t in tensors})
    program = programs.specialize(monoid.total, (elements,), dtype)
    abstract = next((t for t in tensors if is_abstract(t)), None)
    if abstract is not None:
        shapes: list[list[int]] = [[len(tensors)], []] if together else [[len(tensors)]]
        return [abstract.new_empty(shape, dtype=d) for shape in shapes for d in program.outputs]
    given = [plain(t.detach()).resolve_neg() for t in tensors]
    if not _by_tables(given[0]):
        return _one_by_one(given, monoid, dtype, elements, together)
    ordered = not monoid.algebra.commutative or monoid.algebra.index
    read = [_in_one_run(t, ordered) for t in given]
    request = _request(read, program, together)
    key = (CALL, monoid, dtype, elements, request.groups, len(read), together, read[0].device)
    unplaced, addresses = _unplaced(read, request.groups), [t.data_ptr() for t in read]
    tables = unplaced.placed(addresses, read[0].device)
    made = dispatch.run(request, tables, key)
    if site and addresses == [t.data_ptr() for t in tensors]:
        _keep(site, _Known(Alike(tensors), addresses, dispatch.kept(key), unplaced, tables))
    return made


def _again(tensors: list[Tensor], site: Any) -> list[Tensor] | None:
    """The results of tensors that have the layouts of an earlier call of the site; None of others."""
    known: Sequence[_Known] | None = dispatch.kept(site)
    if not known:
        return None
    try:
        addresses = list(map(Tensor.data_ptr, tensors))
    except (RuntimeError, TypeError):  # one has none
        return None
    if any(map(_is_nested, tensors)):  # as a view it may lie at a known address
        return None
    for each, here in sorted(((k, k.addresses == addresses) for k in known), key=itemgetter(1), reverse=True):
        if each.alike(tensors, placed=True):
            tables = each.tables
            if not here:
                tables = each.unplaced.placed(addresses, tensors[0].device)
                _keep(site, each._replace(addresses=addresses, tables=tables))
            return dispatch.latest(each.executable, tables)
    return None


def _site(tensors: list[Tensor], monoid: Any, dtypes: Any, together: Any) -> Any:
    """What calls have in common that may be of the same tensors; None where tables are not kept."""
    if not tensors or (type(tensors[0]) is not Tensor and not isinstance(tensors[0], torch.nn.Parameter)):
        return None
    if not tensors[0].is_cuda or torch.cuda.is_current_stream_capturing() or not isinstance(monoid, Monoid):
        return None
    index = tensors[0].device.index
    stream = torch._C._cuda_getCurrentRawStream(index)
    return (CALL, monoid, dtypes, together is True, len(tensors), index, stream)


def _keep(site: Any, known: _Known) -> None:
    """The latest calls of a site, the newest first."""
    dispatch.keep(site, (known, *(dispatch.kept(site) or ())[: KEPT - 1]))


def _check(tensors: list[Tensor], monoid: Any, together: Any, call: str) -> None:
    """Refuse what cannot be folded."""
    check_flags(CALL, together=together)
    check_monoid(monoid, CALL)
    if monoid.algebra.inputs != 1:
        raise ArgumentError(
            f"{CALL}: the monoid must take one input, got {monoid.name}, which takes {monoid.algebra.inputs}; use "
            "tilefold.reduce of tensors that belong together"
        )
    if not tensors:
        raise ArgumentError(f"{CALL}: `tensors` must have one at least, got none; leave the call out")
    check_tensors(tensors, call, differentiable=True)
    if together and monoid.algebra.index:
        raise ArgumentError(
            f"{CALL}: `together` must be False with a monoid that sees positions, got {monoid.name}, whose positions count "
            "in each tensor; fold torch.cat of them"
        )
    if monoid.algebra.identity is None and not all(t.numel() for t in tensors):
        raise EmptyError(
            f"{CALL}: folding nothing needs an identity, got an empty tensor and {monoid.name} without one; leave it out"
        )


def no_gradient() -> GradientError:
    """The error of tensors that ask for a gradient or carry a forward derivative."""
    return GradientError(
        f"{CALL}: tensors must ask for no gradient, got one that does; use torch.no_grad(), or tilefold.reduce of each"
    )


def _by_tables(t: Tensor) -> bool:
    """Whether kernels fold the tensors: on a GPU, under the interpreter, and where a call is explained."""
    if is_explaining():
        return True
    forced = forced_backend()
    return forced == "interpret" or (t.is_cuda and forced in ("auto", "triton"))


def _in_one_run(t: Tensor, ordered: bool) -> Tensor:
    """A tensor whose elements lie without gaps, in their order if that counts; a copy, if it must be."""
    if t.is_contiguous():
        return t
    steps = t.stride()
    nearest_last = sorted(range(t.ndim), key=lambda d: (-steps[d], -t.shape[d]))
    return t if not ordered and t.permute(nearest_last).is_contiguous() else t.contiguous()


def _request(tensors: list[Tensor], program: Any, together: bool) -> Many:
    groups = []
    for dtype in dict.fromkeys(t.dtype for t in tensors):
        counts = [t.numel() for t in tensors if t.dtype == dtype]
        blocks = sum(blocks_of(n, dtype.itemsize)[0] for n in counts)
        groups.append(Group(dtype, sum(counts), blocks))
    return Many(program, tuple(groups), len(tensors), together)


def _unplaced(tensors: list[Tensor], groups: Sequence[Group]) -> _Unplaced:
    """A table of each group, where each tensor's blocks begin among all and where the last ones end, and 0 and how many
    tensors there are."""
    first = [0, *accumulate(blocks_of(t.numel(), t.dtype.itemsize)[0] for t in tensors)]
    tables, owners, begin = list[Any](), dict[int, Any](), 0
    for group in groups:
        chosen = [(t.numel(), n) for t, n in zip(tensors, first, strict=False) if t.dtype == group.dtype]
        rows = rows_of([n for n, _ in chosen], group.dtype.itemsize, [n for _, n in chosen])
        owners[begin] = np.searchsorted(first[1:], rows[3], side="right")
        tables.append(rows)
        begin += rows.size
    tables += [np.array(first, np.int64), np.array([0, len(tensors)], np.int64)]
    return _Unplaced(np.concatenate([t.ravel() for t in tables]), [t.shape for t in tables], owners)


def _one_by_one(
    tensors: list[Tensor], monoid: Monoid, dtype: Any, elements: torch.dtype, together: bool
) -> list[Tensor]:
    """Each tensor by a fold of its own, small ones of one size as the rows of one; and their states by one more."""
    options = {"return_state": together, "dtype": dtype, "call": CALL}
    alike: dict[Any, list[int]] = {}
    for i, t in enumerate(tensors):
        alike.setdefault((t.dtype, t.numel()) if 0 < t.numel() <= SMALL else i, []).append(i)
    parts = []
    for chosen in alike.values():
        given, several = [tensors[i] for i in chosen], len(chosen) > 1
        x = torch.stack([t.reshape(-1) for t in given]) if several else given[0]
        convert = None if x.dtype == elements else elements
        folded = fold_tensors([x], monoid, 1 if several else None, False, convert=convert, **options)
        parts.append([f.view(len(chosen)) for f in folded])
    places = torch.tensor([i for chosen in alike.values() for i in chosen], device=tensors[0].device)
    made = [torch.cat(fields)[places.argsort()] for fields in zip(*parts, strict=True)]
    if not together:
        return made
    program = programs.of_states(programs.specialize(monoid.total, (elements,), dtype, all_fields=True))
    n = len(program.outputs)
    results, states = made[:n], made[n:]
    if len(states) < len(program.state):
        states.append(torch.ones(len(tensors), dtype=torch.bool, device=tensors[0].device))
    return [*results, *dispatch.run(Reduction(program, (0,), "run_to_run", (), call=CALL), states)]

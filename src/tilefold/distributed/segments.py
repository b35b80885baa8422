"""`tilefold.distributed.segment_reduce`: folds of segments that may cross ranks.

A rank folds what it has of each segment. Only its first and its last one may go on elsewhere: their states, the edges, are
exchanged, and every rank folds them in rank order. Results of other segments are one rank's, and a sum of bits gives them to
all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tilefold.algebra.derivatives.folds import Gradient
from tilefold.algebra.monoid import Monoid, monoid_of
from tilefold.api import dispatch
from tilefold.api.differentiated import Call, at_places
from tilefold.api.ends import Ends
from tilefold.api.gradients import converted
from tilefold.api.operations import LIBRARY, fresh
from tilefold.api.parts import Dtypes, finish_text, partial_text, result_dtypes, takes_positions
from tilefold.api.recorded import OPERATIONS, asks_gradient, recorded_segments
from tilefold.api.segment_gradients import Places, Segmented
from tilefold.api.segment_reduce import (
    Cut,
    are_looked_at,
    check_ends,
    check_filled,
    check_keys,
    check_whole,
    dim_of,
    fold_segments,
    keys_of,
    name_without,
    number_of,
    only_one,
    unchecked_offsets,
)
from tilefold.distributed.agreement import asks_gradients
from tilefold.distributed.exchange import Step, again, collective, gathered, gathered_states
from tilefold.distributed.gradient import check_order, check_tangents, differentiated
from tilefold.distributed.reduce import Axes, agreed, derived_places, fold_of_text
from tilefold.errors import ArgumentError
from tilefold.functional.arguments import NEEDED
from tilefold.planner.problem.canonical import broadcast_shape
from tilefold.planner.problem.validate import as_dtype, as_inputs, check_flags, check_inputs, check_tensors
from tilefold.runtime.uncompiled import constant_in_graphs

CALL = "distributed.segment_reduce"


def segment_reduce(
    inputs: Tensor | Sequence[Tensor],
    monoid: Monoid,
    offsets: Tensor | None = None,
    *,
    lengths: Tensor | None = None,
    by: Tensor | None = None,
    num_segments: int | None = None,
    dim: int = 0,
    sharded_dim: Axes = NEEDED,
    group: Any = None,
    mesh: Any = None,
    dtype: torch.dtype | None = None,
    partial: bool = False,
    validate: bool = False,
    guarantee: str = "run_to_run",
) -> Any:
    """Fold each segment of a dim of which each rank of a group holds a part: `tilefold.segment_reduce` of the parts.

    A segment may lie on several ranks, on none, and a rank may have no elements. Each rank folds its own part, one exchange
    moves the states of its first and its last segment, which every rank folds in rank order, and a sum over the group gives
    every rank the results of the others. Every rank of the group must make the call.

    Args:
        inputs, sharded_dim, group, mesh: as in `tilefold.distributed.reduce`.
        monoid, dim, dtype, partial, guarantee: as in `tilefold.segment_reduce`. Positions count from the segment's beginning,
            which may lie on a rank before.
        offsets, lengths: as in `tilefold.segment_reduce`, of the parts side by side; the same on every rank.
        by, num_segments: instead of these the keys of this rank's part, sorted over all ranks, and how many keys there are.
        validate: as in `tilefold.segment_reduce`.

    Returns:
        The results of all segments, the same on every rank. In the dtype and error bound of `tilefold.segment_reduce`, but
        for log2(ranks) more steps. Bits do not depend on which rank is late.

        Gradients: the cotangent of a result must be the same on every rank, and each rank gets that of its own part;
        nothing is exchanged. There is no second derivative.

    Raises:
        As `tilefold.segment_reduce` and `tilefold.distributed.reduce`; and
        ArgumentError: `by` comes without `num_segments`; or keys of a rank come before those of the rank before it, where
            keys are looked at.

    Example:
        >>> tilefold.distributed.segment_reduce(tokens, tilefold.monoids.MAX, ends, sharded_dim=0)  # doctest: +SKIP
    """
    tensors = as_inputs(inputs, monoid, CALL)
    kind, numbers = only_one({"offsets": offsets, "lengths": lengths, "by": by}, CALL)
    check_flags(CALL, partial=partial, validate=validate)
    cut = Cut(kind, num_segments, partial, validate)
    shards: dict[str, Any] = {"sharded_dim": sharded_dim, "group": group, "mesh": mesh}
    return monoid.pack(segments_of_shards(tensors, monoid, numbers, cut, dim, dtype, guarantee, **shards))


def segments_of_shards(
    tensors: Sequence[Tensor], monoid: Monoid, numbers: Tensor, cut: Cut, dim: int, dtype: Any, guarantee: str,
    *, sharded_dim: Axes, group: Any = None, mesh: Any = None, call: str = CALL,
) -> list[Tensor]:  # fmt: skip
    """`segment_reduce` without packing."""
    every = [*tensors, numbers]
    key: Any = None
    if cut.number is None or type(cut.number) is int:  # a tensor's number may change
        rest = (monoid, cut, dtype, guarantee)
        key, known = again(every, call, dim, rest, sharded_dim, group, mesh)
        if known is not None:
            return known
    check_inputs(tensors, monoid, guarantee, call, differentiable=True)
    check_tensors([tensors[0], numbers], call, names=(None, cut.kind), differentiable=True)
    shape, dtype = broadcast_shape(tensors, call), as_dtype(dtype, call)
    along = dim_of(dim, len(shape))
    if cut.kind == "by" and cut.number is None:
        raise ArgumentError(
            f"{call}: `by` must come with `num_segments`, got None; pass how many keys all ranks have together"
        )
    facts = {
        "monoid": monoid, "dim": along, "result dtype": dtype, "segments by": cut.kind, "partial": cut.partial,
        "segments": cut.number if cut.kind == "by" else numbers, "what requires grad": asks_gradients(tensors),
    }  # fmt: skip
    steps = agreed(tensors, shape, sharded_dim, group, mesh, guarantee, facts, call)
    steps = tuple([step for step in steps if step.axis == along])
    if not steps:
        if is_dynamo_compiling():
            return recorded_segments(tensors, monoid, numbers, cut, along, dtype, guarantee)
        return fold_segments(tensors, monoid, numbers, cut, along, dtype, None, guarantee)
    check_tangents(tensors, call)
    if cut.kind != "by":
        check_whole(tensors, numbers, cut.kind, cut.number)
    elif not is_dynamo_compiling():
        keys_of(tensors, numbers, along)
        cut = cut._replace(number=number_of(cut.number))
    elements = tuple([t.dtype for t in tensors])
    shards = Shards(
        monoid.text, name_without(monoid), cut, along, tuple(shape), steps, dtype, guarantee, elements,
        asks_gradient(tensors), call,
    )  # fmt: skip
    if shards.ties:
        return differentiated(shards, shards.run, every, key)
    return dispatch.replayed(key, lambda tensors: shards.given(shards.run(tensors)), every)


# ------------------------------------------------------------------------------------------------ where segments lie


def _lies(
    cut: Cut, without: str, length: int, steps: Sequence[Step], numbers: Tensor
) -> tuple[Tensor, Tensor]:
    """Where segments lie: offsets [S + 1] counted from this rank's first element, negative where a segment begins before it;
    and the first and the last segment of each rank, in rank order: edges [2 * ranks], which ascend.

    Raises:
        ArgumentError, EmptyError: numbers that are looked at do not fit.
    """
    if cut.kind == "by":
        if not is_dynamo_compiling():
            check_keys(numbers, cut)
        return _of_keys(unchecked_offsets(numbers, cut), cut, length, steps)
    offsets = unchecked_offsets(numbers, cut).to(torch.int64)
    sizes = every_rank(offsets.new_full([1], length), steps).flatten()
    if not is_dynamo_compiling():
        check_ends(numbers, offsets, sizes, without, cut)
    begins = sizes.cumsum(0) - sizes
    ends = torch.stack([begins, begins + sizes - 1], 1).flatten()
    edges = torch.searchsorted(offsets, ends, right=True) - 1
    edges = torch.where(sizes.repeat_interleave(2, output_size=len(ends)) > 0, edges, -1)
    return offsets - begins[place_of(steps)], _ascending(edges, len(offsets) - 1)


def _of_keys(own: Tensor, cut: Cut, length: int, steps: Sequence[Step]) -> tuple[Tensor, Tensor]:
    """The same of the offsets of this rank's keys: ranks tell their edges and how many elements these have there."""
    count, rank = len(own) - 1, place_of(steps)
    mine = own.new_full([4], -1)
    if length and count:
        ends = torch.searchsorted(own, (length - 1) * torch.arange(2, device=own.device), right=True) - 1
        ends = ends.clamp(0, count - 1)
        mine = torch.cat([ends, own[ends + 1] - own[ends]])
    told = every_rank(mine, steps)
    edges, held = told[:, :2], told[:, 2:].clone()
    held[:, 1] = torch.where(edges[:, 0] == edges[:, 1], 0, held[:, 1])
    held = held.clamp(min=0).flatten()
    known = edges.flatten()
    edges = _ascending(known, count)
    looked = not is_dynamo_compiling() and are_looked_at(own, cut.validate)
    if looked and bool(((known >= 0) & (known < edges)).any()):
        raise ArgumentError(
            f"{CALL}: with num_segments, `by` must be sorted over all ranks, got the ranks' first and last keys "
            f"{known.tolist()}; sort before the tensor is divided"
        )
    if not count:
        return own, edges
    first, last = edges[2 * rank], edges[2 * rank + 1]
    at, segments = torch.arange(len(edges), device=own.device), torch.arange(count + 1, device=own.device)
    before = torch.where((edges == first) & (at < 2 * rank), held, 0).sum()
    after = torch.where((edges == last) & (at > 2 * rank + 1), held, 0).sum()
    moved = torch.where(segments <= first, own - before, own)
    return torch.where(segments > last, moved + after, moved), edges


def every_rank(t: Tensor, steps: Sequence[Step]) -> Tensor:
    """A vector of each rank, in rank order: [ranks, n]."""
    n = t.numel()
    for step in steps:
        t = gathered(t, step.ranks).flatten()
    return t.view(-1, n)


def place_of(steps: Sequence[Step]) -> int:
    """This rank's place among all that the dim is divided over."""
    place, size = 0, 1
    for step in steps:
        place, size = place + step.ranks.rank * size, size * step.ranks.size
    return place


def _ascending(edges: Tensor, count: int) -> Tensor:
    """Edges of which a rank without elements, -1, has those of the rank before it."""
    return edges.cummax(0).values.clamp(0, max(count - 1, 0))


# ------------------------------------------------------------------------------------------------ folds


@dataclass(frozen=True)
class Shards(Call):
    """A fold of segments over a sharded dim, of parts of that shape. `without` names a monoid that has no identity; `ties`: a
    gradient is asked for, and states count what ties."""

    monoid: str
    without: str
    cut: Cut
    dim: int
    shape: tuple[int, ...]
    steps: tuple[Step, ...]
    dtype: torch.dtype | None
    guarantee: str
    elements: Dtypes
    ties: bool
    call: str

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The results, and what backward reads beside elements: the states of this rank's segments as those of the whole, the
        states of all edges, and where segments lie."""
        *inputs, numbers = tensors
        dim, steps, length = self.dim, self.steps, self.shape[self.dim]
        lies = dispatch.noted(lambda t: [*_lies(self.cut, self.without, length, steps, t)], numbers)
        count = len(lies[0]) - 1
        own = self._own(lies[0], inputs)
        if not count:
            results, states = self._results([t.narrow(dim, 0, 0) for t in own]), own
        else:
            cuts, *states = dispatch.noted(self._exchanged, lies[1], *own)
            whole = finish_text(self.monoid, self.elements, self.ties, False)
            joined = segments_of_text(states, whole, cuts, dim, self.guarantee)
            total = dispatch.noted(self._total, lies[1], *joined, *own)
            results = dispatch.noted(self._of_all, *lies, *self._results(total))
            own = [t.narrow(dim, 0, count) for t in total]
        if self.without:
            dispatch.noted(self._check_present, results.pop())
        return [*results, *own, *states, *lies]

    def given(self, made: list[Tensor]) -> list[Tensor]:
        """The results alone."""
        return made[: self._asked]

    def moves(self, result: int, tensors: Sequence[Tensor]) -> bool:
        """Whether it is a result with a derivative."""
        return result in derived_places(self.monoid, self.elements)

    def saved(
        self, tensors: Sequence[Tensor], made: Sequence[Tensor], wrt: Sequence[int]
    ) -> Sequence[Tensor]:
        """The elements, states, and where segments lie."""
        return [*tensors[:-1], *made[self._asked :]]

    def backward(self, saved: Sequence[Tensor], grads: Sequence[Any], wrt: Sequence[int]) -> list[Any]:
        """The cotangents of this rank's elements."""
        check_order(CALL, "fold of segments")
        k, end = len(self.elements), len(saved) - 2
        n = (k + end) // 2
        moved = derived_places(self.monoid, self.elements)
        run = OPERATIONS.shard_segments_gradient if is_dynamo_compiling() else _gradient_of_shard
        made = run(
            list(saved[:k]), list(saved[end:]), list(saved[k:n]), list(saved[n:end]), [grads[i] for i in moved],
            self.monoid, self.dim, place_of(self.steps), list(wrt), self.guarantee,
        )  # fmt: skip
        return at_places(made, wrt, k + 1)

    @property
    def _asked(self) -> int:
        return len(result_dtypes(self.monoid, self.elements, self.dtype))

    def _check_present(self, flags: Tensor) -> list[Tensor]:
        """Refuse an empty segment that is looked at.

        Raises:
            EmptyError: there is one.
        """
        if not is_dynamo_compiling() and are_looked_at(flags, self.cut.validate):
            check_filled(flags.movedim(self.dim, 0).unsqueeze(-1).flatten(1).all(1), self.without, self.call)
        return []

    def _own(self, offsets: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The states of this rank's elements of each segment, and behind them that of nothing."""
        cuts, *before = dispatch.noted(self._cuts, offsets)
        text = partial_text(self.monoid, self.elements, self.ties)
        return segments_of_text([*tensors, *before], text, cuts, self.dim, self.guarantee)

    def _cuts(self, offsets: Tensor) -> list[Tensor]:
        """The offsets within this rank's part, with a last segment of nothing; and how many elements of each one's segment
        other ranks have before it, if the monoid takes positions."""
        length = self.shape[self.dim]
        cuts = offsets.clamp(0, length)
        made = [torch.cat([cuts, cuts[-1:]])]
        if takes_positions(self.monoid):
            at = torch.arange(length, device=offsets.device)
            segment = torch.searchsorted(cuts, at, right=True) - 1
            before = (-offsets[segment.clamp(0, max(len(offsets) - 2, 0))]).clamp(min=0)
            made.append(before.view([-1 if d == self.dim else 1 for d in range(len(self.shape))]))
        return made

    def _exchanged(self, edges: Tensor, *own: Tensor) -> list[Tensor]:
        """Which of all edges are parts of each segment, and their states."""
        dim, rank, count = self.dim, place_of(self.steps), own[0].shape[self.dim] - 1
        mine = edges[2 * rank : 2 * rank + 2]
        # One segment is both edges: then the second one is that of nothing, which stands behind the last.
        mine = torch.cat([mine[:1], torch.where(mine[:1] == mine[1:], count, mine[1:])])
        states = [t.index_select(dim, mine).movedim(dim, 0).unsqueeze(0) for t in own]
        for step in self.steps:
            states = [t.flatten(0, 1).unsqueeze(0) for t in gathered_states(states, 0, step.ranks)]
        cuts = torch.searchsorted(edges, torch.arange(count + 1, device=edges.device))
        return [cuts, *(t.squeeze(0).movedim(0, dim) for t in states)]

    def _total(self, edges: Tensor, *states: Tensor) -> list[Tensor]:
        """The states of segments: edges' as they are `joined`, others' as they are this rank's `own`; and that of nothing."""
        joined, own = states[: len(states) // 2], states[len(states) // 2 :]
        dim, count = self.dim, joined[0].shape[self.dim]
        along = _are_edges(edges, count).view([-1 if d == dim else 1 for d in range(own[0].ndim)])
        pairs = zip(joined, own, strict=True)
        return [
            torch.cat([torch.where(along, a, b.narrow(dim, 0, count)), b.narrow(dim, count, 1)], dim)
            for a, b in pairs
        ]

    def _results(self, states: Sequence[Tensor]) -> list[Tensor]:
        dtypes = result_dtypes(self.monoid, self.elements, self.dtype)
        asked = next((d for d in dtypes if d.is_floating_point), None)
        text = finish_text(self.monoid, self.elements, self.ties, True)
        made = fold_of_text(states, text, (), False, asked, None, self.guarantee)
        results = [converted(t, d) for t, d in zip(made, dtypes, strict=False)]
        return [*results, *(states[f] for f in _flags(self.monoid))]

    def _of_all(self, offsets: Tensor, edges: Tensor, *made: Tensor) -> list[Tensor]:
        """The results of all ranks' segments. A rank sends how the bytes of those that no other one sends differ from the
        bytes of nothing, which stands behind the last: so of each sum one term at most is not 0, and no bit is lost."""
        count = len(offsets) - 1
        holds, are_edges = offsets.clamp(0, self.shape[self.dim]).diff() > 0, _are_edges(edges, count)
        sends = holds & ~are_edges if place_of(self.steps) else holds | are_edges
        rows = [t.movedim(self.dim, 0).contiguous() for t in made]
        sizes = [math.prod(t.shape[1:]) * t.itemsize for t in rows]
        parts = [t.reshape(-1).view(torch.uint8).view(len(t), n) for t, n in zip(rows, sizes, strict=True)]
        flat = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        nothing = flat[-1:]
        sent = torch.where(sends.unsqueeze(1), flat[:-1] - nothing, 0)
        for step in self.steps:
            sent = collective("all_reduce", sent, "sum", step.ranks.name)
        every = torch.split(sent + nothing, sizes, 1)
        fields = (e.clone(memory_format=torch.contiguous_format).reshape(-1) for e in every)
        return [
            e.view(t.dtype).view(count, *t.shape[1:]).movedim(0, self.dim)
            for e, t in zip(fields, rows, strict=True)
        ]


def _are_edges(edges: Tensor, count: int) -> Tensor:
    """Of each segment whether it is a rank's first or last one."""
    none = torch.zeros(count, dtype=torch.bool, device=edges.device)
    return none.index_fill(0, edges, True)


def segments_of_text(
    tensors: Sequence[Tensor], monoid: str, offsets: Tensor, dim: int, guarantee: str
) -> list[Tensor]:
    """A fold of segments with the monoid of a text."""
    if is_dynamo_compiling():
        made: list[Tensor] = OPERATIONS.segment_reduce(
            list(tensors), [offsets], monoid, "offsets", None, dim, None, True, False, guarantee
        )
        return made
    cut = Cut("offsets", partial=True)
    return fold_segments(tensors, monoid_of(monoid), offsets, cut, dim, None, None, guarantee)


@constant_in_graphs
def _flags(monoid: str) -> tuple[int, ...]:
    """The field of a state that says whether there is one, of a monoid without an identity."""
    found = monoid_of(monoid)
    return () if found.algebra.identity is not None else (len(found.total.fields) - 1,)


# ------------------------------------------------------------------------------------------------ gradients


@dataclass(frozen=True)
class Shard(Segmented):
    """A rank's part of a fold of segments: `totals`, states of its segments, and `states` of all ranks' edges."""

    totals: Sequence[Tensor] = ()
    states: Sequence[Tensor] = ()
    edges: Tensor | None = None
    rank: int = 0

    def _totals(self, x: Sequence[Tensor], gradient: Gradient, places: Places) -> list[Tensor]:
        return list(self.totals[: gradient.n])

    def _counts(self, seen: Sequence[Tensor], ends: Ends, places: Places) -> list[Tensor]:
        return list(self.totals[ends.gradient.n :])

    def _beside(self, gradient: Gradient, reverse: bool) -> list[Tensor]:
        """The state of what other ranks have of this one's first segment, or in reverse of its last one."""
        assert self.edges is not None
        place = 2 * self.rank + reverse
        both = self.edges[place] + torch.arange(2, device=self.edges.device)
        begin, end = torch.searchsorted(self.edges, both).unbind()
        here = torch.full_like(begin, 2 * self.rank + 2 * reverse)
        cuts = torch.stack([here, end] if reverse else [begin, here])
        whole = finish_text(self.monoid.text, gradient.elements, False, False)
        made = segments_of_text(self.states[: gradient.n], whole, cuts, self.dim, self.guarantee)
        return [made[0].new_zeros((), dtype=torch.bool), *(t.squeeze(self.dim) for t in made)]


def _gradient_of_shard(
    inputs: list[Tensor], lies: list[Tensor], totals: list[Tensor], states: list[Tensor], grads: list[Tensor],
    monoid: str, dim: int, rank: int, wrt: list[int], guarantee: str,
) -> list[Tensor]:  # fmt: skip
    offsets, edges = lies
    found = monoid_of(monoid)
    own = Shard(found, Cut("offsets"), dim, guarantee, CALL, totals, states, edges, rank)
    with torch.no_grad():
        made = own.of_places(inputs, offsets, grads, wrt)
        return [made[i] for i in wrt]


def _gradient(
    inputs: list[Tensor], lies: list[Tensor], totals: list[Tensor], states: list[Tensor], grads: list[Tensor], *rest: Any
) -> list[Tensor]:  # fmt: skip
    """The same as `tilefold::shard_segments_gradient`."""
    made = _gradient_of_shard(inputs, lies, totals, states, grads, *rest)
    return fresh(made, [*inputs, *totals, *states, *grads])


def _shape_of_gradient(
    inputs: list[Tensor], lies: list[Tensor], totals: list[Tensor], states: list[Tensor], grads: list[Tensor],
    monoid: str, dim: int, rank: int, wrt: list[int], guarantee: str,
) -> list[Tensor]:  # fmt: skip
    return [inputs[i].new_empty(inputs[i].shape) for i in wrt]


LIBRARY.define(
    "shard_segments_gradient(Tensor[] inputs, Tensor[] lies, Tensor[] totals, Tensor[] states, Tensor[] grads, str monoid, "
    "int dim, int rank, int[] wrt, str guarantee) -> Tensor[]"
)
LIBRARY.impl("shard_segments_gradient", _gradient, "CompositeExplicitAutograd")
torch.library.register_fake("tilefold::shard_segments_gradient", _shape_of_gradient, lib=LIBRARY)

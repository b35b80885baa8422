"""Plain calls of DTensors: `tilefold.logsumexp(x, 1)` where ranks hold parts of x.

Each rank calls with its own part. Where a reduced dim is sharded, states are exchanged over the mesh's dim that shards it;
elsewhere nothing is. Results are DTensors: replicated where states were exchanged, else sharded as the input is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.distributed.tensor import DTensor, Replicate

from tilefold import monoids
from tilefold.algebra.monoid import Monoid, monoid_of
from tilefold.algebra.typing import compute_dtype
from tilefold.api import dispatch
from tilefold.api.initial import tensors_of
from tilefold.api.losses import Loss, loss_tensors
from tilefold.api.matmul import matmul as local_matmul
from tilefold.api.parts import finish_text, partial_text
from tilefold.api.recorded import SHARDED, asks_gradient
from tilefold.api.reduce_many import fold_many
from tilefold.api.replays import Replay, Tape
from tilefold.api.segment_reduce import Cut
from tilefold.distributed.agreement import check_ranks, compares
from tilefold.distributed.exchange import gathered_states, ranks_of
from tilefold.distributed.losses import loss_of_shards
from tilefold.distributed.matmul import multiply_parts
from tilefold.distributed.reduce import fold_of_text, fold_shards
from tilefold.distributed.reduce_map import map_shards
from tilefold.distributed.scan import scan_shards
from tilefold.distributed.segments import segments_of_shards
from tilefold.distributed.spread import Spread, check_alike, check_placement, chunks, shards_at, spread_of
from tilefold.distributed.topk import select_shards
from tilefold.errors import ArgumentError, KindError
from tilefold.functional.losses import OPTIONS, checked_loss
from tilefold.planner.problem.canonical import one_dim
from tilefold.planner.products.functions import Traced
from tilefold.planner.products.operands import result_shape
from tilefold.runtime.modes import is_seen
from tilefold.runtime.overrides import listed
from tilefold.runtime.switch import layouts


class Again(NamedTuple):
    """A call of DTensors that can be made again: of their local tensors, with results that lie as these did."""

    replay: Replay
    specs: tuple[Any, ...]

    @property
    def plan(self) -> Any:
        """The last launch's."""
        return self.replay.plan

    def call(self, *own: Tensor) -> list[Tensor] | None:
        """The results as DTensors."""
        made = self.replay.call(*own)
        if made is None:
            return None
        of: Any = DTensor
        return [of(t, spec, requires_grad=False) for t, spec in zip(made, self.specs, strict=True)]


def _made_again(function: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    """A call like an earlier one is neither checked nor spread again, where nothing but the caller looks at it."""

    def called(*arguments: Any) -> list[Tensor]:
        given = tensors_of([t for a in arguments for t in (a if isinstance(a, list | tuple) else (a,))])
        key, own = _key_of(function, given, arguments)
        known: list[Tensor] | None = dispatch.repeated(key, *own)
        if known is not None:
            return known
        if key is None:
            return function(*arguments)
        tape = Tape(own)
        with dispatch.noting(tape):
            results: list[Any] = function(*arguments)
        if (replay := tape.replay([t._local_tensor for t in results])) is not None:
            dispatch.keep(key, Again(replay, tuple([t._spec for t in results])))
        return results

    return called


def _key_of(function: Any, given: Sequence[Any], arguments: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The key of a call, and its local tensors; none where autograd looks at it, or ranks compare each call."""
    asks = is_dynamo_compiling() or compares() or asks_gradient(given)
    if asks or not all(type(t) is DTensor for t in given):
        return None, []
    own = [t._local_tensor for t in given]
    seen = layouts(own)
    if seen is None or is_seen(own):
        return None, []
    lie = tuple([(t.device_mesh, t.placements, t.shape) for t in given])
    names = tuple([g.group_name for g in given[0].device_mesh.get_all_groups()])
    return (function, seen, lie, names, _written(arguments)), own


def _written(argument: Any) -> Any:
    """An argument as a key has it: tensors by their places, and numbers with their kinds."""
    if isinstance(argument, list | tuple):
        return tuple([_written(a) for a in argument])
    return Tensor if isinstance(argument, Tensor) else (type(argument), argument)


@_made_again
def _fold(
    tensors: Sequence[Any], monoid: Monoid, dim: Any, keepdim: bool, init: Any, return_state: bool, dtype: Any, convert: Any,
    guarantee: str, out: Any, call: str,
) -> list[Tensor]:  # fmt: skip
    _take_none(call, "fold", out=out)
    check_alike([*tensors, *tensors_of(init)], call)
    spread = spread_of(tensors, len(tensors), dim, call)
    own = [spread.local(t) for t in tensors]
    rows = spread.of_rows(keepdim)
    before = None if init is None else [rows.local(t) if isinstance(t, Tensor) else t for t in init]
    form: dict[str, Any] = {"dtype": dtype, "convert": convert, "guarantee": guarantee, "call": call}
    form |= {"init": before, "return_state": return_state}
    made = fold_shards(own, monoid, spread.dims, keepdim, **form, **spread.shards)
    return [spread.rows(t, keepdim) for t in made]


@_made_again
def _map(
    tensors: Sequence[Any], monoid: Monoid, apply: Traced, dim: Any, extras: Sequence[Any], convert: Any, guarantee: str,
    out: Any, call: str, names: Any,
) -> list[Tensor]:  # fmt: skip
    _take_none(call, "map", out=out)
    spread = spread_of([*tensors, *extras], len(tensors), dim, call)
    own, beside = ([spread.local(t) for t in some] for some in (tensors, extras))
    form = {"extras": beside, "convert": convert, "guarantee": guarantee, "call": call, "names": names}
    length = math.prod([spread.shape[d] for d in spread.dims])
    made = map_shards(own, monoid, apply, spread.dims, length=length, **form, **spread.shards)
    rows = 0 if apply.rows is None else len(apply.rows.outputs)
    n = len(made) - rows
    return [*(spread.elements(t) for t in made[:n]), *(spread.rows(t, True) for t in made[n:])]


@_made_again
def _scan(
    tensors: Sequence[Any], monoid: Monoid, dim: Any, init: Any, exclusive: bool, reverse: bool, return_state: bool,
    dtype: Any, convert: Any, guarantee: str, out: Any, call: str,
) -> list[Tensor]:  # fmt: skip
    _take_none(call, "scan", out=out, init=init, return_state=return_state or None)
    spread = spread_of(tensors, len(tensors), dim, call)
    form: dict[str, Any] = {"exclusive": exclusive, "reverse": reverse, "dtype": dtype, "convert": convert}
    own = [spread.local(t) for t in tensors]
    made = scan_shards(own, monoid, dim, **form, guarantee=guarantee, call=call, **spread.shards)
    return [spread.elements(t) for t in made]


@_made_again
def _select(x: Any, k: Any, dim: Any, largest: Any, ordered: Any, out: Any, guarantee: str) -> list[Tensor]:
    call = "topk"
    _take_none(call, "selection", out=out)
    spread = spread_of([x], 1, one_dim(dim, x.ndim, call), call)
    own = spread.local(x)
    made = select_shards(own, k, dim, largest, ordered, guarantee=guarantee, call=call, **spread.shards)
    return [spread.rows(t, True, length=k) for t in made]


@_made_again
def _segments(
    tensors: Sequence[Any], monoid: Monoid, numbers: Any, cut: Cut, dim: Any, dtype: Any, out: Any, guarantee: str
) -> list[Tensor]:  # fmt: skip
    call = "segment_reduce"
    _take_none(call, "fold of segments", out=out)
    spread = spread_of([*tensors, numbers], len(tensors), dim, call)
    own = [spread.local(t) for t in tensors]
    along = spread.dims if cut.kind == "by" else (-1,)
    form: dict[str, Any] = {"dim": spread.dims[0], "dtype": dtype, "guarantee": guarantee, "call": call}
    made = segments_of_shards(own, monoid, spread.local(numbers, along), cut, **form, **spread.shards)
    return [spread.rows(t, True, length=t.shape[spread.dims[0]]) for t in made]


def _take_none(call: str, what: str, **given: Any) -> None:
    """Refuse arguments that DTensors do not go with.

    Raises:
        KindError: there is one.
    """
    for name, value in given.items():
        if value is not None:
            raise KindError(
                f"{call}: a {what} of DTensors takes no `{name}`, got one; call it of their local tensors, or copy the result"
            )


@_made_again
def _loss(input: Any, target: Any, weight: Any, *options: Any) -> list[Tensor]:
    """A cross-entropy. Rows of other ranks are summed after this rank's, in the dtype that losses are computed in."""
    call = "cross_entropy"
    named = dict(zip(OPTIONS, options, strict=True))
    _take_none(call, "loss", inplace_backward=named["inplace_backward"] or None)
    tensors = [input, target] if weight is None else [input, target, weight]
    dim = min(1, input.ndim - 1)
    spread = spread_of(tensors, 1, dim, call)
    soft = target.is_floating_point()
    rows = [d for d in range(input.ndim) if soft or d != dim]
    places = (range(input.ndim), rows, (dim,))
    own = [spread.local(t, at) for t, at in zip(tensors, places, strict=False)]
    x, of_rows, *weights = own
    plain, own = checked_loss(
        call, 0 if spread.dividing else 1, x, of_rows, weights[0] if weights else None, *options
    )
    divides = spread.dividing
    sums = plain.reduction != "none" and bool(spread.groups_besides)
    wide = replace(plain, reduction="sum", dtype=compute_dtype(plain.dtype)) if sums else plain
    if not divides:
        made = loss_tensors(own, wide, None)
    else:
        if len(divides) > 1:
            raise ArgumentError(
                f"{call}: one dim of the mesh may divide the classes, got {len(divides)}; redistribute the logits"
            )
        group = spread.mesh.get_group(divides[0])
        made = loss_of_shards(own, wide, chunks(spread.shape[dim], group.size()), group)
    loss, shown = made[0], [spread.rows(made[1].squeeze(dim), False)] if plain.shows_lse else []
    if sums:
        counts = None if plain.reduction == "sum" else _counted(own, weight, plain)
        loss = _of_all_rows(loss, counts, spread, plain.guarantee).to(plain.dtype)
    whole = spread.rows(loss, False) if plain.reduction == "none" else spread.scalar(loss)
    return [whole, *shown]


def _loss_of(input: Any, target: Any, weight: Any, *options: Any) -> list[Tensor]:
    """`_loss`. On a mesh of one dim a plain target or weight is every rank's, as torch's `loss_parallel` has it."""
    mesh = input.device_mesh if type(input) is DTensor else None
    if mesh is not None and mesh.ndim == 1:
        target, weight = [
            t
            if t is None or type(t) is DTensor
            else DTensor.from_local(t, mesh, [Replicate()], run_check=False)
            for t in (target, weight)
        ]
    return _loss(input, target, weight, *options)


def _counted(own: Sequence[Tensor], weight: Any, loss: Loss) -> Tensor:
    """The weights of this rank's rows, summed."""
    x, target = own[:2]
    if loss.probabilities:
        return x.new_full(
            (), math.prod([n for d, n in enumerate(x.shape) if d != loss.dim]), dtype=torch.int64
        )
    counts = target != loss.ignore_index
    if weight is None:
        return counts.sum()
    every = weight.full_tensor()
    return torch.where(counts, every[target.to(torch.int64).clamp(0, len(every) - 1)], 0).sum()


def _of_all_rows(loss: Tensor, counts: Tensor | None, spread: Spread, guarantee: str) -> Tensor:
    """The sum of all ranks' losses, over that of their weights if these are given."""
    parts = [loss] if counts is None else [loss, counts.to(loss.dtype)]
    groups = spread.groups_besides
    pair = torch.stack(parts).unsqueeze(1)
    shards: dict[str, Any] = {"sharded_dim": (1,) * len(groups), "group": groups}
    (total,) = fold_shards([pair], monoids.SUM, 1, False, guarantee=guarantee, call=spread.call, **shards)
    return total[0] if counts is None else total[0] / total[1]


def _product(
    a: Any, b: Any, bias: Any, epilogue: Any, epilogue_args: Sequence[Any], row: Any, out_dtype: Any, precision: Any,
    guarantee: str, out: Any,
) -> list[Tensor]:  # fmt: skip
    """A product: of parts of K their sum, of parts of rows, columns or batches this rank's part."""
    call = "matmul"
    _take_none(call, "product", out=out)
    extras = [*([] if bias is None else [bias]), *epilogue_args]
    check_alike([a, b, *extras], call)
    shape = tuple(result_shape(a, b))
    n, batch = len(shape), len(shape) - (a.ndim > 1) - (b.ndim > 1)
    # The result's dim of each operand's dims; K's is one more.
    of_a = [*range(batch - max(a.ndim - 2, 0), batch), *([batch] if a.ndim > 1 else []), n]
    of_b = [*range(batch - max(b.ndim - 2, 0), batch), n, *([n - 1] if b.ndim > 1 else [])]
    sharded = []
    for i, (p, q) in enumerate(zip(a.placements, b.placements, strict=True)):
        check_placement(p, call)
        check_placement(q, call)
        divided = ((shards_at(a, i), of_a), (shards_at(b, i), of_b))
        along = {at[d] for d, at in divided if d >= 0}
        if len(along) > 1:
            raise ArgumentError(
                f"{call}: a dim of the mesh may divide rows, columns, batches or K, one of these, got {p} and {q}; "
                "redistribute one"
            )
        sharded.append(along.pop() if along else -1)
    operands = Spread(a.device_mesh, tuple(sharded), (*shape, a.shape[-1]), (n,), call)
    results = Spread(a.device_mesh, tuple(-1 if d == n else d for d in sharded), shape, (n - 1,), call)
    left, right = operands.local(a, of_a), operands.local(b, of_b)
    beside = [results.local(t) for t in extras]
    given: dict[str, Any] = {
        "bias": None if bias is None else beside[0],
        "epilogue_args": beside[bias is not None :],
    }
    if operands.dividing or (row is not None and results.dividing):
        groups = [operands.mesh.get_group(i) for i in operands.dividing]
        columns = results.shards if results.dividing else None
        made = multiply_parts(
            left, right, given["bias"], epilogue, given["epilogue_args"], row, out_dtype, precision, guarantee, groups,
            columns=columns,
        )  # fmt: skip
        return [results.elements(made[0]), *(results.rows(t, False) for t in made[1:])]
    found = local_matmul(
        left, right, **given, epilogue=epilogue, row=row, out_dtype=out_dtype, precision=precision, guarantee=guarantee
    )  # fmt: skip
    if row is None:
        return [results.elements(found)]
    values, folded = found
    return [results.elements(values), *(results.rows(t, False) for t in listed(folded))]


def _norms(gradients: Sequence[Any], monoid: Monoid, dtype: torch.dtype, call: str) -> list[Tensor]:
    """The norms of whole gradients, those that lie alike together. Elements are read as `dtype`."""
    alike: dict[Any, list[Tensor]] = {}
    for g in gradients:
        if type(g).__name__ == "DTensor":
            mesh = g.device_mesh
            for p in g.placements:
                if p.is_partial():
                    raise ArgumentError(
                        f"{call}: a gradient's placements must be Shard or Replicate, got {p}; redistribute it first"
                    )
            over = tuple([i for i, p in enumerate(g.placements) if not p.is_replicate() and mesh.size(i) > 1])
            alike.setdefault((mesh, over), []).append(g.to_local())
    part = monoid_of(partial_text(monoid.text, (dtype,), False))
    whole, results = (finish_text(monoid.text, (dtype,), False, asked) for asked in (False, True))
    norms = []
    for (mesh, over), parts in alike.items():
        groups = [mesh.get_group(i) for i in over]
        facts = {"norm": monoid.name, "shape": [p.ndim for p in parts], "dtype": [p.dtype for p in parts]}
        check_ranks(facts, groups, call)
        states = [t.unsqueeze(0) for t in fold_many(parts, part, None, False, dtype, call)]
        for group in reversed(groups):
            every = gathered_states(states, 0, ranks_of(group, None, call))
            states = fold_of_text(every, whole, (0,), True, None, None, "run_to_run")
        norms += fold_of_text(states, results, (0,), False, compute_dtype(dtype), None, "run_to_run")
    return norms


SHARDED.update(
    reduce=_fold,
    reduce_map=_map,
    scan=_scan,
    segment_reduce=_segments,
    topk=_select,
    cross_entropy=_loss_of,
    matmul=_product,
    norms=_norms,
)


def _refused(operation: Any, arguments: Any, named: Any) -> Any:
    """What torch's dispatcher finds of an operation of ours that it is to run of DTensors.

    Raises:
        KindError: always.
    """
    name = operation.name()
    raise KindError(
        f"{name}: an operation of torch's must get plain tensors, got a DTensor, as within a transform of torch.func; call "
        "the function of tilefold outside of it, or give local tensors"
    )


_DISPATCHER: Any = DTensor._op_dispatcher
_DISPATCHER._custom_op_handlers.update(
    {
        getattr(torch.ops.tilefold, name.removeprefix("tilefold::")).default: _refused
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("tilefold::")
    }
)

"""`Partial(monoid)`: a DTensor whose ranks hold states that are still to be combined, for any monoid.

A monoid's state may have several fields of several dtypes; a DTensor is one tensor. A state of one field is that field, in
the shape of the results. One of several fields is its bytes along a new last dim (torch.uint8), wider fields first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed.tensor as dtensor
from torch import Tensor

from tilefold.algebra.monoid import Monoid, monoid_of
from tilefold.api.parts import (
    Dtypes,
    algebra_of,
    finish_text,
    result_dtypes,
    state_dtypes,
)
from tilefold.api.recorded import asks_gradient
from tilefold.distributed.exchange import Ranks, collective, gathered_states, ranks_of
from tilefold.distributed.reduce import Sharded, agreed, fold_of_text
from tilefold.distributed.spread import chunks, spread_of
from tilefold.errors import ArgumentError, GradientError, KindError, shown
from tilefold.planner.problem.validate import as_inputs, check_guarantee, check_monoid
from tilefold.runtime.uncompiled import uncompiled

CALL = "distributed.partial_reduce"


class Partial(dtensor.Partial):
    """The placement of a DTensor whose ranks hold states of a monoid, as `partial_reduce` makes them.

    `redistribute` to Replicate gathers the states of all ranks and combines them in rank order; to Shard(d) each rank gets
    those of its part alone, by one all-to-all. What it gives are states still; `project` makes results of them. Where a
    state is the result (SUM, MAX, a bitwise OR) that changes its dtype at most.

    Args:
        monoid: the monoid of the states.
        elements: the dtypes of the elements that were folded, float32 by default. States follow from them.

    Bits do not depend on which rank is late. States of a monoid that does not commute may wait on one dim of a mesh alone.
    """

    def __init__(self, monoid: Monoid | str, *elements: torch.dtype) -> None:
        found = monoid_of(monoid) if isinstance(monoid, str) else monoid
        check_monoid(found, "distributed.Partial")
        super().__init__("tilefold")
        object.__setattr__(self, "name", found.name)
        object.__setattr__(self, "monoid", found.text)
        object.__setattr__(self, "elements", elements or (torch.float32,) * found.algebra.inputs)

    name: str
    monoid: str
    elements: Dtypes

    def _reduce_value(self, tensor: Tensor, mesh: Any, mesh_dim: int) -> Tensor:
        ranks = self._ranks(mesh, mesh_dim)
        (every,) = gathered_states([tensor.unsqueeze(0)], 0, ranks)
        return self._combined(every)

    def _reduce_shard_value(self, tensor: Tensor, mesh: Any, mesh_dim: int, shard_spec: Any) -> Tensor:
        ranks, dim = self._ranks(mesh, mesh_dim), shard_spec.dim
        fields = len(self._dtypes)
        if type(shard_spec).__name__ != "Shard" or (fields > 1 and dim == tensor.ndim - 1):
            raise ArgumentError(
                f"distributed.Partial: states may become Replicate, or Shard of a dim of results, got {shard_spec} of "
                f"{tensor.ndim} dims{', the last of which is a state' * (fields > 1)}; name another dim"
            )
        parts = tensor.split(chunks(tensor.shape[dim], ranks.size), dim)  # type: ignore[no-untyped-call]  # torch's own
        shape, sent = parts[ranks.rank].shape, [p.numel() * p.itemsize for p in parts]
        own = [sent[ranks.rank]] * ranks.size
        flat = torch.cat([p.reshape(-1) for p in parts]).view(torch.uint8)
        made = collective("all_to_all_single", flat, own, sent, ranks.name)
        return self._combined(made.view(tensor.dtype).view(ranks.size, *shape))

    @property
    def _dtypes(self) -> Dtypes:
        return state_dtypes(algebra_of(self.monoid, self.elements, False), self.elements)

    def _ranks(self, mesh: Any, mesh_dim: int) -> Ranks:
        return ranks_of(mesh.get_group(mesh_dim), None, "distributed.Partial")

    def _combined(self, every: Tensor) -> Tensor:
        """The states of all ranks, which stand along the first dim, as one."""
        whole = finish_text(self.monoid, self.elements, False, False)
        return packed(
            fold_of_text(unpacked(every, self._dtypes), whole, (0,), False, None, None, "run_to_run")
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Partial) and (self.monoid, self.elements) == (other.monoid, other.elements)

    def __hash__(self) -> int:
        return hash((self.monoid, self.elements))

    def __reduce__(self) -> Any:
        return Partial, (self.monoid, *self.elements)

    def __repr__(self) -> str:
        return f"Partial({self.name})"

    __str__ = __repr__


def packed(fields: Sequence[Tensor]) -> Tensor:
    """A state as one tensor."""
    if len(fields) == 1:
        return fields[0]
    return torch.cat(
        [fields[f].contiguous().unsqueeze(-1).view(torch.uint8) for f in _widest([t.dtype for t in fields])],
        -1,
    )


def unpacked(t: Tensor, dtypes: Dtypes) -> list[Tensor]:
    """The fields of a state."""
    if len(dtypes) == 1:
        return [t]
    order = _widest(dtypes)
    parts = t.split([dtypes[f].itemsize for f in order], -1)  # type: ignore[no-untyped-call]  # torch's own
    flat = [p.clone(memory_format=torch.contiguous_format).view(-1) for p in parts]
    made = {f: p.view(dtypes[f]).view(t.shape[:-1]) for f, p in zip(order, flat, strict=True)}
    return [made[f] for f in range(len(dtypes))]


def _widest(dtypes: Sequence[torch.dtype]) -> list[int]:
    return sorted(range(len(dtypes)), key=lambda f: -dtypes[f].itemsize)


@uncompiled
def partial_reduce(
    inputs: Tensor | Sequence[Tensor], monoid: Monoid, dim: int | Sequence[int] | None = None, keepdim: bool = False,
    *, guarantee: str = "run_to_run",
) -> Tensor:  # fmt: skip
    """Fold each rank's part of DTensors to states, and exchange nothing: `tilefold.reduce` whose exchange waits.

    Args:
        inputs: a DTensor, or several that broadcast, whose placements are Shard or Replicate.
        monoid, dim, keepdim, guarantee: as in `tilefold.reduce`. A monoid that does not commute needs reduced dims that one
            dim of the mesh divides, the first of them.

    Returns:
        A DTensor of states, in the shape of the results, placed as `Partial(monoid)` on the dims of the mesh that divide
        reduced dims. A state of several fields is its bytes along a new last dim (torch.uint8), wider fields first; one of a
        monoid without an identity has a further field, whether there is one. `redistribute` combines them, and `project`
        makes results of them.

    Raises:
        As `tilefold.reduce`; and
        ArgumentError: the order counts, and states of more than one part each would have to wait.
        GradientError: a gradient is asked for.

    Example:
        >>> states = tilefold.distributed.partial_reduce(x, tilefold.monoids.LOGSUMEXP, 1)  # doctest: +SKIP
        >>> rows = states.redistribute(placements=[Shard(0)])  # doctest: +SKIP
        >>> tilefold.distributed.project(rows, tilefold.monoids.LOGSUMEXP)  # doctest: +SKIP
    """
    tensors: list[Any] = list(as_inputs(inputs, monoid, CALL))
    check_guarantee(guarantee, CALL)
    if not any(isinstance(t, dtensor.DTensor) for t in tensors):
        raise KindError(
            f"{CALL}: `inputs` must be DTensors, got {type(tensors[0]).__name__}; use distribute_tensor"
        )
    if asks_gradient(tensors):
        raise GradientError(
            f"{CALL}: states have no derivative, got an input that requires grad; use torch.no_grad()"
        )
    spread = spread_of(tensors, len(tensors), dim, CALL)
    own = [spread.local(t) for t in tensors]
    steps = agreed(
        own,
        own[0].shape,
        **spread.shards,
        mesh=None,
        guarantee=guarantee,
        facts={"monoid": monoid},
        call=CALL,
    )
    fold = Sharded(monoid.text, spread.dims, True, steps, None, None, guarantee, False)
    if (len(steps) > 1 and not monoid.commutative) or fold.own != spread.dims:
        raise ArgumentError(
            f"{CALL}: the order counts for {monoid.name}: one dim of the mesh may divide the first reduced dim alone, got "
            f"{', '.join(map(str, tensors[0].placements))}; redistribute the tensor"
        )
    states, _ = fold.states(own)
    elements = tuple([t.dtype for t in tensors])
    made = packed(states if keepdim else [t.squeeze(spread.dims) for t in states])
    return spread.partial_rows(made, keepdim, Partial(monoid, *elements))


@uncompiled
def project(states: Tensor, monoid: Monoid, *elements: torch.dtype) -> Any:
    """Results of the states that a DTensor holds, element by element.

    Args:
        states: as `partial_reduce` and `redistribute` leave them. What is `Partial` becomes Replicate first, by the exchange.
        monoid: the monoid of the states.
        elements: the dtypes of the elements that were folded, float32 by default.

    Returns:
        What `project` of the monoid gives: a DTensor, or a tuple of these, placed as the states are.

    Raises:
        KindError: `states` is no DTensor.

    Example:
        >>> tilefold.distributed.project(states, tilefold.monoids.LOGSUMEXP)  # doctest: +SKIP
    """
    if not isinstance(states, dtensor.DTensor):
        raise KindError(
            f"distributed.project: `states` must be a DTensor, got {shown(states)}; call partial_reduce"
        )
    given = Partial(monoid, *elements)
    waiting = [p for p in states.placements if p.is_partial()]
    for p in waiting:
        if not isinstance(p, Partial) or p.monoid != monoid.text:
            raise ArgumentError(
                f"distributed.project: states must be those of {monoid.name}, got {p}; name their monoid"
            )
        given = p
    if waiting:
        states = states.redistribute(
            placements=[dtensor.Replicate() if p.is_partial() else p for p in states.placements]
        )
    dtypes = given._dtypes
    outputs = result_dtypes(given.monoid, given.elements, None)
    asked = next((d for d in outputs if d.is_floating_point), None)
    text = finish_text(given.monoid, given.elements, False, True)
    fields = unpacked(states.to_local(), dtypes)
    made = fold_of_text(fields, text, (), False, asked, None, "run_to_run")
    shape = tuple(states.shape if len(dtypes) == 1 else states.shape[:-1])
    stride = tuple([math.prod(shape[d + 1 :]) for d in range(len(shape))])
    return monoid.pack([
        dtensor.DTensor.from_local(
            t if t.dtype == d else t.to(d), states.device_mesh, states.placements, run_check=False,
            shape=torch.Size(shape), stride=stride,
        )
        for t, d in zip(made, outputs, strict=True)
    ])  # fmt: skip

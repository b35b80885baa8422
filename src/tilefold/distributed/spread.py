"""How DTensors of one call lie: this rank's part of each, and what is made of the parts as DTensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tilefold.errors import ArgumentError, GradientError, KindError, ShapeError
from tilefold.planner.problem.canonical import broadcast_shape, normalize_dims
from tilefold.runtime.modes import is_batched


@dataclass(frozen=True)
class Spread:
    """How a call's elements of a `shape` lie: which dim each dim of the mesh shards, -1 of one that shards none. Over those
    that shard one of `dims` states are exchanged."""

    mesh: Any
    sharded: tuple[int, ...]
    shape: tuple[int, ...]
    dims: tuple[int, ...]
    call: str

    @property
    def dividing(self) -> list[int]:
        """The dims of the mesh over which states are exchanged."""
        return [i for i, d in enumerate(self.sharded) if d in self.dims]

    @property
    def shards(self) -> dict[str, Any]:
        """The same as calls over sharded dims take it."""
        groups = tuple([self.mesh.get_group(i) for i in self.dividing])
        return {"sharded_dim": tuple([self.sharded[i] for i in self.dividing]), "group": groups}

    @property
    def groups_besides(self) -> tuple[Any, ...]:
        """The groups of ranks that hold other rows."""
        beside = [i for i, d in enumerate(self.sharded) if d >= 0 and d not in self.dims]
        return tuple([self.mesh.get_group(i) for i in beside])

    def local(self, t: Any, at: Sequence[int] | None = None) -> Tensor:
        """This rank's part of a tensor, whose dims are those `at` of the elements; by default it broadcasts to them.

        Raises:
            ArgumentError: it lies otherwise than they do.
        """
        from torch.distributed.tensor import Partial, Replicate, Shard

        wanted: list[Any] = []
        of_gradient: list[Any] = []
        at = range(len(self.shape) - t.ndim, len(self.shape)) if at is None else at
        for d in self.sharded:
            own = at.index(d) if d in at[: t.ndim] else -1
            lies_along = own >= 0 and t.shape[own] == self.shape[d]
            wanted.append(Shard(own) if lies_along else Replicate())
            # Of what ranks with other elements share, each has a part of the gradient.
            of_gradient.append(wanted[-1] if lies_along or d < 0 else Partial())
        for has, needs in zip(t.placements, wanted, strict=True):
            if has != needs and not has.is_replicate():
                raise ArgumentError(
                    f"{self.call}: tensors must be sharded as the input is along dims that they share, or replicated, got "
                    f"{has} where {needs} is needed; redistribute it"
                )
        parts: Any = t if tuple(t.placements) == tuple(wanted) else t.redistribute(self.mesh, wanted)
        made: Tensor = parts.to_local(grad_placements=of_gradient)
        return made

    def elements(self, t: Tensor) -> Tensor:
        """A result of the elements' shape."""
        return self._whole(t, self.shape, self.sharded)

    def scalar(self, t: Tensor) -> Tensor:
        """A result of one value."""
        return self._whole(t, (), [-1] * len(self.sharded))

    def rows(self, t: Tensor, keepdim: bool, length: int = 1) -> Tensor:
        """A result of one value a row, or of so many."""
        return self._whole(t, *self._of_rows(keepdim, length))

    def partial_rows(self, t: Tensor, keepdim: bool, partial: Any) -> Tensor:
        """States of rows, which may have a further dim, of ranks that divide rows."""
        shape, sharded = self._of_rows(keepdim, 1)
        return self._whole(
            t, [*shape, *t.shape[len(shape) :]], sharded, dict.fromkeys(self.dividing, partial)
        )

    def of_rows(self, keepdim: bool) -> Spread:
        """How results of one value a row lie."""
        shape, sharded = self._of_rows(keepdim, 1)
        return Spread(self.mesh, tuple(sharded), tuple(shape), (), self.call)

    def _of_rows(self, keepdim: bool, length: int) -> tuple[list[int], list[int]]:
        shape = [
            length if d in self.dims else n for d, n in enumerate(self.shape) if keepdim or d not in self.dims
        ]
        sharded = [
            -1 if d < 0 or d in self.dims else d - (0 if keepdim else sum(r < d for r in self.dims))
            for d in self.sharded
        ]
        return shape, sharded

    def _whole(
        self, t: Tensor, shape: Sequence[int], sharded: Sequence[int], others: Mapping[int, Any] | None = None
    ) -> Tensor:
        from torch.distributed.tensor import DTensor, Replicate, Shard

        placements: list[Any] = [Replicate() if d < 0 else Shard(d) for d in sharded]
        for i, p in (others or {}).items():
            placements[i] = p
        stride = tuple([math.prod(shape[d + 1 :]) for d in range(len(shape))])
        made: Tensor = DTensor.from_local(
            t, self.mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride
        )
        if made.requires_grad and not is_dynamo_compiling():
            made.register_hook(self._check_cotangent)  # type: ignore[no-untyped-call]  # torch's own
        return made

    def _check_cotangent(self, g: Tensor) -> None:
        """Refuse several cotangents at once, which torch's own derivative of DTensors does not take.

        Raises:
            GradientError: there are.
        """
        if is_batched(g):
            raise GradientError(
                f"{self.call}: a DTensor's cotangent must be one, got several by is_grads_batched or vectorize; ask for one "
                "gradient after another"
            )


def spread_of(tensors: Sequence[Any], count: int, dim: int | Sequence[int] | None, call: str) -> Spread:
    """How the first `count` of some tensors lie.

    Raises:
        ArgumentError, KindError, ShapeError: their placements are not supported.
    """
    check_alike(tensors, call)
    shape = tuple(broadcast_shape(tensors[:count], call))
    dims = normalize_dims(dim, len(shape), call)
    lead = next((t for t in tensors[:count] if tuple(t.shape) == shape), None)
    if lead is None:
        raise ShapeError(
            f"{call}: one DTensor must have the shape {list(shape)} that inputs broadcast to; expand one"
        )
    for p in lead.placements:
        check_placement(p, call)
    sharded = tuple([shards_at(lead, i) for i in range(len(lead.placements))])
    return Spread(lead.device_mesh, sharded, shape, dims, call)


def chunks(length: int, size: int) -> list[int]:
    """How torch divides a dim among ranks."""
    most = -(-length // size)
    return [max(0, min(most, length - most * i)) for i in range(size)]


def check_alike(tensors: Sequence[Any], call: str) -> None:
    """Refuse tensors that are not all DTensors on one mesh.

    Raises:
        ArgumentError, KindError: they are not.
    """
    mesh = next(t.device_mesh for t in tensors if type(t).__name__ == "DTensor")
    for t in tensors:
        if type(t).__name__ != "DTensor":
            raise KindError(
                f"{call}: tensors must all be DTensors where one is, got {type(t).__name__}; make it one by distribute_tensor"
            )
        if t.device_mesh != mesh:
            raise ArgumentError(
                f"{call}: tensors must be on one mesh, got {t.device_mesh} and {mesh}; redistribute one"
            )


def check_placement(p: Any, call: str) -> None:
    """Refuse a placement of which it is not known where elements lie.

    Raises:
        ArgumentError: it is one.
    """
    if not (p.is_replicate() or type(p).__name__ == "Shard"):
        raise ArgumentError(
            f"{call}: placements must be Shard or Replicate, got {p}; redistribute the tensor first"
        )


def shards_at(t: Any, i: int) -> int:
    """The dim of a tensor that the mesh's dim divides, or -1."""
    return next((d for d in range(t.ndim) if t.placements[i].is_shard(d)), -1)

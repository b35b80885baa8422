"""Plain calls of DTensors: `tilefold.logsumexp(x, 1)` where ranks hold parts of x.

Each rank calls with its own part. Where a reduced dim is sharded, states are exchanged over the mesh's dim that shards it;
elsewhere nothing is. Results are DTensors: replicated where states were exchanged, else sharded as the input is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tilefold.algebra.monoid import Monoid
from tilefold.api.recorded import SHARDED
from tilefold.api.reduce import fold_tensors
from tilefold.api.reduce_map import map_tensors
from tilefold.distributed.reduce import fold_shards
from tilefold.distributed.reduce_map import map_shards
from tilefold.errors import ArgumentError, KindError, ShapeError
from tilefold.planner.products.functions import Traced
from tilefold.problem.canonical import broadcast_shape, normalize_dims

if TYPE_CHECKING:  # seconds to import, for processes that may have no DTensor
    from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Spread:
    """How a call's elements of a `shape` lie: which dim each dim of the mesh shards, -1 of one that shards none; and `over`
    which dim of the mesh states are exchanged, if they are."""

    mesh: Any
    sharded: tuple[int, ...]
    shape: tuple[int, ...]
    dims: tuple[int, ...]
    over: int | None
    call: str

    @property
    def shards(self) -> dict[str, Any]:
        """Where states are exchanged."""
        if self.over is None:
            return {"sharded_dim": None}
        return {"sharded_dim": self.sharded[self.over], "group": self.mesh.get_group(self.over)}

    def local(self, t: DTensor) -> Tensor:
        """This rank's part of an input or an extra tensor, which broadcasts to the elements.

        Raises:
            ArgumentError: it lies otherwise than they do.
        """
        from torch.distributed.tensor import Partial, Replicate, Shard

        wanted: list[Any] = []
        of_gradient: list[Any] = []
        missing = len(self.shape) - t.ndim
        for d in self.sharded:
            lies_along = d >= missing and t.shape[d - missing] == self.shape[d]
            wanted.append(Shard(d - missing) if lies_along else Replicate())
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

    def rows(self, t: Tensor, keepdim: bool) -> Tensor:
        """A result of one value a row."""
        shape = [
            1 if d in self.dims else n for d, n in enumerate(self.shape) if keepdim or d not in self.dims
        ]
        sharded = [
            -1 if d < 0 or d in self.dims else d - (0 if keepdim else sum(r < d for r in self.dims))
            for d in self.sharded
        ]
        return self._whole(t, shape, sharded)

    def _whole(self, t: Tensor, shape: Sequence[int], sharded: Sequence[int]) -> Tensor:
        from torch.distributed.tensor import DTensor, Replicate, Shard

        placements = [Replicate() if d < 0 else Shard(d) for d in sharded]
        stride = tuple([math.prod(shape[d + 1 :]) for d in range(len(shape))])
        made: Tensor = DTensor.from_local(
            t, self.mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride
        )
        return made


def spread_of(tensors: Sequence[Any], count: int, dim: int | Sequence[int] | None, call: str) -> Spread:
    """How the first `count` of some tensors lie.

    Raises:
        ArgumentError, KindError, ShapeError: their placements are not supported.
    """
    for t in tensors:
        if type(t).__name__ != "DTensor":
            raise KindError(
                f"{call}: tensors must all be DTensors where one is, got {type(t).__name__}; make it one by distribute_tensor"
            )
        if t.device_mesh != tensors[0].device_mesh:
            raise ArgumentError(
                f"{call}: tensors must be on one mesh, got {t.device_mesh} and {tensors[0].device_mesh}; redistribute one"
            )
    shape = tuple(broadcast_shape(tensors[:count], call))
    dims = normalize_dims(dim, len(shape), call)
    lead = next((t for t in tensors[:count] if tuple(t.shape) == shape), None)
    if lead is None:
        raise ShapeError(
            f"{call}: one DTensor must have the shape {list(shape)} that inputs broadcast to; expand one"
        )
    for p in lead.placements:
        if not (p.is_replicate() or type(p).__name__ == "Shard"):
            raise ArgumentError(
                f"{call}: placements must be Shard or Replicate, got {p}; redistribute the tensor first"
            )
    sharded = tuple([next((d for d in range(len(shape)) if p.is_shard(d)), -1) for p in lead.placements])
    over = [i for i, d in enumerate(sharded) if d in dims]
    if len(over) > 1:
        raise ArgumentError(
            f"{call}: one dim of the mesh may shard reduced dims, got {', '.join(str(lead.placements[i]) for i in over)}; "
            "redistribute the tensor, or fold one dim after the other"
        )
    return Spread(lead.device_mesh, sharded, shape, dims, over[0] if over else None, call)


def _fold(
    tensors: Sequence[Any], monoid: Monoid, dim: Any, keepdim: bool, init: Any, return_state: bool, dtype: Any, convert: Any,
    guarantee: str, out: Any, call: str,
) -> list[Tensor]:  # fmt: skip
    if init is not None or return_state or out is not None:
        given = "out" if out is not None else "init" if init is not None else "return_state"
        raise KindError(f"{call}: a fold of DTensors takes no `{given}`, got one; fold their local tensors")
    spread = spread_of(tensors, len(tensors), dim, call)
    own = [spread.local(t) for t in tensors]
    form = {"dtype": dtype, "convert": convert, "guarantee": guarantee, "call": call}
    if spread.over is None:
        made = fold_tensors(own, monoid, spread.dims, keepdim, **form)
    else:
        made = fold_shards(own, monoid, spread.dims, keepdim, **form, **spread.shards)
    return [spread.rows(t, keepdim) for t in made]


def _map(
    tensors: Sequence[Any], monoid: Monoid, apply: Traced, dim: Any, extras: Sequence[Any], convert: Any, guarantee: str,
    out: Any, call: str, names: Any,
) -> list[Tensor]:  # fmt: skip
    if out is not None:
        raise KindError(
            f"{call}: a map of DTensors takes no `out`, got one; copy the result with Tensor.copy_"
        )
    spread = spread_of([*tensors, *extras], len(tensors), dim, call)
    own, beside = ([spread.local(t) for t in some] for some in (tensors, extras))
    form = {"extras": beside, "convert": convert, "guarantee": guarantee, "call": call, "names": names}
    if spread.over is None:
        made = map_tensors(own, monoid, apply, spread.dims, **form)
    else:
        length = math.prod([spread.shape[d] for d in spread.dims])
        made = map_shards(own, monoid, apply, spread.dims, length=length, **form, **spread.shards)
    rows = 0 if apply.rows is None else len(apply.rows.outputs)
    n = len(made) - rows
    return [*(spread.elements(t) for t in made[:n]), *(spread.rows(t, True) for t in made[n:])]


SHARDED.update(reduce=_fold, reduce_map=_map)

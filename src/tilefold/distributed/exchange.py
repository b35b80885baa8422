"""States of all ranks of a group: packed into one buffer, gathered by one collective that torch.compile sees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # its operations' shapes, for torch.compile
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from tilefold.errors import ArgumentError, KindError, shown
from tilefold.runtime.uncompiled import constant_in_graphs

COLLECTIVES: Any = torch.ops._c10d_functional


@dataclass(frozen=True)
class Ranks:
    """A group of processes as a graph holds it, and this process's place in it."""

    name: str
    size: int
    rank: int


def ranks_of(group: Any, mesh: Any, call: str) -> Ranks:
    """The group that a call means: a process group, a mesh of one dim, or all processes.

    Raises:
        ArgumentError, KindError: there is none, or this process is no member.
    """
    return Ranks(*_found(group, mesh, call))


@constant_in_graphs
def _found(group: Any, mesh: Any, call: str) -> tuple[str, int, int]:
    given = process_group(group, mesh, call)
    return str(given.group_name), given.size(), given.rank()


def process_group(group: Any, mesh: Any, call: str) -> Any:
    """The same as torch's object."""
    if not (dist.is_available() and dist.is_initialized()):
        raise ArgumentError(
            f"{call}: torch.distributed must be initialized, got no process group; call "
            "torch.distributed.init_process_group() in each process, or run it by torchrun"
        )
    if mesh is not None:
        if group is not None:
            raise ArgumentError(f"{call}: give `group` or `mesh`, got both; leave one out")
        if not isinstance(mesh, DeviceMesh):
            raise KindError(f"{call}: `mesh` must be a DeviceMesh, got {shown(mesh)}; use init_device_mesh")
        if mesh.ndim != 1:
            raise ArgumentError(
                f"{call}: `mesh` must have the one dim that shards lie along, got {mesh.ndim} dims; name it: "
                f"mesh[{(mesh.mesh_dim_names or ('name',))[-1]!r}]"
            )
        return mesh.get_group()
    given = dist.group.WORLD if group is None else group
    if not isinstance(given, dist.ProcessGroup):
        raise ArgumentError(
            f"{call}: `group` must be a process group with this rank in it, got {shown(group)} on rank "
            f"{dist.get_rank()}; call it on members alone"
        )
    return given


def gathered(t: Tensor, ranks: Ranks) -> Tensor:
    """A flat tensor of each rank, in rank order: [size, n]."""
    made = COLLECTIVES.all_gather_into_tensor(t, ranks.size, ranks.name)
    found: Tensor = COLLECTIVES.wait_tensor(made).view(ranks.size, t.numel())
    return found


def gathered_states(states: Sequence[Tensor], axis: int, ranks: Ranks) -> list[Tensor]:
    """The fields of all ranks' states by one exchange of their bytes; `axis`, of length 1, becomes that of ranks.

    Wider fields stand first in the buffer, so that each begins where its dtype may.
    """
    order = sorted(range(len(states)), key=lambda f: -states[f].itemsize)
    flat = [states[f].contiguous().reshape(-1).view(torch.uint8) for f in order]
    rows = gathered(flat[0] if len(flat) == 1 else torch.cat(flat), ranks)
    found, start = list(states), 0
    for f, own in zip(order, flat, strict=True):
        part = rows[:, start : start + own.numel()]
        if rows.shape[1] % states[f].itemsize:  # no view: a rank's row begins between two elements
            part = part.clone(memory_format=torch.contiguous_format)
        shape = [ranks.size, *states[f].shape]
        found[f] = part.view(states[f].dtype).view(shape).movedim(0, axis).squeeze(axis + 1)
        start += own.numel()
    return found


@dataclass(frozen=True)
class Positions:
    """Where this rank's shard lies along the sharded dim: tensors, so that no process waits for its device."""

    start: Tensor
    length: Tensor  # of all shards


def positions_of(length: int, device: torch.device, ranks: Ranks) -> Positions:
    """The same by an exchange of 8 bytes a rank."""
    lengths = gathered(torch.full((1,), length, dtype=torch.int64, device=device), ranks)
    return Positions(lengths[: ranks.rank].sum(), lengths.sum())


def first_positions(
    shape: Sequence[int],
    outer: Sequence[int],
    inner: Sequence[int],
    axis: int,
    where: Positions,
    folded: bool,
) -> Tensor:
    """What to add to positions in a shard's own fold: one number for each place in the dims before the sharded one.

    `folded`: the shard's fold has these dims among its own, and so counts them in its positions.
    """
    step = math.prod([shape[d] for d in inner])
    sizes = [n if d in outer else 1 for d, n in enumerate(shape)]
    places = torch.arange(math.prod(sizes), device=where.start.device).reshape(sizes)
    missing = where.length - shape[axis] if folded else where.length
    return (places * missing + where.start) * step

"""States of all ranks of a group: packed into one buffer, gathered by one collective that torch.compile sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True)
class Step:
    """One exchange: these ranks hold parts that lie side by side along `axis`."""

    axis: int
    ranks: Ranks


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


def groups_of(count: int | None, group: Any, mesh: Any, call: str) -> tuple[Any, ...]:
    """A process group for each of `count` sharded dims: those of a mesh of as many dims. None of one dim without a count.

    Raises:
        ArgumentError, KindError: there are none.
    """
    if count is None:
        return (process_group(group, mesh, call),)
    if isinstance(group, tuple):  # of a DTensor
        return group
    if not isinstance(mesh, DeviceMesh) or group is not None or mesh.ndim != count:
        raise ArgumentError(
            f"{call}: several sharded dims need a `mesh` with as many dims, got {count} dims and "
            f"{shown(mesh) if group is None else 'a `group`'}; name the mesh's dims, with None for one that shards none"
        )
    return tuple([mesh.get_group(i) for i in range(count)])


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
        if not own.numel():
            part = states[f].new_empty(ranks.size, 0)
        elif rows.shape[1] % states[f].itemsize:  # no view: a rank's row begins between two elements
            part = part.clone(memory_format=torch.contiguous_format)
        shape = [ranks.size, *states[f].shape]
        found[f] = part.view(states[f].dtype).view(shape).movedim(0, axis).squeeze(axis + 1)
        start += own.numel()
    return found


@dataclass(frozen=True)
class Positions:
    """Where this rank's shard lies along the sharded dim: tensors, so that no process waits for its device."""

    start: Tensor  # [1]
    length: Tensor  # [1], of all shards


def positions_of(shape: Sequence[int], device: torch.device, steps: Sequence[Step]) -> dict[int, Positions]:
    """The same of each sharded dim, by an exchange of 8 bytes a rank for each step."""
    found: dict[int, Positions] = {}
    for step in steps:
        before = found.get(step.axis)
        if before is None:
            before = Positions(*(torch.full((1,), n, device=device) for n in (0, shape[step.axis])))
        lengths = gathered(before.length, step.ranks)
        start = before.start + lengths[: step.ranks.rank].sum()
        found[step.axis] = Positions(start, lengths.sum().reshape(1))
    return found


def first_positions(
    shape: Sequence[int], dims: Sequence[int], own: Sequence[int], where: Mapping[int, Positions]
) -> Tensor:
    """What to add to positions in a shard's own fold: one number for each place in the dims up to the last sharded one.

    `dims` are folded in the end, those among `own` in the shard's fold; `where` says how each sharded dim lies.
    """
    device = next(iter(where.values())).start.device
    base = torch.zeros([1] * len(shape), dtype=torch.int64, device=device)
    far: Any = 1  # how far two neighbours along a dim are apart, in the whole tensor and in the shard's fold
    near = 1
    for d in sorted(dims, reverse=True):
        lies = where.get(d)
        if d < max(where):
            sizes = [n if d == i else 1 for i, n in enumerate(shape)]
            place = torch.arange(shape[d], device=device).reshape(sizes)
            base = base + place * (far - (near if d in own else 0))
        if lies is not None:
            base = base + lies.start * far
        far = far * (shape[d] if lies is None else lies.length)
        near = near * shape[d]
    return base

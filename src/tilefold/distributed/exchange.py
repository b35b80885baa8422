"""States of all ranks of a group: packed into one buffer, gathered by one collective that torch.compile sees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # its operations' shapes, for torch.compile
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.distributed.device_mesh import DeviceMesh

from tilefold.api import dispatch
from tilefold.distributed.agreement import compares
from tilefold.errors import ArgumentError, BackendError, KindError, shown
from tilefold.runtime.modes import is_batched
from tilefold.runtime.switch import named_key
from tilefold.runtime.uncompiled import constant_in_graphs

COLLECTIVES: Any = torch.ops._c10d_functional
_NAMES = ("all_gather_into_tensor", "all_reduce", "all_reduce_", "reduce_scatter_tensor", "all_to_all_single")
_EAGER = {name: getattr(COLLECTIVES, name).default for name in _NAMES}
_MOVED = frozenset(
    (torch.float32, torch.float64, torch.int32, torch.int64)
)  # by NCCL and by gloo; others as bytes
_WAIT = COLLECTIVES.wait_tensor.default


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


def again(
    tensors: Sequence[Tensor], call: str, dim: Any, rest: tuple[Any, ...], sharded_dim: Any, group: Any, mesh: Any
) -> tuple[Any, list[Tensor] | None]:  # fmt: skip
    """`dispatch.again` of a call over sharded dims; (None, None), too, where ranks compare each call."""
    given = sharded_dim if isinstance(sharded_dim, tuple) else (sharded_dim,)
    are_dims = given != (None,) and all(d is None or type(d) is int for d in given)
    if is_dynamo_compiling() or not are_dims or compares():
        return None, None
    groups = groups_of(len(given) if isinstance(sharded_dim, tuple) else None, group, mesh, call)
    places = tuple([(g.group_name, g.size(), g.rank()) for g in groups])
    return dispatch.again(named_key, tensors, call, dim, (*rest, sharded_dim, places))


def gathered(t: Tensor, ranks: Ranks) -> Tensor:
    """A tensor of each rank, in rank order, along the first dim."""
    return collective("all_gather_into_tensor", t, ranks.size, ranks.name)


def collective(name: str, t: Tensor, *arguments: Any) -> Tensor:
    """What a functional collective of torch's makes.

    Raises:
        BackendError: the tensor has a dim of torch.vmap, for which torch waits for no collective.
    """
    made: Tensor
    if is_dynamo_compiling():
        made = COLLECTIVES.wait_tensor(getattr(COLLECTIVES, name)(t, *arguments))
    elif is_batched(t) or torch._C._functorch.is_batchedtensor(t):
        raise BackendError(
            "distributed: an exchange must be of one call or cotangent, got several by torch.func.vmap, is_grads_batched or "
            "vectorize; make one after another"
        )
    else:  # no gradient goes through an exchange, and torch's autograd of it is a function of Python
        with torch._C._AutoDispatchBelowAutograd():
            made = _WAIT(_EAGER[name](t, *arguments))
    return made


def gathered_states(states: Sequence[Tensor], axis: int, ranks: Ranks) -> list[Tensor]:
    """The fields of all ranks' states by one exchange of their bytes; `axis`, of length 1, becomes that of ranks."""
    return dispatch.noted(Exchange(axis, ranks, [(t.dtype, t.shape) for t in states]), *states)


class Exchange:
    """An exchange of fields of these dtypes and shapes, as `gathered_states` makes it.

    Fields that are alike are one block. Wider ones stand first, so that each begins where its dtype may.
    """

    def __init__(self, axis: int, ranks: Ranks, kinds: Sequence[tuple[torch.dtype, torch.Size]]) -> None:
        alike: list[list[int]] = []
        for f in sorted(range(len(kinds)), key=lambda f: -kinds[f][0].itemsize):
            if alike and kinds[alike[-1][0]] == kinds[f]:
                alike[-1].append(f)
            else:
                alike.append([f])
        self.ranks, self.alike = ranks, alike
        lengths = [
            len(fields) * math.prod(kinds[fields[0]][1]) * kinds[fields[0]][0].itemsize for fields in alike
        ]
        self.length, self.lengths = sum(lengths), lengths
        self.blocks = [self._block(len(fields), *kinds[fields[0]], axis) for fields in alike]
        self.is_moved = len(alike) == 1 and self.blocks[0][0] in _MOVED
        self.order = [[f for fields in alike for f in fields].index(f) for f in range(len(kinds))]

    def _block(
        self, count: int, dtype: torch.dtype, shape: Sequence[int], axis: int
    ) -> tuple[torch.dtype, list[int], list[int]]:
        """A block's dtype, its shape in what is gathered, without `axis`, and the order of dims that has ranks there."""
        rest, several = [*shape[:axis], *shape[axis + 1 :]], [count] * (count > 1)
        first = len(several)
        order = [*range(1, 1 + first + axis), 0, *range(1 + first + axis, 1 + first + len(rest))]
        return dtype, [self.ranks.size, *several, *rest], order

    def __call__(self, *states: Tensor) -> list[Tensor]:
        """The fields of all ranks' states."""
        alike = self.alike
        made = [
            torch.stack([states[f] for f in fields]) if len(fields) > 1 else states[fields[0]].contiguous()
            for fields in alike
        ]
        if self.is_moved:
            parts: Sequence[Tensor] = [gathered(made[0], self.ranks)]
        else:
            flat = [t.view(-1).view(torch.uint8) for t in made]
            whole = gathered(flat[0] if len(flat) == 1 else torch.cat(flat), self.ranks)
            parts = self._apart(whole.view(self.ranks.size, self.length))
        found: list[Tensor] = []
        for fields, part, (_, shape, order) in zip(alike, parts, self.blocks, strict=True):
            every = part.view(shape).permute(order)
            found += every.unbind() if len(fields) > 1 else (every,)
        return [found[f] for f in self.order]

    def _apart(self, whole: Tensor) -> list[Tensor]:
        """The blocks of each rank's row of bytes."""
        made = []
        for part, (dtype, *_) in zip(whole.split_with_sizes(self.lengths, 1), self.blocks, strict=True):
            if not part.numel():
                made.append(part.new_empty(0, dtype=dtype))
                continue
            if self.length % dtype.itemsize:  # no view: a row begins between two elements
                part = part.clone(memory_format=torch.contiguous_format)
            made.append(part.view(dtype))
        return made


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

"""`tilefold.distributed.topk`: the best elements of each shard, an exchange of these, and the best of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tilefold.api.topk import checked_selection
from tilefold.api.topk import topk as local_topk
from tilefold.distributed.exchange import Step, gathered_states
from tilefold.distributed.gradient import check_order, check_tangents
from tilefold.distributed.reduce import Axes, agreed
from tilefold.errors import ShapeError
from tilefold.functional.arguments import NEEDED
from tilefold.problem.validate import is_abstract

CALL = "distributed.topk"
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def topk(
    x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True,
    *, sharded_dim: Axes = NEEDED, group: Any = None, mesh: Any = None, guarantee: str = "run_to_run",
) -> torch.return_types.topk:  # fmt: skip
    """The k largest elements along a dim of a tensor of which each rank holds a part: `tilefold.topk` of the whole.

    Each rank selects the k best of its own part, one exchange moves these (k values and k positions of 8 bytes a row and
    rank), and every rank selects the best of all. Nothing is rounded. Of equal elements the one of the lower index comes
    first. Every rank of the group must make the call.

    Args:
        x, sharded_dim, group, mesh: as in `tilefold.distributed.reduce`, of one tensor.
        k: how many, at most 32 and at most the length of all parts. One part may be shorter.
        dim, largest, sorted, guarantee: as in `tilefold.topk`.

    Returns:
        torch's named tuple (values, indices), the same on every rank; indices are those of the whole tensor.

        Gradients: the values' cotangent must be the same on every rank, and each rank gets that of its own part; nothing is
        exchanged. There is no second derivative.

    Raises:
        As `tilefold.topk` and `tilefold.distributed.reduce`; and
        ShapeError: k is greater than the length of all parts. On a GPU, which nobody waits for, indices are -1 then.

    Example:
        >>> tilefold.distributed.topk(shard, 8, sharded_dim=1)  # doctest: +SKIP
    """
    shards = {"sharded_dim": sharded_dim, "group": group, "mesh": mesh}
    return torch.return_types.topk(select_shards(x, k, dim, largest, sorted, guarantee=guarantee, **shards))  # type: ignore[arg-type]  # two


def select_shards(
    x: Tensor, k: int, dim: int, largest: bool, sorted: bool,
    *, sharded_dim: Axes, group: Any = None, mesh: Any = None, guarantee: str, call: str = CALL,
) -> Sequence[Tensor]:  # fmt: skip
    """`topk` without packing."""
    along, k = checked_selection(x, k, dim, largest, sorted, guarantee, True, call, whole=False)
    facts = {"k": k, "dim": along, "largest": largest}
    steps = agreed([x], x.shape, sharded_dim, group, mesh, guarantee, facts, call)
    steps = tuple([step for step in steps if step.axis == along])
    if not steps or not k:
        return local_topk(x, k, along, largest, sorted, guarantee=guarantee)
    check_tangents([x], call)
    made: Sequence[Tensor] = _Function.apply(x, k, along, largest, steps, guarantee)  # type: ignore[no-untyped-call]  # torch's own
    return made


def _worst(dtype: torch.dtype, largest: bool) -> Any:
    """A number that no element comes after."""
    if dtype == torch.bool:
        return not largest
    if not dtype.is_floating_point:
        return torch.iinfo(dtype).min if largest else torch.iinfo(dtype).max
    infinite = dtype.itemsize > 1 or dtype == torch.float8_e5m2
    return float("nan") if not largest else -float("inf") if infinite else torch.finfo(dtype).min


def _selected(
    x: Tensor, k: int, dim: int, largest: bool, steps: Sequence[Step], guarantee: str
) -> tuple[Tensor, Tensor, Tensor]:
    """The best values of all ranks, their positions, and this rank's first one.

    Raises:
        ShapeError: all ranks together have fewer, on a CPU.
    """
    own = min(k, x.shape[dim])
    best, places = local_topk(x, own, dim, largest, guarantee=guarantee)
    if own < k:  # what is missing is the worst there is, and is put last
        more = [k - own if d == dim else n for d, n in enumerate(x.shape)]
        best = torch.cat([best, best.new_full(more, _worst(x.dtype, largest))], dim)
        places = torch.cat([places, places.new_full(more, -1)], dim)
    length = places.new_full([1], x.shape[dim])
    start = torch.zeros_like(length)
    for step in steps:
        states = [t.unsqueeze(0) for t in (best, places, length)]
        bests, others, lengths = gathered_states(states, 0, step.ranks)
        lengths = lengths.flatten()
        starts = lengths.cumsum(0) - lengths
        found = others >= 0
        others = torch.where(found, others + starts.view(-1, *[1] * x.ndim), -1)
        missing = torch.arange(k, device=x.device) >= lengths.unsqueeze(1)
        order = missing.flatten().to(torch.uint8).argsort(stable=True)
        bits = bests.view(
            _BITS[best.itemsize]
        )  # torch moves integers of each width, and not all floats of 8 bits
        every = [t.movedim(0, dim).flatten(dim, dim + 1).index_select(dim, order) for t in (bits, others)]
        best, which = local_topk(every[0].view(x.dtype), k, dim, largest, guarantee=guarantee)
        places, length = every[1].gather(dim, which), lengths.sum().reshape(1)
        start = start + starts[step.ranks.rank]
    waits = length.device.type == "cpu" and not is_dynamo_compiling() and not is_abstract(length)
    if waits and int(length) < k:
        raise ShapeError(
            f"{CALL}: `k` must be at most {int(length)}, the length of dim {dim} on all ranks, got {k} (selected index k out "
            "of range); choose a smaller one"
        )
    return best, places, start


class _Function(torch.autograd.Function):
    """What autograd sees of a selection over a sharded dim."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, k: int, dim: int, largest: bool, steps: Sequence[Step], guarantee: str
    ) -> tuple[Tensor, Tensor]:
        values, places, start = _selected(x, k, dim, largest, steps, guarantee)
        ctx.mark_non_differentiable(places)
        ctx.save_for_backward(places, start)
        ctx.dim, ctx.shape = dim, x.shape
        return values, places

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> Any:
        check_order(CALL, "selection")
        places, start = ctx.saved_tensors
        own, n = places - start, ctx.shape[ctx.dim]
        own = torch.where((own >= 0) & (own < n), own, n)  # another rank's go beyond the end
        wide = [n + 1 if d == ctx.dim else size for d, size in enumerate(ctx.shape)]
        made = g.new_zeros(wide).scatter(ctx.dim, own, g).narrow(ctx.dim, 0, n)
        return made.contiguous(), None, None, None, None, None

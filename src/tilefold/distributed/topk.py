"""`tilefold.distributed.topk`: the best elements of each shard, an exchange of these, and the best of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tilefold.api import dispatch
from tilefold.api.differentiated import Call
from tilefold.api.recorded import asks_gradient
from tilefold.api.topk import checked_selection
from tilefold.api.topk import topk as local_topk
from tilefold.distributed.exchange import Ranks, Step, again, gathered_states
from tilefold.distributed.gradient import check_order, check_tangents, differentiated
from tilefold.distributed.reduce import Axes, agreed
from tilefold.errors import ShapeError
from tilefold.functional.arguments import NEEDED
from tilefold.planner.problem.validate import is_abstract

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
    key: Any = None
    flags = (k, largest, sorted)
    if tuple(map(type, flags)) == (int, bool, bool):  # a tensor's number may change
        key, known = again([x], call, dim, (*flags, guarantee), sharded_dim, group, mesh)
        if known is not None:
            return known
    along, k = checked_selection(x, k, dim, largest, sorted, guarantee, True, call, whole=False)
    facts = {"k": k, "dim": along, "largest": largest}
    steps = agreed([x], x.shape, sharded_dim, group, mesh, guarantee, facts, call)
    steps = tuple([step for step in steps if step.axis == along])
    if not steps or not k:
        return local_topk(x, k, along, largest, sorted, guarantee=guarantee)
    check_tangents([x], call)
    selection = Selection(k, along, largest, steps, guarantee, tuple(x.shape))
    if asks_gradient([x]):
        return differentiated(selection, selection.run, [x], key)
    return dispatch.replayed(key, lambda tensors: selection.given(selection.run(tensors)), [x])


def _worst(dtype: torch.dtype, largest: bool) -> Any:
    """A number that no element comes after."""
    if dtype == torch.bool:
        return not largest
    if not dtype.is_floating_point:
        return torch.iinfo(dtype).min if largest else torch.iinfo(dtype).max
    infinite = dtype.itemsize > 1 or dtype == torch.float8_e5m2
    return float("nan") if not largest else -float("inf") if infinite else torch.finfo(dtype).min


@dataclass(frozen=True)
class Selection(Call):
    """A selection over a sharded dim, of a part of that shape."""

    k: int
    dim: int
    largest: bool
    steps: tuple[Step, ...]
    guarantee: str
    shape: tuple[int, ...]

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The best values of all ranks, their positions, and this rank's first one."""
        (x,), dim = tensors, self.dim
        own = min(self.k, x.shape[dim])
        best, places = self._best(x, own)
        if own < self.k:
            best, places = dispatch.noted(self._lengthened, best, places)
        length = dispatch.constant(places.new_full([1], x.shape[dim]))
        start = dispatch.constant(torch.zeros_like(length))
        for step in self.steps:
            (numbers,) = dispatch.noted(
                lambda *t: [torch.cat([each.flatten() for each in t])], places, length
            )
            every = gathered_states([best.unsqueeze(0), numbers.unsqueeze(0)], 0, step.ranks)
            best, others, length, start = dispatch.noted(partial(self._ordered, step.ranks), *every, start)
            best, which = self._best(best, self.k)
            (places,) = dispatch.noted(lambda t, i: [t.gather(dim, i)], others, which)
        dispatch.noted(self._check_length, length)
        return [best, places, start]

    def given(self, made: list[Tensor]) -> list[Tensor]:
        """The values and their positions."""
        return made[:2]

    def moves(self, result: int, tensors: Sequence[Tensor]) -> bool:
        """Whether it is the values."""
        return not result

    def saved(self, tensors: Sequence[Tensor], made: Sequence[Tensor], wrt: Sequence[int]) -> list[Tensor]:
        """The positions, and this rank's first one."""
        return list(made[1:])

    def backward(self, saved: Sequence[Tensor], grads: Sequence[Any], wrt: Sequence[int]) -> list[Any]:
        """The cotangents of this rank's elements."""
        return dispatch.noted(self._put, *saved, grads[0])

    def _best(self, x: Tensor, k: int) -> Sequence[Tensor]:
        return local_topk(x, k, self.dim, self.largest, guarantee=self.guarantee)

    def _lengthened(self, best: Tensor, places: Tensor) -> list[Tensor]:
        """As many as asked for of each row: what is missing is the worst there is, at -1, and is put last."""
        more = [self.k - n if d == self.dim else n for d, n in enumerate(best.shape)]
        worst = best.new_full(more, _worst(best.dtype, self.largest))
        return [torch.cat([best, worst], self.dim), torch.cat([places, places.new_full(more, -1)], self.dim)]

    def _ordered(self, ranks: Ranks, bests: Tensor, numbers: Tensor, start: Tensor) -> list[Tensor]:
        """The best values of all ranks side by side, what is missing last; their positions among these ranks' elements;
        how many these are, and where this rank's begin."""
        others, lengths = numbers[:, :-1], numbers[:, -1:]
        ends = lengths.cumsum(0)
        starts = ends - lengths
        others = torch.where(others >= 0, others + starts, -1).view(bests.shape)
        missing = torch.arange(self.k, device=lengths.device) >= lengths
        order = missing.flatten().to(torch.uint8).argsort(stable=True)
        # torch moves integers of each width, and not all floats of 8 bits
        bits, dim = bests.view(_BITS[bests.itemsize]), self.dim
        every = [t.movedim(0, dim).flatten(dim, dim + 1).index_select(dim, order) for t in (bits, others)]
        return [every[0].view(bests.dtype), every[1], ends[-1], start + starts[ranks.rank]]

    def _check_length(self, length: Tensor) -> list[Tensor]:
        """Refuse, on a CPU, to select more than there is.

        Raises:
            ShapeError: all ranks together have fewer.
        """
        waits = length.device.type == "cpu" and not is_dynamo_compiling() and not is_abstract(length)
        if waits and int(length) < self.k:
            raise ShapeError(
                f"{CALL}: `k` must be at most {int(length)}, the length of dim {self.dim} on all ranks, got {self.k} "
                "(selected index k out of range); choose a smaller one"
            )
        return []

    def _put(self, places: Tensor, start: Tensor, g: Tensor) -> list[Tensor]:
        """The values' cotangents at their places in this rank's part."""
        check_order(CALL, "selection")
        own, n = places - start, self.shape[self.dim]
        own = torch.where((own >= 0) & (own < n), own, n)  # another rank's go beyond the end
        wide = [n + 1 if d == self.dim else size for d, size in enumerate(self.shape)]
        return [g.new_zeros(wide).scatter(self.dim, own, g).narrow(self.dim, 0, n).contiguous()]

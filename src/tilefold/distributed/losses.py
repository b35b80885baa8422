"""Cross-entropy of logits whose classes are spread over ranks: states of rows are exchanged once, and no logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tilefold import math
from tilefold.algebra.expression import trace
from tilefold.algebra.monoid import Monoid, monoid_of
from tilefold.algebra.typing import compute_dtype
from tilefold.api import dispatch
from tilefold.api.chosen import map_chosen, same
from tilefold.api.differentiated import at_places
from tilefold.api.ends import function_of
from tilefold.api.losses import ARGUMENTS, SCHEMA, Loss
from tilefold.api.operations import LIBRARY, fresh
from tilefold.api.parts import finish_text, partial_text
from tilefold.api.recorded import OPERATIONS, asks_gradient, is_plainly_differentiated
from tilefold.api.reduce import fold_tensors
from tilefold.distributed.agreement import check_ranks
from tilefold.distributed.exchange import Ranks, again, gathered_states, process_group, ranks_of
from tilefold.distributed.gradient import check_order, check_tangents, differentiated
from tilefold.errors import ArgumentError, ShapeError, shown
from tilefold.functional.losses import checked_loss
from tilefold.planner.problem.canonical import whole_number
from tilefold.planner.problem.validate import is_abstract
from tilefold.runtime.caching import kept_outside_modes

CALL = "distributed.cross_entropy"
NAN = float("nan")


def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None,
    *, sizes: Sequence[int] | None = None, group: Any = None, mesh: Any = None, ignore_index: int = -100,
    reduction: str = "mean", label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None,
    return_lse: bool = False, validate: bool = False, guarantee: str = "run_to_run",
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Cross-entropy of logits of which each rank of a group holds some classes: `tilefold.cross_entropy` of all side by side.

    Each rank reads its logits once: it folds them, and takes the targets that are its own. One exchange moves, of each row
    and rank, a maximum, a sum, the target's logit (and weight, and the sums of smoothing or probabilities): 4 bytes each, of
    float64 logits 8. Every rank of the group must make the call. Any number of ranks gives the same loss, but for log2(ranks)
    more steps of the sums.

    Args:
        input: this rank's logits [N, c], [N, c, d1, ...] or [c], of `sizes[rank]` classes c, which may be 0. Ranks hold
            consecutive classes, in rank order.
        target: classes of all, the same on every rank; or the probabilities of this rank's classes, of its logits' shape.
        weight: of this rank's classes, [c].
        sizes: how many classes each rank holds; all of them as many as this one by default.
        group: the process group; all processes by default.
        mesh: a DeviceMesh of one dim (`mesh["tp"]`) instead of a group.
        ignore_index, reduction, label_smoothing, z_loss, softcap, return_lse, validate, guarantee: as in
            `tilefold.cross_entropy`.

    Returns:
        The same on every rank: as `tilefold.cross_entropy`.

        Gradients: the loss's cotangent must be the same on every rank, and each rank gets that of its own logits, in one
        read and one write; nothing is exchanged. There is no second derivative.

    Raises:
        As `tilefold.cross_entropy`; and
        ArgumentError: `sizes` does not fit the group or this rank's logits; or, with TILEFOLD_CHECK_RANKS=1 in the
            environment, ranks disagree.
        ShapeError: ranks hold other numbers of classes than `sizes` says. On a GPU the results are NaN.
        GradientError: a second or a forward derivative is asked for.
        RuntimeError: torch's own, where a rank does not come within the group's time-out.

    Example:
        >>> tilefold.distributed.cross_entropy(x @ shard.T, target, mesh=mesh["tp"])  # doctest: +SKIP
    """
    options = (
        ignore_index, reduction, label_smoothing, z_loss, softcap, return_lse, False, validate, guarantee,
    )  # fmt: skip
    given = [input, target] if weight is None else [input, target, weight]
    parts = tuple(sizes) if isinstance(sizes, list) else sizes
    key, made = again(given, CALL, None, (options, tuple(map(type, options)), parts), 0, group, mesh)
    if made is None:
        plain, tensors = checked_loss(CALL, 0, input, target, weight, *options)
        if weight is not None and tensors[-1] is not weight:
            key = None  # which is of the tensors as they were given
        made = loss_of_shards(tensors, plain, sizes, group, mesh, key)
    return (made[0], made[1].squeeze(min(1, input.ndim - 1))) if return_lse else made[0]


def loss_of_shards(
    tensors: Sequence[Tensor], plain: Loss, sizes: Any, group: Any, mesh: Any = None, key: Any = None
) -> Any:
    """A checked loss of this rank's classes: it, and where it is shown each row's log-sum-exp."""
    ranks, dim = ranks_of(group, mesh, CALL), plain.dim
    start, classes = _place(tensors[0].shape[dim], sizes, ranks)
    own = {name: getattr(plain, name) for name in ARGUMENTS}
    if not is_dynamo_compiling():
        rows = [n for d, n in enumerate(tensors[0].shape) if d != dim]
        facts = {"shape": rows, "dtype": [t.dtype for t in tensors], "classes": classes, **own}
        check_ranks(facts, [process_group(group, mesh, CALL)], CALL)
    arguments = (*own.values(), start, classes)
    check_tangents(tensors, CALL)
    if not is_dynamo_compiling():
        loss = replace(_shard_of(arguments), ranks=ranks)
        if is_plainly_differentiated(tensors):
            return differentiated(loss, loss.run, tensors, key)
        if not asks_gradient(tensors):
            return dispatch.replayed(key, loss.run, tensors)
    # Without a gradient none is applied: torch.compile would call `forward` of two tensors without its `ctx`.
    apply = _Function.apply if asks_gradient(tensors) else _made
    return apply(ranks, arguments, *tensors)


def _place(own: int, sizes: Any, ranks: Ranks) -> tuple[int, int]:
    """This rank's first class, and the number of all.

    Raises:
        ArgumentError: sizes are none of this group.
    """
    if sizes is None:
        return ranks.rank * own, ranks.size * own
    given = sizes if isinstance(sizes, list | tuple) else ()
    numbers = [n for n in map(whole_number, given) if n is not None and n >= 0]
    if len(numbers) != ranks.size or len(given) != ranks.size or numbers[ranks.rank] != own:
        raise ArgumentError(
            f"{CALL}: `sizes` must hold the number of classes of each of {ranks.size} ranks, {own} of rank {ranks.rank}, got "
            f"{shown(sizes)}; leave it out where all ranks have as many"
        )
    return sum(numbers[: ranks.rank]), sum(numbers)


@dataclass(frozen=True)
class Shard(Loss):
    """A cross-entropy of which this rank has the classes from `start` on, of `classes`."""

    start: int = 0
    classes: int = 0
    ranks: Ranks | None = None

    call = CALL

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The results, by the exchange of states."""
        assert self.ranks is not None
        return self.joined(gathered_states(self.states(tensors), self.dim, self.ranks), tensors)

    def backward(self, saved: Sequence[Tensor], grads: Sequence[Any], wrt: Sequence[int]) -> list[Any]:
        """The cotangents of this rank's logits and probabilities."""
        if self.ranks is not None:
            check_order(CALL, "loss")
        return super().backward(saved, grads, wrt)

    @property
    def exchanged(self) -> tuple[str, ...]:
        """The target's logit and weight, which another rank may have."""
        return tuple(name for name in self.owned if name != "counts")

    def classes_of(self, x: Tensor) -> int:
        """All ranks'."""
        return self.classes

    def _monoid(self, tensors: Sequence[Tensor], part: Callable[..., str], *more: bool) -> Monoid:
        """A part of the fold of rows."""
        elements = tuple([t.dtype for t in self.folded(tensors)])
        return monoid_of(part(self.of_rows(self.classes).text, elements, False, *more))

    def _chosen(self, x: Tensor, target: Tensor) -> Tensor:
        """The targets among this rank's classes, -1 of all others."""
        own = target.to(torch.int64) - self.start
        return torch.where((own >= 0) & (own < x.shape[self.dim]), own, -1)

    def states(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """This rank's: of each row's fold; of its targets, 0 of another rank's; and where its classes begin and end."""
        x, target, *weight = tensors = self.alike(tensors)
        made = fold_tensors(
            self.folded(tensors),
            self._monoid(tensors, partial_text),
            self.dim,
            True,
            guarantee=self.guarantee,
            call=CALL,
        )
        if not self.probabilities:
            self.check_targets(target, self.classes)
            made += self._of_own(x, target, weight)
        ends = (self.start, self.start + x.shape[self.dim])
        return [*made, *(dispatch.constant(x.new_full([1] * x.ndim, n, dtype=torch.int64)) for n in ends)]

    def _of_own(self, x: Tensor, target: Tensor, weight: Sequence[Tensor]) -> list[Tensor]:
        """The logits and weights of targets among this rank's classes, 0 of others."""
        own, wide = int(x.shape[self.dim]), compute_dtype(x.dtype)
        if not own:
            return [dispatch.constant(x.new_zeros(target.shape, dtype=wide)) for _ in (x, *weight)]
        (index,) = dispatch.noted(lambda t: [t.to(torch.int64) - self.start], target)
        tables = [t.expand(x.shape) for t in (x, *weight)]
        function = _of_own_classes(own, len(tables))
        return map_chosen(
            function, [], index, tables, self.dim, dtype=wide, guarantee=self.guarantee, call=CALL
        )

    def joined(self, states: Sequence[Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
        """The results, of all ranks' states.

        Raises:
            ShapeError: ranks do not hold all classes side by side, on a CPU.
        """
        x, *_ = tensors = self.alike(tensors)
        *rows, begins, ends = states
        own = [rows.pop() for _ in self.exchanged][::-1]
        made = self.named(
            fold_tensors(
                rows, self._monoid(tensors, finish_text, True), self.dim, True, dtype=compute_dtype(x.dtype),
                guarantee=self.guarantee, call=CALL,
            )
        )  # fmt: skip
        names = ("logarithm", *("lse",) * self.shows_lse)
        fitting = dispatch.noted(self._where_fits, begins, ends, *(made[name] for name in names))
        made |= dict(zip(names, fitting, strict=True))
        total = partial(torch.sum, dim=self.dim, keepdim=True)
        made |= {
            name: dispatch.noted(lambda t: [total(t)], t)[0]
            for name, t in zip(self.exchanged, own, strict=True)
        }
        return self.reduced(made, tensors)

    def _where_fits(self, begins: Tensor, ends: Tensor, *values: Tensor) -> list[Tensor]:
        """Values of rows, NaN where ranks do not hold all classes side by side."""
        fits = self._fits(begins.flatten(), ends.flatten())
        return [torch.where(fits, t, NAN) for t in values]

    def _fits(self, begins: Tensor, ends: Tensor) -> Tensor:
        fits = (begins[1:] == ends[:-1]).all() & (ends[-1] == self.classes)
        if fits.device.type == "cpu" and not is_abstract(fits) and not fits:
            held = [end - begin for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
            raise ShapeError(
                f"{CALL}: ranks must hold as many classes as `sizes` says, all as many where it is left out, got {held}; "
                "give `sizes` on every rank"
            )
        return fits

    def with_targets(self, of_x: Tensor, target: Tensor, own: Monoid, values: Sequence[Tensor]) -> Tensor:
        """As of a whole; of another rank's target the cotangents stay."""
        if not of_x.shape[self.dim]:
            return of_x
        (made,) = self._each(own, [*(t.expand(target.shape) for t in values), target], of_x.dtype)

        def kept(of_x: Tensor, target: Tensor, made: Tensor) -> list[Tensor]:
            chosen = self._chosen(of_x, target)
            here = chosen.clamp(min=0)
            return [here, torch.where(chosen >= 0, made, of_x.gather(self.dim, here))]

        here, made = dispatch.noted(kept, of_x, target, made)
        return super().with_targets(of_x, here, same(), [made])


@kept_outside_modes(256)
def _of_own_classes(own: int, count: int) -> Monoid:
    """(an index, elements at it) -> these elements, 0 where the index is none of so many classes."""

    def run(index: Any, *values: Any) -> tuple[Any, ...]:
        is_own = (index >= 0) & (index < own)
        return tuple([math.where(is_own, v, 0.0) for v in values])

    return function_of(trace(run, 1 + count))


# ------------------------------------------------------------------------------------------- as operations of torch


def _shard_of(arguments: Sequence[Any]) -> Shard:
    *plain, start, classes = arguments
    return Shard(**dict(zip(ARGUMENTS, plain, strict=True)), start=start, classes=classes)


def _states(inputs: list[Tensor], *arguments: Any) -> list[Tensor]:
    with torch.no_grad():
        return fresh(_shard_of(arguments).states(inputs), inputs)


def _shape_of_states(inputs: list[Tensor], *arguments: Any) -> list[Tensor]:
    loss, x = _shard_of(arguments), inputs[0]
    rows = [1 if d == loss.dim else n for d, n in enumerate(x.shape)]
    fields = 2 + loss.varies + loss.shares + len(loss.exchanged)
    made = [x.new_empty(rows, dtype=compute_dtype(x.dtype)) for _ in range(fields)]
    return [*made, *(x.new_empty([1] * x.ndim, dtype=torch.int64) for _ in range(2))]


def _joined(states: list[Tensor], inputs: list[Tensor], *arguments: Any) -> list[Tensor]:
    with torch.no_grad():
        return fresh(_shard_of(arguments).joined(states, inputs), [*states, *inputs])


def _shape_of_joined(states: list[Tensor], inputs: list[Tensor], *arguments: Any) -> list[Tensor]:
    return _shard_of(arguments).unwritten(inputs[0])


def _gradient(saved: list[Tensor], grads: list[Tensor], wrt: list[int], *arguments: Any) -> list[Tensor]:
    loss = _shard_of(arguments)
    with torch.no_grad():
        every = [*grads, *[None] * (len(loss.results) - len(grads))]
        made = loss.backward(saved, every, wrt)
        return fresh([made[i].reshape(saved[i].shape) for i in wrt], [*saved, *grads])


def _shape_of_gradient(
    saved: list[Tensor], grads: list[Tensor], wrt: list[int], *arguments: Any
) -> list[Tensor]:
    return [saved[i].new_empty(saved[i].shape) for i in wrt]


for _name, _given, _function, _shape in (
    ("shard_loss", "Tensor[] inputs", _states, _shape_of_states),
    ("joined_loss", "Tensor[] states, Tensor[] inputs", _joined, _shape_of_joined),
    ("shard_loss_gradient", "Tensor[] saved, Tensor[] grads, int[] wrt", _gradient, _shape_of_gradient),
):
    LIBRARY.define(f"{_name}({_given}, {SCHEMA}, int start, int classes) -> Tensor[]")
    LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"tilefold::{_name}", _shape, lib=LIBRARY)


def _made(ranks: Ranks, arguments: tuple[Any, ...], *tensors: Tensor) -> list[Tensor]:
    """The results of all ranks' logits."""
    states = OPERATIONS.shard_loss(tensors, *arguments)
    every = gathered_states(states, arguments[0], ranks)
    made: list[Tensor] = OPERATIONS.joined_loss(every, tensors, *arguments)
    return made


class _Function(torch.autograd.Function):
    """What autograd sees: the loss and, where it is asked for, each row's log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, arguments: tuple[Any, ...], *tensors: Tensor) -> Any:
        shown = 1 + arguments[ARGUMENTS.index("shows_lse")]
        made = _made(ranks, arguments, *tensors)
        ctx.save_for_backward(*tensors, *made[shown:])
        ctx.arguments, ctx.count = arguments, len(tensors)
        return tuple(made[:shown])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        check_order(CALL, "loss")
        wrt = [i for i in range(ctx.count) if ctx.needs_input_grad[2 + i]]
        made = OPERATIONS.shard_loss_gradient(ctx.saved_tensors, grads, wrt, *ctx.arguments)
        return None, None, *at_places(made, wrt, ctx.count)

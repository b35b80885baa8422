"""The gradient of a sharded fold: each rank's own, once all ranks' states are known to it. Nothing is exchanged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tilefold.algebra.dtypes import element_dtype
from tilefold.algebra.monoid import monoid_of
from tilefold.api import gradients
from tilefold.api.differentiated import Call, Run, applied
from tilefold.api.ends import Ends, ends_of, function_of
from tilefold.api.gradients import as_rows, cells, converted, from_rows, states_of
from tilefold.api.operations import LIBRARY, fresh
from tilefold.api.parts import finish_text, turned
from tilefold.api.recorded import asks_gradient, is_plainly_differentiated
from tilefold.api.reduce import fold_tensors
from tilefold.api.scan import scan_tensors
from tilefold.errors import GradientError
from tilefold.planner.problem.canonical import broadcast_shape
from tilefold.runtime.modes import is_dual, members

CALL = "distributed.reduce"


def check_order(call: str, what: str) -> None:
    """Refuse a backward that is to be differentiated.

    Raises:
        GradientError: it is.
    """
    if torch.is_grad_enabled() and not is_dynamo_compiling():  # of create_graph=True
        raise GradientError(
            f"{call}: a sharded {what} has a first derivative alone, got create_graph=True; ask for the gradient without it"
        )


def check_tangents(tensors: Sequence[Tensor], call: str) -> None:
    """Refuse forward derivatives, which the exchange would lose, and gradients of torch.func, which see no exchange.

    Raises:
        GradientError: a tensor carries one.
    """
    if is_dynamo_compiling():
        return
    if any(is_dual(members(t)) for t in tensors):
        raise GradientError(
            f"{call}: over a sharded dim there is no forward derivative, got a tensor that carries one; ask for the gradient"
        )
    if torch._C._functorch.maybe_current_level() is not None and asks_gradient(tensors):
        raise GradientError(
            f"{call}: over a sharded dim gradients must be asked of autograd, got a tensor of torch.func; call `backward` or "
            "torch.autograd.grad"
        )


def differentiated(rule: Call, run: Run, tensors: Sequence[Tensor], key: Any) -> list[Tensor]:
    """The results of a call over ranks, with its backward; calls of `key`, if there is one, are answered so from now on."""
    if not is_dynamo_compiling() and is_plainly_differentiated(tensors):
        return applied(rule, run, tensors, key)
    return rule.given(list(_Function.apply(rule, run, *tensors)))  # type: ignore[no-untyped-call]  # torch's own


class _Function(torch.autograd.Function):
    """The same where torch.compile or a transform sees the operations that it is made of."""

    @staticmethod
    def forward(ctx: Any, rule: Call, run: Run, *tensors: Tensor) -> Any:
        made = run(tensors)
        moved = [t.is_floating_point() and rule.moves(i, tensors) for i, t in enumerate(made)]
        ctx.mark_non_differentiable(*[t for t, moves in zip(made, moved, strict=True) if not moves])
        ctx.wrt = [i for i in range(len(tensors)) if ctx.needs_input_grad[2 + i]]
        ctx.save_for_backward(*rule.saved(tensors, made, ctx.wrt))
        ctx.rule = rule
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, None, *ctx.rule.backward(ctx.saved_tensors, grads, ctx.wrt)


@dataclass(frozen=True)
class Shard:
    """A shard's elements, all ranks' states (ranks along `axis`), and cotangents of one value a row."""

    monoid: str
    elements: tuple[torch.dtype, ...]
    x: list[Tensor]
    states: Sequence[Tensor]
    g: list[Tensor]
    dims: Sequence[int]
    own: tuple[int, ...]  # those of `dims` that the shard's own fold has
    axis: int
    rank: int
    guarantee: str

    @property
    def ends(self) -> Ends:
        """What is derived of the monoid."""
        return ends_of(gradients.derived(monoid_of(self.monoid), self.elements))

    def of_elements(self, wrt: tuple[int, ...]) -> list[Tensor]:
        """Cotangents of some inputs."""
        ends, gradient = self.ends, self.ends.gradient
        wide = [t.expand(self.x[0].shape) for t in self.g]
        if gradient.origins is not None:
            return [torch.where(self.x[-1] == self._folded(True)[gradient.origins], wide[0], 0)]
        if gradient.shares_ties:
            return self._of_ties(wrt)
        if ends.total_is_enough:
            total = [t.expand(self.x[0].shape) for t in self._folded(False)]
            return cells(function_of(ends.by_total(wrt)), [*self.x, *total, *wide])
        return self._around(wrt)

    def _folded(self, results: bool, ties: bool = False) -> list[Tensor]:
        """The whole fold's results, or its state."""
        finish = monoid_of(finish_text(self.monoid, self.elements, ties, results))
        return fold_tensors(self.states, finish, tuple(self.dims), True, guarantee=self.guarantee, call=CALL)

    def _of_ties(self, wrt: tuple[int, ...]) -> list[Tensor]:
        """Elements of all ranks that are one extreme share its cotangent evenly: states count them."""
        ends, gradient = self.ends, self.ends.gradient
        total = self._folded(False, ties=True)
        whole, counts = total[: gradient.n], total[gradient.n :]
        shares = cells(ends.of_whole, [*whole, *self.g])
        extremes = [converted(whole[f], gradient.program.state[f]) for f in gradient.extremes]
        beside = [*extremes, *counts, *(shares[gradient.floats.index(f)] for f in gradient.extremes)]
        wide = [t.expand(self.x[0].shape) for t in beside]
        made = cells(function_of(ends.shared(wrt)), [*self.x, *wide])
        if len(gradient.floats) > len(gradient.extremes):
            more = self._around(wrt, others=True)
            made = [a + b for a, b in zip(made, more, strict=True)]
        return made

    def _around(self, wrt: tuple[int, ...], others: bool = False) -> list[Tensor]:
        """From the states before and after each element: those of other ranks, then those of its own."""
        ends = self.ends
        gradients.check_grouping(ends.gradient, CALL)
        own, shape = states_of(ends.gradient).text, self.states[0].shape
        whole = finish_text(self.monoid, self.elements, False, False)
        ranks = [as_rows(t, self.dims) for t in self.states[: ends.gradient.n]]
        x, g = ([as_rows(t.expand(self.x[0].shape), self.own) for t in some] for some in (self.x, self.g))
        sides = []
        for reverse in (False, True):
            form: dict[str, Any] = {"exclusive": True, "reverse": reverse, "guarantee": self.guarantee}
            beside = scan_tensors(ranks, monoid_of(turned(whole) if reverse else whole), 1, **form)
            here = [from_rows(t, shape, self.dims).narrow(self.axis, self.rank, 1) for t in beside]
            init = [as_rows(t, self.own).reshape(-1) for t in here]
            monoid = monoid_of(turned(own) if reverse else own)
            sides += scan_tensors(x, monoid, 1, init=init, **form)
        made = cells(ends.of_neighbours(wrt, others), [*x, *sides, *g])
        return [from_rows(t, self.x[0].shape, self.own) for t in made]


# ------------------------------------------------------------------------------------------- as an operation of torch


def gradient_of_shard(
    inputs: list[Tensor], states: list[Tensor], places: list[Tensor], grads: list[Tensor], monoid: str, dims: list[int],
    own: list[int], axis: int, rank: int, wrt: list[int], convert: Any, guarantee: str,
) -> list[Tensor]:  # fmt: skip
    """The cotangents of a shard's elements at `wrt`."""
    shape = broadcast_shape(inputs, CALL)
    elements = tuple(convert or t.dtype for t in inputs)
    x = [
        converted(t.expand(shape), element_dtype(e) if e.is_floating_point else t.dtype)
        for t, e in zip(inputs, elements, strict=True)
    ]
    rows = [1 if d in dims else n for d, n in enumerate(shape)]
    with torch.no_grad():
        if 0 in shape or not grads:
            return [inputs[i].new_zeros(inputs[i].shape) for i in wrt]
        x += [t.expand(shape) for t in places]
        shard = Shard(
            monoid,
            elements,
            x,
            states,
            [g.reshape(rows) for g in grads],
            dims,
            tuple(own),
            axis,
            rank,
            guarantee,
        )
        made = shard.of_elements(tuple(wrt))
        return [gradients.as_input(g, inputs[i]) for i, g in zip(wrt, made, strict=True)]


def _gradient(
    inputs: list[Tensor], states: list[Tensor], places: list[Tensor], grads: list[Tensor], *rest: Any
) -> list[Tensor]:
    """The same as `tilefold::shard_gradient`."""
    return fresh(gradient_of_shard(inputs, states, places, grads, *rest), [*inputs, *states, *grads])


def _shape_of_gradient(
    inputs: list[Tensor], states: list[Tensor], places: list[Tensor], grads: list[Tensor], monoid: str, dims: list[int],
    own: list[int], axis: int, rank: int, wrt: list[int], convert: Any, guarantee: str,
) -> list[Tensor]:  # fmt: skip
    return [inputs[i].new_empty(inputs[i].shape) for i in wrt]


LIBRARY.define(
    "shard_gradient(Tensor[] inputs, Tensor[] states, Tensor[] places, Tensor[] grads, str monoid, int[] dims, int[] own, "
    "int axis, int rank, int[] wrt, ScalarType? convert, str guarantee) -> Tensor[]"
)
LIBRARY.impl("shard_gradient", _gradient, "CompositeExplicitAutograd")
torch.library.register_fake("tilefold::shard_gradient", _shape_of_gradient, lib=LIBRARY)

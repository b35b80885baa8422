"""`tilefold.distributed.scan`: the state before a shard is that of all shards before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tilefold.algebra import text
from tilefold.algebra.monoid import Monoid, monoid_of
from tilefold.api import dispatch
from tilefold.api.gradients import converted, derived
from tilefold.api.parts import Dtypes, algebra_of, finish_text, partial_text, turned, with_base
from tilefold.api.recorded import OPERATIONS, asks_gradient
from tilefold.api.scan import scan_tensors
from tilefold.distributed.agreement import asks_gradients
from tilefold.distributed.exchange import (
    Step,
    again,
    collective,
    first_positions,
    gathered_states,
    positions_of,
)
from tilefold.distributed.gradient import check_order, check_tangents
from tilefold.distributed.reduce import Axes, agreed, fold_of_text
from tilefold.errors import EmptyError
from tilefold.functional.arguments import NEEDED
from tilefold.monoids import SUM
from tilefold.planner.problem.canonical import broadcast_shape, one_dim
from tilefold.planner.problem.validate import as_dtype, as_inputs, check_flags, check_inputs
from tilefold.runtime.uncompiled import constant_in_graphs

CALL = "distributed.scan"


def scan(
    inputs: Tensor | Sequence[Tensor],
    monoid: Monoid,
    dim: int,
    *,
    sharded_dim: Axes = NEEDED,
    group: Any = None,
    mesh: Any = None,
    exclusive: bool = False,
    reverse: bool = False,
    dtype: torch.dtype | None = None,
    guarantee: str = "run_to_run",
) -> Any:
    """Every prefix along one dim of a tensor of which each rank of a group holds a part: `tilefold.scan` of the parts.

    Where `dim` is the sharded dim each rank folds its part, the states are gathered by one exchange, and each rank scans its
    part from the state of all parts before it (after it, with `reverse`). Its elements are read twice.

    Args:
        inputs, sharded_dim, group, mesh: as in `tilefold.distributed.reduce`.
        monoid, dim, exclusive, reverse, dtype, guarantee: as in `tilefold.scan`. Positions are those of the whole tensor.

    Returns:
        This rank's part of the prefixes, in its inputs' shape.

        Gradients: cotangents are this rank's, and so is the gradient. One more exchange moves, to each rank, what the others'
        cotangents are of its state: one state for each row and pair of ranks.

    Raises:
        As `tilefold.distributed.reduce`; and
        EmptyError: `exclusive` of a monoid without an identity.
        GradientError: a second or a forward derivative is asked for along the sharded dim; or fields of the states depend on
            how they were grouped.

    Example:
        >>> tilefold.distributed.scan(shard, tilefold.monoids.SUM, 0, sharded_dim=0)  # doctest: +SKIP
    """
    made = scan_shards(
        as_inputs(inputs, monoid, CALL), monoid, dim, sharded_dim=sharded_dim, group=group, mesh=mesh, exclusive=exclusive,
        reverse=reverse, dtype=dtype, guarantee=guarantee,
    )  # fmt: skip
    return monoid.pack(made)


def scan_shards(
    tensors: Sequence[Tensor],
    monoid: Monoid,
    dim: int,
    *,
    sharded_dim: Axes,
    group: Any = None,
    mesh: Any = None,
    exclusive: bool = False,
    reverse: bool = False,
    dtype: torch.dtype | None = None,
    convert: torch.dtype | None = None,
    guarantee: str = "run_to_run",
    call: str = CALL,
) -> list[Tensor]:
    """`scan` without packing. `convert` reads elements as that dtype."""
    rest = (monoid, exclusive, reverse, dtype, convert, guarantee)
    key, known = again(tensors, call, dim, rest, sharded_dim, group, mesh)
    if known is not None:
        return known
    check_flags(call, exclusive=exclusive, reverse=reverse)
    check_inputs(tensors, monoid, guarantee, call, differentiable=True)
    shape, dtype = broadcast_shape(tensors, call), as_dtype(dtype, call)
    along = one_dim(dim, len(shape), call)
    facts = {
        "monoid": monoid,
        "dim": along,
        "exclusive": exclusive,
        "reverse": reverse,
        "result dtype": dtype,
        "read as": convert,
        "what requires grad": asks_gradients(tensors),
    }
    steps = agreed(tensors, shape, sharded_dim, group, mesh, guarantee, facts, call)
    steps = tuple([step for step in steps if step.axis == along])
    form: dict[str, Any] = {"exclusive": exclusive, "reverse": reverse, "guarantee": guarantee}
    if not steps:
        return scan_tensors(tensors, monoid, along, dtype=dtype, convert=convert, call=call, **form)
    check_tangents(tensors, call)
    if exclusive and monoid.algebra.identity is None:
        raise EmptyError(
            f"{call}: nothing is before the first element, and {monoid.name} has no identity, got exclusive=True; give "
            "the monoid an identity"
        )

    def run(tensors: Sequence[Tensor]) -> list[Tensor]:
        given = [t if convert is None else converted(t, convert) for t in tensors]
        elements = tuple([t.dtype for t in given])
        if monoid.algebra.index:
            given = [t.expand(shape) for t in (*given, *dispatch.noted(places))]
        whole, part, finish = _texts(monoid.text, elements)
        states = _state(given, part, along, reverse, guarantee)
        init = _before(states, steps, finish, reverse, guarantee)
        return _scan(given, whole, along, init, dtype=dtype, call=call, **form)

    def places() -> list[Tensor]:
        return [first_positions(shape, (along,), (along,), positions_of(shape, device, steps))]

    device = tensors[0].device
    return dispatch.replayed(None if asks_gradient(tensors) else key, run, tensors)


def _before(
    states: Sequence[Tensor], steps: Sequence[Step], finish: str, reverse: bool, guarantee: str
) -> list[Tensor]:
    """The state of all ranks before this one, of one state for each row and rank."""
    axis = steps[0].axis
    before: list[Tensor] = []

    def joined(*pair: Tensor) -> list[Tensor]:
        return [torch.cat(pair, axis)]

    for step, following in zip(steps, (*steps[1:], None), strict=True):
        # Without a gradient none is applied: torch.compile would call `forward` of two tensors without its `ctx`.
        every = list(
            _Gathered.apply(step, *states)  # type: ignore[no-untyped-call]  # torch's own
            if asks_gradient(states)
            else gathered_states(states, axis, step.ranks)
        )
        beside = _scan(every, finish, axis, [], exclusive=True, reverse=reverse, guarantee=guarantee)
        here = [t.narrow(axis, step.ranks.rank, 1) for t in beside]
        if before:  # the ranks before these are farther away
            here = [dispatch.noted(joined, *pair)[0] for pair in zip(here, before, strict=True)]
            here = _state(here, finish, axis, False, guarantee)
        before = here
        if following is not None:
            states = _state(every, finish, axis, reverse, guarantee)
    return [dispatch.noted(_as_states, t.squeeze(axis))[0] for t in before]


def _state(tensors: Sequence[Tensor], monoid: str, dim: int, reverse: bool, guarantee: str) -> list[Tensor]:
    """The state of each row: a fold's, or where that has another derivative the state after a scan."""
    if asks_gradient(tensors) and _chooses(monoid, tuple([t.dtype for t in tensors])):
        made = _scan(
            tensors, monoid, dim, [], exclusive=False, reverse=reverse, guarantee=guarantee, return_state=True
        )
        return [t.unsqueeze(dim) for t in made[len(made) // 2 :]]
    ordered = _turned(monoid) if reverse else monoid
    return fold_of_text(tensors, ordered, (dim,), True, None, None, guarantee)


@constant_in_graphs
def _chooses(monoid: str, elements: Dtypes) -> bool:
    """Whether values choose the element that has the cotangent: of equal ones, and of NaN, a scan has the last, a fold none
    alone. Positions choose alike in both."""
    found = derived(monoid_of(monoid), elements)
    return found.selects and not (found.is_smooth or found.algebra.index)


def _as_states(t: Tensor) -> list[Tensor]:
    return [t.contiguous()]


class _Gathered(torch.autograd.Function):
    """The states of all ranks. A rank's own gets the sum, in rank order, of what all ranks' cotangents are of it."""

    @staticmethod
    def forward(ctx: Any, step: Step, *states: Tensor) -> Any:
        ctx.step = step
        made = gathered_states(states, step.axis, step.ranks)
        ctx.mark_non_differentiable(*[t for t in made if not t.is_floating_point()])
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        check_order(CALL, "scan")
        axis, ranks = ctx.step.axis, ctx.step.ranks
        floats = [i for i, g in enumerate(grads) if g is not None and g.is_floating_point()]
        found: list[Any] = [None] * len(grads)
        for i in floats:
            parts = grads[i].movedim(axis, 0)
            counts = [parts[0].numel()] * ranks.size
            sent = collective("all_to_all_single", parts.reshape(-1), counts, counts, ranks.name)
            own = sent.view(parts.shape).movedim(0, axis)
            (found[i],) = fold_of_text([own], SUM.text, (axis,), True, None, None, "run_to_run")
        return None, *found


_turned = constant_in_graphs(turned)


@constant_in_graphs
def _texts(monoid: str, elements: Dtypes) -> tuple[str, str, str]:
    """The monoid of a shard's scan, that of its state, and that of all ranks' states."""
    return (
        text.dumps(with_base(algebra_of(monoid, elements, False))),
        partial_text(monoid, elements, False),
        finish_text(monoid, elements, False, False),
    )


def _scan(
    tensors: Sequence[Tensor], monoid: str, dim: int, init: Sequence[Tensor], *, exclusive: bool, reverse: bool,
    guarantee: str, return_state: bool = False, dtype: Any = None, call: str = CALL,
) -> list[Tensor]:  # fmt: skip
    """A scan with the monoid of a text."""
    if is_dynamo_compiling():
        made: list[Tensor] = OPERATIONS.scan(
            tensors, init, monoid, dim, exclusive, reverse, return_state, dtype, None, guarantee
        )
        return made
    return scan_tensors(
        tensors, monoid_of(monoid), dim, init=init or None, exclusive=exclusive, reverse=reverse, return_state=return_state,
        dtype=dtype, guarantee=guarantee, call=call,
    )  # fmt: skip

"""`tilefold.distributed.reduce`: a shard's fold, an exchange of states, and their fold."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tilefold.algebra.monoid import Monoid, monoid_of
from tilefold.api import dispatch, gradients
from tilefold.api.differentiated import Call, at_places
from tilefold.api.ends import ends_of
from tilefold.api.gradients import converted
from tilefold.api.initial import State, fields_of, packed, tensors_of
from tilefold.api.parts import finish_text, own_dims, partial_text, result_dtypes, takes_positions
from tilefold.api.recorded import OPERATIONS, asks_gradient, fields_as_tensors
from tilefold.api.reduce import fold_tensors
from tilefold.distributed import gradient
from tilefold.distributed.agreement import asks_gradients, check_ranks
from tilefold.distributed.exchange import (
    Step,
    again,
    first_positions,
    gathered_states,
    groups_of,
    positions_of,
    ranks_of,
)
from tilefold.errors import EmptyError, GradientError, KindError, ShapeError, shown
from tilefold.functional.arguments import NEEDED
from tilefold.planner.problem.canonical import broadcast_shape, normalize_dims, one_dim
from tilefold.planner.problem.validate import as_dtype, as_inputs, check_flags, check_inputs
from tilefold.planner.products.row import projected
from tilefold.runtime.uncompiled import constant_in_graphs

CALL = "distributed.reduce"
Axes = int | Sequence[int | None] | None  # the dim that the parts divide, or one for each dim of a mesh


def reduce(
    inputs: Tensor | Sequence[Tensor],
    monoid: Monoid,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    sharded_dim: Axes = NEEDED,
    group: Any = None,
    mesh: Any = None,
    init: State | Sequence[State] | None = None,
    return_state: bool = False,
    dtype: torch.dtype | None = None,
    guarantee: str = "run_to_run",
) -> Any:
    """Fold a tensor of which each rank of a group holds a part: `tilefold.reduce` of the parts side by side.

        result[k] = project(combine over ranks r, in order, of combine over all p of lift(x_r[k, p]))

    Each rank folds its own part, the states are gathered by one exchange, and every rank folds them in rank order. Every
    rank of the group must make the call.

    Args:
        inputs: this rank's part: a tensor, or several that broadcast. Parts differ in the length of `sharded_dim` alone,
            which may be 0. Ranks hold consecutive parts, in rank order.
        monoid: as in `tilefold.reduce`. One that takes positions gets those of the whole tensor.
        dim: the dims to fold, all by default. Where `sharded_dim` is not among them nothing is exchanged.
        keepdim: keep reduced dims with length 1.
        sharded_dim: the dim that the parts divide; None of a tensor of which every rank has the whole. With a `mesh` of
            several dims one for each of these: (0, 1) where its first dim divides rows and its second one columns, (0, 0)
            where the second one divides the rows of each of the first one's parts.
        group: the process group; all processes by default.
        mesh: a DeviceMesh of one dim (`mesh["tp"]`) instead of a group, or of as many as sharded dims are listed.
        init, return_state: as in `tilefold.reduce`: the state before all ranks' elements, the same on every rank, and the one
            after them. Over a sharded dim neither has a gradient.
        dtype: the dtype of computed results, as in `tilefold.reduce`.
        guarantee: as in `tilefold.reduce`, for both folds. Bits do not depend on which rank is late. They do depend on how
            the tensor is divided, but where the fold is exact.

    Returns:
        The same result on every rank of one kind of device: that of `tilefold.reduce`, in shape, dtype and error bound but
        for log2(ranks) more steps of the tree.
        The exchange moves the states (`reduce(return_state=True)` has them), each field in its dtype, and 8 bytes a rank
        where the monoid takes positions. A monoid that does not commute is folded up to the sharded dim: the exchange then
        moves a state for each place in the reduced dims before it.

        Gradients: the cotangent of a result must be the same on every rank, and each rank gets that of its own part;
        nothing is exchanged. There is no second derivative.

    Raises:
        DimError, ShapeError, DtypeError, DeviceError, ArgumentError: the call does not fit; or, with TILEFOLD_CHECK_RANKS=1
            in the environment, ranks disagree: the message names them.
        EmptyError: all parts are empty and the monoid has no identity.
        GradientError: a second derivative is asked for; or one over several dims of a mesh that needs more than the total.
        RuntimeError: torch's own, where a rank does not come within the group's time-out.

    Example:
        >>> tilefold.distributed.reduce(shard, tilefold.monoids.LOGSUMEXP, dim=1, sharded_dim=1)  # doctest: +SKIP
    """
    tensors = as_inputs(inputs, monoid, CALL)
    check_flags(CALL, return_state=return_state)
    made = fold_shards(
        tensors, monoid, dim, keepdim, sharded_dim=sharded_dim, group=group, mesh=mesh, init=fields_of(init),
        return_state=return_state, dtype=dtype, guarantee=guarantee,
    )  # fmt: skip
    return packed(made, monoid, return_state)


def fold_shards(
    tensors: Sequence[Tensor],
    monoid: Monoid,
    dim: int | Sequence[int] | None,
    keepdim: bool,
    *,
    sharded_dim: Axes = NEEDED,
    group: Any = None,
    mesh: Any = None,
    init: Sequence[State] | None = None,
    return_state: bool = False,
    dtype: torch.dtype | None = None,
    convert: torch.dtype | None = None,
    guarantee: str = "run_to_run",
    call: str = CALL,
) -> list[Tensor]:
    """`reduce` without packing: the results, then the state's fields if asked for. `convert` reads elements as that dtype."""
    rest = (monoid, keepdim, return_state, dtype, convert, guarantee)
    key, known = None, None
    if init is None:
        key, known = again(tensors, call, dim, rest, sharded_dim, group, mesh)
    if known is not None:
        return known
    check_flags(call, keepdim=keepdim)
    check_inputs(tensors, monoid, guarantee, call, differentiable=True)
    dtype, convert = as_dtype(dtype, call), as_dtype(convert, call)
    shape = broadcast_shape(tensors, call)
    dims = normalize_dims(dim, len(shape), call)
    facts = {
        "monoid": monoid, "dim": dims, "keepdim": keepdim, "read as": convert, "result dtype": dtype,
        "init": init is not None, "return_state": return_state, "what requires grad": asks_gradients(tensors),
    }  # fmt: skip
    steps = agreed(tensors, shape, sharded_dim, group, mesh, guarantee, facts, call)
    steps = tuple([step for step in steps if step.axis in dims])
    if not steps:
        state: dict[str, Any] = {"init": init, "return_state": return_state}
        form: dict[str, Any] = {"dtype": dtype, "convert": convert, "guarantee": guarantee, "call": call}
        return fold_tensors(tensors, monoid, dims, keepdim, **state, **form)
    gradient.check_tangents(tensors, call)
    stateful = init is not None or return_state
    if stateful and asks_gradient([*tensors, *tensors_of(init)]):
        raise GradientError(
            f"{call}: over a sharded dim a fold with `init` or `return_state` has no derivative, got a tensor that requires "
            "grad; use torch.no_grad()"
        )
    sharded = Sharded(
        monoid.text, dims, keepdim, steps, dtype, convert, guarantee, asks_gradient(tensors), len(tensors)
    )
    if sharded.ties:
        if len(steps) > 1 and _needs_neighbours(monoid.text, sharded.elements(tensors)):
            raise GradientError(
                f"{call}: over several dims of a mesh a fold has a derivative where that needs the total alone, got "
                f"{monoid.name}; fold one sharded dim after the other"
            )
        return gradient.differentiated(sharded, sharded.run, tensors, key)
    missing = any(shape[step.axis] == 0 for step in steps)
    asks = monoid.algebra.identity is None and missing and init is None and not is_dynamo_compiling()

    def run(tensors: Sequence[Tensor]) -> list[Tensor]:
        states, _ = sharded.exchanged(tensors)
        made = sharded.finished(states, tensors, init, return_state)
        if asks:
            dispatch.noted(lambda flags: _check_present(flags, monoid, call), states[-1])
        return made

    return dispatch.replayed(key, run, tensors)


def agreed(
    tensors: Sequence[Tensor], shape: Sequence[int], sharded_dim: Axes, group: Any, mesh: Any, guarantee: str,
    facts: dict[str, Any], call: str,
) -> tuple[Step, ...]:  # fmt: skip
    """The exchanges over sharded dims, whose ranks make the same call: the last dim first, and of one dim the mesh's last.

    Raises:
        KindError: no sharded dim is named.
        ShapeError: a tensor without dims cannot be sharded.
    """
    if sharded_dim is NEEDED:
        raise KindError(
            f"{call}: `sharded_dim` must be named, got none; name the dim that parts divide, or None where every rank has "
            "the whole tensor"
        )
    several = isinstance(sharded_dim, list | tuple)
    given: Sequence[Any] = sharded_dim if isinstance(sharded_dim, list | tuple) else (sharded_dim,)
    if not len(shape) and any(d is not None for d in given):
        raise ShapeError(
            f"{call}: `sharded_dim` must be a dim of the parts, got {shown(sharded_dim)} of a tensor without dims; give each "
            "part one with x[None]"
        )
    axes = [None if d is None else one_dim(d, len(shape), call, "sharded_dim") for d in given]
    groups = groups_of(len(axes) if several else None, group, mesh, call)
    if not is_dynamo_compiling():
        own = {
            "shape": [n for d, n in enumerate(shape) if d not in axes],
            "dtype": [t.dtype for t in tensors],
            "guarantee": guarantee,
            "sharded_dim": sharded_dim if several else axes[0],
            **{name: f"{f.name} {f.text}" if isinstance(f, Monoid) else f for name, f in facts.items()},
        }
        check_ranks(own, groups, call)
    steps = [Step(d, ranks_of(g, None, call)) for d, g in zip(axes, groups, strict=True) if d is not None]
    order = sorted(range(len(steps)), key=lambda i: (steps[i].axis, i), reverse=True)
    return tuple([steps[i] for i in order])


def _check_present(flags: Tensor, monoid: Monoid, call: str) -> list[Tensor]:
    """Refuse to fold nothing: a rank with an empty part asks, and where all are empty all ask."""
    if not bool(flags.any()):
        raise EmptyError(
            f"{call}: folding nothing needs an identity, got an empty part on every rank and {monoid.name} without one; "
            "give the monoid an identity or the tensor elements"
        )
    return []


@dataclass(frozen=True)
class Sharded(Call):
    """A fold over sharded dims of `count` tensors. `ties`: a gradient is asked for, and states count what ties."""

    monoid: str
    dims: tuple[int, ...]
    keepdim: bool
    steps: tuple[Step, ...]
    dtype: torch.dtype | None
    convert: torch.dtype | None
    guarantee: str
    ties: bool
    count: int = 1

    @property
    def own(self) -> tuple[int, ...]:
        """Those of `dims` that a shard's fold has."""
        return own_dims(self.monoid, self.dims, self.steps[0].axis) if self.steps else self.dims

    def elements(self, tensors: Sequence[Tensor]) -> tuple[torch.dtype, ...]:
        """The dtypes that elements are read as."""
        return tuple([self.convert or t.dtype for t in tensors])

    def exchanged(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The states of all ranks of the last step, and each element's position where the monoid takes it.

        What an earlier step gathers is folded before the next one, so that each moves one state for each result and rank.
        """
        states, places = self.states(tensors)
        whole = finish_text(self.monoid, self.elements(tensors), self.ties, False)
        for step, following in zip(self.steps, (*self.steps[1:], None), strict=True):
            states = gathered_states(states, step.axis, step.ranks)
            if following is not None:
                dims = own_dims(self.monoid, self.dims, following.axis)
                states = fold_of_text(states, whole, dims, True, None, None, self.guarantee)
        return states, places

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The results, and what backward reads beside elements: all ranks' states, and positions."""
        states, places = self.exchanged(tensors)
        return [*self.finished(states, tensors), *states, *places]

    def given(self, made: list[Tensor]) -> list[Tensor]:
        """The results alone."""
        return made[: _results(self.monoid)]

    def moves(self, result: int, tensors: Sequence[Tensor]) -> bool:
        """Whether it is a result with a derivative."""
        return result in derived_places(self.monoid, self.elements(tensors))

    def saved(
        self, tensors: Sequence[Tensor], made: Sequence[Tensor], wrt: Sequence[int]
    ) -> Sequence[Tensor]:
        """The elements, all ranks' states, and positions."""
        return [*tensors, *made[_results(self.monoid) :]]

    def backward(self, saved: Sequence[Tensor], grads: Sequence[Any], wrt: Sequence[int]) -> list[Any]:
        """The cotangents of this rank's elements."""
        gradient.check_order(CALL, "fold")
        k, n = self.count, len(saved) - takes_positions(self.monoid)
        run = OPERATIONS.shard_gradient if is_dynamo_compiling() else gradient.gradient_of_shard
        moved = derived_places(self.monoid, self.elements(saved[:k]))
        made = run(
            list(saved[:k]), list(saved[k:n]), list(saved[n:]), [grads[i] for i in moved], self.monoid, list(self.dims),
            list(self.own), self.steps[-1].axis, self.steps[-1].ranks.rank, list(wrt), self.convert, self.guarantee,
        )  # fmt: skip
        return at_places(made, wrt, k)

    def states(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The same of this rank's elements."""
        places: list[Tensor] = []
        given, convert, own = list(tensors), self.convert, self.own
        shape = broadcast_shape(tensors, CALL)
        if takes_positions(self.monoid):
            base, *places = dispatch.noted(functools.partial(self._places, shape, tensors[0].device))
            given = [t if convert is None else converted(t, convert) for t in tensors]
            given = [t.expand(shape) for t in (*given, base)]
            convert = None
        elements = self.elements(tensors)
        text = partial_text(self.monoid, elements, self.ties)
        return fold_of_text(given, text, own, True, None, convert, self.guarantee), places

    def _places(self, shape: Sequence[int], device: torch.device) -> list[Tensor]:
        """What to add to positions in a shard's own fold; and where states count what ties, each element's position."""
        own = self.own
        base = first_positions(shape, self.dims, own, positions_of(shape, device, self.steps))
        if not self.ties:
            return [base]
        sizes = [n if d in own else 1 for d, n in enumerate(shape)]
        return [base, torch.arange(math.prod(sizes), device=device).reshape(sizes) + base]

    def finished(
        self,
        states: Sequence[Tensor],
        tensors: Sequence[Tensor],
        init: Any = None,
        return_state: bool = False,
    ) -> list[Tensor]:
        """The results, of all ranks' states, and the state if it is asked for."""
        elements = self.elements(tensors)
        dtypes = result_dtypes(self.monoid, elements, self.dtype)
        asked = next((d for d in dtypes if d.is_floating_point), None)
        text = finish_text(self.monoid, elements, self.ties, True)
        partial = not _has_identity(self.monoid)
        before = init if init is None or not partial else [*init, True]  # there is a state
        form: dict[str, Any] = {"init": before, "return_state": return_state}
        made = fold_of_text(states, text, self.dims, self.keepdim, asked, None, self.guarantee, **form)
        n = len(dtypes)
        fields = made[n : len(made) - partial]
        return [*(converted(t, d) for t, d in zip(made[:n], dtypes, strict=True)), *fields]

    def computed(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The results in the dtypes that they are computed in, of all ranks' elements."""
        states, _ = self.exchanged(tensors)
        text = finish_text(self.monoid, self.elements(tensors), self.ties, True)
        return fold_of_text(states, text, self.dims, self.keepdim, self.dtype, None, self.guarantee)


def fold_of_text(
    tensors: Sequence[Tensor], monoid: str, dims: tuple[int, ...], keepdim: bool, dtype: Any, convert: Any, guarantee: str,
    init: Any = None, return_state: bool = False,
) -> list[Tensor]:  # fmt: skip
    """A fold with the monoid of a text: in graphs the operation that holds it."""
    if is_dynamo_compiling():
        before = fields_as_tensors(init, tensors[0].device)
        made: list[Tensor] = OPERATIONS.reduce(
            list(tensors), before, monoid, dims, keepdim, return_state, dtype, convert, guarantee
        )
        return made
    return fold_tensors(
        tensors,
        monoid_of(monoid),
        dims,
        keepdim,
        init=init,
        return_state=return_state,
        dtype=dtype,
        convert=convert,
        guarantee=guarantee,
        call=CALL,
    )


@constant_in_graphs
def _results(monoid: str) -> int:
    return projected(monoid_of(monoid))


@constant_in_graphs
def _has_identity(monoid: str) -> bool:
    return monoid_of(monoid).algebra.identity is not None


@constant_in_graphs
def derived_places(monoid: str, elements: tuple[torch.dtype, ...]) -> tuple[int, ...]:
    """The results that have a derivative."""
    return tuple(ends_of(gradients.derived(monoid_of(monoid), elements)).places)


@constant_in_graphs
def _needs_neighbours(monoid: str, elements: tuple[torch.dtype, ...]) -> bool:
    """Whether an element's derivative needs the states before and after it."""
    ends = ends_of(gradients.derived(monoid_of(monoid), elements))
    found = ends.gradient
    if found.origins is not None or not ends.places:
        return False
    return len(found.floats) > len(found.extremes) if found.shares_ties else not ends.total_is_enough

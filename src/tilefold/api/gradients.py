"""Folds, scans and maps that autograd sees: each backward is made of folds, scans and maps again, so that it has one, too.

What is saved is what the rule reads (`Fold.form`): inputs, with one value a row where that is enough, or positions of what
was chosen, or nothing. Otherwise states are folded again: a gradient of the total alone is one map whose rows are folded and
read once (`algebra.derivatives.folds`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tilefold.algebra.algebra import Quick
from tilefold.algebra.derivatives.folds import Gradient, opposite
from tilefold.algebra.dtypes import compute_dtype, element_dtype
from tilefold.algebra.expression import trace
from tilefold.algebra.monoid import Monoid
from tilefold.api import dispatch
from tilefold.api import reduce as folds
from tilefold.api import reduce_map as maps
from tilefold.api import scan as scans
from tilefold.api.differentiated import Call, at_places
from tilefold.api.ends import Ends, ends_of, monoid_of_algebra, needs_total_alone
from tilefold.api.ends import function_of as function_of
from tilefold.errors import GradientError
from tilefold.planner.library import LibraryMap, backward_of_fold
from tilefold.planner.problem.canonical import normalize_dims
from tilefold.planner.products.functions import of_graph
from tilefold.runtime.caching import kept_outside_modes
from tilefold.runtime.modes import has_none, is_known, is_seen

# ------------------------------------------------------------------------------------------------------------ folds


class Like(NamedTuple):
    """What is known of a tensor that is not kept."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, eq=False)
class Fold(Call):
    """A fold as its backward needs it: of `count` inputs, then the fields of the state before them.

    `convert` is the dtype that elements are read as, `call` its name in messages.
    """

    monoid: Monoid
    dims: Any
    convert: torch.dtype | None
    guarantee: str
    count: int
    state: bool
    like: tuple[Like, ...]
    call: str = "reduce"

    @functools.cached_property
    def ends(self) -> Ends:
        """What is derived for such a call."""
        elements = tuple(self.convert or t.dtype for t in self.like[: self.count])
        return ends_of(derived(self.monoid, elements), len(self.like) > self.count, self.state)

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        """The inputs' own."""
        if self.count == 1:
            return tuple(self.like[0].shape)
        return tuple(torch.broadcast_shapes(*(t.shape for t in self.like[: self.count])))  # type: ignore[no-untyped-call]

    @functools.cached_property
    def reduced(self) -> tuple[int, ...]:
        """The reduced dims."""
        return normalize_dims(self.dims, len(self.shape), self.call)

    @functools.cached_property
    def rows(self) -> tuple[int, ...]:
        """The shape of one value a row, with the reduced dims of length 1."""
        return tuple(1 if d in self.reduced else n for d, n in enumerate(self.shape))

    def check(self, tensors: Sequence[Tensor]) -> None:
        """Refuse a fold that has no derivative.

        Raises:
            GradientError: fields of the state that it gives depend on how they were grouped.
        """
        if self.state and self.ends.held and not self.ends.gradient.keeps_fields:
            raise GradientError(
                f"{self.call}: a state whose fields depend on how it was grouped (sums about a pivot) has no derivative, got "
                "return_state with an input that requires grad; detach() the input, or give chunks' results alone"
            )

    def moves(self, result: int, tensors: Sequence[Tensor]) -> bool:
        """Whether a result changes with an element or with the state before."""
        return result in self.ends.places

    @functools.cached_property
    def form(self) -> str:
        """By which rule the inputs' cotangents are made: what each needs is kept."""
        ends = self.ends
        if not has_none(self.shape) and self.reduced and ends.gradient.shares_ties:
            return "ties"
        if has_none(self.shape) or all(is_known(self.shape[d] == 1) for d in self.reduced):
            return "alone"
        if not (ends.inits or ends.state) and ends.gradient.origins is not None:
            return "origins"
        if not ends.total_is_enough:
            return "around"
        elements, states = ends.reads(tuple(range(self.count)))
        if not states:
            return "local" if elements else "rows"
        # On a GPU rows are folded again where they are read, and the states are exact.
        if self.like[0].device.type != "cpu":
            return "total"
        return "result" if ends.result_is_enough else "library" if self.library else "total"

    @functools.cached_property
    def library(self) -> tuple[LibraryMap, bool] | None:
        """What torch's derivative is made of on a CPU, and whether of the result, too."""
        if self.ends.inits or self.ends.state or self.convert is not None:
            return None
        dims, gradient = tuple(d - len(self.shape) for d in self.reduced), self.ends.gradient
        return backward_of_fold(gradient.algebra, gradient.elements, dims, self.guarantee)

    def saved(
        self, tensors: Sequence[Tensor], made: Sequence[Tensor], wrt: Sequence[int]
    ) -> Sequence[Tensor]:
        """What is saved: no more than the rule reads."""
        if self.form == "rows" and not self.ends.inits:
            return []
        origins = self.ends.gradient.origins
        if self.form == "origins" and origins is not None:
            return [made[origins]]
        of_library = self.form == "library" and self.library is not None and self.library[1]
        if (
            self.form == "result"
            or of_library
            or (
                self.form == "ties"
                and self.ends.gradient.shows_extremes
                and not self.ends.inits
                and not is_seen(())
            )
        ):
            return [*tensors, *(made[i] for i in self.ends.shown)]
        return [*tensors]

    def backward(self, saved: Sequence[Tensor], grads: Sequence[Tensor], wrt: Sequence[int]) -> list[Any]:
        """The inputs' cotangents, and those of the state before."""
        ends, shape = self.ends, self.shape
        kept = self.rows
        g = [grads[i] if grads[i].shape == kept else grads[i].reshape(kept) for i in ends.places]
        inputs, fields = tuple([i for i in wrt if i < self.count]), tuple([i for i in wrt if i >= self.count])
        made: Sequence[Tensor]
        if not g:
            made = [grads[0].new_zeros(self.like[i].shape) for i in wrt]
        elif self.form == "rows" and not ends.inits:
            made = [t.expand(shape) for t in cells(ends.of_cotangents(inputs, False), g)]
        elif self.form == "origins":
            made = [scattered(saved[0], g[0], shape, self.reduced)]
        elif self.form == "result":
            y = saved[1] if saved[1].shape == kept else saved[1].reshape(kept)
            x = saved[0] if self.convert is None else converted(saved[0], self.convert)
            made = cells(ends.by_result(inputs), [x, y.expand(shape), g[0].expand(shape)])
        else:
            made = self._of_elements(saved, g, kept, grads[0].shape, inputs, fields)
        return as_inputs(made, self.like, (*inputs, *fields))

    def _of_elements(
        self, saved: Sequence[Tensor], g: Sequence[Tensor], kept: Sequence[int], rows: Sequence[int],
        inputs: tuple[int, ...], fields: tuple[int, ...],
    ) -> list[Tensor]:  # fmt: skip
        """Cotangents at the whole shape of elements, and of fields of the state before in the results' shape."""
        ends, wide = (
            self.ends,
            Wide(saved[: self.count], self.shape, self.reduced, self.convert, self.guarantee),
        )
        before = self._before(saved[self.count : len(self.like)], rows, kept)
        places = tuple(i - self.count for i in fields)
        if self.form == "ties":
            results = saved[len(self.like) :]
            made = wide.of_ties(ends, g, before, results, inputs, places, self.call)
            return [t if i < len(inputs) else t.reshape(rows) for i, t in enumerate(made)]
        library = self.library[0] if self.form == "library" and self.library else None
        of_rows = [t.reshape(kept) for t in saved[1:]] if library else []
        made = wide.of_ends(ends, g, before, inputs, self.call, None, library, of_rows) if inputs else []
        if not fields:
            return made
        total = wide.states(ends.gradient, self.call)
        of_before = cells(ends.of_before(places), [*total, *g, *before])
        return [*made, *(t.reshape(rows) for t in of_before)]

    def _before(self, init: Sequence[Tensor], rows: Sequence[int], kept: Sequence[int]) -> list[Tensor]:
        """The state before, with the reduced dims of length 1: of a monoid without an identity one that is there."""
        dtypes = self.ends.gradient.program.state if init else ()
        given = [t.to(d).expand(rows).reshape(kept) for t, d in zip(init, dtypes, strict=False)]
        return [*given, *(given[0].new_ones(kept, dtype=d) for d in dtypes[len(given) :])]


@kept_outside_modes(1024)
def fold_of(*arguments: Any) -> Fold:
    """The one fold of these arguments: what it asks of its graphs is found once."""
    return Fold(*arguments)


def scattered(
    where: Tensor, g: Tensor, shape: Sequence[int], dims: Sequence[int], adds: bool = False
) -> Tensor:
    """The cotangents of elements that were chosen by their positions in each row; 0 of others.

    With `adds` one may have been chosen more than once.
    """
    count, length = (
        math.prod(n for d, n in enumerate(shape) if d not in dims),
        math.prod(shape[d] for d in dims),
    )
    where, g = (as_rows(t, dims) if adds else t.reshape(count, 1) for t in (where, g))
    rows = g.new_zeros(count, length)
    if torch._C._functorch.maybe_current_level() is not None:  # no in-place write into what is not mapped
        rows = rows.scatter_add(1, where, g) if adds else rows.scatter(1, where, g)
    else:
        rows = rows.scatter_add_(1, where, g) if adds else rows.scatter_(1, where, g)
    return from_rows(rows, shape, dims)


def as_input(g: Tensor, like: Like | Tensor) -> Tensor:
    """A cotangent of an input's shape and dtype."""
    g = summed(g, like.shape)
    return converted(g, like.dtype)


def summed(t: Tensor, size: Sequence[int]) -> Tensor:
    """A tensor's sum over the dims along which one of that size was repeated."""
    return t if t.shape == size else dispatch.noted(lambda t: [t.sum_to_size(size)], t)[0]


def converted(t: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor of that dtype."""
    return t if t.dtype == dtype else dispatch.noted(lambda t: [t.to(dtype)], t)[0]


def unrounded(tensors: Sequence[Tensor]) -> torch.dtype | None:
    """The dtype in which results of a fold of these come as they were computed."""
    floats = {compute_dtype(t.dtype) for t in tensors if t.is_floating_point()}
    return max(floats, key=lambda dtype: dtype.itemsize, default=None)


def check_grouping(gradient: Gradient, call: str) -> None:
    """Refuse states that are no values of their elements.

    Raises:
        GradientError: fields depend on how a state was grouped, and no project gives the same for every grouping.
    """
    if gradient.algebra.project is None and not gradient.keeps_fields:
        raise GradientError(
            f"{call}: a state whose fields depend on how it was grouped (sums about a pivot) has no derivative, got an "
            "input that requires grad; give the monoid a project that gives the same for every grouping"
        )


def gradient_of_call(monoid: Monoid, tensors: Sequence[Any], convert: torch.dtype | None) -> Gradient:
    """The gradient of a fold of these tensors."""
    return derived(monoid, tuple(convert or t.dtype for t in tensors))


@kept_outside_modes(512)
def derived(monoid: Monoid, elements: tuple[torch.dtype, ...]) -> Gradient:
    """The gradient of a monoid's folds of such elements, derived once."""
    return Gradient(monoid.total, elements)


@dataclass(frozen=True)
class Wide:
    """The tensors of a call at its whole shape, and how its rows are folded."""

    tensors: Sequence[Tensor]
    shape: Sequence[int]
    dims: tuple[int, ...]
    convert: torch.dtype | None
    guarantee: str

    @property
    def elements(self) -> list[Tensor]:
        """The tensors, expanded and as they are read."""
        given = [t.expand(self.shape) for t in self.tensors]
        wide = [element_dtype(self.convert or t.dtype) if t.is_floating_point() else t.dtype for t in given]
        return [converted(t, w) for t, w in zip(given, wide, strict=True)]

    def states(self, gradient: Gradient, call: str) -> list[Tensor]:
        """The rows' states, with the reduced dims of length 1."""
        placed = gradient.algebra.index  # a dtype of elements is none of positions
        given, convert = (self.placed(gradient), None) if placed else (self.tensors, self.convert)
        return folds.fold_tensors(
            given, states_of(gradient), self.dims, True, convert=convert, guarantee=self.guarantee, call=call
        )

    def of_fold(
        self,
        gradient: Gradient,
        cotangents: Sequence[Tensor],
        wrt: Sequence[int],
        call: str,
        after: Any = None,
    ) -> list[Tensor]:
        """Cotangents of some inputs, at the whole shape, of those of the results that have one.

        `after` is what a map makes of the results.
        """
        ends, several = ends_of(gradient), not all(is_known(self.shape[d] == 1) for d in self.dims)
        if gradient.shares_ties and several and not has_none(self.shape):
            rows = [_row(t, self.dims) for t in cotangents]
            return self.of_ties(ends, rows, (), (), tuple(wrt), (), call)
        return self.of_ends(ends, cotangents, (), tuple(wrt), call, after)

    def of_ends(
        self, ends: Ends, cotangents: Sequence[Tensor], before: Sequence[Tensor], wrt: tuple[int, ...], call: str,
        after: Any = None, library: LibraryMap | None = None, results: Sequence[Tensor] = (),
    ) -> list[Tensor]:  # fmt: skip
        """The same of a fold from a state before, with cotangents of its own state behind those of the results.

        `results` is what torch's derivative, `library`, takes beside them.
        """
        gradient, g = ends.gradient, [t.expand(self.shape) for t in cotangents]
        first = [t.expand(self.shape) for t in before]
        if all(is_known(self.shape[d] == 1) for d in self.dims) or has_none(self.shape):
            x = self.placed(gradient)
            if after is None and ends.total_is_enough:  # as of longer rows, also of one NaN
                return cells(function_of(ends.by_total(wrt)), [*x, *cells(lifts_of(gradient), x), *g, *first])
            return cells(ends.of_lifts(wrt), [*x, *g, *first])
        if ends.total_is_enough if after is None else needs_total_alone(gradient, after):
            if not ends.reads(wrt)[1]:
                return cells(ends.of_cotangents(wrt, True), [*self.elements, *g])
            seen = ends.inits or ends.state  # so are units of states
            states = states_of(gradient) if seen else quick_states_of(gradient)
            more = [t.expand(self.shape) for t in results]
            return maps.map_tensors(
                [t.expand(self.shape) for t in self.tensors], states, of_graph(ends.by_total(wrt, len(more))), self.dims,
                extras=[*g, *first, *more], convert=self.convert, guarantee=self.guarantee, library=library, call=call,
            )  # fmt: skip
        check_grouping(gradient, call)
        return self._around(ends, g, before, wrt)

    def of_ties(
        self, ends: Ends, g: Sequence[Tensor], before: Sequence[Tensor], results: Sequence[Tensor], wrt: tuple[int, ...],
        fields: tuple[int, ...], call: str,
    ) -> list[Tensor]:  # fmt: skip
        """Cotangents of elements that extremes are chosen of, and of fields of the state before: those that tie share evenly.

        What is chosen by other means beside them goes to the one that was chosen. `results` are the extremes, if known.
        """
        gradient = ends.gradient
        if is_seen(()) and not (results or ends.inits or len(gradient.floats) > len(gradient.extremes)):
            # A graph may round elements here as it did not where they were folded: their extremes are found with them.
            return maps.map_tensors(
                self.placed(gradient), ends.with_ties, of_graph(ends.tied(wrt)), self.dims,
                extras=[t.expand(self.shape) for t in g], guarantee=self.guarantee, call=call,
            )  # fmt: skip
        total = [] if results and not ends.inits else self.states(gradient, call)
        whole = total or [t.reshape(g[0].shape) for t in results]
        whole = cells(ends.combined, [*total, *before]) if ends.inits else whole
        shares = cells(ends.of_whole, [*whole, *g])
        some = [converted(whole[f], gradient.program.state[f]) for f in gradient.extremes]
        x = [*self.placed(gradient), *(t.expand(self.shape) for t in some)]
        own = cells(ends.is_tied, [*some, *(before[f] for f in gradient.extremes)]) if ends.inits else []
        beside = [*(shares[gradient.floats.index(f)] for f in gradient.extremes), *own]
        made: list[Tensor] = []
        if wrt:
            extras = [t.expand(self.shape) for t in beside]
            apply = of_graph(ends.shared(wrt))
            made = maps.map_tensors(
                x, ends.ties, apply, self.dims, extras=extras, guarantee=self.guarantee, call=call
            )
        if fields:
            counts = folds.fold_tensors(x, ends.ties, self.dims, True, guarantee=self.guarantee, call=call)
            made += cells(ends.shared_before(fields), [*counts, *beside])
        if len(gradient.floats) > len(gradient.extremes):
            more = self._around(ends, g, before, wrt, others=True) if wrt else []
            if fields:
                more += cells(ends.of_before(fields, others=True), [*total, *g, *before])
            made = [a + b for a, b in zip(made, more, strict=True)]
        return made

    def placed(self, gradient: Gradient) -> list[Tensor]:
        """The elements, and their positions if the monoid takes them."""
        elements = self.elements
        return [*elements, *positions(gradient, self.shape, self.dims, elements[0].device)]

    def _around(
        self,
        ends: Ends,
        cotangents: Sequence[Tensor],
        before: Sequence[Tensor],
        wrt: tuple[int, ...],
        others: bool = False,
    ) -> list[Tensor]:
        """From the prefix and the suffix of each element of a row; `others`: of fields that are no extremes."""
        states = states_of(ends.gradient)
        x, g = ([as_rows(t, self.dims) for t in some] for some in (self.placed(ends.gradient), cotangents))
        init = [t.reshape(-1) for t in before[: len(states.fields)]] or None
        prefix = scans.scan_tensors(x, states, 1, init=init, exclusive=True, guarantee=self.guarantee)
        suffix = scans.scan_tensors(
            x, _turned(ends.gradient), 1, exclusive=True, reverse=True, guarantee=self.guarantee
        )
        made = cells(ends.of_neighbours(wrt, others), [*x, *prefix, *suffix, *g])
        return [from_rows(t, self.shape, self.dims) for t in made]


def _row(t: Tensor, dims: Sequence[int]) -> Tensor:
    """What a tensor repeats along these dims, which get length 1."""
    for d in dims:
        t = t.narrow(d, 0, 1)
    return t


def as_rows(t: Tensor, dims: Sequence[int]) -> Tensor:
    """A tensor as [rows, elements of the reduced dims]."""
    kept = [d for d in range(t.ndim) if d not in dims]
    rows, length = (math.prod(t.shape[d] for d in some) for some in (kept, dims))
    if (*kept, *dims) == (0, 1) and t.shape == (rows, length):
        return t
    return dispatch.noted(lambda t: [t.permute(*kept, *dims).reshape(rows, length)], t)[0]


def from_rows(t: Tensor, shape: Sequence[int], dims: Sequence[int]) -> Tensor:
    """What `as_rows` was made of."""
    order = [*(d for d in range(len(shape)) if d not in dims), *dims]
    if order == [0, 1] and t.shape == tuple(shape):
        return t
    back = [order.index(d) for d in range(len(shape))]
    return dispatch.noted(lambda t: [t.reshape([shape[d] for d in order]).permute(back)], t)[0]


def positions(
    gradient: Gradient, shape: Sequence[int], dims: Sequence[int], device: torch.device
) -> list[Tensor]:
    """Each element's position in its row, where the monoid takes it."""
    if not gradient.algebra.index:
        return []
    sizes = [n if d in dims else 1 for d, n in enumerate(shape)]
    return [torch.arange(math.prod(sizes), device=device).reshape(sizes).expand(shape)]


def as_inputs(made: Sequence[Tensor], tensors: Sequence[Any], wrt: Sequence[int]) -> list[Any]:
    """A cotangent for each input: of its shape and dtype, or None."""
    found = [as_input(g, tensors[i]) for i, g in zip(wrt, made, strict=True)]
    return at_places(found, wrt, len(tensors))


@kept_outside_modes(512)
def states_of(gradient: Gradient) -> Monoid:
    """The monoid whose results are states."""
    return monoid_of_algebra(gradient.states)


@kept_outside_modes(512)
def quick_states_of(gradient: Gradient) -> Monoid:
    """The same with the algebra's quick form, where that is it but for its first field: the unit, which is then 1.

    A CPU folds that form first, and a GPU's plans count its fields.
    """
    states, quick = gradient.states, gradient.algebra.quick
    if quick is None or quick.algebra.fields != states.fields[1:]:
        return states_of(gradient)
    whole = trace(lambda *fields: (1.0, *fields), len(quick.algebra.fields))
    form = replace(quick.algebra, project=whole)
    return monoid_of_algebra(replace(states, quick=Quick(form, quick.trusted, narrow=False)))


@kept_outside_modes(512)
def lifts_of(gradient: Gradient) -> Monoid:
    """The state of each element."""
    return function_of(gradient.program.lift.graph)


@kept_outside_modes(512)
def _turned(gradient: Gradient) -> Monoid:
    """The same, combined the other way round."""
    return (
        states_of(gradient) if gradient.algebra.commutative else monoid_of_algebra(opposite(gradient.states))
    )


def cells(function: Monoid, tensors: Sequence[Tensor]) -> list[Tensor]:
    """A function of every element of tensors of one shape."""
    taken = _taken(function)
    return folds.fold_tensors(tensors, function, (), False) if taken is None else [tensors[i] for i in taken]


@kept_outside_modes(1024)
def _taken(function: Monoid) -> list[int] | None:
    """Which of its arguments a function gives, where it makes nothing."""
    graph = function.algebra.lift
    given = [graph.nodes[o] for o in graph.outputs]
    return [node.value for node in given] if all(node.op == "input" for node in given) else None

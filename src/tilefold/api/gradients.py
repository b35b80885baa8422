"""Folds, scans and maps that autograd sees: each backward is made of folds, scans and maps again, so that it has one, too.

What is saved are the inputs. States are folded again: a gradient of the total alone is one map whose rows are folded and read
once (`algebra.derivatives.folds`).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._functorch import autograd_function

from tilefold import math as scalars
from tilefold.algebra.algebra import Algebra, elementwise
from tilefold.algebra.derivatives.folds import Gradient, opposite
from tilefold.algebra.derivatives.linear import add, as_float, chosen
from tilefold.algebra.derivatives.pullback import pullback
from tilefold.algebra.expression import Graph, trace
from tilefold.algebra.monoid import Monoid, restored
from tilefold.algebra.dtypes import element_dtype, is_float
from tilefold.api import reduce as folds
from tilefold.api import reduce_map as maps
from tilefold.api import scan as scans
from tilefold.errors import GradientError
from tilefold.planner.products.functions import Traced, of_graph
from tilefold.problem.canonical import broadcast_shape, normalize_dims
from tilefold.runtime.caching import kept_outside_modes

# Private names of torch, as its functorch uses them: a Function that a kernel of the dispatcher may apply, and the context in
# which it may inside of a transform.
SingleLevel: Any = torch.autograd.function._SingleLevelFunction
one_level: Any = autograd_function.enable_single_level_autograd_function  # type: ignore[attr-defined]


class _Differentiated(SingleLevel):  # type: ignore[misc]  # torch's class is untyped
    """A call and its backward. `run` makes the results."""

    @staticmethod
    def forward(
        ctx: Any, call: Any, run: Callable[[Sequence[Tensor]], list[Tensor]], *tensors: Tensor
    ) -> Any:
        made = run(tensors)
        call.check(tensors)
        ctx.call = call
        ctx.save_for_backward(*(call.kept(tensors, made) if isinstance(call, Fold) else tensors))
        flat = [t for i, t in enumerate(made) if not (t.is_floating_point() and call.moves(i, tensors))]
        if flat:
            ctx.mark_non_differentiable(*flat)
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        wrt = [i for i, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        return None, None, *ctx.call.backward(ctx.saved_tensors, grads, wrt)


def applied(
    call: Any, run: Callable[[Sequence[Tensor]], list[Tensor]], tensors: Sequence[Tensor]
) -> list[Tensor]:
    """The results of a call, with its backward.

    Raises:
        GradientError: it has none.
    """
    return list(_Differentiated.apply(call, run, *tensors))


# ------------------------------------------------------------------------------------------------------------ folds


@dataclass(frozen=True, eq=False)
class Ends:
    """What a fold begins and ends with, as its gradient sees it: `inits`, a state before its elements; `state`, its own state
    after its results.

    Functions take, in this order, elements, a row's total (or the states around an element), cotangents of `places`, and the
    state before.
    """

    gradient: Gradient
    inits: bool
    state: bool

    @functools.cached_property
    def shown(self) -> list[int]:
        """The results that have a cotangent: of a state before, also those that no element changes."""
        project, floats = self.gradient.program.project, set(self.gradient.floats)
        if not self.inits:
            return self.gradient.results
        made = enumerate(project.output_dtypes)
        return [i for i, dtype in made if is_float(dtype) and project.graph.reads(i) & floats]

    @functools.cached_property
    def held(self) -> list[int]:
        """The fields of the state that have one."""
        return [] if not self.state else self.gradient.floats if self.inits else sorted(self.gradient.moved)

    @functools.cached_property
    def places(self) -> list[int]:
        """Where these stand among all results."""
        outputs = len(self.gradient.program.project.graph.outputs)
        return [*self.shown, *(outputs + f for f in self.held)]

    def parted(self, v: Sequence[Any], states: int) -> tuple[Any, ...]:
        """Elements, so many states, cotangents, and the state before."""
        k, n, m = self.gradient.program.lift.graph.arity, self.gradient.n, len(self.places)
        cuts = [0, k, *(k + n * (i + 1) for i in range(states)), k + n * states + m]
        return (*(v[a:b] for a, b in itertools.pairwise(cuts)), v[cuts[-1] :])

    def arity(self, states: int) -> int:
        """How many values a function of so many states takes."""
        return self.gradient.program.lift.graph.arity + self.gradient.n * (states + self.inits) + len(self.places)

    def whole(self, total: Sequence[Any], before: Sequence[Any]) -> Sequence[Any]:
        """The state that results are made of."""
        return self.gradient.program.combine.graph(*before, *total) if self.inits else total

    def of_state(self, whole: Sequence[Any], g: Sequence[Any], others: bool = False) -> list[Any]:
        """Cotangents of its fields; `others`: of those alone that are no extremes."""
        every: list[Any] = [0] * len(self.gradient.program.project.graph.outputs)
        for i, one in zip(self.shown, g, strict=False):
            every[i] = one
        gs = pullback(self.gradient.program.project, whole, every)
        for f, one in zip(self.held, g[len(self.shown) :], strict=True):
            gs[f] = add(gs[f], one)
        return [0 if others and f in self.gradient.extremes else one for f, one in enumerate(gs)]

    @functools.cached_property
    def needs_total_alone(self) -> bool:
        """Whether elements' cotangents read no more of other elements than the total."""
        known = _needs_total_alone(self.gradient, None)
        return known and (not self.state or _needs_total_alone(of_states(self.gradient), None))

    @kept_outside_modes(512)
    def by_total(self, wrt: tuple[int, ...]) -> Graph:
        """(elements, total, cotangents, state before) -> cotangents of elements."""

        def run(*v: Any) -> tuple[Any, ...]:
            x, total, g, before = self.parted(v, 1)
            whole = self.whole(total, before)
            found, _ = self.gradient.by_total(x, whole, self.of_state(whole, g))
            return tuple(as_float(found[i]) for i in wrt)

        return trace(run, self.arity(1))

    @kept_outside_modes(512)
    def by_result(self, wrt: tuple[int, ...]) -> Monoid:
        """(elements, the result, its cotangent) -> cotangents of elements, where the result is known to be enough."""

        def run(x: Any, y: Any, g: Any) -> tuple[Any, ...]:
            one = self.gradient.program.lift.graph(y)
            found, _ = self.gradient.by_total([x], one, self.of_state(one, [g]))
            return tuple(as_float(found[i]) for i in wrt)

        return function_of(trace(run, 3))

    @functools.cached_property
    def result_is_enough(self) -> bool:
        """Whether the one element that folds to the same result would have its total's part: samples say so."""
        gradient = self.gradient
        plain = not (self.inits or self.state) and gradient.program.lift.graph.arity == 1
        floats = gradient.program.project.output_dtypes == gradient.elements
        if not (plain and floats and self.shown == [0] and self.needs_total_alone):
            return False
        project, lift = gradient.program.project.graph, gradient.program.lift.graph
        if gradient.algebra.project is None and gradient.n > 1:
            return False

        def run(x: Any, *v: Any) -> tuple[Any, ...]:
            (y,) = project(*v[:-1])
            one = self.by_total((0,))(x, *v)
            two = self.by_total((0,))(x, *lift(y), v[-1])
            return (*one, y, *two, *project(*lift(y)))

        return gradient.agrees_on_rows(trace(run, 1 + gradient.n + 1))

    @kept_outside_modes(512)
    def reads(self, wrt: tuple[int, ...]) -> tuple[bool, bool]:
        """Whether cotangents by the total read elements, and states."""
        graph, k = self.by_total(wrt), self.gradient.program.lift.graph.arity
        places = {p for o in range(len(graph.outputs)) for p in graph.reads(o)}
        cotangents = range(k + self.gradient.n, k + self.gradient.n + len(self.places))
        return any(p < k for p in places), any(p >= k and p not in cotangents for p in places)

    @kept_outside_modes(512)
    def of_cotangents(self, wrt: tuple[int, ...], elements: bool) -> Monoid:
        """`by_total` of what reads no state; without `elements` no element either."""
        k, n, graph = self.gradient.program.lift.graph.arity, self.gradient.n, self.by_total(wrt)

        def run(*v: Any) -> tuple[Any, ...]:
            x, g = (v[:k], v[k:]) if elements else ([0.0] * k, v)
            return graph(*x, *[0.0] * n, *g, *[0.0] * n * self.inits)

        return function_of(trace(run, k * elements + len(self.places)))

    @kept_outside_modes(512)
    def of_lifts(self, wrt: tuple[int, ...]) -> Monoid:
        """(elements, cotangents, state before) -> cotangents of elements, of rows of one."""

        def run(*v: Any) -> tuple[Any, ...]:
            x, g, before = self.parted(v, 0)
            s = self.gradient.program.lift.graph(*x)
            found = pullback(self.gradient.program.lift, x, self.of_total(s, g, before)[1])
            return tuple(as_float(found[i]) for i in wrt)

        return function_of(trace(run, self.arity(0)))

    @kept_outside_modes(512)
    def of_neighbours(self, wrt: tuple[int, ...], others: bool = False) -> Monoid:
        """(elements, prefix, suffix, cotangents) -> cotangents of elements; a state before is in the prefix."""

        def run(*v: Any) -> tuple[Any, ...]:
            x, before, after, g, _ = self.parted([*v, *[0.0] * self.gradient.n * self.inits], 2)
            found = self.gradient.around(before, x, after, lambda whole: self.of_state(whole, g, others))
            return tuple(as_float(found[i]) for i in wrt)

        return function_of(trace(run, self.arity(2) - self.gradient.n * self.inits))

    @kept_outside_modes(512)
    def of_before(self, wrt: tuple[int, ...], others: bool = False) -> Monoid:
        """(total, cotangents, state before) -> cotangents of fields of that state."""
        k = self.gradient.program.lift.graph.arity

        def run(*v: Any) -> tuple[Any, ...]:
            _, total, g, before = self.parted([*[0.0] * k, *v], 1)
            found = self.of_total(total, g, before, others)[0]
            return tuple(as_float(found[f]) for f in wrt)

        return function_of(trace(run, self.arity(1) - k))

    def of_total(
        self, total: Sequence[Any], g: Sequence[Any], before: Sequence[Any], others: bool = False
    ) -> tuple[list[Any], list[Any]]:
        """Cotangents of the state before, and of the rows' total."""
        gs, n = self.of_state(self.whole(total, before), g, others), self.gradient.n
        if not self.inits:
            return [], gs
        both = pullback(self.gradient.program.combine, [*before, *total], gs)
        return both[:n], both[n:]

    # ----------------------------------------------------------------------------------------------------- of extremes

    @functools.cached_property
    def combined(self) -> Monoid:
        """(total, state before) -> the state that results are made of."""
        n = self.gradient.n
        return function_of(trace(lambda *v: self.whole(v[:n], v[n:]), 2 * n))

    @functools.cached_property
    def of_whole(self) -> Monoid:
        """(that state, cotangents) -> cotangents of its float fields."""
        n = self.gradient.n

        def run(*v: Any) -> tuple[Any, ...]:
            gs = self.of_state(v[:n], v[n:])
            return tuple(as_float(gs[f]) for f in self.gradient.floats)

        return function_of(trace(run, n + len(self.places)))

    @functools.cached_property
    def ties(self) -> Monoid:
        """(elements, their rows' extremes) -> how many elements are one, for each extreme."""
        k, fields, lift = self.gradient.program.lift.graph.arity, self.gradient.extremes, self.gradient.program.lift.graph

        def run(*v: Any) -> tuple[Any, ...]:
            lifted = lift(*v[:k])
            return tuple(scalars.where(lifted[f] == z, 1.0, 0.0) for f, z in zip(fields, v[k:], strict=True))

        return function_of(trace(run, k + len(fields)))

    @functools.cached_property
    def is_tied(self) -> Monoid:
        """(extremes, those of the state before) -> 1 where that is one."""
        m = len(self.gradient.extremes)
        return function_of(trace(lambda *v: tuple(scalars.where(a == b, 1.0, 0.0) for a, b in zip(v[:m], v[m:])), 2 * m))

    @kept_outside_modes(512)
    def shared(self, wrt: tuple[int, ...]) -> Graph:
        """(elements, extremes, how many tie, the extremes' cotangents, whether the state before ties) -> elements' cotangents."""
        lift, fields = self.gradient.program.lift, self.gradient.extremes
        k, m = lift.graph.arity, len(self.gradient.extremes)

        def run(*v: Any) -> tuple[Any, ...]:
            x, whole, counts, g, own = v[:k], v[k : k + m], v[k + m : k + 2 * m], v[k + 2 * m : k + 3 * m], v[k + 3 * m :]
            gs, lifted = [0] * self.gradient.n, lift.graph(*x)
            for at, f in enumerate(fields):
                count = counts[at] + own[at] if own else counts[at]
                lost = scalars.where(count == 0, float("nan"), 0.0)  # NaN is equal to no element
                gs[f] = scalars.where(lifted[f] == whole[at], g[at] / count, 0.0) + lost
            found = pullback(lift, x, gs)
            return tuple(as_float(found[i]) for i in wrt)

        return trace(run, k + m * (3 + self.inits))

    @kept_outside_modes(512)
    def shared_before(self, wrt: tuple[int, ...]) -> Monoid:
        """(how many tie, the extremes' cotangents, whether the state before ties) -> cotangents of its fields."""
        fields = self.gradient.extremes
        m = len(fields)

        def run(*v: Any) -> tuple[Any, ...]:
            counts, g, own = v[:m], v[m : 2 * m], v[2 * m :]
            found = [0.0 * g[0]] * self.gradient.n
            for at, f in enumerate(fields):
                found[f] = chosen(own[at] != 0, g[at] / (counts[at] + own[at]))
            return tuple(found[f] for f in wrt)

        return function_of(trace(run, 3 * m))


@kept_outside_modes(512)
def ends_of(gradient: Gradient, inits: bool = False, state: bool = False) -> Ends:
    """The one object of these."""
    return Ends(gradient, inits, state)


@kept_outside_modes(512)
def of_states(gradient: Gradient) -> Gradient:
    """The gradient of a fold whose results are its states."""
    return Gradient(replace(gradient.algebra, project=None), gradient.elements)


@dataclass(frozen=True, eq=False)
class Fold:
    """A fold as its backward needs it: of `count` inputs, then the fields of the state before them.

    `convert` is the dtype that elements are read as, `call` its name in messages; `like` are the tensors' shapes and dtypes.
    """

    monoid: Monoid
    dims: Any
    convert: torch.dtype | None
    guarantee: str
    count: int
    state: bool
    like: tuple[tuple[torch.Size, torch.dtype], ...]
    call: str = "reduce"

    @functools.cached_property
    def ends(self) -> Ends:
        """What is derived for such a call."""
        elements = tuple(self.convert or dtype for _, dtype in self.like[: self.count])
        return ends_of(derived(self.monoid, elements), len(self.like) > self.count, self.state)

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        """The inputs' own."""
        first = self.like[0][0]
        if self.count == 1:
            return tuple(first)
        return tuple(torch.broadcast_shapes(*(size for size, _ in self.like[: self.count])))  # type: ignore[no-untyped-call]

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
        if 0 in self.shape or all(self.shape[d] == 1 for d in self.reduced):
            return "alone"
        if ends.gradient.shares_ties:
            return "ties"
        if not (ends.inits or ends.state) and ends.gradient.origins is not None:
            return "origins"
        if not ends.needs_total_alone:
            return "around"
        elements, states = ends.reads(tuple(range(self.count)))
        if not states:
            return "local" if elements else "rows"
        return "result" if ends.result_is_enough else "total"

    def kept(self, tensors: Sequence[Tensor], made: Sequence[Tensor]) -> list[Tensor]:
        """What is saved: no more than the rule reads."""
        if self.form == "rows" and not self.ends.inits:
            return []
        if self.form == "origins":
            return [made[self.ends.gradient.origins]]
        if self.form == "result" or (self.form == "ties" and self.ends.gradient.shows_extremes and not self.ends.inits):
            return [*tensors, *(made[i] for i in self.ends.shown)]
        return [*tensors]

    def backward(self, saved: Sequence[Tensor], grads: Sequence[Tensor], wrt: Sequence[int]) -> list[Any]:
        """The inputs' cotangents, and those of the state before."""
        ends, shape = self.ends, self.shape
        kept = self.rows
        g = [grads[i] if grads[i].shape == kept else grads[i].reshape(kept) for i in ends.places]
        inputs, fields = tuple([i for i in wrt if i < self.count]), tuple([i for i in wrt if i >= self.count])
        found: list[Any] = [None] * len(self.like)
        made: Sequence[Tensor]
        if not g:
            made = [grads[0].new_zeros(self.like[i][0]) for i in wrt]
        elif self.form == "rows" and not ends.inits:
            made = [t.expand(shape) for t in cells(ends.of_cotangents(inputs, False), g)]
        elif self.form == "origins":
            made = [_scattered(saved[0], g[0], shape, self.reduced)]
        else:
            made = self._of_elements(saved, g, kept, grads[0].shape, inputs, fields)
        for i, t in zip((*inputs, *fields), made, strict=True):
            found[i] = _as_input(t, *self.like[i])
        return found

    def _of_elements(
        self, saved: Sequence[Tensor], g: Sequence[Tensor], kept: Sequence[int], rows: Sequence[int],
        inputs: tuple[int, ...], fields: tuple[int, ...],
    ) -> list[Tensor]:  # fmt: skip
        """Cotangents at the whole shape of elements, and of fields of the state before in the results' shape."""
        ends, wide = self.ends, Wide(saved[: self.count], self.shape, self.reduced, self.convert, self.guarantee)
        before = self._before(saved[self.count : len(self.like)], rows, kept)
        places = tuple(i - self.count for i in fields)
        if self.form == "ties":
            results = saved[len(self.like) :]
            made = wide.of_ties(ends, g, before, results, inputs, places, self.call)
            return [t if i < len(inputs) else t.reshape(rows) for i, t in enumerate(made)]
        if self.form == "result":
            y, cotangent = (t.reshape(kept).expand(self.shape) for t in (saved[-1], *g))
            made = cells(ends.by_result(inputs), [*wide.read, y, cotangent])
        else:
            made = wide.of_ends(ends, g, before, inputs, self.call) if inputs else []
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


def _scattered(where: Tensor, g: Tensor, shape: Sequence[int], dims: Sequence[int]) -> Tensor:
    """The cotangents of elements that were chosen by their positions in each row; 0 of others."""
    rows = g.new_zeros(math.prod(n for d, n in enumerate(shape) if d not in dims), math.prod(shape[d] for d in dims))
    put = rows.scatter if torch._C._functorch.maybe_current_level() is not None else rows.scatter_
    return from_rows(put(1, where.reshape(-1, 1), g.reshape(-1, 1)), shape, dims)


def _as_input(g: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """A cotangent of an input's shape and dtype."""
    g = g if g.shape == shape else g.sum_to_size(shape)
    return g if g.dtype == dtype else g.to(dtype)


def gradient_of_call(monoid: Monoid, tensors: Sequence[Tensor], convert: torch.dtype | None) -> Gradient:
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
        return [t if t.dtype == w else t.to(w) for t, w in zip(given, wide, strict=True)]

    @property
    def read(self) -> list[Tensor]:
        """The tensors as a call of this dtype reads them."""
        return [t.expand(self.shape) if self.convert is None else t.expand(self.shape).to(self.convert) for t in self.tensors]

    def states(self, gradient: Gradient, call: str) -> list[Tensor]:
        """The rows' states, with the reduced dims of length 1."""
        return folds.fold_tensors(
            self.tensors, states_of(gradient), self.dims, True, convert=self.convert, guarantee=self.guarantee, call=call
        )  # fmt: skip

    def of_fold(
        self, gradient: Gradient, cotangents: Sequence[Tensor], wrt: Sequence[int], call: str, after: Any = None
    ) -> list[Tensor]:
        """Cotangents of some inputs, at the whole shape, of those of the results that have one.

        `after` is what a map makes of the results.
        """
        ends, several = ends_of(gradient), any(self.shape[d] != 1 for d in self.dims)
        if gradient.shares_ties and several and 0 not in self.shape:
            rows = [_row(t, self.dims) for t in cotangents]
            return self.of_ties(ends, rows, (), (), tuple(wrt), (), call)
        return self.of_ends(ends, cotangents, (), tuple(wrt), call, after)

    def of_ends(
        self, ends: Ends, cotangents: Sequence[Tensor], before: Sequence[Tensor], wrt: tuple[int, ...], call: str,
        after: Any = None,
    ) -> list[Tensor]:  # fmt: skip
        """The same of a fold from a state before, with cotangents of its own state behind those of the results."""
        gradient, g = ends.gradient, [t.expand(self.shape) for t in cotangents]
        first = [t.expand(self.shape) for t in before]
        if all(self.shape[d] == 1 for d in self.dims) or 0 in self.shape:
            return cells(ends.of_lifts(wrt), [*self.placed(gradient), *g, *first])
        if ends.needs_total_alone if after is None else _needs_total_alone(gradient, after):
            if not ends.reads(wrt)[1]:
                return cells(ends.of_cotangents(wrt, True), [*self.elements, *g])
            return maps.map_tensors(
                [t.expand(self.shape) for t in self.tensors], states_of(gradient), of_graph(ends.by_total(wrt)), self.dims,
                extras=[*g, *first], convert=self.convert, guarantee=self.guarantee, call=call,
            )  # fmt: skip
        if gradient.algebra.project is None and not gradient.keeps_fields:
            raise GradientError(
                f"{call}: a state whose fields depend on how it was grouped (sums about a pivot) has no derivative, got an "
                "input that requires grad; give the monoid a project that gives the same for every grouping"
            )
        return self._around(ends, g, before, wrt)

    def of_ties(
        self, ends: Ends, g: Sequence[Tensor], before: Sequence[Tensor], results: Sequence[Tensor], wrt: tuple[int, ...],
        fields: tuple[int, ...], call: str,
    ) -> list[Tensor]:  # fmt: skip
        """Cotangents of elements that extremes are chosen of, and of fields of the state before: those that tie share evenly.

        What is chosen by other means beside them goes to the one that was chosen. `results` are the extremes, if known.
        """
        gradient = ends.gradient
        total = [] if results and not ends.inits else self.states(gradient, call)
        whole = [t.reshape(g[0].shape) for t in results] if not total else total
        whole = cells(ends.combined, [*total, *before]) if ends.inits else whole
        shares = cells(ends.of_whole, [*whole, *g])
        some = [whole[f].to(gradient.program.state[f]) for f in gradient.extremes]
        x = [*self.placed(gradient), *(t.expand(self.shape) for t in some)]
        own = cells(ends.is_tied, [*some, *(before[f] for f in gradient.extremes)]) if ends.inits else []
        beside = [*(shares[gradient.floats.index(f)] for f in gradient.extremes), *own]
        made: list[Tensor] = []
        if wrt:
            extras = [t.expand(self.shape) for t in beside]
            apply = of_graph(ends.shared(wrt))
            made = maps.map_tensors(x, ends.ties, apply, self.dims, extras=extras, guarantee=self.guarantee, call=call)
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
        self, ends: Ends, cotangents: Sequence[Tensor], before: Sequence[Tensor], wrt: tuple[int, ...], others: bool = False
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
    length = math.prod(t.shape[d] for d in dims)
    return t.permute(*kept, *dims).reshape(-1, length)


def from_rows(t: Tensor, shape: Sequence[int], dims: Sequence[int]) -> Tensor:
    """What `as_rows` was made of."""
    order = [*(d for d in range(len(shape)) if d not in dims), *dims]
    back = [order.index(d) for d in range(len(shape))]
    return t.reshape([shape[d] for d in order]).permute(back)


def positions(
    gradient: Gradient, shape: Sequence[int], dims: Sequence[int], device: torch.device
) -> list[Tensor]:
    """Each element's position in its row, where the monoid takes it."""
    if not gradient.algebra.index:
        return []
    sizes = [n if d in dims else 1 for d, n in enumerate(shape)]
    return [torch.arange(math.prod(sizes), device=device).reshape(sizes).expand(shape)]


def as_inputs(made: Sequence[Tensor], tensors: Sequence[Tensor], wrt: Sequence[int]) -> list[Any]:
    """A cotangent for each input: of its shape and dtype, or None."""
    found: list[Any] = [None] * len(tensors)
    for i, g in zip(wrt, made, strict=True):
        found[i] = g.sum_to_size(tensors[i].shape).to(tensors[i].dtype)
    return found


def monoid_of_algebra(algebra: Algebra) -> Monoid:
    """A monoid that no law is asked of."""
    return restored(algebra, "gradient", None, True)


@kept_outside_modes(512)
def states_of(gradient: Gradient) -> Monoid:
    """The monoid whose results are states."""
    return monoid_of_algebra(gradient.states)


@kept_outside_modes(512)
def lifts_of(gradient: Gradient) -> Monoid:
    """The state of each element."""
    return function_of(gradient.program.lift.graph)


@kept_outside_modes(512)
def _turned(gradient: Gradient) -> Monoid:
    """The same, combined the other way round."""
    return states_of(gradient) if gradient.algebra.commutative else monoid_of_algebra(opposite(gradient.states))


@kept_outside_modes(512)
def _needs_total_alone(gradient: Gradient, after: Any) -> bool:
    return gradient.needs_total_alone(after)


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


def function_of(graph: Graph) -> Monoid:
    """A function of elements, as the fold over no dims that makes it."""
    return monoid_of_algebra(elementwise(graph))

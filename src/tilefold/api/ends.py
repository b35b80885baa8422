"""What a fold begins and ends with, as its gradient sees it: the functions that its backward is made of."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tilefold import math
from tilefold.algebra.algebra import Algebra, FieldDtype, elementwise
from tilefold.algebra.derivatives.folds import Gradient
from tilefold.algebra.derivatives.linear import add, as_float, chosen
from tilefold.algebra.derivatives.pullback import pullback
from tilefold.algebra.expression import Graph, trace
from tilefold.algebra.monoid import Monoid, restored
from tilefold.runtime.caching import kept_outside_modes


def monoid_of_algebra(algebra: Algebra) -> Monoid:
    """A monoid that no law is asked of."""
    return restored(algebra, "gradient", None, False, True)


def function_of(graph: Graph, dtypes: Sequence[FieldDtype] = ()) -> Monoid:
    """A function of elements, as the fold over no dims that makes it; `dtypes` of its results, as a monoid's fields."""
    made = elementwise(graph)
    return monoid_of_algebra(replace(made, dtypes=tuple(dtypes)) if dtypes else made)


@kept_outside_modes(512)
def needs_total_alone(gradient: Gradient, after: Any) -> bool:
    """Whether a gradient, or that of what a map makes of the results (`after`), reads x and the total alone."""
    return gradient.needs_total_alone(after)


def with_ties(algebra: Algebra, extremes: Sequence[int]) -> Algebra:
    """The algebra whose state also counts the elements that are each extreme."""
    n, m = len(algebra.fields), len(extremes)

    def lift(*v: Any) -> tuple[Any, ...]:
        state = algebra.lift(*v)
        return (*state, *(math.where(state[f] == state[f], 1, 0) for f in extremes))  # NaN ties with nothing

    def combine(*v: Any) -> tuple[Any, ...]:
        a, b = v[: n + m], v[n + m :]
        state = algebra.combine(*a[:n], *b[:n])
        counts = [
            math.where(a[f] == state[f], a[n + i], 0) + math.where(b[f] == state[f], b[n + i], 0)
            for i, f in enumerate(extremes)
        ]
        return (*state, *counts)

    project = algebra.project or trace(lambda *v: v, n)
    return replace(
        algebra,
        fields=(*algebra.fields, *(f"ties{f}" for f in extremes)),
        identity=(*(algebra.identity or ()), *["int 0"] * m),
        dtypes=(*algebra.dtypes, *[torch.int64] * m),
        lift=trace(lift, algebra.inputs + algebra.index),
        combine=trace(combine, 2 * (n + m)),
        project=trace(lambda *v: project(*v[:n]), n + m),
        absorb=None,
        begin=None,
        derives=False,
        quick=None,
        sums=None,
    )


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
        return self.gradient.shown(self.inits)

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
        elements: int = self.gradient.program.lift.graph.arity
        return elements + self.gradient.n * (states + self.inits) + len(self.places)

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
    def total_is_enough(self) -> bool:
        """Whether elements' cotangents read no more of other elements than the total."""
        known = needs_total_alone(self.gradient, None)
        return known and (not self.state or needs_total_alone(of_states(self.gradient), None))

    @kept_outside_modes(512)
    def by_total(self, wrt: tuple[int, ...], unread: int = 0) -> Graph:
        """(elements, total, cotangents, state before, and so many values that it does not read) -> cotangents of elements."""

        def run(*v: Any) -> tuple[Any, ...]:
            x, total, g, before = self.parted(v[: self.arity(1)], 1)
            whole = self.whole(total, before)
            found, _ = self.gradient.by_total(x, whole, self.of_state(whole, g))
            return tuple(as_float(found[i]) for i in wrt)

        return trace(run, self.arity(1) + unread)

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
        if not (plain and floats and self.shown == [0] and self.total_is_enough):
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
        fields, lift = self.gradient.extremes, self.gradient.program.lift.graph
        k = lift.arity

        def run(*v: Any) -> tuple[Any, ...]:
            lifted = lift(*v[:k])
            return tuple(math.where(lifted[f] == z, 1.0, 0.0) for f, z in zip(fields, v[k:], strict=True))

        return function_of(trace(run, k + len(fields)))

    @functools.cached_property
    def is_tied(self) -> Monoid:
        """(extremes, those of the state before) -> 1 where that is one."""
        m = len(self.gradient.extremes)
        return function_of(
            trace(
                lambda *v: tuple(math.where(a == b, 1.0, 0.0) for a, b in zip(v[:m], v[m:], strict=True)),
                2 * m,
            )
        )

    @kept_outside_modes(512)
    def shared(self, wrt: tuple[int, ...]) -> Graph:
        """(elements, extremes, how many tie, extremes' cotangents, whether the state before ties) -> elements' cotangents."""
        lift, fields = self.gradient.program.lift, self.gradient.extremes
        k, m = lift.graph.arity, len(self.gradient.extremes)

        def run(*v: Any) -> tuple[Any, ...]:
            x, whole, counts, g, own = (
                v[:k],
                v[k : k + m],
                v[k + m : k + 2 * m],
                v[k + 2 * m : k + 3 * m],
                v[k + 3 * m :],
            )
            gs, lifted = [0] * self.gradient.n, lift.graph(*x)
            for at, f in enumerate(fields):
                count = counts[at] + own[at] if own else counts[at]
                lost = math.where(count == 0, float("nan"), 0.0)  # NaN is equal to no element
                gs[f] = math.where(lifted[f] == whole[at], g[at] / count, 0.0) + lost
            found = pullback(lift, x, gs)
            return tuple(as_float(found[i]) for i in wrt)

        return trace(run, k + m * (3 + self.inits))

    @functools.cached_property
    def with_ties(self) -> Monoid:
        """Of elements: their row's state, and how many are each extreme."""
        return monoid_of_algebra(
            replace(with_ties(self.gradient.states, self.gradient.extremes), project=None)
        )

    @kept_outside_modes(512)
    def tied(self, wrt: tuple[int, ...]) -> Graph:
        """(elements, `with_ties` of their row, cotangents) -> elements' cotangents."""
        k, n, fields = self.gradient.program.lift.graph.arity, self.gradient.n, self.gradient.extremes
        shared, end = self.shared(wrt), k + n + len(fields)

        def run(*v: Any) -> tuple[Any, ...]:
            whole, gs = v[k : k + n], self.of_state(v[k : k + n], v[end:])
            counts = [math.where(count == 0, 0.0, count) for count in v[k + n : end]]
            return tuple(
                shared(*v[:k], *(whole[f] for f in fields), *counts, *(as_float(gs[f]) for f in fields))
            )

        return trace(run, end + len(self.places))

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

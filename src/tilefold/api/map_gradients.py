"""The backward of `reduce_map`: a map of the same rows, that sums what each result's cotangents are, and sums over rows."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tilefold.algebra.derivatives.folds import Gradient
from tilefold.algebra.derivatives.linear import add, as_float, is_zero
from tilefold.algebra.derivatives.pullback import pullback
from tilefold.algebra.expression import trace
from tilefold.algebra.monoid import Monoid
from tilefold.algebra.typing import TypedGraph
from tilefold.api import reduce as folds
from tilefold.api import reduce_map as maps
from tilefold.api.gradients import (
    Call,
    Wide,
    as_inputs,
    cells,
    derived,
    function_of,
    lifts_of,
    states_of,
)
from tilefold.planner.products.functions import Traced, of_graph
from tilefold.planner.products.row import make_row_map
from tilefold.problem.canonical import broadcast_shape, normalize_dims
from tilefold.runtime.caching import kept_outside_modes


@dataclass(frozen=True)
class Map(Call):
    """A map as its backward needs it: of `count` inputs, then extra tensors."""

    monoid: Monoid
    apply: Traced
    dims: Any
    convert: torch.dtype | None
    guarantee: str
    count: int
    call: str = "reduce_map"

    def check(self, tensors: Sequence[Tensor]) -> None:
        """Refuse a map of a fold that has no derivative, unless nothing is made of its results.

        Raises:
            GradientError: as `gradients.check_fold`.
        """
        self._parts(tensors)

    def _parts(self, tensors: Sequence[Tensor]) -> _Parts:
        elements = tuple(self.convert or t.dtype for t in tensors[: self.count])
        return _parts(self.monoid, self.apply, elements, tuple(t.dtype for t in tensors[self.count :]))

    def moves(self, result: int, tensors: Sequence[Tensor]) -> bool:
        """Whether a result changes with an element."""
        return True

    def backward(self, tensors: Sequence[Tensor], grads: Sequence[Tensor], wrt: Sequence[int]) -> list[Any]:
        """The inputs' and extra tensors' cotangents."""
        inputs, extras = tensors[: self.count], tensors[self.count :]
        parts = self._parts(tensors)
        shape = broadcast_shape(inputs, self.call)
        dims = normalize_dims(self.dims, len(shape), self.call)
        wide = Wide(tensors, shape, dims, self.convert, self.guarantee)
        x = [t.expand(shape) if self.convert is None else t.expand(shape).to(self.convert) for t in inputs]
        beside = [t.expand(shape) for t in extras]
        gy = [g for g, moves in zip(grads, parts.floats, strict=True) if moves]
        states: list[Tensor] = []
        if dims and 0 not in shape:
            made = folds.fold_tensors(
                x, states_of(parts.gradient), dims, True, guarantee=self.guarantee, call=self.call
            )
            states = [t.expand(shape) for t in made]
        else:
            states = cells(lifts_of(parts.gradient), wide.elements[: self.count])
        given = [*x, *beside, *gy, *states]
        whole = [i for i in wrt if i < self.count or tensors[i].shape == shape]
        found = dict(zip(whole, self._of_whole(parts, wide, given, x, tuple(whole)), strict=True))
        for i in wrt:
            if i not in found:
                found[i] = _summed(parts.direct((i,)), given, tensors[i].shape, self.guarantee)
        return as_inputs([found[i] for i in wrt], tensors, wrt)

    def _of_whole(
        self, parts: _Parts, wide: Wide, given: Sequence[Tensor], x: Sequence[Tensor], wrt: tuple[int, ...]
    ) -> list[Tensor]:
        """Cotangents of tensors of the whole shape."""
        if not wrt:
            return []
        places = parts.results_read
        if not wide.dims or not places or min(wrt) >= self.count:
            return cells(parts.direct(wrt, lifted=not wide.dims), given)
        sums = parts.direct(tuple(self.count + len(parts.extras) + p for p in places))
        if parts.needs_total_alone:
            return maps.map_tensors(
                given, sums, parts.of_row(wrt), wide.dims, guarantee=self.guarantee, call=self.call
            )
        of_results = folds.fold_tensors(
            given, sums, wide.dims, True, guarantee=self.guarantee, call=self.call
        )
        cotangents = [t.expand(wide.shape) for t in of_results]
        inner = [i for i in wrt if i < self.count]
        own = cells(parts.direct(wrt), given)
        rows = replace(wide, tensors=x, convert=None)
        more = rows.of_fold(
            parts.gradient, parts.of_every_result(cotangents, places), inner, self.call, parts.after
        )
        return [a + b for a, b in zip(own, more, strict=False)] + own[len(inner) :]


@kept_outside_modes(512)
def _parts(
    monoid: Monoid, apply: Traced, elements: tuple[torch.dtype, ...], extras: tuple[torch.dtype, ...]
) -> _Parts:
    return _Parts(monoid, apply, elements, extras)


@dataclass(frozen=True, eq=False)
class _Parts:
    """The functions of a map's backward, each of (elements, extra elements, cotangents of float values, states)."""

    monoid: Monoid
    apply: Traced
    elements: tuple[torch.dtype, ...]
    extras: tuple[torch.dtype, ...]

    @functools.cached_property
    def gradient(self) -> Gradient:
        """Of the fold."""
        return derived(self.monoid, self.elements)

    @functools.cached_property
    def after(self) -> TypedGraph:
        """What is made of elements, results and extra elements."""
        return make_row_map(self.monoid.total, self.apply, self.elements, self.extras).apply

    @functools.cached_property
    def needs_total_alone(self) -> bool:
        """Of the fold, for what the map makes of it."""
        return self.gradient.needs_total_alone(self.after)

    @functools.cached_property
    def floats(self) -> list[bool]:
        """Which of the values have cotangents."""
        return [dtype.is_floating_point for dtype in self.after.output_dtypes]

    def _split(self, v: Sequence[Any]) -> tuple[Any, ...]:
        k, e, g = len(self.elements), len(self.extras), sum(self.floats)
        return v[:k], v[k : k + e], v[k + e : k + e + g], v[k + e + g :]

    @property
    def arity(self) -> int:
        """How many values the graphs take."""
        return len(self.elements) + len(self.extras) + sum(self.floats) + self.gradient.n

    def cotangents(self, v: Sequence[Any]) -> list[Any]:
        """Of elements, of extra elements, of results."""
        x, beside, gy, states = self._split(v)
        given = iter(gy)
        every = [next(given) if moves else 0 for moves in self.floats]
        results = self.gradient.program.project.graph(*states)
        k, m = len(x), len(results)
        found = pullback(self.after, [*x, *results, *beside], every)
        return [*found[:k], *found[k + m :], *found[k : k + m]]

    @functools.cached_property
    def results_read(self) -> list[int]:
        """The results that have a cotangent here."""
        kept = list[int]()

        def run(*v: Any) -> int:
            made = self.cotangents(v)[len(self.elements) + len(self.extras) :]
            kept.extend(i for i in self.gradient.results if not is_zero(made[i]))
            return 0

        trace(run, self.arity)
        return kept

    @kept_outside_modes(512)
    def direct(self, wrt: tuple[int, ...], lifted: bool = False) -> Monoid:
        """Cotangents through the function alone, or (`lifted`) through each element's own state, too.

        Folded over no dims it gives them, over others their sums.
        """

        def run(*v: Any) -> tuple[Any, ...]:
            made = self.cotangents(v)
            if lifted:
                x, _, _, states = self._split(v)
                through = made[len(self.elements) + len(self.extras) :]
                gs = pullback(self.gradient.program.project, states, through)
                own = pullback(self.gradient.program.lift, x, gs)
                made[: len(x)] = [add(a, b) for a, b in zip(made, own, strict=False)]
            return tuple(as_float(made[i]) for i in wrt)

        return function_of(trace(run, self.arity))

    @kept_outside_modes(512)
    def of_row(self, wrt: tuple[int, ...]) -> Traced:
        """Of the sums of the results' cotangents besides: all of an element's own."""
        places = self.results_read

        def run(*v: Any) -> tuple[Any, ...]:
            values, sums = v[: self.arity], v[self.arity :]
            made = self.cotangents(values)
            x, _, _, states = self._split(values)
            of_results: list[Any] = [0] * len(self.gradient.program.project.graph.outputs)
            for p, g in zip(places, sums, strict=True):
                of_results[p] = g
            gs = pullback(self.gradient.program.project, states, of_results)
            own, _ = self.gradient.by_total(x, states, gs)
            made[: len(x)] = [add(a, b) for a, b in zip(made, own, strict=False)]
            return tuple(as_float(made[i]) for i in wrt)

        return of_graph(trace(run, self.arity + len(places)))

    def of_every_result(self, cotangents: Sequence[Tensor], places: Sequence[int]) -> list[Tensor]:
        """Cotangents of the results that may have one: zeros of those that have none here."""
        known = dict(zip(places, cotangents, strict=True))
        return [known.get(i, torch.zeros_like(cotangents[0])) for i in self.gradient.results]


def _summed(monoid: Monoid, given: Sequence[Tensor], shape: Sequence[int], guarantee: str) -> Tensor:
    """A sum over the dims along which a tensor of this shape was repeated."""
    whole = given[0].shape
    added = len(whole) - len(shape)
    repeated = [d for d, n in enumerate(whole) if d < added or (shape[d - added] == 1 and n != 1)]
    (made,) = folds.fold_tensors(given, monoid, repeated, True, guarantee=guarantee)
    return made.reshape(shape)

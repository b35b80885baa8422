"""Folds, scans and maps that autograd sees: each backward is made of folds, scans and maps again, so that it has one, too.

What is saved are the inputs. States are folded again: a gradient of the total alone is one map whose rows are folded and read
once (`algebra.derivatives.folds`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tilefold.algebra.algebra import Algebra
from tilefold.algebra.derivatives.folds import Gradient, elementwise, gradient_of, opposite
from tilefold.algebra.derivatives.linear import add, as_float, is_zero
from tilefold.algebra.derivatives.pullback import pullback
from tilefold.algebra.expression import Graph, trace
from tilefold.algebra.monoid import Monoid, restored
from tilefold.algebra.typing import element_dtype, is_float
from tilefold.api import reduce as folds
from tilefold.api import reduce_map as maps
from tilefold.api import scan as scans
from tilefold.errors import GradientError
from tilefold.planner.products.functions import Traced, of_graph
from tilefold.planner.products.row import make_row_map
from tilefold.problem.canonical import normalize_dims
from tilefold.runtime.caching import kept_outside_modes

SingleLevel: Any = torch.autograd.function._SingleLevelFunction  # one that a kernel of the dispatcher may apply


def asked(tensors: Sequence[Any]) -> bool:
    """Whether a gradient is asked of a call of these tensors."""
    return torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors)


class _Differentiated(SingleLevel):  # type: ignore[misc]  # torch's class is untyped
    """A call and its backward. `run` makes the results."""

    @staticmethod
    def forward(ctx: Any, call: Any, run: Callable[[Sequence[Tensor]], list[Tensor]], *tensors: Tensor) -> Any:
        made = run(tensors)
        ctx.call = call
        ctx.save_for_backward(*tensors)
        flat = [t for i, t in enumerate(made) if not (t.is_floating_point() and call.moves(i, tensors))]
        ctx.mark_non_differentiable(*flat)
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        wrt = [i for i, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        return None, None, *ctx.call.backward(ctx.saved_tensors, grads, wrt)


def applied(
    call: Any, run: Callable[[Sequence[Tensor]], list[Tensor]], tensors: Sequence[Tensor]
) -> list[Tensor]:
    """The results of a call, with its backward."""
    return list(_Differentiated.apply(call, run, *tensors))


def is_dual(tensors: Sequence[Tensor]) -> bool:
    """Whether a tensor carries a forward derivative."""
    return forward_ad._current_level >= 0 and any(
        forward_ad.unpack_dual(t).tangent is not None  # type: ignore[no-untyped-call]  # torch's own
        for t in tensors
    )


# ------------------------------------------------------------------------------------------------------------ folds


@dataclass(frozen=True)
class Fold:
    """A fold as its backward needs it. `convert` is the dtype that elements are read as, `call` its name in messages."""

    monoid: Monoid
    dims: Any
    convert: torch.dtype | None
    guarantee: str
    call: str = "reduce"

    def moves(self, result: int, tensors: Sequence[Tensor]) -> bool:
        """Whether a result changes with an element."""
        return result in _gradient(self.monoid, tensors, self.convert).results

    def backward(self, tensors: Sequence[Tensor], grads: Sequence[Tensor], wrt: Sequence[int]) -> list[Any]:
        """The inputs' cotangents."""
        gradient = _gradient(self.monoid, tensors, self.convert)
        shape = torch.broadcast_shapes(*(t.shape for t in tensors))
        dims = normalize_dims(self.dims, len(shape), self.call)
        kept = [1 if d in dims else n for d, n in enumerate(shape)]
        cotangents = [grads[i].reshape(kept).expand(shape) for i in gradient.results]
        wide = _Wide(tensors, shape, dims, self.convert, self.guarantee)
        return _as_inputs(wide.of_fold(gradient, cotangents, wrt, self.call), tensors, wrt)


def _gradient(monoid: Monoid, tensors: Sequence[Tensor], convert: torch.dtype | None) -> Gradient:
    return gradient_of(monoid.total, tuple(convert or t.dtype for t in tensors))


@dataclass(frozen=True)
class _Wide:
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

    def of_fold(
        self, gradient: Gradient, cotangents: Sequence[Tensor], wrt: Sequence[int], call: str, after: Any = None
    ) -> list[Tensor]:
        """Cotangents of some inputs, at the whole shape, of those of the results that have one."""
        if not self.dims or math.prod(self.shape) == 0:
            return self._of_lifts(gradient, cotangents, wrt)
        if gradient.shares_ties:
            raise GradientError(
                f"{call}: a fold to an extreme has no derivative yet, got an input that requires grad; use "
                "torch.amax, torch.max or the like where a gradient is needed, or detach() the input"
            )
        if gradient.needs_total_alone(after):
            graph = _total_graph(gradient, tuple(wrt))
            states = _monoid(gradient.states)
            given = [t.expand(self.shape) for t in self.tensors]
            return maps.map_tensors(
                given, states, of_graph(graph), self.dims, extras=cotangents, convert=self.convert,
                guarantee=self.guarantee, call=call,
            )  # fmt: skip
        if gradient.algebra.project is None and not gradient.keeps_fields:
            raise GradientError(
                f"{call}: a state whose fields depend on how it was grouped (sums about a pivot) has no derivative, got an "
                "input that requires grad; give the monoid a project that gives the same for every grouping"
            )
        return self._around(gradient, cotangents, wrt)

    def _of_lifts(
        self, gradient: Gradient, cotangents: Sequence[Tensor], wrt: Sequence[int]
    ) -> list[Tensor]:
        """Each element is a row of its own."""
        elements = [*self.elements, *_positions(gradient, self.shape, self.dims, cotangents[0].device)]
        return _cells(_lifts_graph(gradient, tuple(wrt)), [*elements, *cotangents])

    def _around(self, gradient: Gradient, cotangents: Sequence[Tensor], wrt: Sequence[int]) -> list[Tensor]:
        """From the prefix and the suffix of each element of a row."""
        elements = [*self.elements, *_positions(gradient, self.shape, self.dims, cotangents[0].device)]
        rows = [_as_rows(t, self.dims) for t in (*elements, *cotangents)]
        x, g = rows[: len(elements)], rows[len(elements) :]
        before = scans.scan_tensors(
            x, _monoid(gradient.states), 1, exclusive=True, guarantee=self.guarantee
        )
        after = scans.scan_tensors(
            x, _monoid(opposite(gradient.states)), 1, exclusive=True, reverse=True, guarantee=self.guarantee
        )
        made = _cells(_around_graph(gradient, tuple(wrt)), [*before, *x, *after, *g])
        return [_from_rows(t, self.shape, self.dims) for t in made]


def _as_rows(t: Tensor, dims: Sequence[int]) -> Tensor:
    kept = [d for d in range(t.ndim) if d not in dims]
    length = math.prod(t.shape[d] for d in dims)
    return t.permute(*kept, *dims).reshape(-1, length)


def _from_rows(t: Tensor, shape: Sequence[int], dims: Sequence[int]) -> Tensor:
    order = [*(d for d in range(len(shape)) if d not in dims), *dims]
    back = [order.index(d) for d in range(len(shape))]
    return t.reshape([shape[d] for d in order]).permute(back)


def _positions(
    gradient: Gradient, shape: Sequence[int], dims: Sequence[int], device: torch.device
) -> list[Tensor]:
    """Each element's position in its row, where the monoid takes it."""
    if not gradient.algebra.index:
        return []
    sizes = [n if d in dims else 1 for d, n in enumerate(shape)]
    return [torch.arange(math.prod(sizes), device=device).reshape(sizes).expand(shape)]


def _as_inputs(made: Sequence[Tensor], tensors: Sequence[Tensor], wrt: Sequence[int]) -> list[Any]:
    """A cotangent for each input: of its shape and dtype, or None."""
    found: list[Any] = [None] * len(tensors)
    for i, g in zip(wrt, made, strict=True):
        found[i] = g.sum_to_size(tensors[i].shape).to(tensors[i].dtype)
    return found


@kept_outside_modes(512)
def _monoid(algebra: Algebra) -> Monoid:
    return restored(algebra, "gradient", None, True)


def _cells(graph: Graph, tensors: Sequence[Tensor]) -> list[Tensor]:
    """A function of every element of tensors of one shape."""
    return folds.fold_tensors(tensors, _monoid(elementwise(graph)), (), False)


@kept_outside_modes(512)
def _total_graph(gradient: Gradient, wrt: tuple[int, ...]) -> Graph:
    """(elements, states, cotangents of the results) -> cotangents of elements."""
    k, n = gradient.algebra.inputs, gradient.n

    def run(*v: Any) -> tuple[Any, ...]:
        x, total, g = v[:k], v[k : k + n], v[k + n :]
        gs = pullback(gradient.program.project, total, gradient.of_results(g))
        found, _ = gradient.by_total(x, total, gs)
        return tuple(as_float(found[i]) for i in wrt)

    return trace(run, k + n + len(gradient.results))


@kept_outside_modes(512)
def _lifts_graph(gradient: Gradient, wrt: tuple[int, ...]) -> Graph:
    """(elements, cotangents of the results) -> cotangents of elements, of rows of one."""
    k = gradient.program.lift.graph.arity

    def run(*v: Any) -> tuple[Any, ...]:
        x = v[:k]
        s = gradient.program.lift.graph(*x)
        gs = pullback(gradient.program.project, s, gradient.of_results(v[k:]))
        found = pullback(gradient.program.lift, x, gs)
        return tuple(as_float(found[i]) for i in wrt)

    return trace(run, k + len(gradient.results))


@kept_outside_modes(512)
def _around_graph(gradient: Gradient, wrt: tuple[int, ...]) -> Graph:
    """(prefix, elements, suffix, cotangents of the results) -> cotangents of elements."""
    k, n = gradient.program.lift.graph.arity, gradient.n

    def run(*v: Any) -> tuple[Any, ...]:
        found = gradient.around(v[:n], v[n : n + k], v[n + k : 2 * n + k], v[2 * n + k :])
        return tuple(as_float(found[i]) for i in wrt)

    return trace(run, 2 * n + k + len(gradient.results))


# ------------------------------------------------------------------------------------------------------------- maps


@dataclass(frozen=True)
class Map:
    """A map as its backward needs it: of `count` inputs, then extra tensors."""

    monoid: Monoid
    apply: Traced
    dims: Any
    convert: torch.dtype | None
    guarantee: str
    count: int
    call: str = "reduce_map"

    def moves(self, result: int, tensors: Sequence[Tensor]) -> bool:
        """Whether a result changes with an element."""
        return True

    def backward(self, tensors: Sequence[Tensor], grads: Sequence[Tensor], wrt: Sequence[int]) -> list[Any]:
        """The inputs' and extra tensors' cotangents."""
        inputs, extras = tensors[: self.count], tensors[self.count :]
        elements = tuple(self.convert or t.dtype for t in inputs)
        parts = _Parts(self.monoid.total, self.apply, elements, tuple(t.dtype for t in extras))
        shape = torch.broadcast_shapes(*(t.shape for t in inputs))
        dims = normalize_dims(self.dims, len(shape), self.call)
        wide = _Wide(tensors, shape, dims, self.convert, self.guarantee)
        x = [t.expand(shape) if self.convert is None else t.expand(shape).to(self.convert) for t in inputs]
        beside = [t.expand(shape) for t in extras]
        gy = [g for g, moves in zip(grads, parts.floats, strict=True) if moves]
        states: list[Tensor] = []
        if dims and math.prod(shape):
            made = folds.fold_tensors(x, _monoid(parts.gradient.states), dims, True, guarantee=self.guarantee, call=self.call)
            states = [t.expand(shape) for t in made]
        else:
            states = _cells(parts.gradient.program.lift.graph, wide.elements[: self.count])
        given = [*x, *beside, *gy, *states]
        whole = [i for i in wrt if i < self.count or tensors[i].shape == shape]
        found = dict(zip(whole, self._of_whole(parts, wide, given, x, tuple(whole)), strict=True))
        for i in wrt:
            if i not in found:
                found[i] = _summed(_monoid(parts.summed((i,))), given, tensors[i].shape, self.guarantee)
        return _as_inputs([found[i] for i in wrt], tensors, wrt)

    def _of_whole(
        self, parts: _Parts, wide: _Wide, given: Sequence[Tensor], x: Sequence[Tensor], wrt: tuple[int, ...]
    ) -> list[Tensor]:
        """Cotangents of tensors of the whole shape."""
        if not wrt:
            return []
        places = parts.results_read()
        if not wide.dims or not places or min(wrt) >= self.count:
            return _cells(parts.direct(wrt, lifted=not wide.dims), given)
        sums = _monoid(parts.summed(tuple(self.count + len(parts.extras) + p for p in places)))
        if parts.gradient.needs_total_alone(parts.after):
            return maps.map_tensors(
                given, sums, of_graph(parts.of_row(wrt)), wide.dims, guarantee=self.guarantee, call=self.call
            )
        of_results = folds.fold_tensors(given, sums, wide.dims, True, guarantee=self.guarantee, call=self.call)
        cotangents = [t.expand(wide.shape) for t in of_results]
        inner = [i for i in wrt if i < self.count]
        own = _cells(parts.direct(wrt), given)
        rows = replace(wide, tensors=x, convert=None)
        more = rows.of_fold(parts.gradient, parts.of_every_result(cotangents, places), inner, self.call, parts.after)
        return [a + b for a, b in zip(own, more, strict=False)] + own[len(inner) :]


@dataclass(frozen=True)
class _Parts:
    """The graphs of a map's backward, each of (elements, extra elements, cotangents of float values, states)."""

    algebra: Algebra
    apply: Traced
    elements: tuple[torch.dtype, ...]
    extras: tuple[torch.dtype, ...]

    @property
    def gradient(self) -> Gradient:
        """Of the fold."""
        return gradient_of(self.algebra, self.elements)

    @property
    def after(self) -> Any:
        """What is made of elements, results and extra elements."""
        return make_row_map(self.algebra, self.apply, self.elements, self.extras).apply

    @property
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

    def results_read(self) -> list[int]:
        """The results that have a cotangent here."""
        kept = list[int]()

        def run(*v: Any) -> int:
            made = self.cotangents(v)[len(self.elements) + len(self.extras) :]
            kept.extend(i for i in self.gradient.results if not is_zero(made[i]))
            return 0

        trace(run, self.arity)
        return kept

    def summed(self, which: tuple[int, ...]) -> Algebra:
        """The fold that sums cotangents."""
        return elementwise(self._chosen(which))

    def _chosen(self, which: tuple[int, ...]) -> Graph:
        def run(*v: Any) -> tuple[Any, ...]:
            made = self.cotangents(v)
            return tuple(as_float(made[i]) for i in which)

        return trace(run, self.arity)

    def direct(self, wrt: tuple[int, ...], lifted: bool = False) -> Graph:
        """Cotangents through the function alone, or (`lifted`) through each element's own state, too."""

        def run(*v: Any) -> tuple[Any, ...]:
            made = self.cotangents(v)
            if lifted:
                x, _, _, states = self._split(v)
                through = made[len(self.elements) + len(self.extras) :]
                gs = pullback(self.gradient.program.project, states, through)
                own = pullback(self.gradient.program.lift, x, gs)
                made[: len(x)] = [add(a, b) for a, b in zip(made, own, strict=False)]
            return tuple(as_float(made[i]) for i in wrt)

        return trace(run, self.arity)

    def of_row(self, wrt: tuple[int, ...]) -> Graph:
        """Of the sums of the results' cotangents besides: all of an element's own."""
        places = self.results_read()

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

        return trace(run, self.arity + len(places))

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


# ------------------------------------------------------------------------------------------------------------ scans


@dataclass(frozen=True)
class Scanned:
    """A scan as its backward needs it: of `count` inputs, then the fields of the state before each row."""

    monoid: Monoid
    dim: int
    exclusive: bool
    reverse: bool
    return_state: bool
    convert: torch.dtype | None
    guarantee: str
    count: int
    call: str = "scan"

    def moves(self, result: int, tensors: Sequence[Tensor]) -> bool:
        """Whether a result changes with an element."""
        gradient = _gradient(self.monoid, tensors[: self.count], self.convert)
        return result in gradient.results or result >= len(gradient.program.project.graph.outputs)

    def backward(self, tensors: Sequence[Tensor], grads: Sequence[Tensor], wrt: Sequence[int]) -> list[Any]:
        """The inputs' cotangents, and those of the state before each row."""
        gradient = _gradient(self.monoid, tensors[: self.count], self.convert)
        if not gradient.keeps_fields:
            raise GradientError(
                f"{self.call}: a scan of states whose fields depend on how they were grouped (sums about a pivot) has no "
                "derivative yet, got an input that requires grad; scan plain sums, or detach() the input"
            )
        shape = torch.broadcast_shapes(*(t.shape for t in tensors[: self.count]), (1,))
        dims = normalize_dims(self.dim, len(shape), self.call)
        wide = _Wide(tensors[: self.count], shape, dims, self.convert, self.guarantee)
        rows = [self._row(t, dims) for t in (*wide.elements, *_positions(gradient, shape, dims, tensors[0].device))]
        first = self._first(gradient, tensors[self.count :], shape, dims, rows[0])
        results = len(gradient.program.project.graph.outputs)
        of_prefixes = [self._row(grads[i].reshape(shape), dims) for i in gradient.results]
        after = [g.reshape(-1, 1) for g in grads[results:]]
        found, of_first = _adjoint(gradient, rows, first, of_prefixes, after, self.exclusive, self.guarantee)
        made = [_from_rows(t.flip(1) if self.reverse else t, shape, dims) for t in found[: self.count]]
        every = [*made, *(of_first[f].reshape([n for d, n in enumerate(shape) if d not in dims]) for f in range(len(tensors) - self.count))]
        return _as_inputs([every[i] for i in wrt], tensors, wrt)

    def _row(self, t: Tensor, dims: Sequence[int]) -> Tensor:
        made = _as_rows(t, dims)
        return made.flip(1) if self.reverse else made

    def _first(
        self, gradient: Gradient, init: Sequence[Tensor], shape: Sequence[int], dims: Sequence[int], like: Tensor
    ) -> list[Tensor]:
        """The state before each row, [rows, 1] a field."""
        dtypes, kept = gradient.program.state, [n for d, n in enumerate(shape) if d not in dims]
        if init:
            given = [t.to(d).expand(kept).reshape(-1, 1) for t, d in zip(init, dtypes, strict=False)]
            flag = [like.new_ones((like.shape[0], 1), dtype=torch.bool)] * (len(dtypes) - len(given))
            return [*given, *flag]
        numbers = zip(gradient.program.identity, dtypes, strict=True)
        return [like.new_full((like.shape[0], 1), n, dtype=d) for n, d in numbers]


def _adjoint(
    gradient: Gradient,
    x: Sequence[Tensor],
    first: Sequence[Tensor],
    of_results: Sequence[Tensor],
    of_last: Sequence[Tensor],
    exclusive: bool,
    guarantee: str,
) -> tuple[list[Tensor], list[Tensor]]:
    """Cotangents of elements, and of the state before each row (zeros of fields that have none): a scan the other way.

    With S_t = combine(S_t-1, s_t), J_t its derivative by S_t-1 and c_t the cotangent that S_t has by itself, the whole one is
    l_t = c_t + J_t+1' l_t+1. A field that no other depends on in a circle is a recurrence of its own.
    """
    n, floats = gradient.n, gradient.floats
    made = scans.scan_tensors(x, _monoid(gradient.states), 1, init=[f[:, 0] for f in first], guarantee=guarantee)
    made = [*made, *[torch.ones_like(made[0], dtype=torch.bool)] * (n - len(made))]
    before = [torch.cat([f.to(t.dtype), t[:, :-1]], 1) for f, t in zip(first, made, strict=True)]
    shown = before if exclusive else made
    of_shown = dict(zip(floats, _cells(_projects_graph(gradient), [*shown, *of_results]), strict=True))
    own = {f: _later(g) if exclusive else g for f, g in of_shown.items()}
    for f, g in enumerate(of_last):
        if f in own:
            own[f] = torch.cat([own[f][:, :-1], own[f][:, -1:] + g], 1)
    graph, entries = _steps_graph(gradient)
    cells = _cells(graph, [*before, *x])
    steps = {
        at: cells[k] if isinstance(k, int) else torch.full_like(own[floats[0]], k) for at, k in entries.items()
    }
    whole = _recurrences(floats, steps, {at for at, k in entries.items() if k == 1.0 and isinstance(k, float)}, own, guarantee)
    of_x = _cells(_inputs_graph(gradient), [*before, *x, *(whole[f] for f in floats)])
    found, made_x = list[Tensor](), iter(of_x)
    for dtype in gradient.program.lift.input_dtypes:
        found.append(next(made_x) if dtype.is_floating_point else x[0])
    of_first = []
    for h in range(n):
        g = of_shown[h][:, 0] if exclusive and h in of_shown else torch.zeros_like(of_x[0][:, 0]) if of_x else x[0][:, 0]
        for f in floats:
            if (f, h) in steps:
                g = g + steps[f, h][:, 0] * whole[f][:, 0]
        of_first.append(g)
    return found, of_first


def _later(t: Tensor) -> Tensor:
    """What stands at the next place, 0 behind the last one."""
    return torch.cat([t[:, 1:], torch.zeros_like(t[:, :1])], 1)


def _recurrences(
    floats: Sequence[int], steps: dict[tuple[int, int], Tensor], ones: set[tuple[int, int]], own: dict[int, Tensor],
    guarantee: str,
) -> dict[int, Tensor]:  # fmt: skip
    """The whole cotangents of each field, [rows, places]."""
    read = {h: {f for f in floats if (f, h) in steps} for h in floats}
    whole: dict[int, Tensor] = {}
    for group in circles(read):
        start = {}
        for h in group:
            start[h] = own[h]
            for f in read[h]:
                if f not in group:
                    start[h] = start[h] + _later(steps[f, h] * whole[f])
        (h, *others) = group
        if not others and h not in read[h]:
            whole[h] = start[h]
        elif not others and (h, h) in ones:
            (whole[h],) = scans.scan_tensors([start[h]], _monoid(_SUM), 1, reverse=True, guarantee=guarantee)
        else:
            zeros = torch.zeros_like(start[h])
            matrix = [_later(steps[f, g]) if (f, g) in steps else zeros for f in group for g in group]
            rows = [*matrix, *(start[g] for g in group)]
            made = scans.scan_tensors(rows, _monoid(affine(len(group))), 1, reverse=True, guarantee=guarantee)
            whole |= dict(zip(group, made[len(group) ** 2 :], strict=True))
    return whole


def circles(read: dict[int, set[int]]) -> list[list[int]]:
    """Fields that depend on each other in a circle, those that others read first."""
    reach = {h: set(f) for h, f in read.items()}
    for k in read:
        for h in read:
            if k in reach[h]:
                reach[h] |= reach[k]
    groups = {frozenset({h} | {f for f in reach[h] if h in reach[f]}) for h in read}
    return [sorted(g) for g in sorted(groups, key=lambda g: len(set().union(*(reach[h] for h in g)) | g))]


_SUM = elementwise(trace(lambda x: x, 1))


@kept_outside_modes(16)
def affine(m: int) -> Algebra:
    """Row vectors v -> v J + c of m fields, the first applied first: states (J, c)."""
    size = m * m + m

    def combine(*v: Any) -> tuple[Any, ...]:
        a, b = v[:size], v[size:]
        product = [sum_of(a[i * m + k] * b[k * m + j] for k in range(m)) for i in range(m) for j in range(m)]
        moved = [sum_of([*(a[m * m + k] * b[k * m + j] for k in range(m)), b[m * m + j]]) for j in range(m)]
        return (*product, *moved)

    ones = [float(i == j) for i in range(m) for j in range(m)]
    return replace(
        elementwise(trace(lambda *v: v, size)), combine=trace(combine, 2 * size), commutative=False,
        identity=tuple(f"float {x!r}" for x in [*ones, *[0.0] * m]),
    )  # fmt: skip


def sum_of(values: Any) -> Any:
    """A sum without a start."""
    first, *others = values
    for one in others:
        first = first + one
    return first


@kept_outside_modes(512)
def _projects_graph(gradient: Gradient) -> Graph:
    """(states, cotangents of the results) -> cotangents of the float fields."""
    n = gradient.n

    def run(*v: Any) -> tuple[Any, ...]:
        gs = pullback(gradient.program.project, v[:n], gradient.of_results(v[n:]))
        return tuple(as_float(gs[f]) for f in gradient.floats)

    return trace(run, n + len(gradient.results))


@kept_outside_modes(512)
def _steps_graph(gradient: Gradient) -> tuple[Graph, dict[tuple[int, int], float | int]]:
    """(state before, elements) -> the entries of J that vary."""
    n, (graph, entries) = gradient.n, gradient.jacobian
    lift = gradient.program.lift.graph
    return trace(lambda *v: graph(*v[:n], *lift(*v[n:])), n + lift.arity), entries


@kept_outside_modes(512)
def _inputs_graph(gradient: Gradient) -> Graph:
    """(state before, elements, whole cotangents of the float fields) -> cotangents of float elements."""
    n, lift, combine = gradient.n, gradient.program.lift, gradient.program.combine
    k = lift.graph.arity

    def run(*v: Any) -> tuple[Any, ...]:
        before, x, g = v[:n], v[n : n + k], iter(v[n + k :])
        whole = [next(g) if f in gradient.floats else 0 for f in range(n)]
        of_state = pullback(combine, [*before, *lift.graph(*x)], whole)[n:]
        found = pullback(lift, x, of_state)
        return tuple(as_float(c) for c, dtype in zip(found, lift.input_dtypes, strict=True) if is_float(dtype))

    return trace(run, n + k + len(gradient.floats))

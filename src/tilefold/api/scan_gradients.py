"""The backward of `scan`: a scan the other way, of the cotangents of states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tilefold.algebra.algebra import elementwise
from tilefold.algebra.derivatives.folds import Gradient
from tilefold.algebra.derivatives.linear import add, as_float, mul
from tilefold.algebra.derivatives.pullback import pullback
from tilefold.algebra.derivatives.separable import Separated
from tilefold.algebra.expression import trace
from tilefold.algebra.monoid import Monoid
from tilefold.algebra.typing import is_float
from tilefold.api import dispatch, separable_scans
from tilefold.api import scan as scans
from tilefold.api.differentiated import Call
from tilefold.api.ends import function_of, monoid_of_algebra
from tilefold.api.gradients import (
    Like,
    Wide,
    as_inputs,
    as_rows,
    cells,
    converted,
    from_rows,
    gradient_of_call,
    positions,
    scattered,
    states_of,
)
from tilefold.api.separable_scans import separated_of
from tilefold.errors import GradientError
from tilefold.monoids import SUM
from tilefold.planner.problem.canonical import broadcast_shape, normalize_dims
from tilefold.runtime.caching import kept_outside_modes
from tilefold.runtime.modes import has_none

GROUPED = "of states whose fields depend on how they were grouped (sums about a pivot)"


@dataclass(frozen=True)
class Scanned(Call):
    """A scan as its backward needs it: of `count` inputs, then the fields of the state before each row, all `like` these."""

    monoid: Monoid
    dim: int
    exclusive: bool
    reverse: bool
    convert: torch.dtype | None
    guarantee: str
    count: int
    returns_state: bool
    like: Sequence[Like]
    call: str = "scan"

    def check(self, tensors: Sequence[Tensor]) -> None:
        """Refuse a scan that has no derivative.

        Raises:
            GradientError: fields of its states depend on how they were grouped.
        """
        gradient = gradient_of_call(self.monoid, tensors[: self.count], self.convert)
        if not gradient.results or gradient.keeps_fields:
            return
        if self._separated(tensors) is None:
            raise GradientError(
                f"{self.call}: a scan {GROUPED} has no derivative unless the law shows a result's to be a polynomial of the "
                f"element (as of mean and var), got one of the fields {', '.join(gradient.algebra.fields)} and an input that "
                "requires grad; scan each part for itself, or detach() the input"
            )
        if self.returns_state:
            raise GradientError(
                f"{self.call}: the state after a scan {GROUPED} has no derivative, got return_state with an input that "
                "requires grad; detach() the input, or give chunks' results alone"
            )
        self.check_init([t if t.requires_grad else None for t in tensors[self.count :]])

    def check_init(self, moved: Sequence[Tensor | None]) -> None:
        """Refuse a derivative by the state before the elements, of which some fields are `moved`.

        Raises:
            GradientError: there are such fields.
        """
        if any(t is not None for t in moved):
            raise GradientError(
                f"{self.call}: the state before a scan {GROUPED} has no derivative, got one asked of `init`; detach() it"
            )

    def _separated(self, tensors: Sequence[Tensor | Like]) -> tuple[Gradient, Separated] | None:
        return separated_of(self.monoid, tuple([self.convert or t.dtype for t in tensors[: self.count]]))

    def moves(self, result: int, tensors: Sequence[Tensor]) -> bool:
        """Whether a result changes with an element or with the state before."""
        gradient = gradient_of_call(self.monoid, tensors[: self.count], self.convert)
        outputs = len(gradient.program.project.graph.outputs)
        return result in gradient.shown(len(tensors) > self.count) or result >= outputs

    def _chosen(self) -> int | None:
        """The result that says which elements the prefixes are, where they are elements and no more is asked for.

        On a GPU sums over positions would follow the order in which threads add.
        """
        if self.exclusive or self.returns_state or len(self.like) > 1 or self.like[0].device.type != "cpu":
            return None
        return gradient_of_call(self.monoid, self.like, self.convert).origins

    def saved(
        self, tensors: Sequence[Tensor], made: Sequence[Tensor], wrt: Sequence[int]
    ) -> Sequence[Tensor]:
        """What is saved: the inputs, or the positions of what was chosen of them, or of sums of elements nothing."""
        origins = self._chosen()
        if origins is not None:
            return [made[origins]]
        gradient = gradient_of_call(self.monoid, self.like[: self.count], self.convert)
        begins = len(self.like) > self.count
        return tensors if not gradient.keeps_fields or _reads_elements(gradient, begins) else []

    def backward(self, tensors: Sequence[Tensor], grads: Sequence[Tensor], wrt: Sequence[int]) -> list[Any]:
        """The inputs' cotangents, and those of the state before each row."""
        if self._chosen() is not None:
            (shown,) = gradient_of_call(self.monoid, self.like, self.convert).results
            shape = tuple(self.like[0].shape) or (1,)
            where, g = tensors[0].reshape(shape), grads[shown].reshape(shape)
            dims = normalize_dims(self.dim, len(shape), self.call)
            return as_inputs([scattered(where, g, shape, dims, adds=True)], self.like, wrt)
        if not tensors:  # whose values are not read
            tensors = [
                dispatch.constant(grads[0].new_zeros((), dtype=t.dtype)).expand(t.shape) for t in self.like
            ]
        gradient = gradient_of_call(self.monoid, tensors[: self.count], self.convert)
        shape = broadcast_shape(tensors[: self.count], self.call) or (1,)
        if has_none(shape):
            return [torch.zeros_like(t) if i in wrt else None for i, t in enumerate(tensors)]
        dims = normalize_dims(self.dim, len(shape), self.call)
        if not gradient.keeps_fields:
            return as_inputs(self._by_prefixes(tensors, grads, shape, dims, wrt), tensors, wrt)
        wide = Wide(tensors[: self.count], shape, dims, self.convert, self.guarantee)
        rows = [
            self._row(t, dims) for t in (*wide.elements, *positions(gradient, shape, dims, tensors[0].device))
        ]
        first = self._first(gradient, tensors[self.count :], shape, dims, rows[0])
        results = len(gradient.program.project.graph.outputs)
        begins = len(tensors) > self.count
        of_prefixes = [self._row(grads[i].reshape(shape), dims) for i in gradient.shown(begins)]
        after = [g.reshape(-1, 1) for g in grads[results:]]
        found, of_first = _adjoint(
            gradient, rows, first, begins, of_prefixes, after, self.exclusive, self.guarantee
        )
        made = [from_rows(_turned(t) if self.reverse else t, shape, dims) for t in found[: self.count]]
        every = [
            *made,
            *(
                of_first[f].reshape([n for d, n in enumerate(shape) if d not in dims])
                for f in range(len(tensors) - self.count)
            ),
        ]
        return as_inputs([every[i] for i in wrt], tensors, wrt)

    def _by_prefixes(
        self, tensors: Sequence[Tensor], grads: Sequence[Tensor], shape: Sequence[int], dims: Sequence[int],
        wrt: Sequence[int],
    ) -> list[Tensor]:  # fmt: skip
        """Cotangents of some inputs, where those of prefixes' results are enough."""
        x, init, (gradient, found) = self.widened(tensors, shape, dims)
        g = [
            converted(self._row(grads[i].reshape(shape), dims), separable_scans.WIDE)
            for i in gradient.results
        ]
        g = [_later(t) for t in g] if self.exclusive else g
        made = separable_scans.backward((gradient, found), x, init, g, self.guarantee)
        of_inputs = dict(zip(sorted({i for i, _ in found.sums()}), made, strict=True))
        every = [of_inputs[i] if i in of_inputs else torch.zeros_like(x[i]) for i in wrt]
        return [from_rows(_turned(t) if self.reverse else t, shape, dims) for t in every]

    def moved_by_prefixes(
        self, tensors: Sequence[Tensor], given: Sequence[Tensor | None], shape: Sequence[int], dims: Sequence[int],
        found: list[Tensor | None],
    ) -> list[Tensor | None]:  # fmt: skip
        """Tangents of the results, put into `found`.

        Raises:
            GradientError: one is asked by the state before.
        """
        self.check_init(given[self.count :])
        x, init, form = self.widened(tensors, shape, dims)
        moved = [
            torch.zeros_like(e) if t is None else converted(self._row(t.expand(shape), dims), e.dtype)
            for t, e in zip(given, x, strict=False)
        ]
        made = separable_scans.pushed(form, x, init, moved, self.guarantee)
        for place, t in zip(form[0].results, made, strict=True):
            shown = _earlier(torch.zeros_like(t[:, :1]), t) if self.exclusive else t
            found[place] = from_rows(_turned(shown) if self.reverse else shown, shape, dims)
        return found

    def widened(
        self, tensors: Sequence[Tensor], shape: Sequence[int], dims: Sequence[int]
    ) -> tuple[list[Tensor], list[Tensor] | None, tuple[Gradient, Separated]]:
        """The elements and the state before each row as `separable_scans` takes them, and what is derived of them."""
        form = self._separated(tensors)
        assert form is not None
        elements = [converted(t, self.convert or t.dtype) for t in tensors[: self.count]]
        x = [converted(self._row(t.expand(shape), dims), separable_scans.widened(t.dtype)) for t in elements]
        init = tensors[self.count :]
        return x, [f[:, 0] for f in self._first(form[0], init, shape, dims, x[0])] if init else None, form

    def _row(self, t: Tensor, dims: Sequence[int]) -> Tensor:
        made = as_rows(t, dims)
        return _turned(made) if self.reverse else made

    def _first(
        self,
        gradient: Gradient,
        init: Sequence[Tensor],
        shape: Sequence[int],
        dims: Sequence[int],
        like: Tensor,
    ) -> list[Tensor]:
        """The state before each row, [rows, 1] a field."""
        dtypes, kept = gradient.program.state, [n for d, n in enumerate(shape) if d not in dims]
        if init:
            given = [t.to(d).expand(kept).reshape(-1, 1) for t, d in zip(init, dtypes, strict=False)]
            flag = [like.new_ones((like.shape[0], 1), dtype=torch.bool)] * (len(dtypes) - len(given))
            return [*given, *flag]
        numbers = zip(gradient.program.identity, dtypes, strict=True)
        return [dispatch.constant(like.new_full((like.shape[0], 1), n, dtype=d)) for n, d in numbers]


def pushed(
    call: Scanned, tensors: Sequence[Tensor], given: Sequence[Tensor | None]
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Tangents of the results, and of the fields of the state after each row, of those of the inputs and of the state before.

    dS_t = J_t dS_t-1 + own_t: the recurrence that a backward goes the other way, `own` being what an element's tangent adds.
    """
    gradient = gradient_of_call(call.monoid, tensors[: call.count], call.convert)
    shape = broadcast_shape(tensors[: call.count], call.call) or (1,)
    results = len(gradient.program.project.graph.outputs)
    dims = normalize_dims(call.dim, len(shape), call.call)
    kept = [n for d, n in enumerate(shape) if d not in dims]
    wide = Wide(tensors[: call.count], shape, dims, call.convert, call.guarantee)
    found: list[Tensor | None] = [None] * results
    if has_none(shape) or not gradient.floats:
        return found, [None] * gradient.n
    if not gradient.keeps_fields:
        return call.moved_by_prefixes(tensors, given, shape, dims, found), [None] * gradient.n
    x = [call._row(t, dims) for t in (*wide.elements, *positions(gradient, shape, dims, tensors[0].device))]
    moved = [
        torch.zeros_like(e) if t is None else converted(call._row(t.expand(shape), dims), e.dtype)
        for t, e in zip(given[: call.count], x, strict=False)
        if e.is_floating_point()
    ]
    first = call._first(gradient, tensors[call.count :], shape, dims, x[0])
    before_rows = [f[:, 0] for f in first]
    made = scans.scan_tensors(x, states_of(gradient), 1, init=before_rows, guarantee=call.guarantee)
    before = [_earlier(f, t) for f, t in zip(first, made, strict=True)]
    own = dict(zip(gradient.floats, cells(_added(gradient), [*before, *x, *moved]), strict=True))
    varying, entries = _steps(gradient)
    each = cells(varying, [*before, *x]) if any(isinstance(k, int) for k in entries.values()) else []
    like = own[gradient.floats[0]]
    steps = {at: each[k] if isinstance(k, int) else torch.full_like(like, k) for at, k in entries.items()}
    of_init = dict(enumerate(given[call.count :]))
    start = {
        f: torch.zeros_like(like[:, :1]) if (t := of_init.get(f)) is None else t.to(like.dtype).expand(kept).reshape(-1, 1)
        for f in gradient.floats
    }  # fmt: skip
    for (f, h), step in steps.items():
        own[f] = torch.cat([own[f][:, :1] + step[:, :1] * start[h], own[f][:, 1:]], 1)
    ones = {(h, f) for (f, h), k in entries.items() if isinstance(k, float) and k == 1.0}
    turned = {(h, f): _later(step).flip(1) for (f, h), step in steps.items()}
    flipped = {f: t.flip(1) for f, t in own.items()}
    whole = {
        f: t.flip(1) for f, t in _recurrences(gradient.floats, turned, ones, flipped, call.guarantee).items()
    }
    shown, moved_states = made, whole
    if call.exclusive:
        shown, moved_states = before, {f: _earlier(start[f], t) for f, t in whole.items()}
    function, places = _projected(gradient, len(tensors) > call.count)
    if places:
        pairs = cells(function, [*shown, *(moved_states[f] for f in gradient.floats)])
        for place, t in zip(places, pairs, strict=True):
            found[place] = from_rows(t.flip(1) if call.reverse else t, shape, dims)
    return found, [whole[f][:, -1].reshape(kept) if f in whole else None for f in range(gradient.n)]


@kept_outside_modes(512)
def _added(gradient: Gradient) -> Monoid:
    """(state before, elements, tangents of float elements) -> what these add to the tangents of float fields."""
    n, lift, combine = gradient.n, gradient.program.lift, gradient.program.combine
    k = lift.graph.arity

    def run(*v: Any) -> tuple[Any, ...]:
        before, x, moved, made = v[:n], v[n : n + k], v[n + k :], []
        floats = [i for i, dtype in enumerate(lift.input_dtypes) if is_float(dtype)]
        for f in gradient.floats:
            slopes = pullback(combine, [*before, *lift.graph(*x)], [float(i == f) for i in range(n)])[n:]
            slopes = pullback(lift, x, [s if g in gradient.floats else 0 for g, s in enumerate(slopes)])
            total: Any = 0
            for i, t in zip(floats, moved, strict=True):
                total = add(total, mul(slopes[i], t))
            made.append(as_float(total))
        return tuple(made)

    arity = n + k + sum(map(is_float, lift.input_dtypes))
    return function_of(trace(run, arity))


@kept_outside_modes(512)
def _projected(gradient: Gradient, begins: bool) -> tuple[Monoid, tuple[int, ...]]:
    """(states, tangents of the float fields) -> tangents of the results that have some; and which these are."""
    n, project = gradient.n, gradient.program.project
    count, kept = len(project.graph.outputs), list[int]()

    def run(*v: Any) -> tuple[Any, ...]:
        kept.clear()
        made = []
        for r in gradient.shown(begins):
            slopes = pullback(project, v[:n], [float(i == r) for i in range(count)])
            total: Any = 0
            for f, t in zip(gradient.floats, v[n:], strict=True):
                total = add(total, mul(slopes[f], t))
            kept.append(r)
            made.append(as_float(total))
        return tuple(made) or (0.0,)

    return function_of(trace(run, n + len(gradient.floats))), tuple(kept)


def _adjoint(
    gradient: Gradient,
    x: Sequence[Tensor],
    first: Sequence[Tensor],
    begins: bool,
    of_results: Sequence[Tensor],
    of_last: Sequence[Tensor],
    exclusive: bool,
    guarantee: str,
) -> tuple[list[Tensor], list[Tensor]]:
    """Cotangents of elements, and of a state that `begins` rows (zeros of fields that have none): a scan the other way.

    With S_t = combine(S_t-1, s_t), J_t its derivative by S_t-1 and c_t the cotangent that S_t has by itself, the whole one is
    l_t = c_t + J_t+1' l_t+1. A field that no other depends on in a circle is a recurrence of its own.
    """
    n, floats = gradient.n, gradient.floats
    before = made = [f.expand(x[0].shape) for f in first]
    if _reads_states(gradient, begins):
        before_rows = [f[:, 0] for f in first] if begins else None
        made = scans.scan_tensors(x, states_of(gradient), 1, init=before_rows, guarantee=guarantee)
        before = [_earlier(f, t) for f, t in zip(first, made, strict=True)]
    shown = before if exclusive else made
    of_shown = dict(zip(floats, cells(_of_states(gradient, begins), [*shown, *of_results]), strict=True))
    own = {f: _later(g) if exclusive else g for f, g in of_shown.items()}
    for f, g in enumerate(of_last):
        if f in own:
            (own[f],) = dispatch.noted(_with_last, own[f], g)
    varying, entries = _steps(gradient)
    each = cells(varying, [*before, *x]) if any(isinstance(k, int) for k in entries.values()) else []
    like = own[floats[0]]
    steps = {
        at: each[k] if isinstance(k, int) else dispatch.constant(like.new_full((), k)).expand(like.shape)
        for at, k in entries.items()
    }
    ones = {at for at, k in entries.items() if isinstance(k, float) and k == 1.0}
    whole = _recurrences(floats, steps, ones, own, guarantee)
    of_x = iter(cells(_of_inputs(gradient), [*before, *x, *(whole[f] for f in floats)]))
    found = [next(of_x) if is_float(dtype) else like for dtype in gradient.program.lift.input_dtypes]
    of_first = []
    for h in range(n if begins else 0):
        g = of_shown[h][:, 0] if exclusive and h in of_shown else torch.zeros_like(like[:, 0])
        for f in floats:
            if (f, h) in steps:
                g = g + steps[f, h][:, 0] * whole[f][:, 0]
        of_first.append(g)
    return found, of_first


@kept_outside_modes(512)
def _reads_states(gradient: Gradient, begins: bool) -> bool:
    """Whether prefixes are needed at all: those of a sum are not."""
    functions = _of_states(gradient, begins), _steps(gradient)[0], _of_inputs(gradient)
    return any(place < gradient.n for function in functions for place in _places(function))


@kept_outside_modes(512)
def _reads_elements(gradient: Gradient, begins: bool) -> bool:
    """Whether elements, or the state before them, are needed."""
    end = gradient.n + gradient.program.lift.graph.arity
    functions = _steps(gradient)[0], _of_inputs(gradient)
    return _reads_states(gradient, begins) or any(place < end for f in functions for place in _places(f))


def _places(function: Monoid) -> set[int]:
    """Which of its arguments a function reads."""
    graph = function.algebra.lift
    return {place for output in range(len(graph.outputs)) for place in graph.reads(output)}


def _later(t: Tensor) -> Tensor:
    """What stands at the next place, 0 behind the last one."""
    return dispatch.noted(lambda t: [torch.cat([t[:, 1:], torch.zeros_like(t[:, :1])], 1)], t)[0]


def _earlier(first: Tensor, t: Tensor) -> Tensor:
    """What stands at the place before, at the first one what comes first."""
    return dispatch.noted(lambda f, t: [torch.cat([f.to(t.dtype), t[:, :-1]], 1)], first, t)[0]


def _turned(t: Tensor) -> Tensor:
    """The places the other way round."""
    return dispatch.noted(lambda t: [t.flip(1)], t)[0]


def _with_last(own: Tensor, g: Tensor) -> list[Tensor]:
    """The last place's own cotangent, and that of the state after it."""
    return [torch.cat([own[:, :-1], own[:, -1:] + g], 1)]


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
                    (later,) = dispatch.noted(lambda a, b: [a * b], steps[f, h], whole[f])
                    (start[h],) = dispatch.noted(lambda a, b: [a + b], start[h], _later(later))
        (h, *others) = group
        if not others and h not in read[h]:
            whole[h] = start[h]
        elif not others and (h, h) in ones:
            (whole[h],) = scans.scan_tensors([start[h]], SUM, 1, reverse=True, guarantee=guarantee)
        else:
            zeros = dispatch.constant(torch.zeros_like(start[h]))
            matrix = [_later(steps[f, g]) if (f, g) in steps else zeros for f in group for g in group]
            rows = [*matrix, *(start[g] for g in group)]
            made = scans.scan_tensors(rows, affine(len(group)), 1, reverse=True, guarantee=guarantee)
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


@kept_outside_modes(16)
def affine(m: int) -> Monoid:
    """Row vectors v -> v J + c of m fields, the first applied first: states (J, c)."""
    size = m * m + m

    def combine(*v: Any) -> tuple[Any, ...]:
        a, b = v[:size], v[size:]
        product = [sum_of(a[i * m + k] * b[k * m + j] for k in range(m)) for i in range(m) for j in range(m)]
        moved = [sum_of([*(a[m * m + k] * b[k * m + j] for k in range(m)), b[m * m + j]]) for j in range(m)]
        return (*product, *moved)

    ones = [float(i == j) for i in range(m) for j in range(m)]
    algebra = replace(
        elementwise(trace(lambda *v: v, size)), combine=trace(combine, 2 * size), commutative=False,
        identity=tuple(f"float {x!r}" for x in [*ones, *[0.0] * m]),
    )  # fmt: skip
    return monoid_of_algebra(algebra)


def sum_of(values: Any) -> Any:
    """A sum without a start."""
    first, *others = values
    for one in others:
        first = first + one
    return first


@kept_outside_modes(512)
def _of_states(gradient: Gradient, begins: bool) -> Monoid:
    """(states, cotangents of the results) -> cotangents of the float fields."""
    n = gradient.n

    def run(*v: Any) -> tuple[Any, ...]:
        gs = pullback(gradient.program.project, v[:n], gradient.of_results(v[n:], begins))
        return tuple(as_float(gs[f]) for f in gradient.floats)

    return function_of(trace(run, n + len(gradient.shown(begins))))


@kept_outside_modes(512)
def _steps(gradient: Gradient) -> tuple[Monoid, dict[tuple[int, int], float | int]]:
    """(state before, elements) -> the entries of J that vary."""
    n, (graph, entries) = gradient.n, gradient.jacobian
    lift = gradient.program.lift.graph
    return function_of(trace(lambda *v: graph(*v[:n], *lift(*v[n:])), n + lift.arity)), entries


@kept_outside_modes(512)
def _of_inputs(gradient: Gradient) -> Monoid:
    """(state before, elements, whole cotangents of the float fields) -> cotangents of float elements."""
    n, lift, combine = gradient.n, gradient.program.lift, gradient.program.combine
    k = lift.graph.arity

    def run(*v: Any) -> tuple[Any, ...]:
        before, x, g = v[:n], v[n : n + k], iter(v[n + k :])
        whole = [next(g) if f in gradient.floats else 0 for f in range(n)]
        of_state = pullback(combine, [*before, *lift.graph(*x)], whole)[n:]
        found = pullback(lift, x, of_state)
        return tuple(
            as_float(c) for c, dtype in zip(found, lift.input_dtypes, strict=True) if is_float(dtype)
        )

    return function_of(trace(run, n + k + len(gradient.floats)))

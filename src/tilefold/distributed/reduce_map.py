"""`tilefold.distributed.reduce_map`: a sharded fold, and each rank's map of its own part.

Backward is the same again: a sharded fold of what cotangents sum to along each row, and a map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tilefold import monoids
from tilefold.algebra.dtypes import promote
from tilefold.algebra.expression import Graph, trace
from tilefold.algebra.monoid import Monoid, monoid_of
from tilefold.algebra.typing import compute_dtype
from tilefold.api import dispatch
from tilefold.api.differentiated import Call, at_places
from tilefold.api.ends import function_of, monoid_of_algebra
from tilefold.api.gradients import converted
from tilefold.api.map_rules import Rules, rules_of
from tilefold.api.parts import Dtypes
from tilefold.api.recorded import asks_gradient
from tilefold.api.reduce_map import as_extras, expanded_to, function_of_rows, map_tensors
from tilefold.distributed.agreement import asks_gradients
from tilefold.distributed.exchange import Step, again
from tilefold.distributed.gradient import check_order, check_tangents, differentiated
from tilefold.distributed.reduce import Axes, Sharded, agreed, fold_of_text
from tilefold.errors import GradientError
from tilefold.functional.arguments import NEEDED
from tilefold.planner.problem.canonical import broadcast_shape, normalize_dims
from tilefold.planner.problem.validate import as_dtype, as_inputs, check_inputs, check_tensors
from tilefold.planner.products.functions import Traced, of_text
from tilefold.planner.products.row import make_row_map
from tilefold.runtime.caching import kept_outside_modes
from tilefold.runtime.modes import as_widened
from tilefold.runtime.uncompiled import constant_in_graphs

CALL = "distributed.reduce_map"
Name = tuple[str, int]


def reduce_map(
    inputs: Tensor | Sequence[Tensor],
    monoid: Monoid,
    apply: Callable[..., Any],
    dim: int | Sequence[int] | None = None,
    *,
    sharded_dim: Axes = NEEDED,
    extras: Tensor | Sequence[Tensor] = (),
    rows: Callable[..., Any] | None = None,
    group: Any = None,
    mesh: Any = None,
    guarantee: str = "run_to_run",
) -> Any:
    """Fold a tensor of which each rank of a group holds a part, and make something of every element: `tilefold.reduce_map`.

    Each rank folds its own part, the states are gathered by one exchange, and each rank maps its part with the results of all
    parts. It reads its elements twice, and writes the map's once. Every rank of the group must make the call.

    Args:
        inputs, sharded_dim, group, mesh: as in `tilefold.distributed.reduce`.
        monoid, apply, dim, rows: as in `tilefold.reduce_map`. A monoid that takes positions gets those of the whole tensor.
        extras: further tensors that broadcast to this rank's part and are not folded: of a tensor that lies along the
            sharded dim, as a weight, this rank's part.
        guarantee: as in `tilefold.reduce`, for all folds.

    Returns:
        This rank's part of `tilefold.reduce_map`'s results; what `rows` gives is the same on every rank.
        The exchange moves the states, as in `tilefold.distributed.reduce`.

        Gradients: cotangents of elements are this rank's, those of `rows` the same on every rank. Each rank gets the gradient
        of its own part, by one exchange of what is summed along each row: 4 bytes (of float64 8) for each result of the fold
        that `apply` reads. An extra tensor gets what this rank's elements have to do with it: where all ranks have the same
        one, add these up. There is no second derivative.

    Raises:
        As `tilefold.reduce_map` and `tilefold.distributed.reduce`; and
        GradientError: a gradient is asked of a fold whose elements' derivatives need more than its total (of a maximum, of a
            monoid that does not commute).

    Example:
        >>> share = lambda x, total: x / total
        >>> tilefold.distributed.reduce_map(shard, tilefold.monoids.SUM, share, 1, sharded_dim=1)  # doctest: +SKIP
    """
    tensors, beside = as_inputs(inputs, monoid, CALL), as_extras(extras)
    applied = function_of_rows(tensors, monoid, apply, beside, rows)
    made = map_shards(
        tensors, monoid, applied, dim, extras=beside, sharded_dim=sharded_dim, group=group, mesh=mesh, guarantee=guarantee
    )  # fmt: skip
    return made[0] if len(made) == 1 else tuple(made)


def map_shards(
    tensors: Sequence[Tensor],
    monoid: Monoid,
    apply: Traced,
    dim: int | Sequence[int] | None,
    *,
    sharded_dim: Axes = NEEDED,
    extras: Sequence[Tensor] = (),
    convert: torch.dtype | None = None,
    group: Any = None,
    mesh: Any = None,
    guarantee: str = "run_to_run",
    call: str = CALL,
    names: Sequence[str | None] | None = None,
    length: int = 0,
) -> list[Tensor]:
    """`reduce_map` of a function that was run, without packing. `convert` reads every element as that dtype.

    `length`: how many elements a row has on all ranks, where that is known; a function's own backward may read it.
    """
    every, count = [*tensors, *extras], len(tensors)
    rest = (monoid, apply, count, convert, guarantee, length)
    key, known = again(every, call, dim, rest, sharded_dim, group, mesh)
    if known is not None:
        return known
    names = (*[None] * count, *["extras"] * len(extras)) if names is None else names
    check_inputs(tensors, monoid, guarantee, call, names[:count], differentiable=True)
    check_tensors(every, call, names=names, differentiable=True)
    convert = as_dtype(convert, call) or as_widened(call.removeprefix("distributed."), tensors)
    shape = broadcast_shape(tensors, call)
    dims = normalize_dims(dim, len(shape), call)
    facts = {
        "monoid": monoid, "dim": dims, "read as": convert, "function": apply.text,
        "dtype of extra tensors": [t.dtype for t in extras],
        "what requires grad": asks_gradients(every),
    }  # fmt: skip
    steps = agreed(tensors, shape, sharded_dim, group, mesh, guarantee, facts, call)
    steps = tuple([step for step in steps if step.axis in dims])
    if not steps:
        return map_tensors(
            tensors,
            monoid,
            apply,
            dims,
            extras=extras,
            convert=convert,
            guarantee=guarantee,
            call=call,
            names=names,
        )
    check_tangents(every, call)
    # A wider dtype is the results' alone: elements are read as they are.
    if convert is not None and any(promote(t.dtype, convert) != convert for t in tensors):
        key = None  # which is of the tensors as they are given
        every[:count] = [t if promote(t.dtype, convert) == convert else t.to(convert) for t in tensors]
    for t in extras:
        expanded_to(shape, t, call)
    wrt = tuple([i for i, t in enumerate(every) if t.requires_grad]) if asks_gradient(every) else ()
    shards = Shards(
        monoid.text, apply.text, count, tuple([convert or t.dtype for t in tensors]), tuple([t.dtype for t in extras]),
        dims, steps, guarantee, wrt, length, call, tuple([t.shape for t in every]), tuple([t.dtype for t in every]),
    )  # fmt: skip
    return (
        differentiated(shards, shards.run, every, key) if wrt else dispatch.replayed(key, shards.run, every)
    )


@dataclass(frozen=True)
class Shards(Call):
    """A map over a sharded dim: of `count` tensors that are folded, then extra ones. Those at `wrt` ask for a gradient."""

    monoid: str
    apply: str
    count: int
    elements: Dtypes
    extras: Dtypes
    dims: tuple[int, ...]
    steps: tuple[Step, ...]
    guarantee: str
    wrt: tuple[int, ...]
    length: int
    call: str
    sizes: tuple[Any, ...]
    dtypes: Dtypes

    @property
    def _parts(self) -> tuple[str, str, Dtypes, Dtypes]:
        return self.monoid, self.apply, self.elements, self.extras

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """What is made of elements, and the values of rows: those that were asked for, then those that backward reads."""
        text, function, results, dtypes = _forward(*self._parts, bool(self.wrt), self.call)
        x, beside = tensors[: self.count], tensors[self.count :]
        rows = self._folded(text, x)
        values = self._wide([*x, *rows[:results], *beside], x)
        return [*self._each(values, function, dtypes), *rows[results:]]

    def given(self, made: list[Tensor]) -> list[Tensor]:
        """Those that were asked for."""
        return made[: _asked(*self._parts)]

    def moves(self, result: int, tensors: Sequence[Tensor]) -> bool:
        """Whether it was asked for: what backward reads is no caller's."""
        return result < _asked(*self._parts)

    def saved(self, tensors: Sequence[Tensor], made: Sequence[Tensor], wrt: Sequence[int]) -> list[Tensor]:
        """What backward reads, beside cotangents."""
        n = _results(*self._parts)
        every = {
            "input": tensors[: self.count],
            "extra": tensors[self.count :],
            "result": made[:n],
            "row": made[n:],
        }
        reads = _reads(*self._parts, self.wrt)
        return [every[kind][i] for kind, i in reads if kind in every]

    def backward(self, saved: Sequence[Tensor], grads: Sequence[Any], wrt: Sequence[int]) -> list[Any]:
        """The cotangents of the tensors at `wrt`."""
        check_order(self.call, "map")
        sizes, dtypes = self.sizes, self.dtypes
        shape = torch.broadcast_shapes(*sizes[: self.count])  # type: ignore[no-untyped-call]  # torch's own
        whole = tuple([i for i in self.wrt if i < self.count or sizes[i] == shape])
        summed = tuple([i for i in self.wrt if i not in whole])
        terms, cotangents, alone = _backward(*self._parts, self.wrt, whole, summed)
        kept, results = iter(saved), _results(*self._parts)
        values = []
        for kind, i in _reads(*self._parts, self.wrt):
            if kind == "length":
                number = grads[0].new_full((), self.length, dtype=compute_dtype(grads[0].dtype))
                value = number if is_dynamo_compiling() else dispatch.constant(number)
            elif kind in ("of_result", "of_row"):
                value = grads[i if kind == "of_result" else results + i]
            else:
                value = next(kept)
            values.append(value.expand(shape))
        sums = self._folded(terms, values) if terms else []
        given = [*values, *(t.expand(shape) for t in sums)]
        wanted = tuple([dtypes[i] for i in whole])
        found = dict(zip(whole, self._each(given, cotangents, wanted), strict=True)) if whole else {}
        for i in whole:
            if sizes[i] != shape:
                found[i] = self._over_repeated(found[i], monoids.SUM.text, sizes[i], shape, dtypes[i])
        for i, text in zip(summed, alone, strict=True):
            found[i] = self._over_repeated(values, text, sizes[i], shape, dtypes[i])
        return at_places([found[i] for i in self.wrt], self.wrt, len(sizes))

    def _folded(self, text: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The fold of all ranks' elements."""
        fold = Sharded(text, self.dims, True, self.steps, None, None, self.guarantee, False)
        return fold.computed(tensors)

    def _wide(self, tensors: Sequence[Tensor], x: Sequence[Tensor]) -> list[Tensor]:
        shape = broadcast_shape(x, self.call)
        return [t.expand(shape) for t in tensors]

    def _each(self, tensors: Sequence[Tensor], function: str, dtypes: Dtypes) -> list[Tensor]:
        """A function of each element."""
        alike = dtypes[0] if len(set(dtypes)) == 1 and dtypes[0].is_floating_point else None
        made = fold_of_text(tensors, function, (), False, alike, None, self.guarantee)
        return [converted(t, d) for t, d in zip(made, dtypes, strict=True)]

    def _over_repeated(
        self, tensors: Tensor | Sequence[Tensor], text: str, size: Sequence[int], shape: Sequence[int], dtype: torch.dtype
    ) -> Tensor:  # fmt: skip
        """A fold of this rank's elements over the dims along which a tensor of that size was repeated."""
        given = [tensors] if isinstance(tensors, Tensor) else tensors
        wide = [*[1] * (len(shape) - len(size)), *size]
        repeated = tuple([d for d, n in enumerate(shape) if wide[d] != n])
        (made,) = fold_of_text(given, text, repeated, True, dtype, None, self.guarantee)
        return made.reshape(size)


# -------------------------------------------------------------------------------------------------- constants of graphs


@constant_in_graphs
@kept_outside_modes(512)
def _forward(
    monoid: str, apply: str, elements: Dtypes, extras: Dtypes, saves: bool, call: str
) -> tuple[str, str, int, Dtypes]:
    """The fold whose results are those that the map reads, then the values of rows; the map; how many it reads, and the
    dtypes of what it makes.

    Raises:
        DtypeError: the monoid folds no such elements.
        GradientError: `saves`, and elements' derivatives need more than the values of their row.
    """
    rules = _rules(monoid, apply, elements, extras)
    if saves and not rules.needs_row_alone:
        raise GradientError(
            f"{call}: over a sharded dim a map has a derivative where those of its fold need the total alone, got "
            f"a fold of {rules.gradient.n} fields that need more; call it under torch.no_grad(), or fold with `reduce`"
        )
    own, function = rules.saving if saves else (rules.monoid, rules.apply)
    row = make_row_map(own.total, function, elements, extras)
    total, more = own.total, function.rows
    n = len(total.fields)
    project = total.project or trace(lambda *s: s, n)

    def results(*state: Any) -> tuple[Any, ...]:
        made = project(*state)
        return (*made, *(more(*made) if more is not None else ()))

    fold = monoid_of_algebra(replace(total, project=trace(results, n), quick=None))
    return fold.text, function_of(function.graph).text, len(project.outputs), row.results


def _rules(monoid: str, apply: str, elements: Dtypes, extras: Dtypes) -> Rules:
    return rules_of(monoid_of(monoid), of_text(apply), elements, extras)


@constant_in_graphs
@kept_outside_modes(512)
def _results(monoid: str, apply: str, elements: Dtypes, extras: Dtypes) -> int:
    """How many values the map makes of each element."""
    return _rules(monoid, apply, elements, extras).results


def _plan(monoid: str, apply: str, elements: Dtypes, extras: Dtypes, wrt: tuple[int, ...]) -> Any:
    rules = _rules(monoid, apply, elements, extras)
    asked = (True,) * rules.results + tuple(i < rules.asked for i in range(rules.rows))
    return rules.backward(wrt, asked)


@constant_in_graphs
@kept_outside_modes(512)
def _reads(
    monoid: str, apply: str, elements: Dtypes, extras: Dtypes, wrt: tuple[int, ...]
) -> tuple[Name, ...]:
    """The values that the backward reads, by kind."""
    values = _rules(monoid, apply, elements, extras).values
    return tuple(values[p] for p in _plan(monoid, apply, elements, extras, wrt).reads)


@constant_in_graphs
@kept_outside_modes(512)
def _backward(
    monoid: str, apply: str, elements: Dtypes, extras: Dtypes, wrt: tuple[int, ...], whole: tuple[int, ...],
    summed: tuple[int, ...],
) -> tuple[str, str, tuple[str, ...]]:  # fmt: skip
    """Of those values: the fold along each row; with its results, the cotangents of `whole`; folds to those of `summed`."""
    plan = _plan(monoid, apply, elements, extras, wrt)
    made = plan.made
    outputs = tuple(made.outputs[wrt.index(i)] for i in whole)
    cotangents = trace(Graph(made.arity, made.nodes, outputs), made.arity) if whole else None
    alone = [plan.alone((wrt.index(i),)) for i in summed]
    return (
        plan.summed().text if plan.terms.outputs else "",
        "" if cotangents is None else function_of(cotangents).text,
        tuple(one.text for one in alone),
    )


@constant_in_graphs
@kept_outside_modes(512)
def _asked(monoid: str, apply: str, elements: Dtypes, extras: Dtypes) -> int:
    """How many values the caller asked for: of each element, and of each row."""
    rules = _rules(monoid, apply, elements, extras)
    return rules.results + rules.asked

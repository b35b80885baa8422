"""The graphs of a map's backward: what is summed along each row, and what is then made of each element.

A rule's values are, in this order, one of each:

    elements of the inputs, of extra tensors, of results; cotangents of results; values of the row; cotangents of these;
    the row's length

A function with a rule of its own has it as three graphs (`Traced.rule`): of the fold's results the row's values, of a rule's
values what is summed, and of these and the sums the cotangents of inputs and extra tensors. Of all other functions it is
derived: the row's values are those that the caller asks for, then the state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tilefold.algebra.algebra import finished
from tilefold.algebra.derivatives.folds import Gradient
from tilefold.algebra.derivatives.linear import add, as_float, div, is_zero, mul, neg
from tilefold.algebra.derivatives.pullback import pullback
from tilefold.algebra.expression import Graph, apply, trace
from tilefold.algebra.monoid import Monoid
from tilefold.algebra.typing import TypedGraph, infer
from tilefold.api.ends import function_of, monoid_of_algebra
from tilefold.api.gradients import derived
from tilefold.planner.products.functions import Traced, of_graph
from tilefold.planner.products.row import Row, make_row_map
from tilefold.runtime.caching import kept_outside_modes

Dtypes = tuple[torch.dtype, ...]
KINDS = ("input", "extra", "result", "of_result", "row", "of_row", "length")
_LINEAR: dict[str, Callable[..., Any]] = {
    "add": add, "sub": lambda x, y: x if is_zero(y) else add(x, neg(y)), "mul": mul, "neg": neg, "truediv": div,
}  # fmt: skip


@kept_outside_modes(512)
def rules_of(monoid: Monoid, apply: Traced, elements: Dtypes, extras: Dtypes) -> Rules:
    """The graphs of a map, made once."""
    return Rules(monoid, apply, elements, extras)


@dataclass(frozen=True, eq=False)
class Backward:
    """The backward for some of the tensors: `terms` are summed along a row, `made` gives their cotangents.

    Both are of the rule's values at `reads`, `made` then of the sums.
    """

    reads: tuple[int, ...]
    terms: Graph
    made: Graph

    @kept_outside_modes(512)
    def summed(self) -> Monoid:
        """The fold that sums the terms."""
        return function_of(self.terms)

    @kept_outside_modes(512)
    def of_row(self, whole: tuple[int, ...], sums: tuple[int, ...], dtypes: Dtypes) -> Traced:
        """The cotangents at `whole`, stored as `dtypes`, and those at `sums`, summed over rows."""
        outputs = tuple(self.made.outputs[i] for i in (*whole, *sums))
        graph = Graph(self.made.arity, self.made.nodes, outputs)
        return of_graph(trace(graph, graph.arity), sums=len(sums), dtypes=dtypes)

    @kept_outside_modes(512)
    def alone(self, which: tuple[int, ...]) -> Monoid | None:
        """Some cotangents of each element as a fold over no dims; None where they are made of sums along its row."""
        n = len(self.reads)
        if any(max(self.made.reads(i), default=0) >= n for i in which):
            return None
        return function_of(
            trace(lambda *v: [self.made(*v, *[0.0] * len(self.terms.outputs))[i] for i in which], n)
        )


@dataclass(frozen=True, eq=False)
class Rules:
    """The functions of a map's backward; compared by identity."""

    monoid: Monoid
    apply: Traced
    elements: Dtypes
    extras: Dtypes

    @functools.cached_property
    def rule(self) -> tuple[Graph, ...]:
        """The function's own, where it is of this map: of the row's values, of the terms, of the cotangents."""
        rule = self.apply.rule
        return rule if rule and self.apply.rows in (None, rule[0]) and not self.apply.sums else ()

    @functools.cached_property
    def gradient(self) -> Gradient:
        """Of the fold."""
        return derived(self.monoid, self.elements)

    @functools.cached_property
    def row(self) -> Row:
        """The map with its dtypes."""
        return make_row_map(self.monoid.total, self.apply, self.elements, self.extras)

    @functools.cached_property
    def after(self) -> TypedGraph:
        """All that is made of elements, results and extra elements: of rows, too."""
        row, k = self.row, len(self.elements)
        if row.rows is None:
            return row.apply
        graph, n = row.rows.graph, row.rows.graph.arity
        whole = trace(lambda *v: (*row.apply.graph(*v), *graph(*v[k : k + n])), row.apply.graph.arity)
        return infer(whole, row.apply.input_dtypes)

    @functools.cached_property
    def needs_row_alone(self) -> bool:
        """Whether cotangents are made of elements and values of their row: by the function's rule, or as the fold allows."""
        shares = self.gradient.shares_ties and bool(self.results_read or self.asked)
        return bool(self.rule) or (not shares and self.gradient.needs_total_alone(self.after))

    # ------------------------------------------------------------------------------------------------ a rule's values

    @property
    def results(self) -> int:
        """How many values the function gives, summed ones among them."""
        return len(self.apply.graph.outputs)

    @property
    def asked(self) -> int:
        """How many values a row the caller asked for."""
        return len(self.row.of_rows)

    @functools.cached_property
    def rows(self) -> int:
        """How many values a row the rule has."""
        return len(self.rule[0].outputs) if self.rule else self.asked + self.gradient.n

    @functools.cached_property
    def values(self) -> list[tuple[str, int]]:
        """What each of a rule's values is: of which kind, and which one of that."""
        m, r = self.results, self.rows
        numbers = (len(self.elements), len(self.extras), m, m, r, r, 1)
        return [(kind, i) for kind, n in zip(KINDS, numbers, strict=True) for i in range(n)]

    def _split(self, v: Sequence[Any]) -> list[list[Any]]:
        """Values by kind."""
        return [[one for one, (k, _) in zip(v, self.values, strict=False) if k == kind] for kind in KINDS]

    @functools.cached_property
    def saving(self) -> tuple[Monoid, Traced]:
        """The map that stores all values of the row."""
        if self.rule:
            return self.monoid, self.apply.but(rows=self.rule[0])
        total, k = self.monoid.total, len(self.elements)
        n, project = len(total.fields), total.project
        m = n if project is None else len(project.outputs)
        own = self.apply.rows

        def rows(*v: Any) -> tuple[Any, ...]:
            return (*(own(*v[:m]) if own else ()), *v[m:])

        more = trace(lambda *s: (*(project(*s) if project else s), *s), n)
        graph = trace(lambda *v: self.apply.graph(*v[: k + m], *v[k + m + n :]), k + m + n + len(self.extras))
        function = self.apply.but(graph=graph, rebase=None, rows=trace(rows, m + n))
        return monoid_of_algebra(replace(total, project=more, quick=None)), function

    @functools.cached_property
    def of_rows(self) -> Monoid:
        """The fold whose results are the row's values."""
        monoid, function = self.saving
        rows, total = function.rows, monoid.total
        assert rows is not None
        return monoid_of_algebra(finished(total, rows))

    # --------------------------------------------------------------------------------------------------- the graphs

    @kept_outside_modes(512)
    def backward(self, wrt: tuple[int, ...], asked: tuple[bool, ...]) -> Backward:
        """Of some tensors, where only some results have a cotangent: stored ones, summed ones, then the row's."""
        n, kept = len(self.values), list[int]()
        absent = {p for p, (kind, i) in enumerate(self.values) if not self._is_asked(kind, i, asked)}

        def values(v: Sequence[Any]) -> list[Any]:
            return [0 if p in absent else one for p, one in enumerate(v)]

        def terms(*v: Any) -> tuple[Any, ...]:
            found = self._terms(values(v))
            kept[:] = [i for i, one in enumerate(found) if not is_zero(one)]
            return tuple(as_float(found[i]) for i in kept) or (0.0,)

        summed = trace(terms, n)

        def cotangents(*v: Any) -> tuple[Any, ...]:
            sums: list[Any] = [0] * self._sums
            for i, one in zip(kept, v[n:], strict=True):
                sums[i] = one
            found = self._made(values(v[:n]), sums)
            return tuple(as_float(found[i]) for i in wrt)

        made = trace(cotangents, n + len(kept))
        read = {p for i in range(len(wrt)) for p in made.reads(i)}
        used = [i for i in range(len(kept)) if n + i in read]
        reads = sorted({p for p in read if p < n} | {p for i in used for p in summed.reads(i)})

        def placed(v: Sequence[Any]) -> list[Any]:
            every: list[Any] = [0] * n
            for p, one in zip(reads, v, strict=True):
                every[p] = one
            return every

        def again(*v: Any) -> tuple[Any, ...]:
            sums: list[Any] = [0] * len(kept)
            for i, one in zip(used, v[len(reads) :], strict=True):
                sums[i] = one
            return made(*placed(v[: len(reads)]), *sums)

        fewer = trace(lambda *v: [summed(*placed(v))[i] for i in used] or 0.0, len(reads))
        return Backward(
            tuple(reads), fewer if used else Graph(len(reads), (), ()), trace(again, len(reads) + len(used))
        )

    def _is_asked(self, kind: str, i: int, asked: tuple[bool, ...]) -> bool:
        return asked[i] if kind == "of_result" else asked[self.results + i] if kind == "of_row" else True

    @property
    def _sums(self) -> int:
        return len(self.rule[1].outputs) if self.rule else len(self.gradient.results)

    def _terms(self, v: Sequence[Any]) -> list[Any]:
        """What is summed along a row."""
        if self.rule:
            return list(self.rule[1].replay(v, _step))
        x, beside, _, gy, rows, _, _ = self._split(v)
        results = self.gradient.program.project.graph(*rows[self.asked :])
        made = self.pulled(x, beside, results, gy)[2]
        return [made[p] for p in self.gradient.results]

    def _made(self, v: Sequence[Any], sums: Sequence[Any]) -> list[Any]:
        """Cotangents of inputs, then of extra tensors."""
        if self.rule:
            return list(self.rule[2].replay([*v, *sums], _step))
        x, beside, _, gy, rows, of_rows, _ = self._split(v)
        states, project = rows[self.asked :], self.gradient.program.project
        results = project.graph(*states)
        own, extras, _ = self.pulled(x, beside, results, gy)
        of_results: list[Any] = [0] * len(results)
        for p, one in zip(self.gradient.results, sums, strict=True):
            of_results[p] = one
        if self.row.rows is not None:
            more = pullback(self.row.rows, results, of_rows[: self.asked])
            of_results = [add(a, b) for a, b in zip(of_results, more, strict=True)]
        of_states = pullback(project, states, of_results)
        of_states = [add(a, b) for a, b in zip(of_states, of_rows[self.asked :], strict=True)]
        through, _ = self.gradient.by_total(x, states, of_states)
        return [*(add(a, b) for a, b in zip(own, through, strict=True)), *extras]

    def pulled(
        self, x: Sequence[Any], beside: Sequence[Any], results: Sequence[Any], gy: Sequence[Any]
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Cotangents through the function alone: of elements, of extra elements, of the fold's results."""
        found = pullback(self.row.apply, [*x, *results, *beside], gy)
        k, m = len(x), len(results)
        return found[:k], found[k + m :], found[k : k + m]

    # ------------------------------------------------------------------------- where a row's values alone do not do

    @functools.cached_property
    def results_read(self) -> list[int]:
        """The fold's results that have a cotangent from elements."""
        kept = list[int]()

        def run(*v: Any) -> int:
            made = self._around(v)[2]
            kept.extend(i for i in self.gradient.results if not is_zero(made[i]))
            return 0

        trace(run, self._values_around)
        return kept

    @property
    def _values_around(self) -> int:
        return len(self.elements) + len(self.extras) + self.results + self.asked + self.gradient.n

    def _around(self, v: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """`pulled` of elements, extra elements, cotangents of results and of asked rows, states."""
        k, e, m = len(self.elements), len(self.extras), self.results
        results = self.gradient.program.project.graph(*v[k + e + m + self.asked :])
        return self.pulled(v[:k], v[k : k + e], results, v[k + e : k + e + m])

    @kept_outside_modes(512)
    def around(self, what: str, which: tuple[int, ...]) -> Monoid:
        """Some of these as a fold: "tensors" and "results", through the function alone; of one element's row, "lifted"; of
        "rows", the results' from rows that the caller asked for."""
        k, e, m = len(self.elements), len(self.extras), self.results

        def run(*v: Any) -> tuple[Any, ...]:
            x, beside, of_results = self._around(v)
            states = v[k + e + m + self.asked :]
            project = self.gradient.program.project
            of_rows = [0] * len(of_results)
            if self.row.rows is not None:
                of_rows = pullback(
                    self.row.rows, project.graph(*states), v[k + e + m : k + e + m + self.asked]
                )
            if what == "lifted":
                through = [add(a, b) for a, b in zip(of_results, of_rows, strict=True)]
                place = [0] * self.gradient.algebra.index  # of the one element of its row
                own = pullback(
                    self.gradient.program.lift, [*v[:k], *place], pullback(project, states, through)
                )
                x = [add(a, b) for a, b in zip(x, own, strict=False)]
            made = {"results": of_results, "rows": of_rows}.get(what, [*x, *beside])
            return tuple(as_float(made[i]) for i in which)

        return function_of(trace(run, self._values_around))


def _step(op: str, operands: Sequence[Any], value: Any) -> Any:
    return _LINEAR[op](*operands) if op in _LINEAR else apply(op, *operands, value=value)

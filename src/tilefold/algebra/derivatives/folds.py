"""The gradient of a fold: of which values it is made, and the graphs that make it.

Where combine takes its states in any order, each element could be the last: the total is combine(R, s) for the rest R.
By the law combine(combine(s, R), s') is the same with s and s' exchanged, so that its derivatives by either are one
where s = s': with T the total, A and B the derivatives of combine(T, lift(x)) by T and by x, A dT/ds = B. The gradient
of x is then u B with u A = g: it reads x and the total alone (`total`), by a triangular solve in the graph. Where the
solve divides by a value that may be 0, or the law says nothing since the state itself depends on how it was grouped,
the gradient reads what is before an element and what is after it (`around`), which is always right.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tilefold.algebra.algebra import Algebra
from tilefold.algebra.derivatives import ties
from tilefold.algebra.derivatives.linear import add, as_float, div, is_zero, mul, neg, number
from tilefold.algebra.derivatives.pullback import pullback
from tilefold.algebra.domain import ANY
from tilefold.algebra.dtypes import is_float
from tilefold.algebra.evaluate import evaluate
from tilefold.algebra.expression import Graph, Value, apply, trace
from tilefold.algebra.operations import EXTREMES, OPS, values_of
from tilefold.algebra.program import specialize
from tilefold.algebra.typing import TypedGraph, infer
from tilefold.algebra.written import as_written
from tilefold.errors import GradientError
from tilefold.runtime.modes import outside_modes

F64 = torch.float64
# What gives the one element of a block as it is.
BLOCKS_OF_ONE = frozenset(op for op, row in OPS.items() if row.kind == "block") - {"block_count"}
# What has another slope on the other side of some value; a cast of a float that is differentiated has none.
DECIDES = frozenset(op for op, row in OPS.items() if row.values.turns and row.kind != "cast") | {"abs"}
SAMPLES, ROW = 200, 4
FAR = 1e300  # an end of a domain beyond it is none


# Combines that have no slope where two states tie, and what has the same values and all slopes.
_FORMS: dict[Graph, tuple[Graph, Graph]] = {}


def differentiate_as(combine: Graph, form: Graph, joined: Graph) -> None:
    """Take the derivatives of `form` for those of `combine`, whose values it has.

    And for those of (a total, the first field of an element of it) `joined`, in which a total has the extremes of its
    elements, whose other fields are as the first monoid's of that combine.
    """
    _FORMS[combine] = form, joined


# Projections whose cases have no derivatives of their own, and the one that has the derivative.
_PROJECTIONS: dict[Graph, Graph] = {}


def project_as(project: Graph | None, form: Graph) -> None:
    """Take the derivatives of `form` for those of `project`."""
    assert project is not None
    _PROJECTIONS[project] = form


class SingularError(Exception):
    """The system of the law has no solution in the graph."""


def of_elements(algebra: Algebra) -> Algebra:
    """The algebra whose state is its result, and whose positions are elements of a further input."""
    states = replace(algebra, project=None, quick=None, sums=None)
    if not algebra.index:
        return states
    domain = algebra.domain and (*algebra.domain, ANY)
    return replace(
        states, inputs=algebra.inputs + 1, index=False, absorb=None, begin=None, derives=False, domain=domain
    )


def opposite(algebra: Algebra) -> Algebra:
    """The algebra of states that combines them the other way round."""
    n = len(algebra.fields)
    turned = trace(lambda *v: algebra.combine(*v[n:], *v[:n]), 2 * n)
    return replace(algebra, combine=turned, commutative=False, absorb=None, begin=None)


@dataclass(frozen=True, eq=False)
class Gradient:
    """What is derived of a total algebra for elements of some dtypes: one object for each pair, compared by identity.

    `states` is the algebra whose results are its states.
    """

    algebra: Algebra
    elements: tuple[torch.dtype, ...]

    @functools.cached_property
    def states(self) -> Algebra:
        """The algebra whose results are states, in the dtypes that states have."""
        states = of_elements(self.algebra)
        written = as_written(states, self.elements_read)
        held = written.state
        if written.outputs == held:
            return states
        rules = zip(states.dtypes, held, strict=True)
        return replace(states, dtypes=tuple(rule if rule == "index" else dtype for rule, dtype in rules))

    @functools.cached_property
    def program(self) -> Any:
        """Its graphs, typed; of the algebra's own projection."""
        program = as_written(self.states, self.elements_read)
        known = _FORMS.get(self.algebra.combine)
        form = self._at_ties if known is None else known[0]
        if form is not None:
            program = replace(program, combine=infer(form, program.combine.input_dtypes))
        if (project := self._project) is not None:
            program = replace(program, project=infer(project, program.state))
        return program

    @functools.cached_property
    def _project(self) -> Graph | None:
        project = self.algebra.project
        return None if project is None else _PROJECTIONS.get(project, project)

    @functools.cached_property
    def _at_ties(self) -> Graph | None:
        """The combine with the slopes that its values have where states have equal fields; None where its own has them.

        Raises:
            GradientError: neither has them.
        """
        exact = self._exact
        if (form := ties.resolved(exact.combine, self.n)) is None:
            return None
        with outside_modes():
            rows = [t[:, :3].clone() for t in self._samples(torch.Generator().manual_seed(0))[0]]
            for sample in range(SAMPLES):  # of every other one all inputs are equal, or one of them
                one, other = ((0, 1), (1, 2), (0, 2))[sample % 3]
                for t in rows if sample % 2 else [rows[sample // 6 % len(rows)]]:
                    t[sample, other] = t[sample, one]
            project = self._project or trace(lambda *state: state, self.n)
            combines = [exact.combine, infer(form, exact.combine.input_dtypes)]
            own, resolved = ties.slopes_agree(exact.lift, combines, infer(project, exact.state), rows)
        if not own and not resolved:
            raise GradientError(
                "gradient: a combine must have the slopes of its values where two states have equal fields, got one that "
                "compares them and has others; write it without the comparison, or give the monoid `grad=`"
            )
        return None if own else form

    @property
    def n(self) -> int:
        """The number of fields."""
        return len(self.algebra.fields)

    @functools.cached_property
    def floats(self) -> list[int]:
        """The fields that have cotangents."""
        return [f for f, dtype in enumerate(self.program.state) if is_float(dtype)]

    @functools.cached_property
    def results(self) -> list[int]:
        """The results that have cotangents: floats made of what depends on float elements."""
        project, moved = self.program.project, self.moved
        return [
            i
            for i, dtype in enumerate(project.output_dtypes)
            if is_float(dtype) and project.graph.reads(i) & moved
        ]

    def shown(self, inits: bool) -> list[int]:
        """`results`, and with a state before the elements (`inits`) those that this alone changes."""
        if not inits:
            return self.results
        project, floats = self.program.project, set(self.floats)
        made = enumerate(project.output_dtypes)
        return [i for i, dtype in made if is_float(dtype) and project.graph.reads(i) & floats]

    @functools.cached_property
    def moved(self) -> set[int]:
        """Fields that change with a float element."""
        lift, combine = self.program.lift, self.program.combine
        slopes = [not all(map(is_zero, self._slopes(lift, f))) for f in range(self.n)]
        found = {f for f in self.floats if slopes[f]}
        while (
            more := {f for f in self.floats if {r % self.n for r in combine.graph.reads(f)} & found} - found
        ):
            found |= more
        return found

    @staticmethod
    def _slopes(typed: TypedGraph, output: int) -> list[Any]:
        kept = list[Any]()

        def run(*v: Any) -> Any:
            kept.extend(pullback(typed, v, [float(i == output) for i in range(len(typed.graph.outputs))]))
            return 0

        trace(run, typed.graph.arity)
        return kept

    @functools.cached_property
    def selects(self) -> bool:
        """Whether every float field is one of the lifted ones that was chosen."""
        combine = self.program.combine
        kept = list[bool]()
        for at, node in enumerate(combine.graph.nodes):
            from_floats = node.op == "input" and is_float(combine.dtypes[at])
            choices = node.args[1:] if node.op == "where" else node.args
            kept.append(from_floats or (values_of(node.op).takes and all(kept[a] for a in choices)))
        return bool(self.floats) and all(kept[combine.graph.outputs[f]] for f in self.floats)

    @functools.cached_property
    def shares_ties(self) -> bool:
        """Whether it selects, and some fields are extremes, whose ties share evenly."""
        return bool(self.extremes) and self.selects

    # ------------------------------------------------------------------------------------------- of the total alone

    @functools.cached_property
    def joined(self) -> TypedGraph:
        """combine(T, lift(x)) of a total T that x is part of: where a field is the larger of both sides', it is T's own."""
        n, program = self.n, self.program
        taken = [*program.state, *program.lift.input_dtypes]
        if (form := _FORMS.get(self.algebra.combine)) is not None:
            return infer(trace(lambda *v: form[1](*v[:n], program.lift.graph(*v[n:])[0]), len(taken)), taken)
        # A block form that is derived compares as the combine does.
        blocks = self.algebra.commutative and (self.algebra.absorb is not None or self._at_ties is None)
        block = specialize(self.states, self.elements_read).absorb if blocks else None
        largest = _extremes(program.combine.graph, n)
        counts = _counts(program.lift.graph, program.combine.graph, n)

        def step(op: str, operands: Sequence[Any], value: Any = None) -> Any:
            if op in BLOCKS_OF_ONE:
                return operands[0]
            if op == "block_count":
                return 1
            if op in EXTREMES:
                for one in operands:
                    if _is_field(one, largest):
                        return one
            if op in ("eq", "ne", "sub") and _is_one_value(*operands):
                return 0.0 if op == "sub" else op == "eq"  # of finite values
            if op in ("eq", "ne") and _is_field(operands[0], counts) and number(operands[1]) == 0:
                return op == "ne"
            if op in ("ge", "lt") and _is_field(operands[0], counts):
                least = counts[operands[0].node.value]
                if number(operands[1]) == least:
                    return op == "ge"
            if (
                op in ("eq", "ne")
                and _is_field(operands[0], largest)
                and abs(number(operands[1]) or 0) == math.inf
            ):
                return op == "ne"  # of finite elements
            if op == "rescale" and _is_inverse(*operands):
                return 1.0  # of other units than 0, of which all sums are 0
            if op in ("mul", "rescale") and 1.0 in map(number, operands):
                return operands[number(operands[0]) == 1.0]
            return apply(op, *operands, value=value)

        def run(*v: Any) -> tuple[Any, ...]:
            whole: Graph = program.combine.graph if block is None else block.graph
            return whole.replay(v if block is not None else [*v[:n], *program.lift.graph(*v[n:])], step)

        return infer(trace(run, len(taken)), taken)

    def by_total(
        self, x: Sequence[Any], total: Sequence[Any], g: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """The elements' cotangents of those of all fields, and the divisors that the graph does not show to be other than 0.

        Raises:
            SingularError: the law gives no cotangents.
        """
        values = [*total, *x]
        rows = []
        for f in self.floats:
            slopes = pullback(self.joined, values, [float(i == f) for i in range(self.n)])
            rows.append([slopes[h] for h in self.floats])
        u, divisors = solved(
            [list(column) for column in zip(*rows, strict=True)], [g[f] for f in self.floats]
        )
        spread: list[Any] = [0] * self.n
        for f, one in zip(self.floats, u, strict=True):
            spread[f] = one
        return pullback(self.joined, values, spread)[self.n :], divisors

    @functools.cached_property
    def is_smooth(self) -> bool:
        """Whether combine decides nothing by a value that is differentiated: the law is then proof enough."""
        tainted = set[int]()
        for at, node in enumerate(self.joined.graph.nodes):
            own = node.op == "input" and (node.value >= self.n or node.value in self.moved)
            if (own and is_float(self.joined.dtypes[at])) or any(a in tainted for a in node.args):
                tainted.add(at)
                if node.op in DECIDES or self.joined.dtypes[at] == torch.bool:
                    return False
        return not _extremes(self.program.combine.graph, self.n)

    def needs_total_alone(self, after: TypedGraph | None = None) -> bool:
        """Whether the gradient of results, or of what a map makes of them (`after`), reads x and the total alone.

        The law shows it; where the graph decides something by its values, or states depend on how they were grouped, samples
        confirm it.
        """
        if not self.algebra.commutative or self.algebra.index:
            return False
        try:
            divisors = list[Any]()
            arity = self.program.lift.graph.arity

            def run(*v: Any) -> int:
                x, total, g = v[:arity], v[arity : arity + self.n], v[arity + self.n :]
                divisors.extend(self.by_total(x, total, g)[1])
                return 0

            trace(run, arity + 2 * self.n)
        except SingularError:
            return False
        return not divisors and ((self.is_smooth and self.keeps_fields) or self._agrees(after))

    def agrees_on_rows(self, graph: Graph) -> bool:
        """Whether the first and the second half of the results of (element, total, a cotangent) agree for rows of samples."""
        with outside_modes():
            return self._sampled(graph, 1, 1, 0, whole=True)

    def _agrees(self, after: TypedGraph | None) -> bool:
        """Whether both forms of the gradient agree for rows of samples."""
        arity, n, project = self.program.lift.graph.arity, self.n, self.program.project
        results = len(project.graph.outputs)
        values = results if after is None else len(after.graph.outputs)
        beside = 0 if after is None else after.graph.arity - results

        def run(*v: Any) -> tuple[Any, ...]:
            x, rest, g = v[:arity], v[arity : arity + n], list(v[arity + n : arity + n + values])
            s = self.program.lift.graph(*x)
            total = self.program.combine.graph(*s, *rest)
            if after is not None:
                other = v[arity + n + values :]
                taken = (*other[:arity], *project.graph(*total), *other[arity:])
                g = pullback(after, taken, g)[arity : arity + results]
            gs = pullback(project, total, g)
            known = pullback(self.program.combine, [*s, *rest], gs)[:n]
            one = pullback(self.program.lift, x, [c if f in self.floats else 0 for f, c in enumerate(known)])
            two, _ = self.by_total(x, total, gs)
            return tuple(map(as_float, (*one, *two)))

        graph = trace(run, arity + n + values + beside)
        with outside_modes():
            return self._sampled(graph, arity, values, beside)

    def _sampled(self, graph: Graph, arity: int, values: int, beside: int, whole: bool = False) -> bool:
        generator = torch.Generator().manual_seed(0)
        rows, lifted = self._samples(generator)
        rest = self._combined(self._combined(lifted[1], lifted[2]), lifted[3])
        rest = self._combined(lifted[0], rest) if whole else rest
        cotangents = [torch.randn(SAMPLES, generator=generator, dtype=F64) for _ in range(values)]
        others = [t[:, 2] for t in rows] + [
            torch.randn(SAMPLES, generator=generator, dtype=F64) for _ in range(beside - arity)
        ]
        given = [*(t[:, 0] for t in rows), *rest, *cotangents, *others[:beside]]
        found = evaluate(infer(graph, [t.dtype for t in given]), given)
        made = [torch.as_tensor(m, dtype=F64).expand(SAMPLES) for m in found]
        return all(
            torch.allclose(a, b, rtol=1e-7, atol=1e-10)
            for a, b in zip(made[: len(made) // 2], made[len(made) // 2 :], strict=True)
        )

    @functools.cached_property
    def extremes(self) -> list[int]:
        """The float fields that are the larger, or the smaller, of both sides' own."""
        return sorted(_extremes(self.program.combine.graph, self.n) & set(self.floats))

    @functools.cached_property
    def _exact(self) -> Any:
        """The program of float64 elements, which samples are."""
        states = of_elements(self.algebra)
        wide = tuple(F64 if isinstance(d, torch.dtype) and is_float(d) else d for d in states.dtypes)
        elements = tuple(F64 if is_float(d) else d for d in self.elements_read)
        return as_written(replace(states, dtypes=wide), elements)

    @property
    def elements_read(self) -> tuple[torch.dtype, ...]:
        """The dtypes of elements, and of positions among them."""
        return (*self.elements, *[torch.int64] * self.algebra.index)

    def _samples(self, generator: torch.Generator) -> tuple[list[torch.Tensor], list[list[torch.Tensor]]]:
        """Rows of elements, and the states of each of their places."""
        domains = self.states.domain or [ANY] * len(self.elements_read)
        rows = [_drawn(generator, d, dtype) for d, dtype in zip(domains, self._exact.elements, strict=True)]
        lifted = self._as_states(self._exact.lift, rows, (SAMPLES, ROW))
        return rows, [[t[:, at] for t in lifted] for at in range(ROW)]

    def _combined(self, a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return self._as_states(self._exact.combine, [*a, *b], (SAMPLES,))

    def _as_states(
        self, typed: TypedGraph, given: Sequence[torch.Tensor], shape: tuple[int, ...]
    ) -> list[torch.Tensor]:
        made = zip(evaluate(typed, given), self._exact.state, strict=True)
        return [torch.as_tensor(t).to(dtype).expand(shape) for t, dtype in made]

    # -------------------------------------------------------------------------------- of what is before and after an element

    def around(
        self,
        before: Sequence[Any],
        x: Sequence[Any],
        after: Sequence[Any],
        of_total: Callable[[Sequence[Any]], list[Any]],
    ) -> list[Any]:
        """The elements' cotangents from the states before and after them, of what `of_total` says a total's are.

        It says so of this very total, since what a field means may depend on how a state was grouped (sums about a pivot).
        """
        n, combine = self.n, self.program.combine
        s = self.program.lift.graph(*x)
        middle = combine.graph(*before, *s)
        total = combine.graph(*middle, *after)
        gs = of_total(total)
        of_middle = pullback(combine, [*middle, *after], gs)[:n]
        of_state = pullback(combine, [*before, *s], of_middle)[n:]
        return pullback(self.program.lift, x, of_state)

    def of_results(self, g: Sequence[Any], inits: bool) -> list[Any]:
        """Cotangents of all results, 0 of those that have none, from those of `shown`."""
        every: list[Any] = [0] * len(self.program.project.graph.outputs)
        for i, one in zip(self.shown(inits), g, strict=True):
            every[i] = one
        return every

    # -------------------------------------------------------------------------------------------- of elements that are chosen

    @functools.cached_property
    def origins(self) -> int | None:
        """The result that says which element of a row the one result with a cotangent is, where it is one that was chosen."""
        lift, combine, project = (
            self.program.lift.graph,
            self.program.combine.graph,
            self.program.project.graph,
        )
        shown = [project.nodes[o] for o in project.outputs]
        if self.algebra.inputs > 1 or len(self.results) != 1 or shown[self.results[0]].op != "input":
            return None
        value = shown[self.results[0]].value

        def is_input(f: int, place: int) -> bool:
            node = lift.nodes[lift.outputs[f]]
            return bool(node.op == "input" and node.value == place)

        def chosen_alike(one: int, other: int, f: int) -> bool:
            a, b = combine.nodes[one], combine.nodes[other]
            if a.op == b.op == "input":
                return bool(a.value % self.n == value and b.value - a.value == f - value)
            if not (a.op == b.op == "where" and a.args[0] == b.args[0]):
                return False
            return all(chosen_alike(c, d, f) for c, d in zip(a.args[1:], b.args[1:], strict=True))

        for i, node in enumerate(shown):
            if node.op != "input" or not (is_input(value, 0) and is_input(node.value, self.algebra.inputs)):
                continue
            if chosen_alike(combine.outputs[value], combine.outputs[node.value], node.value):
                return i
        return None

    @functools.cached_property
    def shows_extremes(self) -> bool:
        """Whether results are the extremes themselves, which are elements or their magnitudes."""
        lift, project = self.program.lift.graph, self.program.project.graph
        kinds = {node.op for node in lift.nodes}
        shown = [project.nodes[o] for o in project.outputs]
        return kinds <= {"input", "abs", "neg"} and [n.value for n in shown if n.op == "input"] == [
            *range(self.n)
        ]

    # -------------------------------------------------------------------------------------------------------- of scans

    @functools.cached_property
    def keeps_fields(self) -> bool:
        """Whether each field is the same however a state was grouped.

        Where it is not, as of sums about a pivot, prefixes that a tree made are no steps of one recurrence.
        """
        with outside_modes():
            (a, b, c, d), combine = self._samples(torch.Generator().manual_seed(0))[1], self._combined
            # A pivot may be that of the side with more elements: sides of one and of two.
            sides = (a, b, c), (combine(a, d), b, c), (a, combine(b, d), c), (a, b, combine(c, d))
            pairs = [
                pair for a, b, c in sides
                for pair in zip(combine(combine(a, b), c), combine(a, combine(b, c)), strict=True)
            ]  # fmt: skip
            return all(torch.allclose(x, y, rtol=1e-7, atol=1e-10, equal_nan=True) for x, y in pairs)

    @functools.cached_property
    def jacobian(self) -> tuple[Graph, dict[tuple[int, int], float | int]]:
        """Combine's derivative by its first state: a graph of the entries that vary, and for each (field of the result, field
        of the state) that is not 0 its number (a float) or its place among them (an int)."""
        n, combine = self.n, self.program.combine
        found: dict[tuple[int, int], float | int] = {}

        def run(*v: Any) -> tuple[Any, ...]:
            kept = list[Any]()
            for f in self.floats:
                slopes = pullback(combine, v, [float(i == f) for i in range(n)])
                for h in self.floats:
                    if not is_zero(slopes[h]):
                        known = number(slopes[h])
                        found[f, h] = len(kept) if known is None else float(known)
                        kept += [slopes[h]] if known is None else []
            return tuple(kept) or (0,)

        return trace(run, 2 * n), found


def _drawn(generator: torch.Generator, domain: Any, dtype: torch.dtype) -> torch.Tensor:
    """A row of elements for each sample, within their domain."""
    if not is_float(dtype):
        return torch.randint(0, 2, (SAMPLES, ROW), generator=generator).to(dtype)
    unit = torch.rand(SAMPLES, ROW, generator=generator, dtype=F64) * 0.98 + 0.01
    low = domain.low if domain.low > -FAR else min(domain.high - 2, -2.0)
    high = domain.high if domain.high < FAR else max(domain.low + 2, 2.0)
    drawn: torch.Tensor = low + (high - low) * unit
    return drawn


def _extremes(combine: Graph, n: int) -> set[int]:
    """Fields that are the larger, or the smaller, of both states' own."""
    return _of_both_sides(combine, n, *EXTREMES)


def _counts(lift: Graph, combine: Graph, n: int) -> dict[int, Any]:
    """Fields that add up a positive number of each element, with this number: of a total they are not less."""
    lifted = [lift.nodes[o] for o in lift.outputs]
    added = _of_both_sides(combine, n, "add")
    return {f: lifted[f].value for f in added if lifted[f].op == "const" and lifted[f].value > 0}


def _of_both_sides(combine: Graph, n: int, *operations: str) -> set[int]:
    """Fields that are one of these operations of both states' own."""
    found = set[int]()
    for f, output in enumerate(combine.outputs):
        node = combine.nodes[output]
        sides = {combine.nodes[a].value for a in node.args if combine.nodes[a].op == "input"}
        if node.op in operations and sides == {f, f + n}:
            found.add(f)
    return found


def _is_field(v: Any, fields: Container[int]) -> bool:
    return isinstance(v, Value) and v.node.op == "input" and v.node.value in fields


def _is_one_value(*operands: Any) -> bool:
    one, other = operands
    return isinstance(one, Value) and isinstance(other, Value) and one.position == other.position


def _is_inverse(unit: Any, inverse: Any) -> bool:
    if not isinstance(unit, Value) or not isinstance(inverse, Value):
        return False
    return inverse.node.op == "per_unit" and inverse.node.args == (unit.position,)


def solved(matrix: list[list[Any]], right: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """U with matrix u = right, by elimination in the graph, and the divisors that are no constants.

    Raises:
        SingularError: no such u.
    """
    n, order, divisors = len(matrix), list[int](), list[Any]()
    rows = [[*row, r] for row, r in zip(matrix, right, strict=True)]
    for column in range(n):
        free = [i for i in range(n) if i not in order and not is_zero(rows[i][column])]
        if not free:
            raise SingularError
        pivot = min(free, key=lambda i: number(rows[i][column]) is None)
        by = rows[pivot][column]
        order.append(pivot)
        divisors += [by] if number(by) is None else []
        rows[pivot] = [div(v, by) for v in rows[pivot]]
        for i in range(n):
            if i != pivot and not is_zero(rows[i][column]):
                factor = rows[i][column]
                rows[i] = [
                    v if is_zero(mul(factor, p)) else add(v, neg(mul(factor, p)))
                    for v, p in zip(rows[i], rows[pivot], strict=True)
                ]
                rows[i][column] = 0
    return [rows[order[c]][n] for c in range(n)], divisors

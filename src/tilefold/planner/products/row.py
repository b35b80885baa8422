"""What a call asks of each row: a fold, and a function of elements and the fold's results. Both are checked, traced and
typed.

Products fold rows of results in the store that makes them final; `reduce_map` folds the rows of tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from tilefold.algebra import program, typing
from tilefold.algebra.algebra import Algebra
from tilefold.algebra.dtypes import promote
from tilefold.algebra.expression import Graph, trace
from tilefold.algebra.monoid import Monoid
from tilefold.algebra.program import Program
from tilefold.algebra.typing import TypedGraph
from tilefold.errors import ArgumentError, KindError, is_function
from tilefold.planner.problem.instead import monoid_meant
from tilefold.planner.products.functions import Role, Traced, traced
from tilefold.runtime.caching import kept_outside_modes

_ROLE = Role(
    "a row's function",
    "a row's function must take an element and each result of the fold",
    "write a function of so many values",
)


@dataclass(frozen=True)
class Row:
    """The monoid's program over a row's elements, and the graph of (*elements, *the fold's results, *extras) that is stored.

    `extras` are the dtypes of further tensors' elements, `results` the dtypes that are stored (a product sets its own).
    `rebase` takes the results of some elements and those of their whole row. It gives results from which `apply` makes the
    same values of these elements.
    The last of `apply`'s values, of the dtypes `sums`, are summed over rows. `rows` takes the fold's results and gives what
    is stored of each row.
    """

    program: Program
    apply: TypedGraph
    extras: tuple[torch.dtype, ...] = ()
    results: tuple[torch.dtype, ...] = ()
    rebase: TypedGraph | None = None
    rows: TypedGraph | None = None
    sums: tuple[torch.dtype, ...] = ()

    @property
    def of_rows(self) -> tuple[torch.dtype, ...]:
        """The dtypes of what is stored of each row."""
        return () if self.rows is None else self.rows.output_dtypes

    @property
    def made(self) -> tuple[torch.dtype, ...]:
        """The dtypes of what `apply` gives, as it is stored or summed."""
        return (*self.results, *self.sums)

    @property
    def taken(self) -> tuple[torch.dtype, ...]:
        """The dtypes of what `apply` takes, as they are stored."""
        return (*self.program.elements, *self.program.outputs, *self.extras)


def check_row(row: Any) -> tuple[Monoid, Any] | None:
    """`row` as it was given, if it is a monoid of one input and a function (traced or not), or no function.

    Raises:
        ArgumentError, KindError: it is something else.
    """
    if row is None:
        return None
    if not isinstance(row, tuple | list) or len(row) != 2:
        got = f"{len(row)} values" if isinstance(row, tuple | list) else type(row).__name__
        raise KindError(
            f"matmul: `row` must be a pair of a monoid and a function, got {got}; write (monoid, None) to fold each row alone"
        )
    monoid, apply = row
    if not isinstance(monoid, Monoid):
        raise KindError(f"matmul: a row is folded with a tilefold.Monoid, got {monoid_meant(monoid)}")
    if monoid.algebra.inputs != 1:
        raise ArgumentError(
            f"matmul: a row's monoid must fold one value an element, got {monoid.name} of {monoid.algebra.inputs}; "
            "give it a lift of one"
        )
    if apply is not None and type(apply) is not Traced and not is_function(apply):
        raise KindError(
            f"matmul: a row's second part must be a function or None, got {type(apply).__name__}; write a function of an "
            "element and the fold's results"
        )
    return monoid, apply


@kept_outside_modes(1024)
def make_row(algebra: Algebra, apply: Traced | None, value: torch.dtype) -> Row:
    """Give a row's fold its dtypes: by a total algebra, of values of dtype `value`.

    Raises:
        DtypeError: the monoid folds no such values.
    """
    folding = program.specialize(algebra, (value,))
    graph = apply.graph if apply is not None else trace(lambda x, *folded: x, 1 + len(folding.outputs))
    return _typed(folding, graph, ())


@kept_outside_modes(1024)
def make_row_map(
    algebra: Algebra,
    apply: Traced,
    elements: tuple[torch.dtype, ...],
    extras: tuple[torch.dtype, ...],
) -> Row:
    """Give the fold of rows of several tensors, and what is made of each element, their dtypes.

    `apply` sees the fold's results as they were computed: floats of half precision in float32. What it makes comes back in
    the elements' dtype, as torch's operations of elements have it.

    Raises:
        DtypeError: the monoid folds no such elements.
    """
    folding = program.specialize(algebra, elements)
    row = _typed(replace(folding, outputs=folding.project.output_dtypes), apply.graph, extras)
    common = typing.result_dtype(functools.reduce(promote, elements))
    made = row.apply.output_dtypes
    stored = made[: len(made) - apply.sums]
    seen = [typing.element_dtype(d) for d in row.program.outputs]
    return replace(
        row,
        results=apply.dtypes or tuple(_stored(d, common) for d in stored),
        rebase=None if apply.rebase is None else typing.infer(apply.rebase, [*seen, *seen]),
        rows=None if apply.rows is None else typing.infer(apply.rows, seen),
        sums=made[len(stored) :],
    )


@kept_outside_modes(256)
def without_constants(row: Row, folding: Program) -> tuple[Row, tuple[int, ...]]:
    """The row's function with the constant results of `folding`, another form of its fold, written in; and the places of the
    results that it still takes."""
    project, n = folding.project.graph, row.program.algebra.inputs
    made = [project.nodes[o] for o in project.outputs[: len(row.program.outputs)]]
    places = tuple(p for p, node in enumerate(made) if node.op != "const")

    def apply(*values: Any) -> Any:
        varying = iter(values[n:])
        results = [node.value if node.op == "const" else next(varying) for node in made]
        return row.apply.graph(*values[:n], *results, *varying)

    varying = replace(row.program, outputs=tuple(row.program.outputs[p] for p in places))
    graph = trace(apply, n + len(places) + len(row.extras))
    return replace(_typed(varying, graph, row.extras), results=row.results, sums=row.sums), places


@kept_outside_modes(256)
def row_of_elements(function: Program) -> Row:
    """A function of every element, given as the fold over no dims, as a map that folds nothing."""
    graph = trace(lambda *v: function.project.graph(*function.lift.graph(*v)), function.algebra.inputs)
    apply = typing.infer(graph, [typing.element_dtype(dtype) for dtype in function.elements])
    return Row(replace(function, outputs=()), apply, results=function.outputs)


def _typed(folding: Program, graph: Graph, extras: tuple[torch.dtype, ...]) -> Row:
    row = (*folding.elements, *folding.outputs, *extras)
    return Row(folding, typing.infer(graph, [typing.element_dtype(dtype) for dtype in row]), extras)


def _stored(produced: torch.dtype, common: torch.dtype) -> torch.dtype:
    """The dtype that a computed value is stored in, beside elements that promote to `common`."""
    if produced == torch.bool:
        return produced
    if typing.is_float(produced):
        return common if typing.is_float(common) else produced
    return torch.int64 if typing.is_float(common) or common == torch.bool else common


def traced_apply(monoid: Monoid, apply: Traced | Callable[..., Any]) -> Traced:
    """The traced row function of an element and the fold's results. A traced function is returned as it is.

    Raises:
        ArityError, TraceError: it does not take them, or gives no single value.
    """
    return apply if isinstance(apply, Traced) else traced_row(apply, projected(monoid))


def traced_row(apply: Callable[..., Any], folded: int) -> Traced:
    """The same of so many results."""
    return traced(apply, folded, _ROLE)


def projected(monoid: Monoid) -> int:
    """How many results a fold has."""
    total = monoid.total
    return len(total.fields if total.project is None else total.project.outputs)

"""A fold of each row of results, in the store that makes them final: what it is given, traced and typed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tilefold.algebra import program, typing
from tilefold.algebra.algebra import Algebra
from tilefold.algebra.expression import trace
from tilefold.algebra.monoid import Monoid
from tilefold.algebra.program import Program
from tilefold.algebra.typing import TypedGraph
from tilefold.caching import kept_outside_modes
from tilefold.contract.functions import Role, Traced, traced
from tilefold.errors import ArgumentError, KindError

_ROLE = Role(
    "a row's function",
    "a row's function must take an element and each result of the fold",
    "take as many values after the first",
)


@dataclass(frozen=True)
class Row:
    """The monoid's program over a row's values, and the graph of (value, *the fold's results) that is stored."""

    program: Program
    apply: TypedGraph


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
        raise KindError(
            f"matmul: a row is folded with a tilefold.Monoid, got {type(monoid).__name__}; take one of tilefold.monoids "
            "or make one"
        )
    if monoid.algebra.inputs != 1:
        raise ArgumentError(
            f"matmul: a row's monoid must fold one value an element, got {monoid.name} of {monoid.algebra.inputs}; "
            "give it a lift of one"
        )
    if apply is not None and type(apply) is not Traced and not callable(apply):
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
    seen = [typing.element_dtype(dtype) for dtype in (value, *folding.outputs)]
    return Row(folding, typing.infer(graph, seen))


def traced_apply(monoid: Monoid, apply: Traced | Callable[..., Any]) -> Traced:
    """What a row's function makes of an element and the fold's results; one that has been run stays as it is.

    Raises:
        ArityError, TraceError: it does not take them, or gives no single value.
    """
    if isinstance(apply, Traced):
        return apply
    total = monoid.total
    results = len(total.fields if total.project is None else total.project.outputs)
    return traced(apply, results, _ROLE)

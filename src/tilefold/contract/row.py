"""A fold of each row of results, in the store that makes them final: what it is given, traced and typed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tilefold.algebra import program, typing
from tilefold.algebra.expression import OPS, Graph, trace
from tilefold.algebra.monoid import Monoid
from tilefold.algebra.program import Program
from tilefold.algebra.typing import TypedGraph
from tilefold.caching import kept_by_arguments
from tilefold.errors import ArgumentError, ArityError, KindError, TraceError


@dataclass(frozen=True)
class Row:
    """The monoid's program over a row's values, and the graph of (value, *the fold's results) that is stored."""

    program: Program
    apply: TypedGraph
    monoid: Monoid = field(compare=False)


def check_row(row: Any) -> tuple[Monoid, Callable[..., Any] | None] | None:
    """`row` as it was given, if it is a monoid of one input and a function, or no function.

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
    if apply is not None and not callable(apply):
        raise KindError(
            f"matmul: a row's second part must be a function or None, got {type(apply).__name__}; write a function of an "
            "element and the fold's results"
        )
    return monoid, apply


@kept_by_arguments
def make_row(monoid: Monoid, apply: Callable[..., Any] | None, value: torch.dtype) -> Row:
    """Give a row's fold its dtypes: it sees values of dtype `value`.

    Raises:
        ArityError, DtypeError, TraceError: the monoid folds no such values, or the function does not take them and the
            fold's results and give one value.
    """
    folding = program.specialize(monoid.total, (value,))
    results = len(folding.outputs)
    function = apply or (lambda x, *folded: x)
    name = getattr(function, "__name__", "apply").strip("<>")
    rule = "a row's function must take an element and each result of the fold"
    check_takes(function, name, results, rule, "take as many values after the first")
    graph = trace(function, 1 + results)
    check_gives_one(graph, name, "a row's function")
    seen = [typing.element_dtype(dtype) for dtype in (value, *folding.outputs)]
    return Row(folding, typing.infer(graph, seen), monoid)


def check_takes(function: Callable[..., Any], name: str, others: int, rule: str, fix: str) -> None:
    """Refuse a function that does not take a value and so many others.

    Raises:
        ArityError: its signature says so.
    """
    try:
        inspect.signature(function).bind(*range(1 + others))
    except ValueError:  # a builtin without a signature: tracing tells
        return
    except TypeError:
        raise ArityError(
            f"matmul: {rule}, got {others} of these for {name}{inspect.signature(function)}; {fix}"
        ) from None


def check_gives_one(graph: Graph, name: str, what: str) -> None:
    """Refuse a graph of several outputs, or one that folds a block.

    Raises:
        ArityError, TraceError: it is such a graph.
    """
    if len(graph.outputs) != 1:
        raise ArityError(
            f"matmul: {what} must return one value, got {len(graph.outputs)} from {name}; return the one to be stored"
        )
    block = next((n.op for n in graph.nodes if n.op in OPS and OPS[n.op].kind == "block"), None)
    if block is not None:
        raise TraceError(
            f"matmul: {what} sees one element, got {block}, which folds a block, in {name}; fold each row with `row`, or the "
            "result with tilefold.reduce"
        )

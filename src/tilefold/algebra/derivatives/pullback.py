"""The vector-Jacobian product of a graph, traced as another function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilefold.algebra.derivatives.linear import add, is_zero
from tilefold.algebra.derivatives.rules import FLAT, RULES
from tilefold.algebra.dtypes import is_float
from tilefold.algebra.expression import apply
from tilefold.algebra.typing import TypedGraph


def pullback(typed: TypedGraph, values: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
    """Cotangents of a graph's inputs at some values, of the outputs' cotangents; 0 where the graph shows none."""
    graph = typed.graph
    primal = list[Any]()
    for at, node in enumerate(graph.nodes):
        if node.op in ("input", "const"):
            primal.append(values[node.value] if node.op == "input" else node.value)
        elif (same := _times_one(typed, at)) is not None:
            primal.append(primal[same])
        else:
            primal.append(apply(node.op, *(primal[a] for a in node.args), value=node.value))
    met: list[Any] = [0] * len(graph.nodes)
    for output, g in zip(graph.outputs, cotangents, strict=True):
        met[output] = add(met[output], g)
    found: list[Any] = [0] * graph.arity
    for at in reversed(range(len(graph.nodes))):
        node, g = graph.nodes[at], met[at]
        if is_zero(g) or node.op == "const" or not is_float(typed.dtypes[at]):
            continue
        if node.op == "input":
            found[node.value] = add(found[node.value], g)
        elif node.op not in FLAT:
            parts = RULES[node.op](g, [primal[a] for a in node.args], primal[at])
            for a, part in zip(node.args, parts, strict=True):
                if is_float(typed.dtypes[a]):
                    met[a] = add(met[a], part)
    return found


def _times_one(typed: TypedGraph, at: int) -> int | None:
    """The float that a node multiplies by 1, which makes floats of whole numbers."""
    node = typed.graph.nodes[at]
    for a, b in (node.args, node.args[::-1]) if node.op == "mul" else ():
        other = typed.graph.nodes[b]
        if other.op == "const" and other.value == 1 and typed.dtypes[a] == typed.dtypes[at]:
            return a
    return None

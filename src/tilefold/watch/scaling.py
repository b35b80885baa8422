"""How a combine treats its two sides, by its graph: which fields are extremes, and which are sums of scaled parts.

The sum of an online softmax is one: sum' = f * old.sum + g * chunk.sum, where f and g depend on the maxima alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tilefold.algebra.dtypes import is_float
from tilefold.algebra.expression import Graph, with_outputs
from tilefold.algebra.operations import kind_of, values_of
from tilefold.algebra.program import Program
from tilefold.watch.stream import State, combined


@dataclass(frozen=True)
class Scaled:
    """A field that is f * old + g * chunk, neither factor depending on it; `follows`: the extremes that factors read."""

    field: int
    follows: tuple[int, ...]


def extremes(graph: Graph, fields: int) -> dict[int, str]:
    """The fields that are the maximum or minimum of both sides', by the name of the operation."""
    found = {}
    for field in range(fields):
        node = graph.nodes[graph.outputs[field]]
        sides = [graph.nodes[a].value for a in node.args if graph.nodes[a].op == "input"]
        known = values_of(node.op)
        if known.takes and known.swaps and sorted(sides) == [field, fields + field]:
            found[field] = node.op
    return found


def scaled_fields(program: Program) -> list[Scaled]:
    """The float fields that are sums of parts scaled by something that is not always 1."""
    graph, fields = program.algebra.combine, len(program.algebra.fields)
    known = extremes(graph, fields)
    found = []
    for field in range(fields):
        reads = graph.reads(field)
        others = reads - {field, fields + field}
        if is_float(program.state[field]) and others and _is_sum_of_parts(graph, field, fields):
            follows = tuple(e for e in known if {e, fields + e} & others)
            found.append(Scaled(field, follows))
    return found


def factors(program: Program, field: int, old: State, own: State) -> tuple[torch.Tensor, torch.Tensor]:
    """The factors of a field's old value and of its value in the chunk: the combine with 1 there, and 0 beside."""

    def with_value(state: State, value: float) -> State:
        return [torch.full_like(t, value) if i == field else t for i, t in enumerate(state)]

    kept = combined(program, with_value(old, 1.0), with_value(own, 0.0))[field]
    taken = combined(program, with_value(old, 0.0), with_value(own, 1.0))[field]
    return kept, taken


_FREE, _LINEAR, _OTHER = 0, 1, 2


def _is_sum_of_parts(graph: Graph, field: int, fields: int) -> bool:
    """Whether the output is linear in both sides' value of the field, by the effect of each node on it."""
    one = with_outputs(graph, [field])
    degrees: list[int] = []
    for node in one.nodes:
        if node.op == "input":
            degrees.append(_LINEAR if node.value in (field, fields + field) else _FREE)
        else:
            zero = [one.nodes[a].op == "const" and one.nodes[a].value == 0 for a in node.args]
            degrees.append(_degree(node.op, [degrees[a] for a in node.args], zero))
    return degrees[one.outputs[0]] == _LINEAR and {field, fields + field} <= one.reads(0)


def _degree(op: str, degrees: list[int], zero: list[bool]) -> int:
    """Of an operation's result, from those of its operands; a constant 0 is linear too."""
    if not any(degrees):
        return _FREE
    linear = [d == _LINEAR or z for d, z in zip(degrees, zero, strict=True)]
    match values_of(op).linear:
        case "together":
            kept = all(linear)
        case "one":
            kept = sorted(degrees) == [_FREE, _LINEAR]
        case "first":
            kept = degrees == [_LINEAR, _FREE]
        case None:
            kept = kind_of(op) == "select" and degrees[0] == _FREE and all(linear[1:])
    return _LINEAR if kept else _OTHER

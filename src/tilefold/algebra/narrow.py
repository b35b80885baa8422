"""Values of integer fields: an infinity is their limit, and fields narrower than a register wrap as their dtype does."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from typing import Any

import torch

from tilefold.algebra.dtypes import carried_dtype, concrete, integer_limits, is_float
from tilefold.algebra.expression import Graph, Node, Value, apply, trace
from tilefold.algebra.flows import taken
from tilefold.algebra.operations import kind_of, values_of


def without_infinities(graph: Graph, fields: Sequence[torch.dtype], what: str) -> Graph:
    """The graph where an infinity on its way into an integer field is that dtype's limit, as in an identity.

    On its way: given as it is, chosen by `where`, or taken by a maximum or minimum; what is computed with it is a float's.
    """
    if all(map(is_float, fields)) or not any(_is_endless(node) for node in graph.nodes):
        return graph

    def finite(*arguments: Any) -> tuple[Any, ...]:
        outputs = zip(graph(*arguments), fields, strict=True)
        done: dict[torch.dtype, dict[int, Any]] = {field: {} for field in fields}
        return tuple(v if is_float(field) else _finite(v, field, what, done[field]) for v, field in outputs)

    return trace(finite, graph.arity)


def _is_endless(node: Node) -> bool:
    return node.op == "const" and isinstance(node.value, float) and not math.isfinite(node.value)


def _finite(value: Any, field: torch.dtype, what: str, done: dict[int, Any]) -> Any:
    """A value for an integer field; `done` holds what became of the values on its way, by their nodes."""
    if isinstance(value, bool | int | float):
        return value if math.isfinite(value) else concrete(value, field, what)
    if _is_endless(value.node):
        return _finite(value.node.value, field, what, done)
    for position in _on_the_way(value.tracer.nodes, value.position, done):
        done[position] = _settled(Value(value.tracer, position), field, what, done)
    return done[value.position]


def _on_the_way(nodes: Sequence[Node], position: int, done: Container[int]) -> list[int]:
    """A node and all that it may take its value from, in order, without those that are done."""
    if position in done:
        return []
    pending, seen = [position], {position}
    while pending:
        node = nodes[pending.pop()]
        new = [a for a in _taken(node) if a not in seen and a not in done]
        seen.update(new)
        pending.extend(new)
    return sorted(seen)


def _taken(node: Node) -> tuple[int, ...]:
    return taken(node) if values_of(node.op).takes else ()


def _settled(value: Value, field: torch.dtype, what: str, done: dict[int, Any]) -> Any:
    if _is_endless(value.node):  # NaN makes a float of what is chosen beside it
        number = value.node.value
        return value if math.isnan(number) else _finite(number, field, what, done)
    operands, nodes = _taken(value.node), value.tracer.nodes
    if any(math.isnan(nodes[a].value) for a in operands if _is_endless(nodes[a])):
        return value  # a float's
    settled = [done[a] for a in operands]
    if all(isinstance(s, Value) and s.position == a for s, a in zip(settled, operands, strict=True)):
        return value
    condition = [Value(value.tracer, a) for a in value.node.args[: -len(operands)]]
    return apply(value.node.op, *condition, *settled)


def wrapped(graph: Graph, fields: Sequence[torch.dtype], inputs: Sequence[torch.dtype]) -> Graph:
    """The graph whose outputs are values of `fields`: modulo 2**bits where a register is wider, as torch stores integers.

    `inputs` are the dtypes whose values the inputs hold. An output that cannot leave its field's range stays as it is.
    """
    loose = [
        not is_float(field)
        and carried_dtype(field) != field
        and not _stay(graph.nodes, integer_limits(field), inputs)[output]
        for field, output in zip(fields, graph.outputs, strict=True)
    ]
    if not any(loose):
        return graph

    def fitted(*arguments: Any) -> tuple[Any, ...]:
        outputs = zip(graph(*arguments), fields, loose, strict=True)
        return tuple(_wrap(value, field) if wraps else value for value, field, wraps in outputs)

    return trace(fitted, graph.arity)


def _wrap(value: Any, field: torch.dtype) -> Any:
    carried, bits = carried_dtype(field), torch.iinfo(field).bits
    least, greatest = integer_limits(field)
    if isinstance(value, bool | int | float):
        return (int(value) - least) % (greatest - least + 1) + least
    value = apply("cast", value, value=carried)
    if least == 0:
        return apply("and", value, greatest)
    above = torch.iinfo(carried).bits - bits
    return apply("rshift", apply("lshift", value, above), above)


def what_is_wrapped(graph: Graph, output: int) -> int:
    """The node of which `wrapped` made this output, or another that is a cast value modulo a power of 2; else the output."""
    nodes, node = graph.nodes, graph.nodes[output]
    wrapped = output
    if node.op == "and" and _is_all_ones(nodes[node.args[1]]):
        wrapped = node.args[0]
    elif node.op == "rshift" and nodes[node.args[1]].op == "const":
        shifted = nodes[node.args[0]]
        wrapped = shifted.args[0] if shifted.op == "lshift" and shifted.args[1] == node.args[1] else output
    return nodes[wrapped].args[0] if nodes[wrapped].op == "cast" else output


def _is_all_ones(node: Node) -> bool:
    return node.op == "const" and isinstance(node.value, int) and node.value & (node.value + 1) == 0


def _stay(nodes: Sequence[Node], limits: tuple[int, int], inputs: Sequence[torch.dtype]) -> list[bool]:
    """For each node, whether its values are whole numbers within `limits` whatever its inputs are."""
    stay: list[bool] = []
    for node in nodes:
        if node.op == "input":
            stay.append(_within(inputs[node.value], limits))
        elif node.op == "const":
            stay.append(isinstance(node.value, int) and limits[0] <= node.value <= limits[1])
        elif node.op == "cast":
            stay.append(stay[node.args[0]] and not is_float(node.value) and _holds(node.value, limits))
        else:
            known = values_of(node.op)
            # Of values of a dtype these make a value of that dtype, and no other: what selects, and bits beside bits.
            keeps = known.takes or (kind_of(node.op) == "bitwise" and known.swaps)
            stay.append(
                kind_of(node.op) in ("compare", "test") or (keeps and all(stay[a] for a in taken(node)))
            )
    return stay


def _within(dtype: torch.dtype, limits: tuple[int, int]) -> bool:
    if is_float(dtype):
        return False
    least, greatest = integer_limits(dtype)
    return limits[0] <= least and greatest <= limits[1]


def _holds(dtype: torch.dtype, limits: tuple[int, int]) -> bool:
    least, greatest = integer_limits(dtype)
    return least <= limits[0] and limits[1] <= greatest

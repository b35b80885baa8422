"""Integer fields narrower than a register: what goes into them wraps as their dtype does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tilefold.algebra.expression import OPS, Graph, Node, apply, trace
from tilefold.algebra.typing import carried_dtype, integer_limits, is_float

# Of values of a dtype they make a value of that dtype, and no other.
_SELECTS = ("maximum", "minimum", "and", "or", "xor", "block_max", "block_min", "block_first")


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
    value = apply("cast", value, value=carried)
    if integer_limits(field)[0] == 0:
        return apply("and", value, (1 << bits) - 1)
    above = torch.iinfo(carried).bits - bits
    return apply("rshift", apply("lshift", value, above), above)


def _stay(nodes: Sequence[Node], limits: tuple[int, int], inputs: Sequence[torch.dtype]) -> list[bool]:
    """For each node, whether its values are whole numbers within `limits` whatever its inputs are."""
    stay: list[bool] = []
    for node in nodes:
        of = [stay[a] for a in node.args]
        if node.op == "input":
            stay.append(_within(inputs[node.value], limits))
        elif node.op == "const":
            stay.append(isinstance(node.value, int) and limits[0] <= node.value <= limits[1])
        elif node.op == "cast":
            stay.append(of[0] and not is_float(node.value) and _holds(node.value, limits))
        elif node.op == "where":
            stay.append(of[1] and of[2])
        else:
            stay.append(OPS[node.op].kind in ("compare", "test") or (node.op in _SELECTS and all(of)))
    return stay


def _within(dtype: torch.dtype, limits: tuple[int, int]) -> bool:
    if is_float(dtype):
        return False
    least, greatest = integer_limits(dtype)
    return limits[0] <= least and greatest <= limits[1]


def _holds(dtype: torch.dtype, limits: tuple[int, int]) -> bool:
    least, greatest = integer_limits(dtype)
    return least <= limits[0] and limits[1] <= greatest

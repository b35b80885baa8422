"""Where values go in a graph: which are only chosen, which are computed with, and how many bits whole numbers may have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tilefold.algebra.dtypes import is_float
from tilefold.algebra.expression import Graph, Node
from tilefold.algebra.operations import kind_of, values_of
from tilefold.algebra.typing import TypedGraph
from tilefold.runtime.caching import kept_outside_modes


def taken(node: Node) -> tuple[int, ...]:
    """The operands whose values an operation may give or computes with: no condition, and nothing that it compares."""
    if node.op == "block_count" or kind_of(node.op) in ("compare", "test"):
        return ()
    return node.args[1:] if kind_of(node.op) == "select" else node.args


def leaves(graph: Graph, position: int) -> frozenset[int]:
    """The nodes that a value is chosen from: itself, where it is no choice."""
    pending, seen = [position], set[int]()
    while pending:
        at = pending.pop()
        if at not in seen:
            seen.add(at)
            pending.extend(taken(graph.nodes[at]) if values_of(graph.nodes[at].op).takes else ())
    return frozenset(i for i in seen if not values_of(graph.nodes[i].op).takes)


@kept_outside_modes(256)
def value_inputs(graph: Graph) -> tuple[frozenset[int], ...]:
    """For each node the inputs whose values its own is chosen or computed from."""
    found: list[frozenset[int]] = []
    for node in graph.nodes:
        own = frozenset([node.value]) if node.op == "input" else frozenset[int]()
        found.append(own.union(*(found[a] for a in taken(node))))
    return tuple(found)


@dataclass(frozen=True)
class Uses:
    """What a graph does with the values of some inputs.

    `computed`: an operation makes a float of them. `asked`: their infinities matter to an operation, to a question that they
    alone answer, or to a choice among floats.
    """

    computed: bool
    asked: bool


def uses(typed: TypedGraph, inputs: frozenset[int]) -> Uses:
    """What is done with the values of these inputs."""
    computed, asked, sources = False, meets_infinity(typed.graph, inputs), value_inputs(typed.graph)
    for node, dtype in zip(typed.graph.nodes, typed.dtypes, strict=True):
        if node.op != "input" and any(sources[operand] & inputs for operand in taken(node)):
            operates = not values_of(node.op).takes
            computed |= operates and is_float(dtype)
            asked |= operates or is_float(dtype)
    return Uses(computed, asked)


def meets_infinity(graph: Graph, inputs: frozenset[int]) -> bool:
    """Whether the values of these inputs are compared with an infinity, or asked whether they are one."""
    nodes, sources = graph.nodes, value_inputs(graph)
    asked = (
        node for node in nodes if kind_of(node.op) == "test" or any(_is_infinite(nodes[a]) for a in node.args)
    )
    return any(
        kind_of(node.op) in ("test", "compare") and any(sources[a] & inputs for a in node.args)
        for node in asked
    )


def _is_infinite(node: Node) -> bool:
    return node.op == "const" and node.value in (float("inf"), -float("inf"))


def widths(typed: TypedGraph, inputs: Sequence[torch.dtype]) -> list[int]:
    """For each node how many bits its magnitude may need, 64 where it may need any number of them.

    `inputs` are the dtypes whose values the inputs hold. Of a float the answer says nothing.
    """
    found: list[int] = []
    for position, node in enumerate(typed.graph.nodes):
        if node.op == "input":
            bits = magnitude(inputs[node.value])
        elif node.op == "const":
            bits = int(node.value).bit_length() if isinstance(node.value, int) else 64
        elif typed.dtypes[position] == torch.bool:
            bits = 1
        else:
            width, operands = values_of(node.op).bits, taken(node)
            known = width is not None and not any(is_float(typed.dtypes[a]) for a in operands)
            bits = width([found[a] for a in operands]) if width is not None and known else 64
        found.append(min(bits, 64))
    return found


def magnitude(dtype: torch.dtype) -> int:
    """How many bits the magnitude of a whole number of this dtype has."""
    if is_float(dtype) or dtype == torch.bool:
        return 1
    return int(torch.iinfo(dtype).max).bit_length()

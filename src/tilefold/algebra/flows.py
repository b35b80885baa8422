"""Where values go in a graph: what is only chosen, what is computed with, and how many bits whole numbers may have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tilefold.algebra.dtypes import is_float
from tilefold.algebra.expression import Graph, Node
from tilefold.algebra.operations import OPS
from tilefold.algebra.typing import TypedGraph
from tilefold.runtime.caching import kept_outside_modes

# They give one of the values that they take.
TAKES = ("where", "maximum", "minimum", "block_max", "block_min", "block_first")


def taken(node: Node) -> tuple[int, ...]:
    """The operands whose values an operation may give or computes with: no condition, and nothing that it compares."""
    if node.op == "where":
        return node.args[1:]
    if node.op == "block_count" or (node.op in OPS and OPS[node.op].kind in ("compare", "test")):
        return ()
    return node.args


def leaves(graph: Graph, position: int) -> frozenset[int]:
    """The nodes that a value is chosen from: itself, where it is no choice."""
    pending, seen = [position], set[int]()
    while pending:
        at = pending.pop()
        if at not in seen:
            seen.add(at)
            pending.extend(taken(graph.nodes[at]) if graph.nodes[at].op in TAKES else ())
    return frozenset(i for i in seen if graph.nodes[i].op not in TAKES)


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
            operates = node.op not in TAKES
            computed |= operates and is_float(dtype)
            asked |= operates or is_float(dtype)
    return Uses(computed, asked)


def meets_infinity(graph: Graph, inputs: frozenset[int]) -> bool:
    """Whether the values of these inputs are compared with an infinity, or asked whether they are one."""
    nodes, sources = graph.nodes, value_inputs(graph)
    asked = (
        node
        for node in nodes
        if node.op in OPS and (OPS[node.op].kind == "test" or any(_is_infinite(nodes[a]) for a in node.args))
    )
    return any(
        OPS[node.op].kind in ("test", "compare") and any(sources[a] & inputs for a in node.args)
        for node in asked
    )


def _is_infinite(node: Node) -> bool:
    return node.op == "const" and node.value in (float("inf"), -float("inf"))


_Widths = Callable[[Sequence[int]], int]
_WIDTHS: dict[str, _Widths] = {
    **dict.fromkeys((*TAKES, "and", "or", "xor", "neg", "abs", "cast", "floor", "ceil"), max),
    **dict.fromkeys(("add", "sub"), lambda bits: max(bits) + 1),
    "mul": sum,
    "floordiv": lambda bits: bits[0] + 1,
    "mod": lambda bits: bits[1],
    "rshift": lambda bits: bits[0],
}


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
        elif node.op in _WIDTHS and not any(is_float(typed.dtypes[a]) for a in taken(node)):
            bits = _WIDTHS[node.op]([found[a] for a in taken(node)])
        else:
            bits = 64
        found.append(min(bits, 64))
    return found


def magnitude(dtype: torch.dtype) -> int:
    """How many bits the magnitude of a whole number of this dtype has."""
    if is_float(dtype) or dtype == torch.bool:
        return 1
    return int(torch.iinfo(dtype).max).bit_length()

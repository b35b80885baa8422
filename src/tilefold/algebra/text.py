"""Algebras and graphs as text, and back: one line of JSON with a version, which is parsed and never evaluated.

    [1, {"Graph": [2, [["input", [], 0], ["input", [], 1], ["add", [0, 1]]], [2]]}]

A node is its operation, the nodes that it takes, and its value if it has one. Floats are written as hexadecimal and dtypes by
name, so that equal values have equal text and what is read equals what was written. Graphs that torch keeps (compiled,
exported) hold a monoid by this text.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, NoReturn, cast

import torch

from tilefold.algebra.algebra import Algebra, Quick, Sums
from tilefold.algebra.domain import Range
from tilefold.algebra.expression import Graph, Node, node_of
from tilefold.algebra.operations import OPS
from tilefold.errors import TextError, shown

VERSION = 1  # of what `dumps` writes: a change of it that an older reader would misread counts one more
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Graph, Algebra, Quick, Sums, Range)}


def dumps(value: Any) -> str:
    """The text of an algebra, of a graph or of a tuple of such; None, numbers, strings and dtypes may stand in one."""
    return json.dumps([VERSION, _encoded(value)], separators=(",", ":"))


def loads(text: str) -> Any:
    """What a text was made of.

    Raises:
        TextError: it is no such text, or one of another version.
    """
    try:
        version, value = json.loads(text)
    except (ValueError, TypeError):
        _refuse("be a line that tilefold.algebra.text wrote", shown(text))
    if version != VERSION:
        _refuse(f"be of version {VERSION}", f"version {shown(version)}")
    return _decoded(value)


def _refuse(rule: str, got: str) -> NoReturn:
    raise TextError(
        f"text: a monoid's text must {rule}, got {got}; write it again with this version of tilefold"
    )


def _encoded(value: Any) -> Any:
    if isinstance(value, Graph):
        return {"Graph": [value.arity, [_encoded_node(n) for n in value.nodes], list(value.outputs)]}
    if type(value) in _KINDS.values():
        return {type(value).__name__: [_encoded(getattr(value, f.name)) for f in dataclasses.fields(value)]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, tuple):
        return [_encoded(v) for v in value]
    assert value is None or isinstance(value, str | int), value
    return value


def _encoded_node(node: Node) -> list[Any]:
    return [node.op, list(node.args), *([] if node.value is None else [_encoded(node.value)])]


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_decoded, value))
    if not isinstance(value, dict):
        return value
    kind, inner = next(iter(value.items()), ("", None))
    inner = cast(Any, inner)
    try:
        if kind == "dtype":
            dtype = getattr(torch, inner)
            return dtype if isinstance(dtype, torch.dtype) else _refuse("name dtypes of torch", shown(inner))
        if kind == "float":
            return float.fromhex(inner)
        return _graph(*inner) if kind == "Graph" else _KINDS[kind](*map(_decoded, inner))
    except TextError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError):
        _refuse(f"hold {', '.join(_KINDS)}, dtypes and floats, each with its parts", shown(value))


def _graph(arity: int, nodes: list[Any], outputs: list[int]) -> Graph:
    made = tuple(_node(position, arity, *node) for position, node in enumerate(nodes))
    if not all(0 <= o < len(made) for o in outputs):
        _refuse("give outputs that are nodes", shown(outputs))
    return Graph(arity, made, tuple(outputs))


def _node(position: int, arity: int, op: str, args: list[int], value: Any = None) -> Node:
    if op not in OPS and op not in ("input", "const"):
        _refuse("have operations of this version", shown(op))
    value = _decoded(value)
    if not all(0 <= a < position for a in args) or (op == "input" and not 0 <= value < arity):
        _refuse("take what stands before a node", f"{shown(args)} for {op}")
    return node_of(op, tuple(args), value)

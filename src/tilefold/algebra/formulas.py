"""A monoid's traced functions as formulas that one reads: `sum' = t1 * old.sum + chunk.sum`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilefold.algebra.algebra import Algebra
from tilefold.algebra.expression import Graph, Node
from tilefold.algebra.operations import OPS

INPUTS = ("x", "y", "z", "w")
# How tightly each operator of Python binds; a part that binds less stands in brackets.
_BINDS = {
    "|": 1, "^": 2, "&": 3, "<<": 4, ">>": 4, "+": 5, "-": 5, "*": 6, "/": 6, "//": 6, "%": 6, "**": 8,
    "<": 0, "<=": 0, ">": 0, ">=": 0, "==": 0, "!=": 0,
}  # fmt: skip
_SIGN = 7  # of one operand
_CALLS = {"maximum": "max", "minimum": "min"}
_LEAF = 9


@dataclass(frozen=True)
class Formula:
    """One line: the name that it defines, and the formula."""

    name: str
    text: str


def lift_formulas(algebra: Algebra) -> list[Formula]:
    """The state of one element; `i` is its position."""
    names = [*input_names(algebra.inputs), *["i"] * algebra.index]
    return list(_lines(algebra.lift, names, algebra.fields))


def combine_formulas(algebra: Algebra) -> list[Formula]:
    """The new state of the old one and a chunk's."""
    sides = [f"{side}.{field}" for side in ("old", "chunk") for field in algebra.fields]
    return list(_lines(algebra.combine, sides, [f"new.{field}" for field in algebra.fields]))


def project_formulas(algebra: Algebra, results: Sequence[str]) -> list[Formula]:
    """The results of a state; none where the state itself is the result."""
    if algebra.project is None:
        return []
    return list(_lines(algebra.project, algebra.fields, results))


def input_names(inputs: int) -> tuple[str, ...]:
    """The names of a monoid's inputs: x, y, z, w, or x0, x1 ... where there are more.

    >>> input_names(2)
    ('x', 'y')
    """
    return INPUTS[:inputs] if inputs <= len(INPUTS) else tuple(f"x{i}" for i in range(inputs))


def _lines(graph: Graph, inputs: Sequence[str], outputs: Sequence[str]) -> Iterator[Formula]:
    """A line for every value that is used several times, then one for every output that is not yet there."""
    uses = Counter(argument for node in graph.nodes for argument in node.args)
    owners = {position: name for name, position in reversed(list(zip(outputs, graph.outputs, strict=True)))}
    texts: list[tuple[str, int]] = []
    shown: list[str] = []
    letter = next(c for c in ("t", "u", "v", "_") if not any(n[:1] == c for n in (*inputs, *outputs)))
    for position, node in enumerate(graph.nodes):
        text, binds = _text(node, texts, inputs)
        repeated = uses[position] + graph.outputs.count(position) > 1
        if repeated and node.op not in ("input", "const"):
            name = owners.get(position) or f"{letter}{sum(one not in outputs for one in shown) + 1}"
            yield Formula(name, text)
            shown.append(name)
            text, binds = name, _LEAF
        texts.append((text, binds))
    for name, position in zip(outputs, graph.outputs, strict=True):
        if name not in shown:
            yield Formula(name, texts[position][0])


def _text(node: Node, texts: Sequence[tuple[str, int]], inputs: Sequence[str]) -> tuple[str, int]:
    """A node as text, and how tightly it binds."""
    if node.op == "input":
        return inputs[node.value], _LEAF
    if node.op == "const":
        return constant_text(node.value), _SIGN if _is_negative(node.value) else _LEAF
    parts = [texts[a] for a in node.args]
    if (symbol := OPS[node.op].symbol) is not None:
        return _operator(symbol, parts)
    name = str(node.value).removeprefix("torch.") if node.op == "cast" else _CALLS.get(node.op, node.op)
    return f"{name}({', '.join(text for text, _ in parts)})", _LEAF


def _operator(symbol: str, parts: Sequence[tuple[str, int]]) -> tuple[str, int]:
    if len(parts) == 1:
        return f"{symbol}{_bracketed(parts[0], _SIGN)}", _SIGN
    # Comparisons do not chain, powers group to the right, all others to the left.
    binds, is_power = _BINDS[symbol], symbol == "**"
    left, right = (binds + (is_power or binds == 0), binds + (not is_power))
    return f"{_bracketed(parts[0], left)} {symbol} {_bracketed(parts[1], right)}", binds


def _bracketed(part: tuple[str, int], least: int) -> str:
    text, binds = part
    return text if binds >= least else f"({text})"


def constant_text(number: object) -> str:
    """A constant as short as it can be without being another."""
    return repr(int(number)) if isinstance(number, float) and number.is_integer() else repr(number)


def _is_negative(number: object) -> bool:
    return isinstance(number, int | float) and str(number).startswith("-")

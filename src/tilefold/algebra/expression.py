"""Scalar functions as graphs: traced once, then emitted as device code, evaluated on tensors, or differentiated.

A `Graph` is a list of nodes in topological order. It knows nothing of dtypes: `typing.infer` assigns them for given
inputs. Two graphs with the same structure are equal and hash alike, so compiled kernels are cached by graph.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.compiler import is_dynamo_compiling

from tilefold.algebra.numbers import Number, fits_a_float, plain_number, short_text
from tilefold.algebra.operations import OPS as OPS  # the products find it here
from tilefold.algebra.scalars import FOREIGN, Scalar, check_operand, refuse_output
from tilefold.algebra.symbols import Symbol, fixed, note
from tilefold.errors import TraceError
from tilefold.runtime.uncompiled import constant_in_graphs


@dataclass(frozen=True)
class Node:
    """One step of a graph: an `input` (its position in `value`), a `const` (its number in `value`) or an operation.

    `value` holds a dtype for a cast. Equality looks at `key`, the value's repr, so that 1, 1.0 and True differ and NaN
    equals itself.
    """

    op: str
    args: tuple[int, ...] = ()
    value: Any = field(default=None, compare=False)
    key: str = ""


def node_of(op: str, args: tuple[int, ...], value: Any = None) -> Node:
    """A node with the key that equal ones share."""
    kind = f"{type(value).__name__} " if op == "const" else ""
    return Node(op, args, value, "" if value is None else f"{kind}{value!r}")


@dataclass(frozen=True)
class Graph:
    """A pure scalar function of `arity` values with one or several outputs (positions in `nodes`)."""

    arity: int
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]

    def replay(
        self, arguments: Sequence[Any], apply: Callable[[str, Sequence[Any], Any], Any]
    ) -> tuple[Any, ...]:
        """Run the graph on anything: `apply(op, operands, value)` makes each step; numbers stand for constants."""
        values: list[Any] = []
        for node in self.nodes:
            if node.op == "input":
                values.append(arguments[node.value])
            elif node.op == "const":
                values.append(node.value)
            else:
                values.append(apply(node.op, [values[i] for i in node.args], node.value))
        return tuple(values[i] for i in self.outputs)

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """Inline the graph into the one its traced arguments belong to (plain numbers give numbers)."""
        return self.replay(arguments, _apply)

    def reads(self, output: int) -> frozenset[int]:
        """Which inputs (by position) one output depends on."""
        seen = needed(self.nodes, [self.outputs[output]])
        return frozenset(self.nodes[i].value for i in seen if self.nodes[i].op == "input")

    def __str__(self) -> str:
        lines = [
            f"%{i} = {node.op}({', '.join(f'%{a}' for a in node.args)}{node.key})"
            for i, node in enumerate(self.nodes)
        ]
        return "\n".join([*lines, "return " + ", ".join(f"%{i}" for i in self.outputs)])


def needed(nodes: Sequence[Node], positions: Iterable[int], known: Container[int] = ()) -> list[int]:
    """These nodes and all that they are made of, in order; what is `known`, and all behind it, is left out."""
    pending = [p for p in dict.fromkeys(positions) if p not in known]
    seen = set(pending)
    while pending:
        for argument in nodes[pending.pop()].args:
            if argument not in seen and argument not in known:
                seen.add(argument)
                pending.append(argument)
    return sorted(seen)


class _Tracer:
    """Collects nodes while a function runs; equal nodes are shared, constant operations are done at once."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.positions: dict[Node, int] = {}
        self.truths: list[bool] = []  # whether a node is a truth value

    def add(self, node: Node) -> Value:
        position = self.positions.setdefault(node, len(self.nodes))
        if position == len(self.nodes):
            self.nodes.append(node)
            self.truths.append(self._is_truth(node))
        return Value(self, position)

    def _is_truth(self, node: Node) -> bool:
        if node.op in ("and", "or", "xor", "invert"):
            return all(self.truths[a] for a in node.args)
        return OPS[node.op].kind in ("compare", "test") if node.op in OPS else isinstance(node.value, bool)

    def constant(self, number: Number) -> Value:
        number = plain_number(number)
        if type(number) is int and not -(1 << 63) <= number < 1 << 64:
            got = f"{number:.3g}" if fits_a_float(number) else short_text(number)
            raise TraceError(
                f"trace: a whole number must fit into 64 bits, got {got}; write a float, or an infinity for the "
                "dtype's limit"
            )
        return self.add(node_of("const", (), number))

    def as_value(self, operand: Any) -> Value:
        if isinstance(operand, Value):
            if operand.tracer is not self:
                raise TraceError(FOREIGN)
            return operand
        return self.constant(operand)


class Value(Scalar):
    """A scalar inside a traced function: supports arithmetic, comparison and `tilefold.math`, but not `if`."""

    __slots__ = ("position", "tracer")

    def __init__(self, tracer: _Tracer, position: int) -> None:
        self.tracer = tracer
        self.position = position

    @property
    def node(self) -> Node:
        """The graph's node that makes this value."""
        return self.tracer.nodes[self.position]

    def _shown(self) -> str:
        return f"<traced {self.node.op} %{self.position}>"

    def _step(self, op: str, *operands: Any) -> Value:
        made: Value = _apply(op, operands)
        return made


def _apply(op: str, operands: Sequence[Any], value: Any = None) -> Any:
    """One step of a trace. Numbers alone give a number; anything with a traced value gives a traced value."""
    for operand in operands:
        check_operand(op, operand)
    if is_dynamo_compiling():
        for operand in operands:
            if isinstance(operand, Symbol):
                return note(operand.steps, op, operands, value)
        return _computed_constant(op, [fixed(o) for o in operands], value)
    tracer = next((o.tracer for o in operands if isinstance(o, Value)), None)
    if tracer is None:
        return _computed(op, operands, value)
    nodes = [tracer.as_value(o) for o in operands]
    constants = [v.node.value for v in nodes if v.node.op == "const"]
    if len(constants) == len(nodes) and op != "cast":
        return tracer.constant(_computed(op, constants, value))
    if op == "where":
        condition, a, b = nodes
        if condition.node.op == "const":
            return a if condition.node.value else b
        if a.position == b.position:
            return a
    if op == "add" and 1 in constants and (bent := [v.node for v in nodes if v.node.op == "tanh"]):
        # 1 + tanh(u), a GELU's, loses all digits where the tangent is near -1.
        return 2.0 * _apply("sigmoid", [2.0 * Value(tracer, bent[0].args[0])])
    if op in ("and", "or"):
        settled = _settled_logic(op, nodes)
        if settled is not None:
            return settled
    return tracer.add(node_of(op, tuple(v.position for v in nodes), value))


def _computed(op: str, numbers: Sequence[Number], value: Any) -> Number:
    """The operation on numbers alone; where Python has no answer, one clear error."""
    if OPS[op].kind == "block":
        raise TraceError(
            f"trace: {op} needs a value of the block's elements, got the number {numbers[0]!r}; "
            "use block_count(x) for how many there are"
        )
    try:
        result: Number = OPS[op].python(*numbers, *(() if value is None else (value,)))
    except (ArithmeticError, TypeError, ValueError) as error:
        written = ", ".join(map(short_text, numbers))
        raise TraceError(
            f"trace: {op} of constants must have a value, got {op}({written}): {error}; mend the constants, or use floats "
            "for IEEE's infinity and NaN"
        ) from None
    return result


_computed_constant = constant_in_graphs(_computed)


def _settled_logic(op: str, nodes: Sequence[Value]) -> Value | None:
    """Shorten x & True, x | False and the like, for x that is a truth value."""
    for constant, other in (nodes, nodes[::-1]):
        if (
            isinstance(constant.node.value, bool)
            and constant.node.op == "const"
            and other.tracer.truths[other.position]
        ):
            return other if constant.node.value == (op == "and") else constant
    return None


def apply(op: str, *operands: Any, value: Any = None) -> Any:
    """Apply the operation named `op` to traced values and numbers (see `OPS`)."""
    return _apply(op, operands, value)


def trace(
    function: Callable[..., Any],
    arity: int,
    *,
    wrap: Callable[[list[Value]], Sequence[Any]] | None = None,
    what: str = "a monoid's function",
) -> Graph:
    """Run `function` once on `arity` symbols and keep what it did.

    `wrap` arranges the symbols into the arguments the function takes (named tuples, say); without it they are passed
    one by one. The function returns a value, a number, or a tuple of those. `what` it is called in messages.
    """
    tracer = _Tracer()
    symbols = [tracer.add(node_of("input", (), i)) for i in range(arity)]
    arguments = symbols if wrap is None else wrap(symbols)
    result = function(*arguments)
    outputs = list(result) if isinstance(result, tuple | list) else [result]
    for output in outputs:
        if not isinstance(output, Value | bool | int | float):
            refuse_output(getattr(function, "__name__", "function"), what, type(output).__name__)
    return _prune(arity, tracer.nodes, [tracer.as_value(o).position for o in outputs])


def with_outputs(graph: Graph, which: Sequence[int]) -> Graph:
    """The graph that gives these of the outputs alone."""
    return _prune(graph.arity, graph.nodes, [graph.outputs[i] for i in which])


def _prune(arity: int, nodes: Sequence[Node], outputs: Sequence[int]) -> Graph:
    """Keep the nodes that an output needs, in order, so that equal functions give equal graphs."""
    kept = needed(nodes, outputs)
    renumber = {old: new for new, old in enumerate(kept)}
    return Graph(
        arity,
        tuple(
            Node(n.op, tuple(renumber[a] for a in n.args), n.value, n.key)
            for n in map(nodes.__getitem__, kept)
        ),
        tuple(renumber[o] for o in outputs),
    )

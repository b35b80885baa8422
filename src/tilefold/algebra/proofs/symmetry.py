"""Which fields of a combine may depend, in a bit, on which of two states comes first.

A commutative combine may still round c(a, b) and c(b, a) differently: one side may be moved to the other's pivot, and
of x * y + z * w a compiler fuses one product, whose rounding is then lost. Where threads exchange states and each combines
its own with the other's, they would hold different bits of one result.

A field is free of that where its graph shows it, in one of three ways:

    mirrored   it combines both sides in a commutative operation, as in a.f + b.f or |a.f - b.f|, where the sides are the same
               exact term (fields, and what compares, selects, negates or counts in whole numbers: nothing that is fused), or
               in a sum of two sums: their own products are fused alike, and a sum is not fused into a sum
    chosen     it is one of the inputs, chosen by comparisons of one field's values alone: then only their order matters,
               and every order is tried, with equal zeros of either sign, infinities and two kinds of NaN
    by cases   it is one of these, or NaN, however the two values of some field compare: where they differ, a choice by which
               is larger gives the same whichever comes first; where they are equal, comparisons are known (log-sum-exp: the
               smaller maximum's sum is rescaled and added to the larger's, and equal maxima rescale by 1)

Whatever shows none of these is taken to depend on it, whether it does or not. What arithmetic makes of a NaN is one NaN, as
on NVIDIA's chips.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import torch

from tilefold.algebra.algebra import Algebra
from tilefold.algebra.dtypes import integer_limits, is_float
from tilefold.algebra.evaluate import evaluate, stored
from tilefold.algebra.expression import Graph, Node, Value, apply, trace, with_outputs
from tilefold.algebra.operations import COMPARISONS, OPS, kind_of, values_of
from tilefold.algebra.typing import TypedGraph, infer
from tilefold.algebra.written import Program
from tilefold.runtime.caching import kept_outside_modes

_SUMS = frozenset(["add", "sub"])
_LARGEST_TRIAL = 1 << 18
# How two values of a field may compare, and which comparisons are known then.
_HOLDS = {op: OPS[op].python for op in COMPARISONS}
_CASES: dict[str, dict[str, bool]] = {
    "apart": {op: holds(0, 1) for op, holds in _HOLDS.items() if holds(0, 1) == holds(1, 0)},
    "tied": {op: holds(0, 0) for op, holds in _HOLDS.items()},
    "unordered": {op: holds(math.nan, 0) for op, holds in _HOLDS.items()},
}


@kept_outside_modes(1024)
def ordered_fields(program: Program) -> tuple[int, ...]:
    """The fields of a state that must be put into an order of their own before combine gives the same bits either way.

    No field of a result is made of one that is among them and one that is not.
    """
    combine, n = program.combine, len(program.state)
    if combine.output_dtypes != program.state:
        return tuple(range(n))  # a conversion comes after the graph; such combines are rare
    mirrored = _Mirror(combine)
    left = [f for f in range(n) if not mirrored.itself[combine.graph.outputs[f]]]
    left = _not_by_cases(combine, left)
    if left and _chosen_alike(combine, left, _labels(program.algebra)):
        return ()
    reads = [frozenset(i % n for i in combine.graph.reads(f)) for f in range(n)]
    return tuple(sorted(_whole(frozenset().union(*(reads[f] for f in left)), reads)))


def _whole(fields: frozenset[int], reads: Sequence[frozenset[int]]) -> frozenset[int]:
    """These fields and all that some output reads beside one of them.

    Sides that change places in one field alone would be in that output as halves of two states.
    """
    grown = fields
    while (more := grown.union(*(together for together in reads if together & grown))) != grown:
        grown = more
    return grown


class _Mirror:
    """A combine's graph and the same graph with its sides exchanged, compared in one pass over its nodes.

    Nodes of one kind have the same bits, whatever the order of what commutes in them. For each node: `itself`, whether it has
    the same bits when the sides are exchanged; `is_nan`, whether it is arithmetic's NaN, both values of the unordered field
    having come into it. `apart` and `unordered` name a field whose two values are known to differ, or not to compare, a NaN
    being among them.
    """

    def __init__(self, combine: TypedGraph, apart: int | None = None, unordered: int | None = None) -> None:
        self.typed, self.nodes, self.graph = combine, combine.graph.nodes, combine.graph
        self.apart, self.unordered = apart, unordered
        self.kinds: dict[Any, int] = {}
        self.itself: list[bool] = []
        self.pure: list[bool] = []  # an exact term, or the same bits either way
        self.kind: list[int] = []
        self.exchanged: list[int] = []  # the kind with the sides exchanged
        self.shape: list[
            tuple[int, int] | None
        ] = []  # of sums and products: their kind as `_alike` sees them
        self.is_nan: list[bool] = []
        self.has_nan: list[bool] = []
        for position, node in enumerate(self.nodes):
            self._add(position, node)

    def _add(self, position: int, node: Node) -> None:
        itself = node.op != "input" and (self._is_itself(node) or all(self.itself[a] for a in node.args))
        pure = itself or node.op == "input"
        pure = pure or (self._exact(position) and all(self.pure[a] for a in node.args))
        plain = self._exact(position) or all(self.pure[a] for a in node.args)
        commutes = values_of(node.op).swaps and plain
        self.itself.append(itself)
        self.pure.append(pure)
        self.kind.append(self._kind_of(node, self.kind, commutes, 0))
        same = self.kind[position]
        self.exchanged.append(same if itself else self._kind_of(node, self.exchanged, commutes, 1))
        self.shape.append(self._shape_of(position, node))
        makes_nan = values_of(node.op).nan
        has_nan = (makes_nan or node.op in ("neg", "abs")) and (
            (self.unordered is not None and _field_of(self.graph, node.args) == self.unordered)
            or any(self.has_nan[a] for a in node.args)
        )
        self.has_nan.append(has_nan)
        self.is_nan.append(has_nan and makes_nan)

    def _kind_of(self, node: Node, kinds: Sequence[int], commutes: bool, exchanged: int) -> int:
        if node.op == "input":
            sides = self.graph.arity // 2
            return self._number("input", (node.value + exchanged * sides) % self.graph.arity)
        args = [kinds[a] for a in node.args]
        return self._number(node.op, node.key, *(sorted(args) if commutes else args))

    def _number(self, *key: Any) -> int:
        return self.kinds.setdefault(key, len(self.kinds))

    def _shape_of(self, position: int, node: Node) -> tuple[int, int] | None:
        """The same sums and products of exact terms, operand for operand: a number as it is, one with the sides exchanged."""
        if self.pure[position]:
            return (
                self._number("term", self.kind[position]),
                self._number("term", self.exchanged[position]),
            )
        shapes = [shape for a in node.args if (shape := self.shape[a]) is not None]
        if node.op not in _SUMS | {"mul"} or len(shapes) < len(node.args):
            return None
        one, other = zip(*shapes, strict=True)
        return self._number("shape", node.op, *one), self._number("shape", node.op, *other)

    def _is_itself(self, node: Node) -> bool:
        if values_of(node.op).swaps and self._other(*node.args):
            return True
        if node.op == "add" and all(self.nodes[a].op in _SUMS for a in node.args) and self._alike(*node.args):
            return True
        if node.op == "abs" and self.nodes[node.args[0]].op == "sub":
            return self._other(*self.nodes[node.args[0]].args)
        if node.op == "where" and self.apart is not None:
            condition, *chosen = node.args
            return _compared_field(self.graph, self.nodes[condition]) == self.apart and self._other(*chosen)
        return False

    def _other(self, left: int, right: int) -> bool:
        """Whether two nodes are the same exact term, each of the other's sides."""
        if left == right:
            return self.itself[left]
        return self.pure[left] and self.pure[right] and self.exchanged[left] == self.kind[right]

    def _alike(self, left: int, right: int) -> bool:
        """Whether two nodes are the same sums and products of exact terms, operand for operand, each of the other's sides."""
        one, other = self.shape[left], self.shape[right]
        return one is not None and other is not None and one[1] == other[0]

    def _exact(self, position: int) -> bool:
        whole = not is_float(self.typed.dtypes[position]) and not is_float(
            self.typed.operand_dtypes[position]
        )
        op = self.nodes[position].op
        return whole or (op in OPS and not OPS[op].values.fuses)


def _not_by_cases(combine: TypedGraph, outputs: Sequence[int]) -> list[int]:
    """The fields of a result that may differ in bits either way, however the two values of one field compare."""
    graph = combine.graph
    compared = {_compared_field(graph, node) for node in graph.nodes} - {None}
    reads = {f: graph.reads(f) for f in outputs}
    left = list(outputs)
    for field in sorted(f for f in compared if f is not None):
        tried = [
            f for f in left if field in reads[f] and all(is_float(combine.input_dtypes[i]) for i in reads[f])
        ]  # a product by 1 may convert what is no float
        for case in _CASES:
            tried = tried and _alike_when(combine, tried, field, case)
        left = [f for f in left if f not in tried]
    return left


def _alike_when(combine: TypedGraph, outputs: list[int], field: int, case: str) -> list[int]:
    """Those of some fields of a result that have the same bits either way, where a field's two values compare so."""
    known, sides = _CASES[case], combine.graph.arity // 2
    part = with_outputs(combine.graph, outputs)
    computed = False  # a constant whose bits on the chip are not known for sure

    def step(op: str, operands: Sequence[Any], value: Any) -> Any:
        nonlocal computed
        nodes = [operand.node for operand in operands if isinstance(operand, Value)]
        if (
            op in known
            and len(nodes) == 2
            and {v.value for v in nodes if v.op == "input"} == {field, field + sides}
        ):
            return known[op]
        numbers = [_number(operand) for operand in operands]
        if op == "mul" and 1 in numbers:
            return operands[1 - numbers.index(1)]
        if None not in numbers and OPS[op].values.fuses:
            computed |= op not in ("exp", "exp2") or numbers != [0]
        return apply(op, *operands, value=value)

    settled = trace(lambda *values: part.replay(values, step), part.arity)
    mirrored = _Mirror(
        infer(settled, combine.input_dtypes),
        apart=field if case == "apart" else None,
        unordered=field if case == "unordered" else None,
    )
    at = dict(zip(outputs, settled.outputs, strict=True))
    return [
        f for f in outputs
        if not computed and (mirrored.itself[at[f]] or (case == "unordered" and mirrored.is_nan[at[f]]))
    ]  # fmt: skip


def _number(operand: Any) -> Any:
    """What a constant is, traced or plain; None for anything else."""
    if isinstance(operand, Value):
        return operand.node.value if operand.node.op == "const" else None
    return operand


def _compared_field(graph: Graph, node: Node) -> int | None:
    """The field whose values of both sides a node compares."""
    return _field_of(graph, node.args) if node.op in COMPARISONS else None


def _field_of(graph: Graph, positions: Sequence[int]) -> int | None:
    """The field that these two nodes are both values of, one a side."""
    inputs = sorted(graph.nodes[p].value for p in positions if graph.nodes[p].op == "input")
    if len(positions) != 2 or len(inputs) != 2 or inputs[0] + graph.arity // 2 != inputs[1]:
        return None
    return int(inputs[0])


def _labels(algebra: Algebra) -> tuple[int, ...]:
    """The fields of positions that no two states have in common, unless both are the identity."""
    labels = tuple(i for i, dtype in enumerate(algebra.dtypes) if dtype == "index")
    numbers = algebra.identity_numbers or ()
    return labels if algebra.index_is_label and all(numbers[i] == math.inf for i in labels) else ()


def _chosen_alike(combine: TypedGraph, fields: list[int], labels: tuple[int, ...]) -> bool:
    """Whether these fields are chosen from the inputs, and the same ones when the sides are exchanged."""
    n = combine.graph.arity // 2
    chooses = _choosing(combine)
    if not all(chooses[combine.graph.outputs[f]] for f in fields):
        return False
    numbers = [node.value for node in combine.graph.nodes if node.op == "const"]
    if any(type(number) is not bool and number not in (0, math.inf, -math.inf) for number in numbers):
        return False  # no point lies on either side of another number
    points = [_points(dtype) for dtype in combine.input_dtypes[:n]]
    if math.prod(len(p) ** 2 for p in points) > _LARGEST_TRIAL:
        return False
    grids = torch.meshgrid([torch.arange(len(p)) for p in (*points, *points)], indexing="ij")
    rows = [p[g.ravel()] for p, g in zip((*points, *points), grids, strict=True)]
    apart = [rows[i] != rows[i + n] for i in labels]
    possible = functools.reduce(torch.logical_and, apart, torch.ones(rows[0].shape, dtype=torch.bool))
    one, other = evaluate(combine, rows), evaluate(combine, [*rows[n:], *rows[:n]])
    return all(not bool((_bits(one[f], rows) != _bits(other[f], rows))[possible].any()) for f in fields)


def _choosing(combine: TypedGraph) -> list[bool]:
    """For each node, whether it selects among inputs and compares, and no comparison has two different fields."""
    graph, n = combine.graph, combine.graph.arity // 2
    fields: list[int] = []  # of the inputs that a node may be, as bits
    chooses: list[bool] = []
    for position, node in enumerate(graph.nodes):
        chosen = node.args[1:] if node.op == "where" else node.args
        own = 1 << node.value % n if node.op == "input" else 0
        fields.append(functools.reduce(operator.or_, (fields[a] for a in chosen), own))
        if node.op in ("input", "const"):
            chooses.append(True)
            continue
        operands = combine.operand_dtypes[position]
        logic = kind_of(node.op) == "bitwise" and OPS[node.op].keeps_bool and operands == torch.bool
        plain = logic or kind_of(node.op) in ("compare", "test", "select")
        if node.op in COMPARISONS:
            plain = fields[position].bit_count() <= 1 and not any(
                combine.dtypes[a] != operands for a in node.args if graph.nodes[a].op != "const"
            )
        chooses.append(plain and all(chooses[a] for a in node.args))
    return chooses


def _points(dtype: torch.dtype) -> torch.Tensor:
    """Values of a dtype in every order that two of them may have to each other, to 0 and to the infinities."""
    if is_float(dtype):
        inf, nan = math.inf, math.nan
        values = torch.tensor([-inf, -2.0, -1.0, -0.0, 0.0, 1.0, 2.0, inf, nan, nan], dtype=dtype)
        _integers(values)[-1] += 1  # another NaN
        return values
    if dtype == torch.bool:
        return torch.tensor([False, True])
    least, most = integer_limits(torch.int64 if dtype == torch.uint64 else dtype)
    return torch.tensor(sorted({least, least + 1, 0, 1, most - 1, most}), dtype=stored(dtype))


def _integers(values: torch.Tensor) -> torch.Tensor:
    return values.view(torch.int32 if values.dtype == torch.float32 else torch.int64)


def _bits(value: object, like: list[torch.Tensor]) -> torch.Tensor:
    """The bits of a value, spread over all rows."""
    spread = torch.as_tensor(value).expand(like[0].shape).contiguous()
    return _integers(spread) if spread.is_floating_point() else spread

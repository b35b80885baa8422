"""Which fields of a combine may depend, in a bit, on which of two states comes first.

A commutative combine may still round c(a, b) and c(b, a) differently: one side may be moved to the other's pivot, and
of x * y + z * w a compiler fuses one product, whose rounding is then lost. Where threads exchange states and each combines
its own with the other's, they would hold different bits of one result.

A field is free of that where its graph shows it, in one of three ways:

    mirrored   it meets both sides in a commutative operation, as in a.f + b.f or |a.f - b.f|, where the sides are the same
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
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

from tilefold.algebra.algebra import Algebra
from tilefold.algebra.evaluate import evaluate, stored
from tilefold.algebra.expression import Graph, Value, apply, trace
from tilefold.algebra.program import Program
from tilefold.algebra.typing import TypedGraph, infer, integer_limits, is_float

_COMMUTATIVE = frozenset(["add", "mul", "maximum", "minimum", "and", "or", "xor", "eq", "ne"])
_TESTS = frozenset(["isnan", "isinf", "isfinite"])
_COMPARISONS = frozenset(["lt", "le", "gt", "ge", "eq", "ne"])
# Never part of a fused operation: each rounds to nothing but its own value, whatever stands around it.
_EXACT = _COMPARISONS | _TESTS | {"where", "neg", "abs", "maximum", "minimum", "floor", "ceil"}
_CHOOSING = _COMPARISONS | _TESTS | {"where", "and", "or", "xor", "invert"}
_SUMS = frozenset(["add", "sub"])
_ARITHMETIC = frozenset(["add", "sub", "mul", "exp", "exp2"])  # NaN if an operand is
_LARGEST_TRIAL = 1 << 18
# How two values of a field may compare, and which comparisons are known then.
_CASES: dict[str, dict[str, bool]] = {
    "apart": {"eq": False, "ne": True},
    "tied": {"lt": False, "le": True, "gt": False, "ge": True, "eq": True, "ne": False},
    "unordered": {"lt": False, "le": False, "gt": False, "ge": False, "eq": False, "ne": True},
}


@functools.lru_cache(maxsize=1024)
def ordered_fields(program: Program) -> tuple[int, ...]:
    """The fields of a state that must be put into an order of their own before combine gives the same bits either way.

    No field of a result is made of one that is among them and one that is not.
    """
    combine, n = program.combine, len(program.state)
    if combine.output_dtypes != program.state:
        return tuple(range(n))  # a conversion comes after the graph; such combines are rare
    mirrored = _Mirror(combine)
    left = [f for f in range(n) if not mirrored.itself(combine.graph.outputs[f])]
    left = [f for f in left if not _alike_by_cases(combine, f)]
    if left and _chosen_alike(combine, left, _labels(program.algebra)):
        return ()
    reads = [frozenset(i % n for i in combine.graph.reads(f)) for f in range(n)]
    return tuple(sorted(_whole(frozenset().union(*(reads[f] for f in left)), reads)))


def _whole(fields: frozenset[int], reads: Sequence[frozenset[int]]) -> frozenset[int]:
    """These fields and all that some output reads beside one of them.

    Sides that change places in one field alone would meet in that output as halves of two states.
    """
    grown = fields.union(*(together for together in reads if together & fields))
    return fields if grown == fields else _whole(grown, reads)


class _Mirror:
    """A combine's graph and the same graph with its sides exchanged, compared node by node.

    `apart` and `unordered` name a field whose two values are known to differ, or not to compare, a NaN being among them.
    """

    def __init__(self, combine: TypedGraph, apart: int | None = None, unordered: int | None = None) -> None:
        self.typed, self.nodes = combine, combine.graph.nodes
        self.fields, self.apart, self.unordered = combine.graph.arity // 2, apart, unordered
        self.itself = functools.cache(self._itself)
        self.other = functools.cache(self._other)
        self.alike = functools.cache(self._alike)

    def _itself(self, position: int) -> bool:
        """Whether a node has the same bits when the sides are exchanged."""
        node = self.nodes[position]
        if node.op == "input":
            return False
        if node.op in _COMMUTATIVE and self.other(*node.args):
            return True
        if node.op == "add" and all(self.nodes[a].op in _SUMS for a in node.args) and self.alike(*node.args):
            return True
        if node.op == "abs" and self.nodes[node.args[0]].op == "sub":
            return self.other(*self.nodes[node.args[0]].args) or self.itself(node.args[0])
        if node.op == "where" and self.apart is not None:
            condition, *chosen = node.args
            if _compares(self.typed.graph, condition, self.apart) and self.other(*chosen):
                return True
        return all(self.itself(a) for a in node.args)

    def _other(self, left: int, right: int) -> bool:
        """Whether two nodes are the same exact term, each of the other's sides."""
        if left == right:
            return self.itself(left)
        a, b = self.nodes[left], self.nodes[right]
        if a.op == "input":
            return b.op == "input" and a.value % self.fields == b.value % self.fields
        same = (a.op, a.key, len(a.args)) == (b.op, b.key, len(b.args))
        if not same or not (self._exact(left) and self._exact(right)):
            return False
        pairs = zip(a.args, b.args, strict=True)
        return all(itertools.starmap(self.other, pairs)) or (
            a.op in _COMMUTATIVE and self.other(a.args[0], b.args[1]) and self.other(a.args[1], b.args[0])
        )

    def _alike(self, left: int, right: int) -> bool:
        """Whether two nodes are the same sums and products of exact terms, operand for operand, each of the other's sides."""
        if self.other(left, right):
            return True
        a, b = self.nodes[left], self.nodes[right]
        same = a.op == b.op and a.op in _SUMS | {"mul"}
        return same and all(itertools.starmap(self.alike, zip(a.args, b.args, strict=True)))

    def is_nan(self, position: int) -> bool:
        """Whether a node is arithmetic's NaN: both values of the unordered field have come into it."""
        return self.nodes[position].op in _ARITHMETIC and self._has_nan(position)

    def _has_nan(self, position: int) -> bool:
        node = self.nodes[position]
        if node.op not in _ARITHMETIC | {"neg", "abs"}:
            return False
        meets = self.unordered is not None and set(node.args) == _pair(self.typed.graph, self.unordered)
        return meets or any(map(self._has_nan, node.args))

    def _exact(self, position: int) -> bool:
        whole = not is_float(self.typed.dtypes[position]) and not is_float(
            self.typed.operand_dtypes[position]
        )
        return whole or self.nodes[position].op in _EXACT


def _alike_by_cases(combine: TypedGraph, output: int) -> bool:
    """Whether a field of the result has the same bits either way, however the two values of some field compare."""
    graph, n = combine.graph, combine.graph.arity // 2
    if not all(is_float(combine.input_dtypes[i]) for i in graph.reads(output)):
        return False  # a product by 1 may convert
    compared = [f for f in range(n) if any(_compares(graph, i, f) for i in range(len(graph.nodes)))]
    return any(all(_alike_when(combine, output, f, case) for case in _CASES) for f in compared)


def _alike_when(combine: TypedGraph, output: int, field: int, case: str) -> bool:
    known, pair = _CASES[case], {field, field + combine.graph.arity // 2}
    computed = False  # a constant whose bits on the chip are not known for sure

    def step(op: str, operands: Sequence[Any], value: Any) -> Any:
        nonlocal computed
        nodes = [operand.node for operand in operands if isinstance(operand, Value)]
        if op in known and len(nodes) == 2 and {v.value for v in nodes if v.op == "input"} == pair:
            return known[op]
        numbers = [_number(operand) for operand in operands]
        if op == "mul" and 1 in numbers:
            return operands[1 - numbers.index(1)]
        if None not in numbers and op not in _EXACT | _CHOOSING:
            computed |= op not in ("exp", "exp2") or numbers != [0]
        return apply(op, *operands, value=value)

    settled = trace(lambda *sides: combine.graph.replay(sides, step), combine.graph.arity)
    mirrored = _Mirror(
        infer(settled, combine.input_dtypes),
        apart=field if case == "apart" else None,
        unordered=field if case == "unordered" else None,
    )
    at = settled.outputs[output]
    return not computed and (mirrored.itself(at) or (case == "unordered" and mirrored.is_nan(at)))


def _number(operand: Any) -> Any:
    """What a constant is, traced or plain; None for anything else."""
    if isinstance(operand, Value):
        return operand.node.value if operand.node.op == "const" else None
    return operand


def _compares(graph: Graph, position: int, field: int) -> bool:
    """Whether a node compares the two sides' values of a field."""
    node = graph.nodes[position]
    return node.op in _COMPARISONS and set(node.args) == _pair(graph, field)


def _pair(graph: Graph, field: int) -> set[int]:
    """The nodes that are a field's two values."""
    wanted = (field, field + graph.arity // 2)
    return {i for i, node in enumerate(graph.nodes) if node.op == "input" and node.value in wanted}


def _labels(algebra: Algebra) -> tuple[int, ...]:
    """The fields of positions that no two states have in common, unless both are the identity."""
    labels = tuple(i for i, dtype in enumerate(algebra.dtypes) if dtype == "index")
    numbers = algebra.identity_numbers or ()
    return labels if algebra.index_is_label and all(numbers[i] == math.inf for i in labels) else ()


def _chosen_alike(combine: TypedGraph, fields: list[int], labels: tuple[int, ...]) -> bool:
    """Whether these fields are chosen from the inputs, and the same ones when the sides are exchanged."""
    n = combine.graph.arity // 2
    if not all(_chooses(combine, combine.graph.outputs[f]) for f in fields):
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


def _chooses(combine: TypedGraph, position: int) -> bool:
    """Whether a node selects among inputs and compares, and no comparison meets two different fields."""
    node, n = combine.graph.nodes[position], combine.graph.arity // 2
    if node.op in ("input", "const"):
        return True
    operands = combine.operand_dtypes[position]
    if node.op not in _CHOOSING or (node.op in ("and", "or", "xor", "invert") and operands != torch.bool):
        return False
    if node.op in _COMPARISONS:
        converted = any(
            combine.dtypes[a] != operands for a in node.args if combine.graph.nodes[a].op != "const"
        )
        if converted or len({i % n for a in node.args for i in _values(combine.graph, a)}) > 1:
            return False
    return all(_chooses(combine, a) for a in node.args)


def _values(graph: Graph, position: int) -> set[int]:
    """The inputs that a node may be: all that it selects from."""
    node = graph.nodes[position]
    chosen = node.args[1:] if node.op == "where" else node.args
    return {node.value} if node.op == "input" else {i for a in chosen for i in _values(graph, a)}


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

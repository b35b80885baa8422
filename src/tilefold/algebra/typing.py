"""Dtype rules: what each node of a graph is, by torch's promotion with Python numbers weak."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tilefold.algebra.columns import Op
from tilefold.algebra.dtypes import FLOAT8 as FLOAT8  # the rest of the library asks here for what dtypes are
from tilefold.algebra.dtypes import FOLDABLE as FOLDABLE
from tilefold.algebra.dtypes import GIVEN as GIVEN
from tilefold.algebra.dtypes import carried_dtype, category, number_category, promote
from tilefold.algebra.dtypes import check_foldable as check_foldable
from tilefold.algebra.dtypes import compute_dtype as compute_dtype
from tilefold.algebra.dtypes import concrete as concrete
from tilefold.algebra.dtypes import element_dtype as element_dtype
from tilefold.algebra.dtypes import integer_limits as integer_limits
from tilefold.algebra.dtypes import is_float as is_float
from tilefold.algebra.dtypes import result_dtype as result_dtype
from tilefold.algebra.expression import Graph, Node
from tilefold.algebra.operations import OPS
from tilefold.errors import DtypeError


@dataclass(frozen=True)
class TypedGraph:
    """A graph with a dtype a node; `operand_dtypes[i]` is what the operands of node i are converted to first."""

    graph: Graph
    input_dtypes: tuple[torch.dtype, ...]
    dtypes: tuple[torch.dtype, ...]
    operand_dtypes: tuple[torch.dtype, ...]

    @property
    def output_dtypes(self) -> tuple[torch.dtype, ...]:
        """What the graph gives, before any conversion."""
        return tuple(self.dtypes[i] for i in self.graph.outputs)


def infer(graph: Graph, input_dtypes: Sequence[torch.dtype]) -> TypedGraph:
    """Give every node a dtype. Constants adapt to the other operand; alone they are bool, int64 or a float."""
    default_float = torch.float64 if torch.float64 in input_dtypes else torch.float32
    defaults = (torch.bool, torch.int64, default_float)
    dtypes: list[torch.dtype] = []
    operands: list[torch.dtype] = []
    for node in graph.nodes:
        if node.op == "input":
            dtype = operand = input_dtypes[node.value]
        elif node.op == "const":
            dtype = operand = defaults[number_category(node.value)]
        else:
            row = OPS[node.op]
            promoting = node.args[1:] if row.kind == "select" else node.args
            common = _promoted(graph.nodes, promoting, dtypes, defaults)
            dtype, operand = _result(row, node.value, common, default_float)
            if node.op in ("floordiv", "mod") and not is_float(operand):
                _check_divisor(node.op, graph.nodes[node.args[1]], operand)
        dtypes.append(dtype)
        operands.append(operand)
    return TypedGraph(graph, tuple(input_dtypes), tuple(dtypes), tuple(operands))


def _promoted(
    nodes: Sequence[Node],
    positions: Sequence[int],
    dtypes: Sequence[torch.dtype],
    defaults: Sequence[torch.dtype],
) -> torch.dtype:
    """What some nodes promote to: those that are no constants as torch has it, constants by their kind of number alone."""
    strong = [dtypes[p] for p in positions if nodes[p].op != "const"]
    weak = max((number_category(nodes[p].value) for p in positions if nodes[p].op == "const"), default=0)
    if not strong:
        return defaults[weak]
    result = functools.reduce(promote, strong)
    return result if category(result) >= weak else defaults[weak]


def _check_divisor(op: str, divisor: Node, dtype: torch.dtype) -> None:
    if divisor.op == "const" and int(divisor.value) % (1 << torch.iinfo(dtype).bits) == 0:
        wrapped = f", which is 0 in {dtype}" if divisor.value else ""
        raise DtypeError(
            f"{op}: whole numbers cannot be divided by 0, got {op}({dtype}, {int(divisor.value)}){wrapped}; divide floats, "
            "where 0 gives an infinity or NaN"
        )


def _result(
    row: Op, value: object, operand: torch.dtype, default_float: torch.dtype
) -> tuple[torch.dtype, torch.dtype]:
    """(dtype of the result, dtype the operands are converted to)."""
    if row.kind == "cast":
        assert isinstance(value, torch.dtype)
        return carried_dtype(value), operand
    if row.gives is not None:
        return row.gives, operand
    if row.kind == "float" and not is_float(operand):
        operand = default_float
    if row.kind == "bitwise" and is_float(operand):
        raise DtypeError(
            f"{row.name}: bitwise operations need integers or bool, got {operand}; fold an integer tensor or cast"
        )
    if operand == torch.bool and not row.keeps_bool:
        operand = torch.int64
    return operand, operand

"""Dtype rules: what each node of a graph is, and in which dtype a state is carried.

The rules are torch's promotion with Python numbers weak, narrowed to the dtypes a register holds: a fold carries bool,
int32, int64, uint64, float32 and float64. Narrower floats are carried as float32 and rounded once, at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tilefold.algebra.expression import Graph, Node
from tilefold.algebra.operations import OPS, Number
from tilefold.errors import DtypeError

UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
FLOAT8 = tuple(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
    if hasattr(torch, name)
)
FOLDABLE = (
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16,
    torch.uint32, torch.int32, torch.uint64, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, *FLOAT8,
)  # fmt: skip


def check_foldable(dtype: torch.dtype, where: str) -> None:
    """Refuse dtypes no fold takes (complex, quantized) with a clear error."""
    if dtype not in FOLDABLE:
        fix = "fold torch.view_as_real(x)" if dtype.is_complex else "convert the tensor first"
        raise DtypeError(f"{where}: elements must be real numbers or bool, got {dtype}; {fix}")


def is_float(dtype: torch.dtype) -> bool:
    """Whether the dtype is a float of any width."""
    return dtype.is_floating_point


def promote(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """torch.promote_types, with an answer for the pairs torch refuses (float8 and mixed unsigned)."""
    if a == b:
        return a
    if a in FLOAT8 or b in FLOAT8:
        return torch.promote_types(_wide_float(a), _wide_float(b))
    try:
        return torch.promote_types(a, b)
    except RuntimeError:
        return torch.int64


def _wide_float(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in FLOAT8 else dtype


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The "compute" dtype of one input: float32 up to 32 bits, float64 for float64, int64 for integers and bool."""
    if is_float(dtype):
        return torch.float64 if dtype == torch.float64 else torch.float32
    return torch.int64


def element_dtype(dtype: torch.dtype) -> torch.dtype:
    """What `lift` sees for an element: wide floats, int64, uint64; bool stays bool."""
    return dtype if dtype in (torch.bool, torch.uint64) else compute_dtype(dtype)


def carried_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype a state field of this declared dtype is held in while folding."""
    if is_float(dtype):
        return compute_dtype(dtype)
    if dtype in (torch.bool, torch.int32, torch.int64, torch.uint64):
        return dtype
    return torch.int64 if dtype == torch.uint32 else torch.int32


def category(dtype: torch.dtype) -> int:
    """0 for bool, 1 for integers, 2 for floats: the order in which Python numbers are weak."""
    return 2 if is_float(dtype) else 0 if dtype == torch.bool else 1


def number_category(number: Number) -> int:
    """The category of a Python number."""
    return 2 if isinstance(number, float) else 0 if isinstance(number, bool) else 1


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

    def promoted(positions: Sequence[int]) -> torch.dtype:
        strong = [dtypes[p] for p in positions if graph.nodes[p].op != "const"]
        weak = max(
            (number_category(graph.nodes[p].value) for p in positions if graph.nodes[p].op == "const"),
            default=0,
        )
        if not strong:
            return defaults[weak]
        result = strong[0]
        for dtype in strong[1:]:
            result = promote(result, dtype)
        return result if category(result) >= weak else defaults[weak]

    for node in graph.nodes:
        if node.op == "input":
            dtype = operand = input_dtypes[node.value]
        elif node.op == "const":
            dtype = operand = defaults[number_category(node.value)]
        else:
            common = promoted(node.args[1:] if node.op == "where" else node.args)
            dtype, operand = _result(node.op, node.value, common, default_float)
            if node.op in ("floordiv", "mod") and not is_float(operand):
                _check_divisor(node.op, graph.nodes[node.args[1]], operand)
        dtypes.append(dtype)
        operands.append(operand)
    return TypedGraph(graph, tuple(input_dtypes), tuple(dtypes), tuple(operands))


def _check_divisor(op: str, divisor: Node, dtype: torch.dtype) -> None:
    if divisor.op == "const" and divisor.value == 0:
        raise DtypeError(
            f"{op}: whole numbers cannot be divided by 0, got {op}({dtype}, 0); divide floats, where 0 gives an infinity "
            "or NaN"
        )


def _result(
    op: str, value: object, operand: torch.dtype, default_float: torch.dtype
) -> tuple[torch.dtype, torch.dtype]:
    """(dtype of the result, dtype the operands are converted to)."""
    kind = OPS[op].kind
    if kind == "cast":
        assert isinstance(value, torch.dtype)
        return carried_dtype(value), operand
    if kind == "test":
        return torch.bool, operand
    if kind == "compare":
        return torch.bool, operand
    if kind == "float":
        operand = operand if is_float(operand) else default_float
        return operand, operand
    if op == "block_count":
        return torch.int64, operand
    if kind == "bitwise":
        if is_float(operand):
            raise DtypeError(
                f"{op}: bitwise operations need integers or bool, got {operand}; fold an integer tensor or cast"
            )
        if op in ("lshift", "rshift") and operand == torch.bool:
            operand = torch.int64
        return operand, operand
    if operand == torch.bool and op not in ("maximum", "minimum", "where", "block_max", "block_min"):
        operand = torch.int64
    return operand, operand


def integer_limits(dtype: torch.dtype) -> tuple[int, int]:
    """(least, greatest) value of an integer dtype; bool counts 0 to 1."""
    if dtype == torch.bool:
        return 0, 1
    info = torch.iinfo(dtype)
    return info.min, info.max


def concrete(number: Number, dtype: torch.dtype, what: str) -> Number:
    """A Python number as a value of `dtype`: infinities become an integer type's least or greatest value."""
    if is_float(dtype):
        return float(number)
    if isinstance(number, float) and number != number:
        raise DtypeError(
            f"{what}: an integer field cannot start at NaN, got a {dtype} field; declare the field as a float"
        )
    least, greatest = integer_limits(dtype)
    if number in (float("inf"), float("-inf")):
        number = greatest if number > 0 else least
    if number != int(number):
        raise DtypeError(
            f"{what}: an integer field needs a whole identity, got {number!r} for {dtype}; declare the field as a float"
        )
    bits = 1 if dtype == torch.bool else torch.iinfo(dtype).bits
    if not -(1 << bits - 1) <= number < 1 << bits:
        raise DtypeError(
            f"{what}: an identity must fit its field, got {number!r} for {dtype}; an infinity means the dtype's limit"
        )
    wrapped = (int(number) - least) % (greatest - least + 1) + least  # -1, all ones, is 2**64 - 1 in uint64
    return bool(wrapped) if dtype == torch.bool else wrapped

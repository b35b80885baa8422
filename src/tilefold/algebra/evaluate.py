"""A typed graph evaluated on torch tensors, for the CPU backend, the law checks and the reference."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilefold.algebra import arithmetic, unsigned
from tilefold.algebra.columns import Torch
from tilefold.algebra.dtypes import is_float
from tilefold.algebra.numbers import float_number, whole_number
from tilefold.algebra.operations import OPS
from tilefold.algebra.typing import TypedGraph
from tilefold.algebra.whole_vectors import in_whole_vectors

Tensor = torch.Tensor
Operand = Tensor | bool | int | float


def stored(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the tensor that holds values of `dtype`: uint64 lives in the int64 of the same bits."""
    return torch.int64 if dtype == torch.uint64 else dtype


def convert(operand: Operand, dtype: torch.dtype) -> Operand:
    """To `dtype`; uint64 is held as the int64 of the same bits. Numbers stay numbers, in that dtype's kind."""
    if isinstance(operand, Tensor):
        if is_float(operand.dtype) and not is_float(dtype) and dtype != torch.bool:
            return arithmetic.whole(operand, dtype)
        return operand if operand.dtype == stored(dtype) else operand.to(stored(dtype))
    if is_float(dtype):
        return float_number(operand, dtype)
    number = whole_number(operand, dtype)
    return whole_number(number, torch.int64) if dtype == torch.uint64 else number


def held(number: Operand, dtype: torch.dtype) -> Tensor:
    """A number as the tensor without dims that holds it."""
    return torch.tensor(convert(number, dtype), dtype=stored(dtype), device="cpu")


def as_stored(value: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor of that very dtype, converted as `convert` does: uint64 is itself here."""
    if value.dtype == dtype:
        return value
    made = convert(value, dtype)
    assert isinstance(made, Tensor)
    return made.view(torch.uint64) if dtype == torch.uint64 else made


def evaluate(
    typed: TypedGraph, arguments: Sequence[Operand], block_dims: tuple[int, ...] = ()
) -> tuple[Operand, ...]:
    """Run a typed graph elementwise on broadcastable tensors (and numbers); `block_*` operations reduce `block_dims`.

    An element's bits depend neither on its place nor on how many others there are.
    uint64 values are passed in and come out as int64 tensors of the same bits.
    """
    nodes, values = typed.graph.nodes, list[Operand]()
    last_use = _last_uses(typed)
    for position, node in enumerate(nodes):
        if node.op == "input":
            value: Operand = convert(arguments[node.value], typed.dtypes[position])
        elif node.op == "const":
            value = node.value
        elif node.op == "cast":
            value = cast(values[node.args[0]], typed.operand_dtypes[position], typed.dtypes[position])
        else:
            value = _step(typed, position, values, block_dims)
        values.append(value)
        for used in last_use.get(position, ()):
            values[used] = 0  # let the allocator reuse the piece while it is still in cache
    return tuple(values[i] for i in typed.graph.outputs)


def evaluate_as(
    typed: TypedGraph,
    arguments: Sequence[Operand],
    dtypes: Sequence[torch.dtype],
    block_dims: tuple[int, ...] = (),
) -> list[Operand]:
    """`evaluate` with its outputs converted; the bits of uint64 are then the numbers that they mean."""
    outputs = zip(evaluate(typed, arguments, block_dims), typed.output_dtypes, dtypes, strict=True)
    return [cast(value, source, dtype) for value, source, dtype in outputs]


class Steps:
    """A typed graph without block operations made ready for many evaluations on a CPU's tensors of its inputs' dtypes.

    As `evaluate_as` for `dtypes`, or without them `evaluate` of every node; what depends on dtypes alone is done once.
    """

    def __init__(self, typed: TypedGraph, dtypes: Sequence[torch.dtype] | None = None) -> None:
        nodes = typed.graph.nodes
        self.typed = typed
        self.values: list[Any] = [node.value if node.op == "const" else None for node in nodes]
        self.inputs = [(p, node.value) for p, node in enumerate(nodes) if node.op == "input"]
        self.steps: list[tuple[int, Callable[..., Any], tuple[int, ...]]] = []
        self._places: dict[tuple[int, torch.dtype, bool], int] = {}
        for position, node in enumerate(nodes):
            if node.op not in ("input", "const"):
                self._add(position, node.op, node.args)
        self.outputs = list(range(len(nodes)))
        if dtypes is not None:
            outputs = zip(typed.graph.outputs, dtypes, strict=True)
            self.outputs = [self._cast(p, dtype) for p, dtype in outputs]

    def __call__(self, arguments: Sequence[Tensor]) -> list[Any]:
        """The values asked for: tensors, and constants as numbers or tensors of no dims."""
        values = self.values.copy()
        for place, number in self.inputs:
            values[place] = arguments[number]
        for place, function, operands in self.steps:
            values[place] = function(*[values[p] for p in operands])
        return [values[p] for p in self.outputs]

    def _add(self, position: int, op: str, args: tuple[int, ...]) -> None:
        row, dtype = OPS[op].torch, self.typed.operand_dtypes[position]
        if row is None:  # a cast
            converted = self._cast(args[0], self.typed.dtypes[position])
            self.steps.append((position, lambda value: value, (converted,)))
            return
        dtypes = [torch.bool, dtype, dtype] if OPS[op].kind == "select" else [dtype] * len(args)
        numbers = [False] * (len(args) - 1) + [row.numbers]
        places = tuple(self._cast(a, d, number=n) for a, d, n in zip(args, dtypes, numbers, strict=True))
        function = row.function if dtype != torch.uint64 else functools.partial(_applied, row, dtype)
        self.steps.append((position, (lambda value: value) if dtype in row.leaves else function, places))

    def _cast(self, position: int, dtype: torch.dtype, *, number: bool = False) -> int:
        """Where the value of a node in a dtype is kept: of a constant as a tensor, unless a number is asked for."""
        node, source = self.typed.graph.nodes[position], self.typed.dtypes[position]
        constant = node.op == "const"
        if source == dtype and not constant:
            return position
        key = (position, dtype, number)
        if key not in self._places:
            self._places[key] = len(self.values)
            if constant:
                made = cast(node.value, source, dtype)
                self.values.append(made if number else _tensor(made, dtype, torch.device("cpu")))
            else:
                self.values.append(None)
                convert_to = functools.partial(cast, source=source, target=dtype)
                self.steps.append((self._places[key], convert_to, (position,)))
        return self._places[key]


def _last_uses(typed: TypedGraph) -> dict[int, list[int]]:
    last: dict[int, int] = {}
    for position, node in enumerate(typed.graph.nodes):
        for argument in node.args:
            last[argument] = position
    uses: dict[int, list[int]] = {}
    kept = set(typed.graph.outputs)
    for argument, position in last.items():
        if argument not in kept and typed.graph.nodes[argument].op != "const":
            uses.setdefault(position, []).append(argument)
    return uses


def cast(value: Operand, source: torch.dtype, target: torch.dtype) -> Operand:
    """A value from one dtype to another; the bits of uint64 are then the number that they mean."""
    if source == torch.uint64 and is_float(target):
        return unsigned.to_float(value, target) if isinstance(value, Tensor) else float(value % (1 << 64))
    return convert(value, target)


def _step(
    typed: TypedGraph, position: int, values: Sequence[Operand], block_dims: tuple[int, ...]
) -> Operand:
    node, dtype = typed.graph.nodes[position], typed.operand_dtypes[position]
    operands = [values[i] for i in node.args]
    sources = [typed.dtypes[i] for i in node.args]
    row = OPS[node.op]
    assert row.torch is not None, "casts are conversions"
    if row.kind == "block":
        return _block(row.torch, operands[0], dtype, block_dims)
    if row.kind == "select":
        branches = [cast(v, s, dtype) for v, s in zip(operands[1:], sources[1:], strict=True)]
        return _where(row.torch, operands[0], branches, dtype)
    converted = [cast(v, s, dtype) for v, s in zip(operands, sources, strict=True)]
    if dtype in row.torch.leaves:
        return converted[0]
    return _applied(row.torch, dtype, *_tensors(converted, dtype, numbers=row.torch.numbers))


def _tensors(operands: Sequence[Operand], dtype: torch.dtype, *, numbers: bool) -> list[Operand]:
    """Operands of one dtype as tensors; with `numbers` a number in the last place stays one."""
    device = next((o.device for o in operands if isinstance(o, Tensor)), torch.device("cpu"))
    made: list[Operand] = [_tensor(o, dtype, device) for o in operands]
    return [*made[:-1], operands[-1]] if numbers else made


def _tensor(operand: Operand, dtype: torch.dtype, device: torch.device) -> Tensor:
    if isinstance(operand, Tensor):
        return operand
    return torch.tensor(operand, dtype=stored(dtype), device=device)


def _applied(row: Torch, dtype: torch.dtype, *operands: Operand) -> Tensor:
    """A function of the table on operands of one dtype."""
    if dtype == torch.uint64 and row.orders:
        return _unflipped(row.function(*(_flipped(o) for o in operands if isinstance(o, Tensor))))
    function = row.unsigned if dtype == torch.uint64 and row.unsigned is not None else row.function
    if row.by_place and is_float(dtype) and all(o.is_cpu for o in operands if isinstance(o, Tensor)):
        function = in_whole_vectors(function)
    result: Tensor = function(*operands)
    return result


def _flipped(value: Tensor) -> Tensor:
    """The same uint64 bits, placed so that signed comparison orders them as unsigned ones."""
    return value ^ unsigned.SIGN


def _unflipped(value: Tensor) -> Tensor:
    return value if value.dtype == torch.bool else value ^ unsigned.SIGN


def _where(row: Torch, condition: Operand, branches: Sequence[Operand], dtype: torch.dtype) -> Operand:
    if not isinstance(condition, Tensor):
        return _as_tensor(branches[0] if condition else branches[1], dtype)
    if not any(isinstance(v, Tensor) for v in branches):
        # of two numbers torch makes a tensor of the default dtype, which may have fewer digits
        branches = [_tensor(branches[0], dtype, condition.device), branches[1]]
    chosen = row.function(condition if condition.dtype == torch.bool else condition != 0, *branches)
    return _as_tensor(chosen, dtype)


def _as_tensor(value: Operand, dtype: torch.dtype) -> Operand:
    """torch.where of a tensor and a number may pick a dtype of its own: put it right."""
    if isinstance(value, Tensor) and value.dtype != stored(dtype):
        return value.to(stored(dtype))
    return value


def _block(row: Torch, value: Operand, dtype: torch.dtype, dims: tuple[int, ...]) -> Operand:
    assert isinstance(value, Tensor), "a block operation needs the block's tensor"
    value = value.to(stored(dtype))
    if dtype == torch.uint64 and row.orders:
        return _unflipped(row.function(_flipped(value), dims))
    result: Operand = row.function(value, dims)
    return result

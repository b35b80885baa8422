"""A typed graph evaluated on torch tensors: what the CPU backend, the law checks and the reference run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilefold.algebra import unsigned
from tilefold.algebra.typing import TypedGraph, integer_limits, is_float

Tensor = torch.Tensor
Operand = Tensor | bool | int | float


def _where(condition: Operand, a: Operand, b: Operand) -> Operand:
    if not isinstance(condition, Tensor):
        return a if condition else b
    if condition.dtype != torch.bool:
        condition = condition != 0
    return torch.where(condition, a, b)


def _extreme(tensor_op: Callable[..., Tensor]) -> Callable[[Operand, Operand], Tensor]:
    def apply(a: Operand, b: Operand) -> Tensor:
        if not isinstance(a, Tensor):
            a, b = b, a
        assert isinstance(a, Tensor)
        if isinstance(b, Tensor):
            return tensor_op(a, b)
        return tensor_op(a, torch.tensor(b, dtype=a.dtype, device=a.device))

    return apply


def _tensors(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Let a torch function that wants tensors take a number in any place."""

    def apply(*operands: Operand) -> Tensor:
        like = next(o for o in operands if isinstance(o, Tensor))
        return function(
            *(
                o
                if isinstance(o, Tensor)
                else torch.tensor(
                    o,
                    device=like.device,
                    dtype=like.dtype if isinstance(o, float) and like.is_floating_point() else None,
                )
                for o in operands
            )
        )

    return apply


_OPS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": _tensors(torch.remainder),
    "maximum": _extreme(torch.maximum),
    "minimum": _extreme(torch.minimum),
    "neg": lambda a: -a,
    "abs": torch.abs,
    "floor": lambda a: torch.floor(a) if is_float(a.dtype) else a,
    "ceil": lambda a: torch.ceil(a) if is_float(a.dtype) else a,
    "truediv": lambda a, b: a / b,
    "pow": _tensors(torch.pow),
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "isfinite": torch.isfinite,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "lshift": lambda a, b: a << b,
    "rshift": lambda a, b: a >> b,
    "invert": lambda a: ~a,
    "where": _where,
}
# Of uint64, held as int64 bits; what orders them flips them first.
_UNSIGNED: dict[str, Callable[..., Any]] = {
    **{op: _tensors(function) for op, function in unsigned.OPERATIONS.items()},
    "abs": lambda a: a,
}


def stored(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the tensor that holds values of `dtype`: uint64 lives in the int64 of the same bits."""
    return torch.int64 if dtype == torch.uint64 else dtype


def convert(operand: Operand, dtype: torch.dtype) -> Operand:
    """To `dtype`; uint64 is held as the int64 of the same bits. Numbers stay numbers, in that dtype's kind."""
    if isinstance(operand, Tensor):
        if dtype == torch.uint64 and is_float(operand.dtype):
            return unsigned.from_float(operand)
        return operand if operand.dtype == stored(dtype) else operand.to(stored(dtype))
    if is_float(dtype):
        return float(operand)
    if dtype == torch.bool:
        return bool(operand)
    least, greatest = integer_limits(torch.int64 if dtype == torch.uint64 else dtype)
    return (int(operand) - least) % (greatest - least + 1) + least


def evaluate(
    typed: TypedGraph, arguments: Sequence[Operand], block_dims: tuple[int, ...] = ()
) -> tuple[Operand, ...]:
    """Run a typed graph elementwise on broadcastable tensors (and numbers); `block_*` operations reduce `block_dims`.

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
            value = _cast(values[node.args[0]], typed.operand_dtypes[position], typed.dtypes[position])
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
    return [_cast(value, source, dtype) for value, source, dtype in outputs]


def _last_uses(typed: TypedGraph) -> dict[int, list[int]]:
    last: dict[int, int] = {}
    for position, node in enumerate(typed.graph.nodes):
        for argument in node.args:
            last[argument] = position
    uses: dict[int, list[int]] = {}
    for argument, position in last.items():
        if argument not in typed.graph.outputs and typed.graph.nodes[argument].op != "const":
            uses.setdefault(position, []).append(argument)
    return uses


def _cast(value: Operand, source: torch.dtype, target: torch.dtype) -> Operand:
    if source == torch.uint64 and is_float(target):
        return unsigned.to_float(value, target) if isinstance(value, Tensor) else float(value % (1 << 64))
    return convert(value, target)


def _step(
    typed: TypedGraph, position: int, values: Sequence[Operand], block_dims: tuple[int, ...]
) -> Operand:
    node, operand_dtype = typed.graph.nodes[position], typed.operand_dtypes[position]
    operands = [values[i] for i in node.args]
    sources = [typed.dtypes[i] for i in node.args]
    if node.op.startswith("block_"):
        return _block(node.op, operands[0], operand_dtype, block_dims)
    if node.op == "where":
        branches = [_cast(v, s, operand_dtype) for v, s in zip(operands[1:], sources[1:], strict=True)]
        result = _where(operands[0], *branches)
        return _as_tensor(result, operand_dtype, operands[0])
    converted = [_cast(v, s, operand_dtype) for v, s in zip(operands, sources, strict=True)]
    if not any(isinstance(v, Tensor) for v in converted):
        converted[0] = torch.tensor(
            converted[0], dtype=torch.int64 if operand_dtype == torch.uint64 else operand_dtype, device="cpu"
        )
    apply = _OPS[node.op]
    if operand_dtype == torch.uint64:
        apply = _UNSIGNED.get(node.op, apply)
        if node.op in ("lt", "le", "gt", "ge", "maximum", "minimum"):
            flipped: Tensor = apply(*(_flip(v) for v in converted))
            return flipped ^ unsigned.SIGN if node.op in ("maximum", "minimum") else flipped
    computed: Tensor = apply(*converted)
    return computed


def _flip(value: Operand) -> Operand:
    """The same uint64 bits, placed so that signed comparison orders them as unsigned ones."""
    return value ^ unsigned.SIGN if isinstance(value, Tensor) else int(value) ^ unsigned.SIGN


def _as_tensor(value: Operand, dtype: torch.dtype, like: Operand) -> Operand:
    """torch.where of two numbers picks a dtype of its own: put it right."""
    if isinstance(value, Tensor):
        stored = torch.int64 if dtype == torch.uint64 else dtype
        return value if value.dtype == stored else value.to(stored)
    return value


def _block(op: str, value: Operand, dtype: torch.dtype, dims: tuple[int, ...]) -> Operand:
    if not isinstance(value, Tensor):
        raise AssertionError("a block operation needs the block's tensor")
    if op == "block_count":
        count = 1
        for dim in dims:
            count *= value.shape[dim]
        return count
    value = value.to(torch.int64 if dtype == torch.uint64 else dtype)
    if op == "block_first":
        for dim in dims:
            value = value.narrow(dim, 0, 1)
        return value
    if op == "block_sum":
        return value.sum(dims, keepdim=True, dtype=value.dtype)
    if dtype == torch.uint64:
        flipped = value ^ unsigned.SIGN
        return (
            flipped.amax(dims, keepdim=True) if op == "block_max" else flipped.amin(dims, keepdim=True)
        ) ^ unsigned.SIGN
    return value.amax(dims, keepdim=True) if op == "block_max" else value.amin(dims, keepdim=True)

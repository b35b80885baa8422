"""A fold's graphs as short lists of torch operations that write into reused buffers: the CPU's inner loop.

`evaluate` runs a graph node by node and allocates each result. Here a graph, or two chained ones, is compiled once: casts
and constants are settled, and every step knows the buffer it writes, so that a piece stays in cache from step to step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilefold.algebra.program import Program
from tilefold.algebra.typing import TypedGraph, is_float

Tensor = torch.Tensor
Function = Callable[..., Any]

_SIGN = -(1 << 63)  # flips between unsigned order and the signed order of the same bits
_ORDERED = ("lt", "le", "gt", "ge", "maximum", "minimum")

_WIDEST = {bool: torch.bool, int: torch.int64, float: torch.float64}


def stored(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the tensor that holds values of `dtype`: uint64 lives in the int64 of the same bits."""
    return torch.int64 if dtype == torch.uint64 else dtype


def _through_float64(function: Function) -> Function:
    """For functions whose float32 bits in torch depend on an element's place in the vector."""

    def apply(*operands: Tensor, out: Tensor | None = None) -> Tensor:
        result = function(*(o.double() for o in operands))
        return result.to(operands[0].dtype) if out is None else out.copy_(result)

    return apply


def _floor_divide(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    return torch.floor_divide(a, b, out=out)


# Each takes its operands and `out=`.
_WRITING: dict[str, Function] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "truediv": torch.div, "mod": torch.remainder,
    "floordiv": _floor_divide, "maximum": torch.maximum, "minimum": torch.minimum, "neg": torch.neg, "abs": torch.abs,
    "floor": torch.floor, "ceil": torch.ceil, "exp": torch.exp, "expm1": torch.expm1, "log": torch.log,
    "exp2": _through_float64(torch.exp2), "pow": _through_float64(torch.pow), "log2": torch.log2, "log1p": torch.log1p,
    "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "sin": torch.sin, "cos": torch.cos, "tanh": torch.tanh, "erf": torch.erf,
    "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge, "eq": torch.eq, "ne": torch.ne,
    "and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor, "invert": torch.bitwise_not,
    "lshift": torch.bitwise_left_shift, "rshift": torch.bitwise_right_shift, "where": torch.where,
}  # fmt: skip
# These have no `out=`.
_ALLOCATING: dict[str, Function] = {"isnan": torch.isnan, "isinf": torch.isinf, "isfinite": torch.isfinite}


@dataclass
class Slot:
    """A value of the list: a constant, an input, or what a step gives. `full` ones have the whole piece's shape."""

    dtype: torch.dtype
    full: bool
    constant: Tensor | None = None
    buffer: int | None = None


@dataclass(frozen=True)
class Step:
    """`function(*arguments)` into slot `result`; into a buffer (`writes`), or freshly allocated."""

    function: Function
    arguments: tuple[int, ...]
    result: int
    writes: bool


class Builder:
    """Collects slots and steps while typed graphs are inlined one after another."""

    def __init__(self, axis: int | None) -> None:
        self.slots: list[Slot] = []
        self.steps: list[Step] = []
        self.axis = axis  # the dim that block operations reduce

    def slot(self, dtype: torch.dtype, full: bool, constant: Tensor | None = None) -> int:
        self.slots.append(Slot(dtype, full, constant))
        return len(self.slots) - 1

    def constant(self, number: Any, dtype: torch.dtype) -> int:
        if dtype != torch.bool and not is_float(dtype):
            info = torch.iinfo(stored(dtype))
            number = (int(number) - info.min) % (info.max - info.min + 1) + info.min
        return self.slot(dtype, False, torch.tensor(number, dtype=stored(dtype)))

    def emit(
        self, function: Function, arguments: Sequence[int], dtype: torch.dtype, *, writes: bool = True
    ) -> int:
        """One step; on constants alone it is done at once."""
        slots = [self.slots[a] for a in arguments]
        if all(s.constant is not None for s in slots):
            return self.slot(dtype, False, function(*(s.constant for s in slots)))
        result = self.slot(dtype, any(s.full for s in slots))
        self.steps.append(Step(function, tuple(arguments), result, writes and self.slots[result].full))
        return result

    def cast(self, value: int, dtype: torch.dtype) -> int:
        source = self.slots[value].dtype
        if source == dtype or {source, dtype} == {torch.int64, torch.uint64}:
            if source == dtype:
                return value
            self.slots.append(Slot(dtype, self.slots[value].full, self.slots[value].constant))
            self.steps.append(Step(_same, (value,), len(self.slots) - 1, False))
            return len(self.slots) - 1
        if source == torch.uint64 and is_float(dtype):
            return self.emit(functools.partial(_from_unsigned, dtype=dtype), (value,), dtype, writes=False)
        return self.emit(functools.partial(_convert, dtype=stored(dtype)), (value,), dtype)

    def inline(self, typed: TypedGraph, arguments: Sequence[int]) -> list[int]:
        """Add a typed graph's steps; gives the slots of its outputs."""
        places: list[int] = []
        for position, node in enumerate(typed.graph.nodes):
            if node.op == "input":
                place = self.cast(arguments[node.value], typed.dtypes[position])
            elif node.op == "const":
                place = self.constant(node.value, _WIDEST[type(node.value)])
            else:
                place = self.operation(typed, position, [places[a] for a in node.args])
            places.append(place)
        return [places[o] for o in typed.graph.outputs]

    def operation(self, typed: TypedGraph, position: int, places: list[int]) -> int:
        node, operand, dtype = (
            typed.graph.nodes[position],
            typed.operand_dtypes[position],
            typed.dtypes[position],
        )
        if node.op == "cast":
            return self.cast(self._weak(places[0], operand), dtype)
        if node.op.startswith("block_"):
            return self._block(node.op, self._weak(places[0], operand), dtype)
        if node.op == "where":
            branches = [self._weak(p, operand) for p in places[1:]]
            return self._select(self._weak(places[0], torch.bool), *branches, dtype)
        values = [self._weak(p, operand) for p in places]
        if node.op in ("floor", "ceil") and not is_float(operand):
            return values[0]
        if node.op == "mul":
            for one, other in (values, values[::-1]):
                if self._is_one(one):
                    return other
        if operand == torch.uint64 and node.op in _ORDERED:
            sign = self.constant(_SIGN, torch.int64)
            flipped = [self.emit(torch.bitwise_xor, (v, sign), operand) for v in values]
            result = self.emit(_WRITING[node.op], flipped, dtype)
            return result if dtype == torch.bool else self.emit(torch.bitwise_xor, (result, sign), dtype)
        if node.op in _ALLOCATING:
            return self.emit(_ALLOCATING[node.op], values, dtype, writes=False)
        return self.emit(_WRITING[node.op], values, dtype)

    def _weak(self, place: int, dtype: torch.dtype) -> int:
        """A cast; a constant takes the other operands' dtype."""
        constant = self.slots[place].constant
        if constant is None or self.slots[place].dtype == dtype:
            return self.cast(place, dtype)
        return self.constant(constant.item(), dtype)

    def _is_one(self, place: int) -> bool:
        constant = self.slots[place].constant
        return constant is not None and bool(constant == 1)

    def _select(self, condition: int, a: int, b: int, dtype: torch.dtype) -> int:
        constant = self.slots[condition].constant
        if constant is not None:
            return a if bool(constant) else b
        return self.emit(torch.where, (condition, a, b), dtype)

    def _block(self, op: str, place: int, dtype: torch.dtype) -> int:
        function = functools.partial(_BLOCKS[op], axis=self.axis)
        flip = dtype == torch.uint64 and op in ("block_max", "block_min")
        if flip:
            place = self.emit(torch.bitwise_xor, (place, self.constant(_SIGN, torch.int64)), dtype)
        whole = next(i for i, s in enumerate(self.slots) if s.full)
        result = self.slot(dtype, False)
        self.steps.append(Step(function, (place, whole), result, False))
        return (
            self.emit(torch.bitwise_xor, (result, self.constant(_SIGN, torch.int64)), dtype)
            if flip
            else result
        )


def _same(value: Tensor) -> Tensor:
    return value


def _convert(value: Tensor, out: Tensor | None = None, *, dtype: torch.dtype) -> Tensor:
    return value.to(dtype) if out is None else out.copy_(value)


def _from_unsigned(value: Tensor, *, dtype: torch.dtype) -> Tensor:
    wide = value.to(torch.float64)
    return torch.where(value < 0, wide + 2.0**64, wide).to(dtype)


def _block_sum(value: Tensor, whole: Tensor, *, axis: int) -> Tensor:
    return value.expand(whole.shape).sum(axis, keepdim=True, dtype=value.dtype)


def _block_max(value: Tensor, whole: Tensor, *, axis: int) -> Tensor:
    return value.expand(whole.shape).amax(axis, keepdim=True)


def _block_min(value: Tensor, whole: Tensor, *, axis: int) -> Tensor:
    return value.expand(whole.shape).amin(axis, keepdim=True)


def _block_count(value: Tensor, whole: Tensor, *, axis: int) -> Tensor:
    return torch.tensor(whole.shape[axis])


_BLOCKS: dict[str, Function] = {
    "block_sum": _block_sum, "block_max": _block_max, "block_min": _block_min, "block_count": _block_count,
}  # fmt: skip

Workspace = dict[Any, list[Tensor]]


class Kernel:
    """A compiled list: `run(arguments, shape, workspace)` gives the outputs, valid until the next-but-one run."""

    def __init__(self, builder: Builder, inputs: int, outputs: Sequence[int]) -> None:
        self.inputs, self.outputs = inputs, tuple(outputs)
        self.steps, self.slots = builder.steps, builder.slots
        self.buffer_dtypes = _assign_buffers(builder, self.outputs)
        written = {s.result for s in self.steps if s.writes}
        self.direct = tuple(o in written and self.outputs.index(o) == i for i, o in enumerate(self.outputs))
        self.bound = [s.constant for s in self.slots]
        self.buffered = [(i, s.buffer) for i, s in enumerate(self.slots) if s.buffer is not None]

    def run(self, arguments: Sequence[Tensor], targets: Sequence[Tensor], workspace: Workspace) -> None:
        """Run on tensors that all have the targets' shape (or, in an absorbing list, the block's)."""
        shape = arguments[-1].shape
        key = (self, shape)
        buffers = workspace.get(key)
        if buffers is None:
            buffers = workspace[key] = [torch.empty(shape, dtype=d) for d in self.buffer_dtypes]
        values: list[Any] = list(self.bound)
        values[: self.inputs] = arguments
        for position, buffer in self.buffered:
            values[position] = buffers[buffer]
        for output, direct, target in zip(self.outputs, self.direct, targets, strict=True):
            if direct:
                values[output] = target
        for step in self.steps:
            operands = [values[a] for a in step.arguments]
            if step.writes:
                step.function(*operands, out=values[step.result])
            else:
                values[step.result] = step.function(*operands)
        for output, direct, target in zip(self.outputs, self.direct, targets, strict=True):
            if not direct:
                target.copy_(values[output])


def _assign_buffers(builder: Builder, outputs: Sequence[int]) -> list[torch.dtype]:
    """Give every written slot that is no output a buffer; one whose last reader is this step is free for its result."""
    last = {a: number for number, step in enumerate(builder.steps) for a in step.arguments}
    free: dict[torch.dtype, list[int]] = {}
    dtypes: list[torch.dtype] = []
    aliased = {step.arguments[0] for step in builder.steps if step.function is _same}
    for number, step in enumerate(builder.steps):
        for argument in set(step.arguments):
            slot = builder.slots[argument]
            if last[argument] == number and slot.buffer is not None and argument not in aliased:
                free.setdefault(stored(slot.dtype), []).append(slot.buffer)
        slot = builder.slots[step.result]
        if step.writes and step.result not in outputs:
            pool = free.get(stored(slot.dtype))
            if pool:
                slot.buffer = pool.pop()
            else:
                slot.buffer = len(dtypes)
                dtypes.append(stored(slot.dtype))
    return dtypes


def _inputs(builder: Builder, dtypes: Sequence[torch.dtype], full: bool = True) -> list[int]:
    return [builder.slot(d, full) for d in dtypes]


def _kernel(builder: Builder, inputs: int, values: Sequence[int], dtypes: Sequence[torch.dtype]) -> Kernel:
    outputs = [builder._weak(v, d) for v, d in zip(values, dtypes, strict=True)]
    return Kernel(builder, inputs, outputs)


@functools.lru_cache(maxsize=256)
def lift_kernel(program: Program) -> Kernel:
    """elements (and positions) -> state."""
    builder = Builder(None)
    elements = _inputs(builder, program.lift.input_dtypes)
    return _kernel(builder, len(elements), builder.inline(program.lift, elements), program.state)


@functools.lru_cache(maxsize=256)
def step_kernel(program: Program) -> Kernel:
    """state, elements after it (and positions) -> state: combine and lift in one list."""
    builder = Builder(None)
    state = _inputs(builder, program.state)
    elements = _inputs(builder, program.lift.input_dtypes)
    lifted = builder.inline(program.lift, elements)
    right = [builder._weak(v, d) for v, d in zip(lifted, program.state, strict=True)]
    inputs = len(state) + len(elements)
    return _kernel(builder, inputs, builder.inline(program.combine_later, [*state, *right]), program.state)


@functools.lru_cache(maxsize=256)
def combine_kernel(program: Program) -> Kernel:
    """state, state -> state."""
    builder = Builder(None)
    states = _inputs(builder, (*program.state, *program.state))
    return _kernel(builder, len(states), builder.inline(program.combine, states), program.state)


@functools.lru_cache(maxsize=256)
def absorb_kernel(program: Program, axis: int) -> Kernel:
    """state, blocks of elements along `axis` (and their positions) -> state; `axis` has length 1 in the state."""
    assert program.absorb is not None
    builder = Builder(axis)
    state = _inputs(builder, program.state, full=False)
    elements = _inputs(builder, program.lift.input_dtypes)
    inputs = len(state) + len(elements)
    return _kernel(builder, inputs, builder.inline(program.absorb, [*state, *elements]), program.state)


@functools.lru_cache(maxsize=256)
def project_kernel(program: Program) -> Kernel:
    """state -> results in their dtypes."""
    builder = Builder(None)
    state = _inputs(builder, program.state)
    return _kernel(builder, len(state), builder.inline(program.project, state), program.outputs)

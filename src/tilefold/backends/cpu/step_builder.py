"""Typed graphs as lists of steps: casts and constants are settled, and each operation has its function of torch's.

A function of a step takes `out=`, the buffer that it writes, whatever torch's own does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch

from tilefold.algebra import arithmetic, unsigned
from tilefold.algebra.columns import Op, Torch
from tilefold.algebra.dtypes import is_float
from tilefold.algebra.evaluate import stored
from tilefold.algebra.numbers import float_number, whole_number
from tilefold.algebra.operations import OPS
from tilefold.algebra.typing import TypedGraph
from tilefold.algebra.whole_vectors import in_whole_vectors
from tilefold.backends.cpu.reductions import by_results
from tilefold.backends.cpu.step_lists import Slot, Step
from tilefold.runtime.caching import kept_outside_modes

Tensor = torch.Tensor
Function = Callable[..., Any]

_INF = float("inf")
_WIDEST = {bool: torch.bool, int: torch.int64, float: torch.float64}


def _allocating(function: Function) -> Function:
    """`function`, which allocates its result, with `out=`."""

    def apply(*operands: Tensor, out: Tensor | None = None) -> Tensor:
        result: Tensor = function(*operands)
        return result if out is None else out.copy_(result)

    return apply


# Of each dtype the whole numbers of as many bits.
_BITS = {
    torch.float32: torch.int32, torch.float64: torch.int64, torch.int32: torch.int32, torch.int64: torch.int64,
}  # fmt: skip
FEW = 4096  # elements below which each operation counts (not measured)


@kept_outside_modes(16)
def _zero(dtype: torch.dtype) -> Tensor:
    return torch.zeros((), dtype=dtype, device="cpu")


def _kept(condition: Tensor, value: Tensor, *, side: bool, out: Tensor | None = None) -> Tensor:
    """The value where the condition is `side`, else 0: by its bits, since torch selects one by one."""
    if value.numel() < (2 * FEW if condition.numel() < value.numel() else FEW) > condition.numel():
        zero = _zero(value.dtype)
        made = torch.where(condition, value, zero) if side else torch.where(condition, zero, value)
        return made if out is None else out.copy_(made)
    bits = _BITS[value.dtype]
    if out is None or condition.numel() < value.numel() or out.data_ptr() == value.data_ptr():
        mask = condition.to(bits)
    else:
        mask = out.view(bits).copy_(condition)
    mask = mask.neg_() if side else mask.sub_(1)
    if out is None:
        return torch.bitwise_and(mask, value.view(bits)).view(value.dtype)
    torch.bitwise_and(mask, value.view(bits), out=out.view(bits))
    return out


def _chosen(condition: Tensor, a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """`torch.where`, as `_kept`."""
    if a.numel() < FEW > b.numel() and condition.numel() < FEW:
        made = torch.where(condition, a, b)
        return made if out is None else out.copy_(made)
    bits = _BITS[a.dtype]
    first, other = a.view(bits), b.view(bits)
    mask = condition.to(bits).neg_()
    differing = torch.bitwise_xor(first, other)
    mask = mask.bitwise_and_(differing) if mask.shape == differing.shape else mask & differing
    if out is None:
        return torch.bitwise_xor(mask, other).view(a.dtype)
    torch.bitwise_xor(mask, other, out=out.view(bits))
    return out


class Builder:
    """Collects slots and steps while typed graphs are inlined one after another.

    `axes` are the dims that block operations reduce. With `placeless` the bits of an element depend on its value alone,
    not on its place in the piece.
    """

    def __init__(self, axes: tuple[int, ...] = (), placeless: bool = False) -> None:
        self.slots: list[Slot] = []
        self.steps: list[Step] = []
        self.axes = axes
        self.placeless = placeless

    def inputs(self, dtypes: Sequence[torch.dtype], full: bool = True) -> list[int]:
        """Slots of the arguments, in order; all of them come before any other slot."""
        return [self._slot(d, full) for d in dtypes]

    def _slot(self, dtype: torch.dtype, full: bool, constant: Tensor | None = None) -> int:
        self.slots.append(Slot(dtype, full, constant))
        return len(self.slots) - 1

    def _constant(self, number: Any, dtype: torch.dtype) -> int:
        if dtype != torch.bool and not is_float(dtype):
            number = whole_number(whole_number(number, dtype), stored(dtype))
        elif is_float(dtype):
            number = float_number(number, dtype)
        return self._slot(dtype, False, torch.tensor(number, dtype=stored(dtype), device="cpu"))

    def _emit(self, function: Function, arguments: Sequence[int], dtype: torch.dtype) -> int:
        """One elementwise step; on constants alone it is done at once."""
        slots = [self.slots[a] for a in arguments]
        if all(s.constant is not None for s in slots):
            return self._slot(dtype, False, function(*(s.constant for s in slots)))
        result = self._slot(dtype, any(s.full for s in slots))
        self.steps.append(Step(function, tuple(arguments), result, self.slots[result].full))
        return result

    def cast(self, place: int, dtype: torch.dtype) -> int:
        """The value in another dtype; a constant takes it at no cost."""
        source = self.slots[place].dtype
        if source == dtype:
            return place
        if self.slots[place].constant is not None:
            return self._constant(self._number(place), dtype)
        if stored(source) == stored(dtype):
            result = self._slot(dtype, self.slots[place].full)
            self.steps.append(Step(_same, (place,), result, writes=False, view=True))
            return result
        if source == torch.uint64 and is_float(dtype):
            to_float = functools.partial(unsigned.to_float, dtype=dtype)
            return self._emit(_allocating(to_float), (place,), dtype)
        if is_float(source) and not is_float(dtype) and dtype != torch.bool:
            whole = functools.partial(arithmetic.whole, dtype=dtype)
            return self._emit(_allocating(whole), (place,), dtype)
        return self._emit(functools.partial(_convert, dtype=stored(dtype)), (place,), dtype)

    def _number(self, place: int) -> Any:
        """The value of a constant."""
        slot = self.slots[place]
        assert slot.constant is not None
        held = slot.constant.item() if slot.number is None else slot.number
        return held % (1 << 64) if slot.dtype == torch.uint64 else held

    def inline(self, typed: TypedGraph, arguments: Sequence[int]) -> list[int]:
        """Add a typed graph's steps; gives the slots of its outputs."""
        places: list[int] = []
        for position, node in enumerate(typed.graph.nodes):
            if node.op == "input":
                place = self.cast(arguments[node.value], typed.dtypes[position])
            elif node.op == "const":
                place = self._constant(node.value, _WIDEST[type(node.value)])
                self.slots[place].number = node.value
            else:
                place = self._operation(typed, position, [places[a] for a in node.args])
            places.append(place)
        return [places[o] for o in typed.graph.outputs]

    def _operation(self, typed: TypedGraph, position: int, places: list[int]) -> int:
        row, dtype = OPS[typed.graph.nodes[position].op], typed.dtypes[position]
        operand = typed.operand_dtypes[position]
        if row.kind == "select":
            return self._select(row, places, operand, dtype)
        values = [self.cast(p, operand) for p in places]
        if row.torch is None:
            return self.cast(values[0], dtype)
        if row.kind == "block":
            return self.block(row.name, values[0], dtype)
        if operand in row.torch.leaves:
            return values[0]
        if row.name in ("isinf", "isfinite"):
            return self._compared_with_infinity(row.name, values, operand)
        if operand == torch.uint64 and row.torch.orders:
            return self._ordered(row.torch, values, dtype)
        number = self.slots[values[-1]].constant if row.torch.numbers else None
        if row.name == "add" and (signed := self._signed(*values)) is not None:
            return self._emit(torch.mul, signed, dtype)
        if (
            row.torch.function is torch.mul
            and is_float(dtype)
            and (left := self._times_one(values)) is not None
        ):
            return left
        function = self._function(row.torch, operand, None if number is None else number.item())
        return self._emit(function, values if number is None else values[:-1], dtype)

    def _signed(self, one: int, other: int) -> tuple[int, int] | None:
        """The sign of x, and g, of `where(x > 0, g, 0) + where(x < 0, -g, 0)`, which takes two operations then."""
        of_above, of_below = (self._made(p) for p in (one, other))
        if not (_keeps(of_above) and _keeps(of_below)):
            return None
        above, below = (self._made(s.arguments[0]) for s in (of_above, of_below))
        g, negated = of_above.arguments[1], self._made(of_below.arguments[1])
        if above is None or below is None or negated is None:
            return None
        x, places = above.arguments[0], (above.arguments[1:], below.arguments[1:])
        kinds = (above.function, below.function, negated.function) == (torch.gt, torch.lt, torch.neg)
        if not (kinds and below.arguments[0] == x and negated.arguments == (g,)):
            return None
        if not all(len(p) == 1 and self._is_zero(p[0]) for p in places):
            return None
        return self._emit(torch.sign, (x,), self.slots[x].dtype), g

    def _made(self, place: int) -> Step | None:
        """The step that makes a value."""
        return next((s for s in self.steps if s.result == place), None)

    def _times_one(self, values: Sequence[int]) -> int | None:
        """The factor that is left where the other is 1."""
        ones = [c is not None and c.item() == 1 for c in (self.slots[v].constant for v in values)]
        return values[ones.index(True) - 1] if any(ones) else None

    def _compared_with_infinity(self, op: str, values: list[int], operand: torch.dtype) -> int:
        """Whether values are infinite, or finite and no NaN, in buffers, where torch's own functions allocate."""
        size = (
            self._emit(torch.abs, values, operand) if is_float(operand) else self._constant(0, torch.float32)
        )
        compare = torch.eq if op == "isinf" else torch.lt
        return self._emit(compare, (size, self._constant(float("inf"), torch.float32)), torch.bool)

    def _function(self, row: Torch, dtype: torch.dtype, number: float | None) -> Function:
        """The table's function, with `out=`; a last operand that is a number is given as one."""
        if dtype == torch.uint64 and row.unsigned is not None:
            return _allocating(row.unsigned)
        function = row.function if row.out else _allocating(row.function)
        if number is not None:
            function = functools.partial(_with_number, function=function, number=number)
        return in_whole_vectors(function) if self.placeless and row.by_place and is_float(dtype) else function

    def _ordered(self, row: Torch, values: list[int], dtype: torch.dtype) -> int:
        sign = self._constant(unsigned.SIGN, torch.int64)
        flipped = [self._emit(torch.bitwise_xor, (v, sign), torch.uint64) for v in values]
        result = self._emit(row.function, flipped, dtype)
        return result if dtype == torch.bool else self._emit(torch.bitwise_xor, (result, sign), dtype)

    def _select(self, row: Op, places: list[int], operand: torch.dtype, dtype: torch.dtype) -> int:
        condition, a, b = self.cast(places[0], torch.bool), *(self.cast(p, operand) for p in places[1:])
        constant = self.slots[condition].constant
        if constant is not None:
            return a if bool(constant) else b
        assert row.torch is not None
        function = self._without_infinity(condition, a, b, dtype)
        if function is not None:
            return self._emit(function, (b,), dtype)
        if stored(dtype) not in _BITS:
            return self._emit(row.torch.function, (condition, a, b), dtype)
        zeros = [self._is_zero(p) for p in (a, b)]
        if any(zeros):
            kept = functools.partial(_kept, side=zeros[1])
            return self._emit(kept, (condition, b if zeros[0] else a), dtype)
        return self._emit(_chosen, (condition, a, b), dtype)

    def _is_zero(self, place: int) -> bool:
        """Whether a value is the constant 0, of which no bit is set."""
        constant = self.slots[place].constant
        return constant is not None and constant.item() == 0 and not torch.signbit(constant)

    def _without_infinity(
        self, condition: int, number: int, value: int, dtype: torch.dtype
    ) -> Function | None:
        """`where(value == inf, number, value)`, or of -inf, in a tenth of the time: torch compares and selects one by one."""
        made = self._made(condition)
        if (
            made is None
            or made.function is not torch.eq
            or value not in made.arguments
            or not is_float(dtype)
        ):
            return None
        limit = self.slots[sum(made.arguments) - value].constant
        put = self.slots[number].constant
        if limit is None or put is None or not torch.isinf(limit):
            return None
        above, below = (put.item(), -_INF) if limit > 0 else (_INF, put.item())
        return functools.partial(torch.nan_to_num, nan=float("nan"), posinf=above, neginf=below)

    def block(self, op: str, place: int, dtype: torch.dtype) -> int:
        """A reduction of the whole piece along its axes."""
        row = OPS[op].torch
        assert row is not None
        flip = dtype == torch.uint64 and row.orders
        sign = self._constant(unsigned.SIGN, torch.int64) if flip else 0
        if flip:
            place = self._emit(torch.bitwise_xor, (place, sign), dtype)
        whole = next(i for i, s in enumerate(self.slots) if s.full)
        result = self._slot(dtype, False)
        function = functools.partial(_BLOCKS.get(op, _block), function=row.function, axes=self.axes)
        self.steps.append(Step(function, (place, whole), result, writes=False))
        return self._emit(torch.bitwise_xor, (result, sign), dtype) if flip else result


def _keeps(step: Step | None) -> TypeGuard[Step]:
    """Whether a step keeps values where a condition holds."""
    return step is not None and getattr(step.function, "keywords", None) == {"side": True}


def _same(value: Tensor) -> Tensor:
    return value


def _convert(value: Tensor, out: Tensor | None = None, *, dtype: torch.dtype) -> Tensor:
    return value.to(dtype) if out is None else out.copy_(value)


def _with_number(*values: Tensor, out: Tensor | None = None, function: Function, number: float) -> Tensor:
    result: Tensor = function(*values, number, out=out)
    return result


def _block(value: Tensor, whole: Tensor, *, function: Function, axes: tuple[int, ...]) -> Tensor:
    return by_results(function, value if value.shape == whole.shape else value.expand(whole.shape), axes)


def _block_first(value: Tensor, whole: Tensor, *, function: Function, axes: tuple[int, ...]) -> Tensor:
    first: Tensor = function(value.expand(whole.shape), axes)
    return first.clone()  # the piece's buffer is overwritten by the next piece


def _block_count(value: Tensor, whole: Tensor, *, function: Function, axes: tuple[int, ...]) -> Tensor:
    return torch.tensor(function(whole, axes), device="cpu")


# Operations that do not reduce values, so that their bits need no care.
_BLOCKS: dict[str, Function] = {"block_first": _block_first, "block_count": _block_count}


def is_reduction(function: Function) -> bool:
    """Whether a step's function reduces a block to one value for each result."""
    return getattr(function, "func", None) is _block

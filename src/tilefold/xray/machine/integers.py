"""Integer arithmetic, logic, shifts and bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tilefold.xray.machine.binding import Binder, Step, unknown
from tilefold.xray.machine.types import PACKED, TYPES, Array, Type, halves, joined
from tilefold.xray.ptx.syntax import Immediate, Instruction

U32 = TYPES["u32"]
Function = Callable[..., Array]

_TWO: dict[str, Function] = {
    "add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "min": np.minimum, "max": np.maximum,
}  # fmt: skip
_ONE: dict[str, Function] = {
    "not": np.invert, "neg": lambda a: np.zeros_like(a) - a, "abs": np.abs, "cnot": lambda a: (a == 0).astype(a.dtype),
}  # fmt: skip


def bind(binder: Binder, instruction: Instruction) -> Step | None:
    """The step of an integer instruction; None if this is none."""
    opcode, last = instruction.opcode, instruction.modifiers[-1] if instruction.modifiers else ""
    if opcode in ("add", "sub", "min", "max") and last in ("s16x2", "u16x2"):
        two, half = _TWO[opcode], PACKED[last]
        return binder.pure(instruction, _packed(two, half), (U32, U32), U32)
    kind = TYPES.get(last)
    if kind is None or kind.floating:
        return None
    if opcode in _TWO and not set(instruction.modifiers) & {"cc", "sat", "relu"}:
        return binder.pure(instruction, _TWO[opcode], (kind, kind), kind)
    if opcode in ("min", "max") and "relu" in instruction.modifiers:
        return binder.pure(instruction, _not_negative(_TWO[opcode]), (kind, kind), kind)
    if opcode in ("mul", "mad"):
        return _multiply(binder, instruction, kind)
    if opcode in ("shl", "shr"):
        return binder.pure(instruction, _shift(opcode, kind), (kind, U32), kind)
    if opcode in ("div", "rem"):
        function = _divide if opcode == "div" else _remainder
        return binder.pure(instruction, function, (kind, kind), kind)
    if opcode in _ONE:
        return binder.pure(instruction, _ONE[opcode], (kind,), kind)
    if opcode in ("popc", "clz", "brev", "bfind"):
        return _bits(binder, instruction, kind)
    if opcode == "bfe":
        return binder.pure(instruction, _extract(kind), (kind, U32, U32), kind)
    if opcode == "bfi":
        return binder.pure(instruction, _insert, (kind, kind, U32, U32), kind)
    if opcode == "prmt" and instruction.modifiers == ("b32",):
        return binder.pure(instruction, permute_bytes, (U32, U32, U32), U32)
    if opcode == "shf":
        return binder.pure(instruction, _funnel(instruction), (U32, U32, U32), U32)
    if opcode == "lop3":
        return _logic(binder, instruction)
    return None


def _not_negative(function: Function) -> Function:
    """A function's result, 0 in place of negative numbers."""
    return lambda a, b: np.maximum(function(a, b), 0).astype(a.dtype)


def _packed(function: Function, half: Type) -> Function:
    def both(a: Array, b: Array) -> Array:
        (al, ah), (bl, bh) = halves(a, half.dtype), halves(b, half.dtype)
        return joined(function(al, bl), function(ah, bh))

    return both


def _multiply(binder: Binder, instruction: Instruction, kind: Type) -> Step:
    """`mul` and `mad`, whose product is the lower half, the upper half or whole."""
    part = next((m for m in instruction.modifiers if m in ("lo", "hi", "wide")), "lo")
    if len(instruction.modifiers) > 2:
        raise unknown(instruction)
    result = TYPES[f"{kind.kind}{2 * kind.bits}"] if part == "wide" else kind
    if part == "hi":
        product: Function = high_product(kind)
    elif part == "wide":
        product = lambda a, b: a.astype(result.dtype) * b.astype(result.dtype)  # noqa: E731
    else:
        product = np.multiply
    if instruction.opcode == "mul":
        return binder.pure(instruction, product, (kind, kind), result)
    return binder.pure(instruction, lambda a, b, c: product(a, b) + c, (kind, kind, result), result)


def high_product(kind: Type) -> Function:
    """The upper half of a product of twice the width."""
    if kind.bits < 64:
        wide = np.dtype(f"{kind.dtype.kind}{kind.bits // 4}")
        return lambda a, b: ((a.astype(wide) * b.astype(wide)) >> wide.type(kind.bits)).astype(kind.dtype)

    def high(a: Array, b: Array) -> Array:
        exact = (a.astype(object) * b.astype(object)) >> 64
        return np.array([int(v) & (2**64 - 1) for v in exact], np.uint64).view(kind.dtype)

    return high


def _shift(opcode: str, kind: Type) -> Function:
    """Shifts beyond the width give zero, or the sign."""
    limit = np.uint32(kind.bits - 1)

    def shift(a: Array, count: Array) -> Array:
        held = np.minimum(count, limit).astype(a.dtype)
        if opcode == "shr" and kind.kind == "s":
            kept: Array = a >> held
            return kept
        moved = a << held if opcode == "shl" else a >> held
        return np.where(count > limit, a.dtype.type(0), moved)

    return shift


def _divide(a: Array, b: Array) -> Array:
    """Toward zero; a division by zero gives all ones, as chips do."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    floor = a // safe
    if a.dtype.kind == "i":
        floor = floor + ((floor * safe != a) & ((a < 0) != (safe < 0))).astype(a.dtype)
    return np.where(b == 0, np.invert(np.zeros_like(a)), floor)


def _remainder(a: Array, b: Array) -> Array:
    """With the sign of the dividend."""
    return np.where(b == 0, a, a - _divide(a, b) * b)


def _bits(binder: Binder, instruction: Instruction, kind: Type) -> Step:
    opcode, width = instruction.opcode, kind.bits
    if opcode == "brev":
        return binder.pure(instruction, lambda a: _reverse(a, width), (kind,), kind)
    if opcode == "popc":
        return binder.pure(instruction, lambda a: _spread(a, width).sum(0).astype(np.uint32), (kind,), U32)
    if opcode == "clz":
        return binder.pure(instruction, lambda a: np.uint32(width - 1) - _highest(a, width), (kind,), U32)
    if instruction.has("shiftamt"):
        raise unknown(instruction)

    def find(a: Array) -> Array:
        return _highest(np.where(a < 0, ~a, a) if kind.kind == "s" else a, width)

    return binder.pure(instruction, find, (kind,), U32)


def _spread(values: Array, width: int) -> Array:
    """The bits of each value, lowest first, along a new first axis."""
    whole = values.view(f"u{width // 8}")
    bits: Array = (whole[None, :] >> np.arange(width, dtype=whole.dtype)[:, None]) & whole.dtype.type(1)
    return bits


def _highest(values: Array, width: int) -> Array:
    """The place of the highest one; all ones for zero."""
    places = np.arange(1, width + 1)[:, None]
    highest: Array = (_spread(values, width).astype(np.int64) * places).max(0) - 1
    return highest.astype(np.int32).view(np.uint32)


def _reverse(values: Array, width: int) -> Array:
    weights = (np.uint64(1) << np.arange(width, dtype=np.uint64))[::-1, None]
    reversed_: Array = (_spread(values, width).astype(np.uint64) * weights).sum(0).astype(values.dtype)
    return reversed_


def _extract(kind: Type) -> Function:
    """Bit fields; beyond the value they hold its sign."""

    def extract(a: Array, start: Array, length: Array) -> Array:
        start, length = (start & 0xFF).astype(np.int64), (length & 0xFF).astype(np.int64)
        signed = kind.kind == "s"
        bits = _spread(a, kind.bits).astype(np.uint64)
        last = np.minimum(start + length - 1, kind.bits - 1).clip(0)
        sign = np.where((length > 0) & signed, np.take_along_axis(bits, last[None], 0)[0], np.uint64(0))
        rows = np.arange(kind.bits)[:, None]
        source = rows + start
        inside = (rows < length) & (source < kind.bits)
        taken = np.take_along_axis(bits, np.minimum(source, kind.bits - 1), 0)
        field = np.where(inside, taken, sign[None])
        weights = np.uint64(1) << np.arange(kind.bits, dtype=np.uint64)[:, None]
        value: Array = (field * weights).sum(0).astype(f"u{kind.bits // 8}").view(kind.dtype)
        return value

    return extract


def _insert(a: Array, b: Array, start: Array, length: Array) -> Array:
    """The lower bits of a, put into b."""
    width = a.dtype.itemsize * 8
    start, length = (start & 0xFF).astype(np.uint64), (length & 0xFF).astype(np.uint64)
    ones = np.where(length >= 64, np.uint64(2**64 - 1), (np.uint64(1) << (length & 63)) - np.uint64(1))
    mask = np.where(start >= width, np.uint64(0), ones << np.minimum(start, 63)).astype(a.dtype)
    moved = (a.astype(np.uint64) << np.minimum(start, 63)).astype(a.dtype)
    merged: Array = (b & ~mask) | (moved & mask)
    return merged


def permute_bytes(a: Array, b: Array, selector: Array) -> Array:
    """Each byte of the result is one of the eight of b and a, or its sign."""
    both = a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32))
    result = np.zeros(a.shape, np.uint64)
    for place in range(4):
        nibble = (selector >> np.uint32(4 * place)).astype(np.uint64) & np.uint64(15)
        byte = (both >> ((nibble & np.uint64(7)) * np.uint64(8))) & np.uint64(255)
        sign = np.where(byte >= 128, np.uint64(255), np.uint64(0))
        result |= np.where(nibble >= 8, sign, byte) << np.uint64(8 * place)
    return result.astype(np.uint32)


def _funnel(instruction: Instruction) -> Function:
    """A 64-bit value shifted, one half of it kept."""
    left, clamp = instruction.has("l"), instruction.has("clamp")

    def funnel(low: Array, high: Array, count: Array) -> Array:
        by = (np.minimum(count, 32) if clamp else count & np.uint32(31)).astype(np.uint64)
        both = low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))
        moved = (both << by) >> np.uint64(32) if left else both >> by
        return (moved & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    return funnel


def _logic(binder: Binder, instruction: Instruction) -> Step:
    """`lop3`, whose last operand is a table: what remains is a function of three numbers."""
    table = instruction.operands[4]
    if not isinstance(table, Immediate) or len(instruction.operands) != 5:
        raise unknown(instruction)
    three = replace(instruction, operands=instruction.operands[:4], guard=None)
    return binder.pure(three, _table(table.value), (U32, U32, U32), U32)


def _table(table: int) -> Function:
    """Any function of three bits, bit by bit."""

    def look_up(a: Array, b: Array, c: Array) -> Array:
        result = np.zeros_like(a)
        for case in range(8):
            if table >> case & 1:
                x, y, z = a if case & 4 else ~a, b if case & 2 else ~b, c if case & 1 else ~c
                result |= x & y & z
        return result

    return look_up

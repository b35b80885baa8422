"""Moves, comparisons, choices and the logic of predicates."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tilefold.xray.machine.binding import Binder, Mask, Step, unknown
from tilefold.xray.machine.rounding import flush, widen
from tilefold.xray.machine.spaces import LOCAL_BASE
from tilefold.xray.machine.types import PACKED, TYPES, Array, Type, halves
from tilefold.xray.ptx.syntax import Instruction, Pair, Vector

if TYPE_CHECKING:
    from tilefold.xray.machine.cta import Cta

PRED = TYPES["pred"]
_ORDERED: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
_LOGIC: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}
_TESTS: dict[str, Callable[[Array], Array]] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda a: ~np.isnan(a),
    "notanumber": np.isnan,
}


def bind(binder: Binder, instruction: Instruction) -> Step | None:
    """The step of a move, comparison or choice; None if this is none."""
    opcode, last = instruction.opcode, instruction.modifiers[-1] if instruction.modifiers else ""
    kind = TYPES.get(last)
    if opcode == "cvta" and instruction.has("local") and kind is not None:
        base = LOCAL_BASE if instruction.modifiers[0] == "local" else -LOCAL_BASE
        return binder.pure(instruction, lambda a: a + np.uint64(base & (2**64 - 1)), (kind,), kind)
    if opcode in ("mov", "cvta") and kind is not None:
        return _move(binder, instruction, kind)
    if opcode == "setp" and last in ("f16x2", "bf16x2"):
        return _compare_halves(binder, instruction, PACKED[last])
    if opcode == "setp" and kind is not None:
        return _compare(binder, instruction, kind)
    if opcode == "testp" and kind is not None and kind.floating and instruction.modifiers[0] in _TESTS:
        return binder.pure(instruction, _TESTS[instruction.modifiers[0]], (kind,), PRED)
    if opcode == "selp" and kind is not None:
        return binder.pure(instruction, lambda a, b, p: np.where(p, a, b), (kind, kind, PRED), kind)
    if kind == PRED and opcode in ("and", "or", "xor", "not"):
        function = np.logical_not if opcode == "not" else _LOGIC[opcode]
        return binder.pure(instruction, function, (PRED,) * (len(instruction.operands) - 1), PRED)
    return None


def _move(binder: Binder, instruction: Instruction, kind: Type) -> Step:
    """A copy, or halves of a register apart or together. Shared memory begins at generic address 0 here."""
    target, source = instruction.operands
    if isinstance(target, Vector):
        part = TYPES[f"b{kind.bits // len(target.items)}"]
        read = binder.read(source, TYPES[f"b{kind.bits}"])
        writes = [binder.write(item, part) for item in target.items]

        def apart(cta: Cta, mask: Mask) -> None:
            value = read(cta)
            for i, write in enumerate(writes):
                write(cta, (value >> value.dtype.type(i * part.bits)).astype(part.dtype), mask)

        return apart
    if isinstance(source, Vector):
        part, whole = TYPES[f"b{kind.bits // len(source.items)}"], TYPES[f"b{kind.bits}"]
        reads = [binder.read(item, part) for item in source.items]
        store = binder.write(target, whole)

        def together(cta: Cta, mask: Mask) -> None:
            value = np.zeros(cta.threads, whole.dtype)
            for i, read in enumerate(reads):
                value |= read(cta).astype(whole.dtype) << whole.dtype.type(i * part.bits)
            store(cta, value, mask)

        return together
    return binder.pure(instruction, lambda a: a, (kind,), kind)


def _compare(binder: Binder, instruction: Instruction, kind: Type) -> Step:
    """`setp.lt.and.s32 p|q, a, b, c`: q is the comparison's negation, joined with c like p."""
    comparison = _comparison(instruction.modifiers[0], kind, instruction)
    join = _LOGIC.get(instruction.modifiers[1])
    if len(instruction.operands) != (3 if join is None else 4):
        raise unknown(instruction)
    target, *sources = instruction.operands
    left, right = binder.read(sources[0], kind), binder.read(sources[1], kind)
    first = binder.write(target.first if isinstance(target, Pair) else target, PRED)
    second = binder.write(target.second, PRED) if isinstance(target, Pair) else None
    third = None if join is None else binder.read(sources[2], PRED)

    def joined(cta: Cta, found: Array) -> Array:
        return found if join is None or third is None else join(found, third(cta))

    def compare(cta: Cta, mask: Mask) -> None:
        found = comparison(left(cta), right(cta))
        one, other = joined(cta, found), None if second is None else joined(cta, ~found)
        first(cta, one, mask)
        if second is not None and other is not None:
            second(cta, other, mask)

    return compare


def _compare_halves(binder: Binder, instruction: Instruction, kind: Type) -> Step:
    """`setp.gt.f16x2 p|q, a, b`: p of the lower, q of the upper halves."""
    comparison = _comparison(instruction.modifiers[0], kind, instruction)
    target, *sources = instruction.operands
    if len(sources) != 2 or len(instruction.modifiers) != 2 or not isinstance(target, Pair):
        raise unknown(instruction)
    left, right = (binder.read(s, TYPES["b32"]) for s in sources)
    writes = [binder.write(o, PRED) for o in (target.first, target.second)]

    def compare(cta: Cta, mask: Mask) -> None:
        pairs = zip(halves(left(cta), kind.dtype), halves(right(cta), kind.dtype), strict=True)
        for write, (a, b) in zip(writes, pairs, strict=True):
            write(cta, comparison(a, b), mask)

    return compare


def _comparison(name: str, kind: Type, instruction: Instruction) -> Callable[[Array, Array], Array]:
    if not kind.floating:
        if name not in _ORDERED:
            raise unknown(instruction)
        return _ORDERED[name]
    ordered = _float_comparison(name, instruction)
    if kind.kind == "bf":
        return lambda a, b: ordered(widen(a, kind), widen(b, kind))
    if instruction.has("ftz"):
        return lambda a, b: ordered(flush(a), flush(b))
    return ordered


def _float_comparison(name: str, instruction: Instruction) -> Callable[[Array, Array], Array]:
    """Ordered comparisons are false with NaN, those ending in u are true."""
    if name == "num":
        return lambda a, b: ~(np.isnan(a) | np.isnan(b))
    if name == "nan":
        return lambda a, b: np.isnan(a) | np.isnan(b)
    if name in ("equ", "neu", "ltu", "leu", "gtu", "geu"):
        inner = _ORDERED[name[:2]]
        return lambda a, b: inner(a, b) | np.isnan(a) | np.isnan(b)
    if name == "ne":
        return lambda a, b: (a != b) & ~np.isnan(a) & ~np.isnan(b)
    if name not in _ORDERED:
        raise unknown(instruction)
    return _ORDERED[name]

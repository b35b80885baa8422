"""Arithmetic in several words: `add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc`, `madc`, joined by a flag a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilefold.xray.machine.binding import Binder, Mask, Step, unknown
from tilefold.xray.machine.integers import high_product
from tilefold.xray.machine.types import TYPES, Array
from tilefold.xray.ptx.syntax import Instruction

if TYPE_CHECKING:
    from tilefold.xray.machine.cta import Cta

_OPCODES = ("add", "addc", "sub", "subc", "mad", "madc")


def bind(binder: Binder, instruction: Instruction) -> Step | None:
    """The step of an instruction that takes or leaves a carry; None if this is none."""
    opcode, leaves = instruction.opcode, instruction.has("cc")
    if opcode not in _OPCODES or not (leaves or opcode.endswith("c")):
        return None
    kind = TYPES.get(instruction.modifiers[-1])
    if kind is None or kind.floating or kind.bits < 32:
        raise unknown(instruction)
    if kind.kind == "s" and instruction.has("hi"):
        raise unknown(instruction)
    word = TYPES[f"u{kind.bits}"]
    target, *sources = instruction.operands
    reads, write = [binder.read(s, word) for s in sources], binder.write(target, word)
    takes, down, upper = opcode.endswith("c"), opcode.startswith("sub"), instruction.has("hi")
    high = high_product(word)

    def step(cta: Cta, mask: Mask) -> None:
        first, *rest = [read(cta) for read in reads]
        if len(rest) == 2:
            first, rest = high(first, rest[0]) if upper else first * rest[0], rest[1:]
        before = cta.carry.astype(word.dtype) if takes else np.zeros_like(first)
        value, flag = _without(first, rest[0], before) if down else _with(first, rest[0], before)
        write(cta, value, mask)
        if leaves:
            cta.carry = flag if mask is None else np.where(mask, flag, cta.carry)

    return step


def _with(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    part = a + b
    whole = part + carry
    return whole, (part < a) | (whole < part)


def _without(a: Array, b: Array, borrow: Array) -> tuple[Array, Array]:
    part = a - b
    return part - borrow, (a < b) | (part < borrow)

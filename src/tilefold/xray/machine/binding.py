"""Operands bound to registers: what reads a lane's values, what writes them under a mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tilefold.errors import UnknownInstructionError
from tilefold.xray.machine.spaces import SPECIAL
from tilefold.xray.machine.types import TYPES, Array, Type, unsigned
from tilefold.xray.ptx.syntax import (
    Entry,
    Immediate,
    Instruction,
    Operand,
    Register,
    Symbol,
    registers_of,
)

if TYPE_CHECKING:
    from tilefold.xray.machine.cta import Cta

Mask = Array | None  # None: every thread of the block
Read = Callable[["Cta"], Array]
Write = Callable[["Cta", Array, Mask], None]
Step = Callable[["Cta", Mask], None]


class Binder:
    """Numbers the registers of a kernel and turns operands into functions."""

    def __init__(self, entry: Entry, threads: int, symbols: dict[str, int]) -> None:
        self.threads, self.symbols = threads, symbols
        self._slots: dict[str, int] = {}
        self.dtypes: list[np.dtype[np.generic]] = []
        for declared in entry.registers:
            kind = TYPES[declared.type.lstrip(".")]
            dtype = np.dtype(bool) if kind.kind == "pred" else unsigned(max(kind.bits, 16))
            endings = [""] if declared.count is None else [str(i) for i in range(declared.count)]
            for ending in endings:
                self._slots[declared.name + ending] = len(self.dtypes)
                self.dtypes.append(dtype)

    def declares(self, name: str) -> bool:
        """Whether a register is the kernel's own."""
        return name in self._slots

    def slot(self, name: str) -> int:
        """The number of a register."""
        return self._slots[name]

    def read(self, operand: Operand, kind: Type) -> Read:
        """The values of a scalar operand, seen as `kind`."""
        if isinstance(operand, Immediate):
            return self._constant(_immediate(operand, kind))
        if isinstance(operand, Symbol):
            return self._constant(np.array(self.symbols[operand.name]).astype(kind.dtype))
        assert isinstance(operand, Register)
        if operand.name not in self._slots:
            name, dtype = operand.name, kind.dtype
            return lambda cta: cta.special[name].astype(dtype)
        slot = self._slots[operand.name]
        return _negated(slot) if operand.negated else _reader(slot, self.dtypes[slot], kind)

    def _constant(self, value: Array) -> Read:
        lanes = np.full(self.threads, value)
        return lambda cta: lanes

    def write(self, operand: Operand, kind: Type) -> Write:
        """Where results of type `kind` go; a wider register is filled by the type's sign."""
        if isinstance(operand, Symbol):  # `_`: nowhere
            return lambda cta, values, mask: None
        assert isinstance(operand, Register)
        slot = self._slots[operand.name]
        held = self.dtypes[slot]
        signed = np.dtype(f"i{held.itemsize}")

        def write(cta: Cta, values: Array, mask: Mask) -> None:
            if values.dtype != held:
                if values.dtype.itemsize != held.itemsize:
                    values = values.astype(signed if values.dtype.kind == "i" else held)
                values = values.view(held)
            cta.registers[slot] = values if mask is None else np.where(mask, values, cta.registers[slot])

        return write

    def pure(
        self,
        instruction: Instruction,
        function: Callable[..., Array],
        sources: tuple[Type, ...],
        result: Type,
    ) -> Step:
        """An instruction whose first operand is a function of the others."""
        if len(instruction.operands) != len(sources) + 1:
            raise unknown(instruction)
        write = self.write(instruction.operands[0], result)
        reads = [self.read(o, t) for o, t in zip(instruction.operands[1:], sources, strict=True)]
        if len(reads) == 1:
            (first,) = reads
            return lambda cta, mask: write(cta, function(first(cta)), mask)
        if len(reads) == 2:
            left, right = reads
            return lambda cta, mask: write(cta, function(left(cta), right(cta)), mask)
        return lambda cta, mask: write(cta, function(*[r(cta) for r in reads]), mask)


def unknown(instruction: Instruction, register: str = "") -> UnknownInstructionError:
    """The error of an instruction that nothing here executes, or of one that reads a register which only a chip can fill."""
    name = f"{instruction.name} {register}".rstrip()
    return UnknownInstructionError(
        f"xray: an instruction must be known to be executed, got {name!r} in {place_of(instruction)}; "
        "the static report does without"
    )


def refuse_strangers(binder: Binder, instruction: Instruction) -> None:
    """Raise where an operand is a register that the kernel does not declare and no thread finds filled here.

    Raises:
        UnknownInstructionError: it reads `%smid`, `%globaltimer` or their like.
    """
    for name in (n for o in instruction.operands for n in registers_of(o)):
        if name not in SPECIAL and not binder.declares(name):
            raise unknown(instruction, name)


def place_of(instruction: Instruction) -> str:
    """Where an instruction stands: its line of PTX, and of the source where that is known."""
    place = instruction.location
    return f"PTX line {instruction.line}" + ("" if place is None else f", source line {place.line}")


def _immediate(operand: Immediate, kind: Type) -> Array:
    """A number as a value of the type: bits stay bits, a float of another width is converted."""
    if kind.kind == "pred":
        return np.array(operand.value != 0)
    if operand.bits and kind.floating and operand.bits != kind.bits:
        value = np.array(operand.value, unsigned(operand.bits)).view(f"f{operand.bits // 8}")
        return value.astype(kind.dtype)
    bits = operand.value & ((1 << kind.bits) - 1)
    return np.array(bits, unsigned(kind.bits)).view(kind.dtype)


def _negated(slot: int) -> Read:
    return lambda cta: ~cta.registers[slot]


def _reader(slot: int, held: np.dtype[np.generic], kind: Type) -> Read:
    dtype = kind.dtype
    if dtype == held:
        return lambda cta: cta.registers[slot]
    if dtype.itemsize == held.itemsize:
        return lambda cta: cta.registers[slot].view(dtype)
    narrow = unsigned(kind.bits)
    return lambda cta: cta.registers[slot].astype(narrow).view(dtype)

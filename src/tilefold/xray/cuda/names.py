"""PTX names and types as C++ says them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tilefold.xray.ptx.syntax import Entry, Immediate, Module, Operand, Register, Symbol

# Registers hold bits; arithmetic says how it sees them.
UNSIGNED = {8: "uint8_t", 16: "uint16_t", 32: "uint32_t", 64: "uint64_t"}
SIGNED = {8: "int8_t", 16: "int16_t", 32: "int32_t", 64: "int64_t"}
_SPECIAL = re.compile(r"%(tid|ntid|ctaid|nctaid)\.([xyz])$")
_BUILT_IN = {"tid": "threadIdx", "ntid": "blockDim", "ctaid": "blockIdx", "nctaid": "gridDim"}


def bits_of(kind: str) -> int:
    """The width of a PTX type; a predicate has none."""
    return 0 if kind == "pred" else int(kind.lstrip("busf"))


def plain(kind: str) -> bool:
    """Whether a type is a scalar of 8 to 64 bits, of whatever meaning."""
    return kind.lstrip("busf") in ("8", "16", "32", "64")


class Names:
    """What each register, label and symbol of a kernel is called, and how wide its registers are."""

    def __init__(self, module: Module, entry: Entry) -> None:
        self.widths: dict[str, int] = {}
        for declared in entry.registers:
            for ending in [""] if declared.count is None else map(str, range(declared.count)):
                self.widths[declared.name + ending] = (
                    max(bits_of(declared.type[1:]), 16) if declared.type != ".pred" else 0
                )
        self.parameters: Mapping[str, str] = {p.name: f"argument_{i}" for i, p in enumerate(entry.parameters)}
        self.spaces = {v.name: v.space for v in (*module.variables, *entry.variables)}

    def register(self, name: str) -> str:
        """A C++ identifier."""
        return re.sub(r"\W", "_", name.lstrip("%")).replace("$", "_")

    def label(self, name: str) -> str:
        """A C++ label."""
        return re.sub(r"\W", "_", name.replace("$", "")).strip("_")

    def width(self, operand: Operand) -> int | None:
        """The bits of a register, 0 for a predicate; None for other registers."""
        return self.widths.get(operand.name) if isinstance(operand, Register) else None

    def value(self, operand: Operand, kind: str) -> str:
        """A scalar operand as unsigned bits of the type, or a predicate as bool."""
        if isinstance(operand, Immediate):
            return _number(operand, kind)
        if isinstance(operand, Symbol):
            return self.address(operand.name, bits_of(kind))
        assert isinstance(operand, Register), operand
        special = _SPECIAL.match(operand.name)
        if special:
            return f"{_BUILT_IN[special[1]]}.{special[2]}"
        name = self.register(operand.name)
        if kind == "pred":
            return f"!{name}" if operand.negated else name
        held, asked = self.widths[operand.name], bits_of(kind)
        return name if held == asked else f"({UNSIGNED[asked]}){name}"

    def address(self, symbol: str, bits: int) -> str:
        """The address of a variable or parameter."""
        if symbol in self.parameters:
            return f"(uint64_t)&{self.parameters[symbol]}"
        if self.spaces[symbol] == ".shared":
            return f"({UNSIGNED[bits]})__cvta_generic_to_shared({self.register(symbol)})"
        if self.spaces[symbol] == ".local":
            return f"(uint64_t)__cvta_generic_to_local({self.register(symbol)})"
        return f"(uint64_t){self.register(symbol)}"

    def signed(self, operand: Operand, kind: str) -> str:
        """The same as a signed number, where the type is."""
        value = self.value(operand, kind)
        if kind[0] != "s" or isinstance(operand, Immediate):
            return value
        return f"({SIGNED[bits_of(kind)]}){value}"


def _number(operand: Immediate, kind: str) -> str:
    """An immediate as a literal of the type: a float as its bits, a signed integer with its sign."""
    if kind == "pred":
        return "true" if operand.value else "false"
    width = bits_of(kind)
    if operand.bits:
        return f"0x{operand.value:0{operand.bits // 4}X}" + ("ull" if operand.bits == 64 else "u")
    suffix = "ll" if width == 64 else ""
    held = operand.value & ((1 << width) - 1)
    if kind[0] == "s":
        number = held - (1 << width) if held >> (width - 1) else held
        if number == -(1 << (width - 1)):
            return f"({number + 1}{suffix} - 1)"
        return f"{number}{suffix}" if number >= 0 else f"({number}{suffix})"
    return f"{held}u{suffix}"

"""C++ expressions as text with their type and how tightly they bind; conversions keep the bits."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tilefold.xray.cuda.readable.blocks import UnreadableError

PRIMARY, UNARY, PRODUCT, SUM, SHIFT, ORDER, EQUAL, BIT_AND, BIT_XOR, BIT_OR, AND, OR, CHOICE = range(
    12, -1, -1
)
UNSIGNED = {
    "int": "unsigned",
    "long long": "unsigned long long",
    "short": "unsigned short",
    "signed char": "unsigned char",
}
_WORDS = {"int": "int", "unsigned": "uint", "float": "float"}
_HALVES = {"__half": "half", "__nv_bfloat16": "bfloat16"}
_INTEGERS = {
    "int": 32, "unsigned": 32, "long long": 64, "unsigned long long": 64, "short": 16, "unsigned short": 16,
    "signed char": 8, "unsigned char": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Text:
    """An expression. Its C++ value is of `type`."""

    text: str
    level: int
    type: str

    def at(self, least: int) -> str:
        """The text, in parentheses where it binds less tightly than asked for."""
        return self.text if self.level >= least else f"({self.text})"

    def to(self, want: str) -> Text:
        """The same bits as another type.

        Raises:
            UnreadableError: C++ has no word for it.
        """
        if self.type == want:
            return self
        width = _INTEGERS.get(self.type)
        # Of its own width; or as 64 bits a number that is known to fit, or a pointer.
        if want in _INTEGERS and (
            _INTEGERS[want] == width or (_INTEGERS[want] == 64 and (width == 32 or self.type.endswith("*")))
        ):
            return Text(f"({want}){self.at(UNARY)}", UNARY, want)
        if self.type in _WORDS and want in _WORDS:
            return Text(f"__{_WORDS[self.type]}_as_{_WORDS[want]}({self.text})", PRIMARY, want)
        if self.type in _HALVES:
            return Text(f"__{_HALVES[self.type]}_as_ushort({self.text})", PRIMARY, "unsigned short").to(want)
        if want in _HALVES and width == 16:
            return Text(f"__ushort_as_{_HALVES[want]}({self.to('unsigned short').text})", PRIMARY, want)
        if self.type == "double":
            return Text(f"__double_as_longlong({self.text})", PRIMARY, "long long").to(want)
        if want == "double" and width == 64:
            return Text(f"__longlong_as_double({self.to('long long').text})", PRIMARY, want)
        raise UnreadableError(
            f"cuda: {self.type} must be seen as {want}, which C++ has no word for; take the plain form"
        )


def literal(number: int, bits: int, want: str | None) -> Text:
    """A constant of some bits, as the type that is wanted, else as a signed integer."""
    if bits == 1:
        return Text("true" if number else "false", PRIMARY, "bool")
    if want == "float" and bits == 32:
        return _real(number)
    if want == "double" and bits == 64:
        return _double(number)
    if want in _HALVES and bits == 16:
        return Text(f"0x{number:04x}", PRIMARY, "unsigned short").to(want)
    signed = number - (1 << bits) if number >> (bits - 1) else number
    if want in ("unsigned", "unsigned long long") and signed < 0:
        return Text(f"{number}u" + ("ll" if bits == 64 else ""), PRIMARY, want)
    if bits == 8:
        return Text(f"(unsigned char){number}", UNARY, "unsigned char").to(want or "unsigned char")
    if bits == 16:
        return Text(f"(unsigned short){number}", UNARY, "unsigned short")
    kind = "long long" if bits == 64 else "int"
    if signed == -(1 << (bits - 1)):
        return Text(f"0x{number:x}" + ("ull" if bits == 64 else "u"), PRIMARY, UNSIGNED[kind]).to(
            want or kind
        )
    return Text(
        str(signed) + ("ll" if bits == 64 else ""),
        PRIMARY if signed >= 0 else UNARY,
        want if want in _INTEGERS else kind,
    )


def _real(number: int) -> Text:
    (value,) = struct.unpack("<f", struct.pack("<I", number))
    if value != value:
        return Text(f"__uint_as_float(0x{number:08x}u)", PRIMARY, "float")
    if value in (float("inf"), float("-inf")):
        return Text("INFINITY" if value > 0 else "-INFINITY", PRIMARY if value > 0 else UNARY, "float")
    digits = next(
        d
        for d in (f"{value:.{n}g}" for n in range(1, 18))
        if struct.pack("<f", float(d)) == struct.pack("<f", value)
    )
    digits += "" if "." in digits or "e" in digits else ".0"
    return Text(f"{digits}f", UNARY if digits.startswith("-") else PRIMARY, "float")


def _double(number: int) -> Text:
    (value,) = struct.unpack("<d", struct.pack("<Q", number))
    if value != value or value in (float("inf"), float("-inf")):
        return Text(f"__longlong_as_double(0x{number:016x}ll)", PRIMARY, "double")
    return Text(repr(value), UNARY if repr(value).startswith("-") else PRIMARY, "double")

"""The body of a kernel: declarations, labels, lines of the source, instructions."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

from tilefold.errors import PtxError
from tilefold.xray.ptx.stream import Stream
from tilefold.xray.ptx.syntax import (
    Address,
    Guard,
    Immediate,
    Instruction,
    Label,
    Location,
    Operand,
    Pair,
    Register,
    Registers,
    Symbol,
    Variable,
    Vector,
)

SLOT = 8  # bytes of each register that stands for a part of what a call passes as bytes
# Directives inside a body that say nothing about what is executed.
_IGNORED = (".pragma",)


def slots(name: str, size: int) -> list[str]:
    """The registers that stand for so many bytes."""
    return [slot_of(name, offset) for offset in range(0, size, SLOT)]


def slot_of(name: str, offset: int) -> str:
    """The register that stands for the bytes at an offset."""
    return f"{name}_at{offset}"


class BodyParser:
    """Reads one body. Inner scopes, which inline assembly opens, are flattened: their names are made unique."""

    def __init__(self, stream: Stream, variable: Callable[[Stream, tuple[str, ...]], Variable]) -> None:
        self._stream, self._variable = stream, variable
        self._location: Location | None = None
        # Places that a `.loc` has named, with the call that each was inlined at.
        self._located: dict[Location, Location] = {}
        self._scopes: list[dict[str, str]] = []
        self._opened, self._bits = 0, 32
        self._targets: dict[str, Vector] = {}
        self.registers: list[Registers] = []
        self.variables: list[Variable] = []
        self.items: list[Instruction | Label] = []

    def parse(self) -> None:
        """From the opening brace to the one that closes it."""
        stream = self._stream
        stream.expect("{")
        while not stream.accept("}"):
            if stream.peek().text == "{":
                self._opened += 1
                self._scopes.append({name: f"$scope{self._opened}_{name}" for name in self._labels()})
                self.parse()
                self._scopes.pop()
            else:
                self._item()

    def _labels(self) -> list[str]:
        """The labels of the scope that opens here; a jump may stand before its label."""
        found: list[str] = []
        depth = ahead = 0
        while True:
            text = self._stream.peek(ahead).text
            depth += (text == "{") - (text == "}")
            if depth == 0:
                return found
            if depth == 1 and text == ":" and self._stream.peek(ahead - 1).kind == "word":
                found.append(self._stream.peek(ahead - 1).text)
            ahead += 1

    def _item(self) -> None:
        stream = self._stream
        token = stream.peek()
        if token.text in (".reg", ".param"):
            self._declare()
        elif token.text == ".loc":
            self._locate()
        elif token.text in (".shared", ".local"):
            self.variables.append(self._variable(stream, ()))
        elif token.text in _IGNORED:
            while not stream.accept(";"):
                stream.take()
        elif stream.peek(1).text == ":" and stream.peek(2).text == ".branchtargets":
            self._list_targets()
        elif token.kind == "word" and stream.peek(1).text == ":":
            self.items.append(Label(self._named(stream.take().text)))
            stream.expect(":")
        elif token.kind == "word" or token.text == "@":
            self.items.append(self._instruction())
        elif not stream.accept(";"):
            raise PtxError(
                f"parse: a kernel's body must hold instructions, got {token.text!r} in line {token.line}"
            )

    def _list_targets(self) -> None:
        """`$L_brx_0: .branchtargets $L__BB0_5, $L__BB0_10;`: `brx.idx` is given the labels in place of the list's name."""
        stream = self._stream
        name = self._named(stream.take().text)
        stream.expect(":")
        stream.skip()
        labels: list[Operand] = []
        while not stream.accept(";"):
            labels.append(Symbol(self._named(stream.take().text)))
            stream.accept(",")
        self._targets[name] = Vector(tuple(labels))

    def _declare(self) -> None:
        """`.reg .b32 %r<15>, a;`, its names made unique inside a scope; what a call is given is a register, too."""
        stream = self._stream
        kind = stream.skip().take().text
        if kind == ".align":
            stream.integer()
            stream.take()
            self._declare_bytes()
            return
        while True:
            name, count = stream.take().text, None
            if stream.accept("<"):
                count = stream.integer()
                stream.expect(">")
            if self._scopes:
                unique = f"%scope{self._opened}_{name.lstrip('%')}"
                for i in [None] if count is None else range(count):
                    ending = "" if i is None else str(i)
                    self._scopes[-1][name + ending] = unique + ending
                name = unique
            self.registers.append(Registers(kind, name, count))
            if not stream.accept(","):
                break
        stream.expect(";")

    def _declare_bytes(self) -> None:
        """`retval0[16];` behind `.param .align 16 .b8`: a register for every eight bytes."""
        stream = self._stream
        name = stream.take().text
        stream.expect("[")
        unique = f"%scope{self._opened}_{name}"
        self.registers += [Registers(".b64", slot) for slot in slots(unique, stream.integer())]
        self._scopes[-1][name] = unique
        stream.expect("]")
        stream.expect(";")

    def _locate(self) -> None:
        """`.loc 1 24 14, function_name $L__info_string0, inlined_at 1 8 3`; that place may itself have been inlined."""
        stream = self._stream.skip()
        place = Location(stream.integer(), stream.integer(), stream.integer())
        while stream.accept(","):
            key = stream.take().text
            if key == "inlined_at":
                at = Location(stream.integer(), stream.integer(), stream.integer())
                place = Location(place.file, place.line, place.column, self._located.get(at, at))
            else:
                stream.take()
                if stream.accept("+"):
                    stream.integer()
        self._location = place
        self._located[Location(place.file, place.line, place.column)] = place

    def _named(self, name: str) -> str:
        """A name as its innermost scope declares it."""
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return name

    def _instruction(self) -> Instruction:
        stream = self._stream
        line, guard = stream.line, None
        if stream.accept("@"):
            negated = stream.accept("!")
            guard = Guard(self._named(stream.take().text), negated)
        opcode, *modifiers = stream.take().text.split(".")
        self._bits = 64 if modifiers and modifiers[-1] in ("f64", "b64") else 32  # what the source is read as
        operands: list[Operand] = []
        while not stream.accept(";"):
            operands.append(self._operand())
            if not stream.accept(",") and stream.peek().text != ";":
                raise PtxError(
                    f"parse: operands must be parted by commas, got {stream.peek().text!r} in line {stream.line}"
                )
        if opcode == "brx":
            operands = [self._targets.get(o.name, o) if isinstance(o, Symbol) else o for o in operands]
        return Instruction(opcode, tuple(modifiers), tuple(operands), guard, line, self._location)

    def _operand(self) -> Operand:
        first = self._single()
        return Pair(first, self._single()) if self._stream.accept("|") else first

    def _single(self) -> Operand:
        stream = self._stream
        text = stream.peek().text
        if text in ("{", "("):
            close = {"{": "}", "(": ")"}[stream.take().text]
            items: list[Operand] = []
            while not stream.accept(close):
                items.append(self._operand())
                stream.accept(",")
            return Vector(tuple(items))
        if text == "[":
            return self._address()
        if stream.accept("!"):
            return Register(self._named(stream.take().text), negated=True)
        return self._atom()

    def _atom(self) -> Register | Immediate | Symbol:
        stream = self._stream
        token = stream.peek()
        if token.kind == "float":
            stream.take()
            return Immediate(int(token.text[2:], 16), 32 if token.text[1] in "fF" else 64)
        if token.kind == "decimal" or (token.text == "-" and stream.peek(1).kind == "decimal"):
            sign = -1 if stream.accept("-") else 1
            held = (ctypes.c_double if self._bits == 64 else ctypes.c_float)(sign * float(stream.take().text))
            return Immediate(int.from_bytes(bytes(held), sys.byteorder), self._bits)
        if token.kind == "number" or token.text == "-":
            return Immediate(stream.integer())
        if token.kind != "word":
            raise PtxError(f"parse: an operand must stand here, got {token.text!r} in line {token.line}")
        name = self._named(stream.take().text)
        return Register(name) if name.startswith("%") else Symbol(name)

    def _address(self) -> Address:
        """`[%rd1 + 16]`, `[%rd1+-16]`, `[global_smem]`, `[%rd1, {%r1, %r2}]`."""
        stream = self._stream
        stream.expect("[")
        base, offset, coordinates = self._atom(), 0, None
        if stream.accept("+") or stream.peek().text == "-":
            offset = stream.integer()
        if stream.accept(","):
            vector = self._single()
            assert isinstance(vector, Vector)
            coordinates = vector
        stream.expect("]")
        return Address(base, offset, coordinates)

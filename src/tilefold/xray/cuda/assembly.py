"""An instruction as inline PTX, where C++ has no word for it: registers become operands, predicates pass as integers."""

from __future__ import annotations

from tilefold.xray.cuda.names import Names
from tilefold.xray.cuda.readable.blocks import results_and_sources
from tilefold.xray.ptx.syntax import Address, Immediate, Instruction, Operand, Pair, Register, Symbol, Vector
from tilefold.xray.ptx.writer import write_operand

_LETTERS = {16: "h", 32: "r", 64: "l"}


def assembly(names: Names, instruction: Instruction) -> str:
    """The statement `asm volatile(...)` of an instruction without its guard."""
    writer = _Writer(names)
    text = instruction.name
    results = len(results_and_sources(instruction)[0])
    updated = instruction.name.startswith("wgmma.mma_async")  # whose first operand is read and written
    operands = [writer.write(o, result=i < results, both=updated and i == 0)
                for i, o in enumerate(instruction.operands)]  # fmt: skip
    if operands:
        text += " " + ", ".join(operands)
    return writer.statement(text + ";")


class _Writer:
    """Collects what one statement reads and writes."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._outputs: list[str] = []
        self._inputs: list[str] = []
        self._outer: list[str] = []  # C++ before and after the assembly
        self._after: list[str] = []
        self._inner: list[str] = []  # PTX before and after the instruction
        self._behind: list[str] = []
        self._known: dict[tuple[str, bool], str] = {}

    def write(self, operand: Operand, *, result: bool, both: bool = False) -> str:
        """The operand's text in the template."""
        match operand:
            case Vector(items):
                return "{" + ", ".join(self.write(i, result=result, both=both) for i in items) + "}"
            case Pair(first, second):
                return self.write(first, result=result) + "|" + self.write(second, result=result)
            case Address(base, offset, coordinates):
                place = self.write(base, result=False) + (f"+{offset}" if offset else "")
                inner = "" if coordinates is None else ", " + self.write(coordinates, result=False)
                return f"[{place}{inner}]"
            case Immediate():
                return write_operand(operand)
            case Symbol("_"):
                return "_"
            case Symbol(name):
                wide = self._names.spaces.get(name) != ".shared"
                return self._add(
                    self._inputs, "l" if wide else "r", self._names.address(name, 64 if wide else 32), ""
                )
            case Register():
                return self._register(operand, result, both)

    def _register(self, operand: Register, result: bool, both: bool) -> str:
        width = self._names.width(operand)
        if width is None:
            return "%" + operand.name  # special registers, as they are
        key = (operand.name, result)
        if key not in self._known:
            name = self._names.register(operand.name)
            if width == 0:
                self._known[key] = self._predicate(name, result)
            elif result:
                self._known[key] = self._add(self._outputs, _LETTERS[width], name, "+" if both else "=")
            else:
                self._known[key] = self._add(self._inputs, _LETTERS[width], name, "")
        return ("!" if operand.negated else "") + self._known[key]

    def _predicate(self, name: str, result: bool) -> str:
        """A predicate of the template's own, made from or into an integer."""
        inner = f"q{len(self._inner) + len(self._behind)}"
        if result:
            self._outer.append(f"uint32_t as_{name};")
            place = self._add(self._outputs, "r", f"as_{name}", "=")
            self._inner.append(f".reg .pred {inner};")
            self._behind.append(f"selp.u32 {place}, 1, 0, {inner};")
            self._after.append(f"{name} = as_{name};")
        else:
            place = self._add(self._inputs, "r", f"(uint32_t){name}", "")
            self._inner.append(f".reg .pred {inner}; setp.ne.u32 {inner}, {place}, 0;")
        return inner

    def _add(self, operands: list[str], letter: str, value: str, how: str) -> str:
        operands.append(f'"{how}{letter}"({value})')
        return f"<{'o' if operands is self._outputs else 'i'}{len(operands) - 1}>"

    def statement(self, text: str) -> str:
        """The whole statement."""
        lines = " ".join([*self._inner, text, *self._behind])
        if self._inner or self._behind:
            lines = f"{{ {lines} }}"
        for i in range(len(self._outputs)):
            lines = lines.replace(f"<o{i}>", f"%{i}")
        for i in range(len(self._inputs)):
            lines = lines.replace(f"<i{i}>", f"%{len(self._outputs) + i}")
        call = f'asm volatile("{lines}" : {", ".join(self._outputs)} : {", ".join(self._inputs)} : "memory");'
        if not self._outer:
            return call
        return "{ " + " ".join([*self._outer, call, *self._after]) + " }"

"""Arithmetic in several words: PTX's one carry flag is a variable of C++."""

from __future__ import annotations

from tilefold.xray.cuda.integers import assign
from tilefold.xray.cuda.names import Names
from tilefold.xray.ptx.syntax import Instruction

_WIDE = {32: "uint64_t", 64: "unsigned __int128"}
_HIGH = {32: "__umulhi", 64: "__umul64hi"}


def statement(names: Names, instruction: Instruction) -> str | None:
    """The statement of an instruction that takes or leaves a carry; None if this is none."""
    opcode, leaves = instruction.opcode, instruction.has("cc")
    if opcode not in ("add", "addc", "sub", "subc", "mad", "madc") or not (leaves or opcode.endswith("c")):
        return None
    width = int(instruction.modifiers[-1][1:])
    target, *sources = instruction.operands
    kind, wide = f"b{width}", _WIDE[width]
    first, *rest = (names.value(s, kind) for s in sources)
    if len(rest) == 2:
        first = f"{_HIGH[width]}({first}, {rest[0]})" if instruction.has("hi") else f"({first} * {rest[0]})"
    sign = "-" if opcode.startswith("sub") else "+"
    flag = f" {sign} carry" if opcode.endswith("c") else ""
    total = f"{wide} total = ({wide}){first} {sign} {rest[-1]}{flag};"
    kept = f" carry = (uint32_t)(total >> {width}) & 1;" if leaves else ""
    return f"{{ {total} {assign(names, target, f'(uint{width}_t)total')}{kept} }}"

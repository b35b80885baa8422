"""Functions put in the place of their calls: libdevice has a few, for doubles far from zero.

Afterwards a kernel has no call but of functions that live elsewhere. Parameters and results become registers (one every eight
bytes, where bytes are passed), `ret` a jump behind the call; every call has registers, labels and variables of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilefold.errors import PtxError
from tilefold.xray.ptx.body import slot_of, slots
from tilefold.xray.ptx.syntax import (
    Address,
    Entry,
    Function,
    Immediate,
    Instruction,
    Label,
    Operand,
    Pair,
    Parameter,
    Register,
    Registers,
    Symbol,
    Variable,
    Vector,
)

_DEEPEST = 8  # calls inside of calls; a function that calls itself has no end


def inline_calls(entry: Entry, functions: Mapping[str, Function]) -> Entry:
    """The kernel with the body of each function where it is called.

    Raises:
        PtxError: a function calls itself.
    """
    inliner = _Inliner(functions, entry.registers)
    body = inliner.flatten(entry.body, 0)
    return replace(
        entry,
        body=tuple(body),
        registers=(*entry.registers, *inliner.registers),
        variables=(*entry.variables, *inliner.variables),
    )


class _Inliner:
    def __init__(self, functions: Mapping[str, Function], declared: Sequence[Registers]) -> None:
        self._functions = functions
        self._wide = {r.name for r in declared}
        self._calls = 0
        self.registers: list[Registers] = []
        self.variables: list[Variable] = []

    def flatten(self, body: tuple[Instruction | Label, ...], depth: int) -> list[Instruction | Label]:
        """A body whose calls are replaced and whose arguments are registers."""
        if depth > _DEEPEST:
            raise PtxError(
                f"parse: functions may call each other {_DEEPEST} deep, got more; is one recursive?"
            )
        found: list[Instruction | Label] = []
        for item in body:
            if isinstance(item, Label):
                found.append(item)
                continue
            name = next((o.name for o in item.operands if isinstance(o, Symbol)), "")
            if item.opcode == "call" and name in self._functions:
                found += self._call(item, self._functions[name], depth)
            else:
                found.append(_passed(item, self._wide))
        return found

    def _call(self, call: Instruction, function: Function, depth: int) -> list[Instruction | Label]:
        if call.guard is not None:
            raise PtxError(f"parse: a call must have no guard, got one in line {call.line}")
        self._calls += 1
        prefix = f"call{self._calls}_"
        given = [o for o in call.operands if isinstance(o, Vector)]
        results, arguments = given if len(function.results) else [Vector(()), *given]
        names = _Names(function, prefix)
        self.registers += names.registers
        self._wide |= {r.name for r in names.registers}
        self.variables += [replace(v, name=names.symbols[v.name]) for v in function.variables]
        end = f"${prefix}end"
        found: list[Instruction | Label] = [
            copy
            for p, value in zip(function.parameters, arguments.items, strict=True)
            for copy in _copies(call, p, Register(names.symbols[p.name]), value)
        ]
        for item in self.flatten(tuple(names.renamed(item) for item in function.body), depth + 1):
            if isinstance(item, Instruction) and item.opcode == "ret":
                item = replace(item, opcode="bra", operands=(Symbol(end),))
            found.append(item)
        found.append(Label(end))
        found += [
            copy
            for r, target in zip(function.results, results.items, strict=True)
            for copy in _copies(call, r, target, Register(names.symbols[r.name]))
        ]
        return found


def _passed(item: Instruction, wide: set[str]) -> Instruction:
    """`st.param` and `ld.param` of what is a register by now are moves; `wide` registers hold eight bytes."""
    if item.opcode not in ("ld", "st") or not item.has("param") or len(item.operands) != 2:
        return item
    place = item.operands[0 if item.opcode == "st" else 1]
    if not isinstance(place, Address) or not isinstance(place.base, Register):
        return item
    kind = item.modifiers[-1]
    slot = Register(slot_of(place.base.name, place.offset))
    if slot.name not in wide:
        target, source = (
            (place.base, item.operands[1]) if item.opcode == "st" else (item.operands[0], place.base)
        )
        return replace(item, opcode="mov", modifiers=(kind,), operands=(target, source))
    target, source = (slot, item.operands[1]) if item.opcode == "st" else (item.operands[0], slot)
    if kind[1:] == "64":
        return replace(item, opcode="mov", modifiers=(kind,), operands=(target, source))
    narrow = f"u{kind[1:]}"
    types = ("u64", narrow) if item.opcode == "st" else (narrow, "u64")
    return replace(item, opcode="cvt", modifiers=types, operands=(target, source))


def _copies(call: Instruction, passed: Parameter, target: Operand, source: Operand) -> list[Instruction]:
    """The arguments passed, register by register."""
    if not passed.count:
        return [_copy(call, passed.type, target, source)]
    assert isinstance(target, Register)
    assert isinstance(source, Register)
    pairs = zip(slots(target.name, passed.count), slots(source.name, passed.count), strict=True)
    return [_copy(call, ".b64", Register(to), Register(of)) for to, of in pairs]


def _copy(call: Instruction, kind: str, target: Operand, source: Operand) -> Instruction:
    return replace(call, opcode="mov", modifiers=(kind.lstrip("."),), operands=(target, source))


class _Names:
    """A function's names as one call has them."""

    def __init__(self, function: Function, prefix: str) -> None:
        passed = (*function.results, *function.parameters)
        self.symbols = {p.name: f"%{prefix}{p.name}" for p in passed}
        self.symbols |= {v.name: f"{prefix}{v.name}" for v in function.variables}
        self.symbols |= {
            i.name: f"${prefix}{i.name.lstrip('$')}" for i in function.body if isinstance(i, Label)
        }
        self._registers: dict[str, str] = {}
        self.registers = [
            one
            for p in passed
            for one in (
                [Registers(".b64", slot) for slot in slots(self.symbols[p.name], p.count)]
                if p.count
                else [Registers(p.type, self.symbols[p.name])]
            )
        ]
        for declared in function.registers:
            name = f"%{prefix}{declared.name.lstrip('%')}"
            self.registers.append(replace(declared, name=name))
            for ending in [""] if declared.count is None else map(str, range(declared.count)):
                self._registers[declared.name + ending] = name + ending

    def renamed(self, item: Instruction | Label) -> Instruction | Label:
        """An instruction or label of the body under this call's names."""
        if isinstance(item, Label):
            return Label(self.symbols[item.name])
        guard = item.guard and replace(item.guard, register=self._registers[item.guard.register])
        return replace(item, operands=tuple(map(self._operand, item.operands)), guard=guard)

    def _operand(self, operand: Operand) -> Operand:
        match operand:
            case Register(name):
                return replace(operand, name=self._registers.get(name, name))
            case Symbol(name):
                new = self.symbols.get(name, name)
                return Register(new) if new.startswith("%") else Symbol(new)
            case Vector(items):
                return Vector(tuple(map(self._operand, items)))
            case Pair(first, second):
                return Pair(self._operand(first), self._operand(second))
            case Address(base):
                place = self._operand(base)
                assert isinstance(place, (Register, Symbol, Immediate))
                return replace(operand, base=place)
        return operand

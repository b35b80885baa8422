"""A `Module` as PTX text that ptxas assembles. The inverse of `parse`, but for debug sections and calls inlined."""

from __future__ import annotations

from dataclasses import replace

from tilefold.xray.ptx.syntax import (
    Address,
    Entry,
    Immediate,
    Instruction,
    Label,
    Location,
    Module,
    Operand,
    Pair,
    Parameter,
    Register,
    Registers,
    Symbol,
    Variable,
    Vector,
)


def write(module: Module) -> str:
    """The text of a module."""
    lines = [
        f".version {module.version}",
        f".target {', '.join(module.target)}",
        f".address_size {module.address_size}",
        *module.declarations,
        *map(_variable, module.variables),
    ]
    for entry in module.entries:
        lines += _entry(entry)
    lines += [f'.file {number} "{_quoted(path)}"' for number, path in module.files]
    return "\n".join(lines) + "\n"


def _quoted(path: str) -> str:
    """A path as it stands between quotes: of what is not printable the bytes, in three octal digits."""
    held = path.encode(errors="surrogateescape")
    return "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\' else f"\\{b:03o}" for b in held)


def _entry(entry: Entry) -> list[str]:
    head = " ".join((*entry.linkage, ".entry", entry.name))
    lines = [head + "(", ",\n".join(f"\t{_parameter(p)}" for p in entry.parameters), ")"]
    lines += [f"{key} {', '.join(map(str, numbers))}" for key, numbers in entry.directives]
    lines.append("{")
    lines += [f"\t{_registers(r)}" for r in entry.registers]
    lines += [f"\t{_variable(v)}" for v in entry.variables]
    place: Location | None = None
    for item in entry.body:
        if isinstance(item, Label):
            lines.append(f"{item.name}:")
            continue
        if item.location is not None and item.location != place:
            place = item.location
            lines.append(f"\t.loc {place.file} {place.line} {place.column}")
        lines += [f"\t{row}" for row in _written(item, len(lines))]
    return [*lines, "}"]


def _written(item: Instruction, number: int) -> list[str]:
    """An instruction; before a jump through a list that list, under a name of its own."""
    if item.opcode != "brx" or not isinstance(item.operands[1], Vector):
        return [write_instruction(item)]
    labels = ", ".join(map(write_operand, item.operands[1].items))
    jump = replace(item, operands=(item.operands[0], Symbol(f"$targets_{number}")))
    return [f"$targets_{number}: .branchtargets {labels};", write_instruction(jump)]


def _parameter(parameter: Parameter) -> str:
    array = f"[{parameter.count}]" if parameter.count else ""
    if ".ptr" in parameter.attributes or not parameter.attributes:
        words = (".param", parameter.type, *parameter.attributes)
    else:
        words = (".param", *parameter.attributes, parameter.type)
    return f"{' '.join(words)} {parameter.name}{array}"


def _registers(registers: Registers) -> str:
    count = "" if registers.count is None else f"<{registers.count}>"
    return f".reg {registers.type} {registers.name}{count};"


def _variable(variable: Variable) -> str:
    array = "" if variable.count is None else f"[{variable.count or ''}]"
    words = (*variable.linkage, variable.space, ".align", str(variable.align), variable.type)
    numbers = ", ".join(map(str, variable.initial))
    initial = "" if not variable.initial else f" = {{{numbers}}}" if array else f" = {numbers}"
    return f"{' '.join(words)} {variable.name}{array}{initial};"


def write_instruction(instruction: Instruction) -> str:
    """One instruction with its guard and semicolon."""
    guard = instruction.guard
    head = "" if guard is None else f"@{'!' if guard.negated else ''}{guard.register} "
    operands = ", ".join(map(write_operand, instruction.operands))
    return f"{head}{instruction.name}{' ' if operands else ''}{operands};"


def write_operand(operand: Operand) -> str:
    """One operand as PTX writes it."""
    match operand:
        case Register(name, negated):
            return f"{'!' if negated else ''}{name}"
        case Immediate(value, 32):
            return f"0f{value:08X}"
        case Immediate(value, 64):
            return f"0d{value:016X}"
        case Immediate(value, _):
            return str(value)
        case Symbol(name):
            return name
        case Vector(items):
            return "{" + ", ".join(map(write_operand, items)) + "}"
        case Pair(first, second):
            return f"{write_operand(first)}|{write_operand(second)}"
        case Address(base, offset, coordinates):
            place = write_operand(base) + (f"+{offset}" if offset else "")
            return f"[{place}]" if coordinates is None else f"[{place}, {write_operand(coordinates)}]"

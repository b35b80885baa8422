"""Integer arithmetic, logic, moves and comparisons in C++."""

from __future__ import annotations

from tilefold.xray.cuda.names import SIGNED, UNSIGNED, Names, bits_of, plain
from tilefold.xray.ptx.syntax import Immediate, Instruction, Pair, Vector

_SIGNS = {"add": "+", "sub": "-", "and": "&", "or": "|", "xor": "^"}
_RELATIONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">",
              "hs": ">="}  # fmt: skip
_LOGIC = {"and": "&&", "or": "||", "xor": "!="}
_CALLS = {"popc.b32": "__popc", "popc.b64": "__popcll", "clz.b32": "__clz", "clz.b64": "__clzll", "brev.b32": "__brev",
          "brev.b64": "__brevll", "mul.hi.s32": "__mulhi", "mul.hi.u32": "__umulhi", "mul.hi.s64": "__mul64hi",
          "mul.hi.u64": "__umul64hi", "shf.l.wrap.b32": "__funnelshift_l", "shf.r.wrap.b32": "__funnelshift_r",
          "shf.l.clamp.b32": "__funnelshift_lc", "shf.r.clamp.b32": "__funnelshift_rc"}  # fmt: skip

_OPCODES = {*_SIGNS, "mul", "mad", "min", "max", "shl", "shr", "shf", "not", "neg", "abs", "div", "rem", "bfe", "cvt", "prmt",
            "popc", "clz", "brev"}  # fmt: skip


def statement(names: Names, instruction: Instruction) -> str | None:
    """The statement of an integer instruction; None if C++ has no word for it."""
    kind = instruction.modifiers[-1] if instruction.modifiers else ""
    if kind == "pred":
        return _logic(names, instruction)
    if instruction.opcode == "mov" and plain(kind):
        return _move(names, instruction, f"b{bits_of(kind)}")
    if instruction.opcode == "selp" and len(instruction.modifiers) == 1 and plain(kind):
        target, one, other, which = instruction.operands
        kind = f"b{bits_of(kind)}"
        return assign(
            names,
            target,
            f"{names.value(which, 'pred')} ? {names.value(one, kind)} : {names.value(other, kind)}",
        )
    if kind[:1] not in ("b", "u", "s") or not kind[1:].isdigit():
        return None
    if instruction.opcode == "setp":
        return _compare(names, instruction, kind)
    expression = _expression(names, instruction, kind)
    return None if expression is None else assign(names, instruction.operands[0], expression)


def assign(names: Names, target: object, expression: str) -> str:
    """A register takes the value; one wider than it is filled as C++ converts."""
    assert hasattr(target, "name")
    return f"{names.register(target.name)} = {expression};"


def _expression(names: Names, instruction: Instruction, kind: str) -> str | None:
    opcode, words = instruction.opcode, instruction.modifiers
    if opcode not in _OPCODES:
        return None
    sources, width = instruction.operands[1:], bits_of(kind)
    values = [names.value(s, f"u{width}") for s in sources]
    if instruction.name in _CALLS:
        given = [names.value(s, "b32") for s in sources] if opcode == "shf" else values
        return f"{_CALLS[instruction.name]}({', '.join(given)})"
    if opcode == "add" and len(words) == 1 and isinstance(sources[1], Immediate) and sources[1].value < 0:
        return f"{values[0]} - {-sources[1].value}"
    if opcode in _SIGNS and len(words) == 1:
        return f"{values[0]} {_SIGNS[opcode]} {values[1]}"
    if opcode in ("mul", "mad") and len(words) == 2:
        return _product(names, instruction, kind)
    if opcode in ("min", "max") and len(words) == 1:
        left, right = (f"({SIGNED[width]}){p}" if kind[0] == "s" else p for p in values)
        return f"{left} {'<' if opcode == 'min' else '>'} {right} ? {values[0]} : {values[1]}"
    if opcode in ("shl", "shr"):
        return _shift(names, instruction, kind)
    if opcode == "not" and len(words) == 1:
        return f"~{values[0]}"
    if opcode == "neg" and len(words) == 1:
        return f"0u - {values[0]}"
    if opcode == "abs" and len(words) == 1:
        return f"({SIGNED[width]}){values[0]} < 0 ? 0u - {values[0]} : {values[0]}"
    if opcode in ("div", "rem") and isinstance(sources[1], Immediate) and sources[1].value > 0:
        return f"{names.signed(sources[0], kind)} {'/' if opcode == 'div' else '%'} {names.signed(sources[1], kind)}"
    if opcode == "bfe" and all(isinstance(s, Immediate) for s in sources[1:]):
        return _field(instruction, values[0], kind)
    if opcode == "cvt" and len(words) == 2:
        return _convert(names, instruction)
    if (
        opcode == "prmt"
        and isinstance(sources[2], Immediate)
        and not sources[2].value & 0x8888
        and len(words) == 1
    ):
        return f"__byte_perm({values[0]}, {values[1]}, 0x{sources[2].value & 0xFFFF:04x})"
    return None


def _product(names: Names, instruction: Instruction, kind: str) -> str | None:
    """`mul` and `mad`, lower half or whole; two 16-bit numbers are combined as 32 bits, since C++ would make them signed."""
    part, width = instruction.modifiers[0], bits_of(kind)
    first, second, *rest = instruction.operands[1:]
    if part == "wide":
        both = [
            f"({(SIGNED if kind[0] == 's' else UNSIGNED)[2 * width]}){names.signed(s, kind)}"
            for s in (first, second)
        ]
        product, total = f"{both[0]} * {both[1]}", f"b{2 * width}"
        product = f"({UNSIGNED[2 * width]})({product})" if kind[0] == "s" else product
    elif part == "lo":
        left, right = names.value(first, kind), names.value(second, kind)
        product, total = f"(uint32_t){left} * {right}" if width == 16 else f"{left} * {right}", kind
    else:
        return None
    return product if not rest else f"{product} + {names.value(rest[0], total)}"


def _shift(names: Names, instruction: Instruction, kind: str) -> str:
    """Shifts by the width or more give zero, or the sign: C++ leaves them undefined."""
    source, by = instruction.operands[1:]
    width, value = bits_of(kind), names.value(source, kind)
    arithmetic = kind[0] == "s" and instruction.opcode == "shr"
    moved = f"({SIGNED[width]}){value}" if arithmetic else value
    sign = "<<" if instruction.opcode == "shl" else ">>"
    if isinstance(by, Immediate):
        count = by.value & 0xFFFFFFFF
        if count < width:
            return f"{moved} {sign} {count}"
        return f"{moved} >> {width - 1}" if arithmetic else "0"
    times = names.value(by, "b32")
    if arithmetic:
        return f"{moved} >> ({times} < {width} ? {times} : {width - 1}u)"
    return f"{times} < {width} ? {moved} {sign} {times} : 0"


def _field(instruction: Instruction, value: str, kind: str) -> str | None:
    """`bfe` with fixed place and length inside of the word."""
    start, length = (o.value & 0xFF for o in instruction.operands[2:] if isinstance(o, Immediate))
    width = bits_of(kind)
    if not 0 < length <= width - start:
        return None
    if kind[0] == "u":
        return f"({value} >> {start}) & 0x{(1 << length) - 1:x}" + ("ull" if width == 64 else "u")
    left = f"({SIGNED[width]})({value} << {width - start - length})"
    return f"{left} >> {width - length}"


def _convert(names: Names, instruction: Instruction) -> str | None:
    """Between integers: cut, or filled by the source's sign."""
    to, of = instruction.modifiers
    if of[0] not in "us" or to[0] not in "us":
        return None
    source = instruction.operands[1]
    value = names.value(source, of)
    number = f"({SIGNED[bits_of(of)]}){value}" if of[0] == "s" else value
    return (
        number
        if bits_of(to) >= bits_of(of) and names.width(instruction.operands[0]) == bits_of(to)
        else _cut(number, to)
    )


def _cut(number: str, to: str) -> str:
    """A register wider than the type is filled by the type's sign."""
    return f"({(SIGNED if to[0] == 's' else UNSIGNED)[bits_of(to)]})({number})"


def _logic(names: Names, instruction: Instruction) -> str | None:
    target, *sources = instruction.operands
    values = [names.value(s, "pred") for s in sources]
    if instruction.opcode in _LOGIC:
        return assign(names, target, f"{values[0]} {_LOGIC[instruction.opcode]} {values[1]}")
    if instruction.opcode in ("mov", "not"):
        return assign(names, target, ("!" if instruction.opcode == "not" else "") + values[0])
    return None


def _compare(names: Names, instruction: Instruction, kind: str) -> str | None:
    """`setp` of integers: with a second predicate, and joined with a third."""
    relation, *join = instruction.modifiers[:-1]
    _, left, right, *_ = instruction.operands
    sign = _RELATIONS.get(relation)
    if sign is None or len(join) > 1:
        return None
    return comparison(names, instruction, f"{names.signed(left, kind)} {sign} {names.signed(right, kind)}")


def comparison(names: Names, instruction: Instruction, condition: str) -> str:
    """What `setp` does with a condition."""
    target, _, _, *third = instruction.operands
    join = instruction.modifiers[1] if third else None
    tail = f" {_LOGIC[join]} {names.value(third[0], 'pred')}" if join else ""
    if not isinstance(target, Pair):
        return assign(names, target, f"({condition}){tail}" if tail else condition)
    first, second = target.first, target.second
    return f"{{ bool found = {condition}; {assign(names, first, f'found{tail}')} {assign(names, second, f'!found{tail}')} }}"


def _move(names: Names, instruction: Instruction, kind: str) -> str | None:
    """A copy, or parts of a register apart or together."""
    target, source = instruction.operands
    width = bits_of(kind)
    if isinstance(target, Vector):
        part = width // len(target.items)
        value = names.value(source, kind)
        lines = [assign(names, item, f"({UNSIGNED[part]})(whole >> {i * part})")
                 for i, item in enumerate(target.items) if getattr(item, "name", "") != "_"]  # fmt: skip
        return f"{{ {UNSIGNED[width]} whole = {value}; {' '.join(lines)} }}"
    if isinstance(source, Vector):
        part = width // len(source.items)
        terms = [
            f"({UNSIGNED[width]}){names.value(item, f'b{part}')} << {i * part}"
            for i, item in enumerate(source.items)
        ]
        return assign(names, target, " | ".join(terms))
    return assign(names, target, names.value(source, kind))

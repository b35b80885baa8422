"""Floating-point arithmetic in C++: intrinsics that name their rounding, so that no compiler fuses or reorders anything."""

from __future__ import annotations

from tilefold.xray.cuda.integers import assign, comparison
from tilefold.xray.cuda.names import SIGNED, UNSIGNED, Names, bits_of
from tilefold.xray.ptx.syntax import Instruction

_ARITHMETIC = {"add", "sub", "mul", "div", "fma", "sqrt", "rcp"}
_OPCODES = {*_ARITHMETIC, "min", "max", "abs", "neg", "setp"}
_SPECIAL = {"ftz", "sat", "approx", "full", "NaN", "xorsign"}
_MODES = ("rn", "rz", "rm", "rp")
_ROUNDED = {"rm": "rd", "rp": "ru"}  # as C++ says them
_WORDS = {"f32": "float", "f64": "double"}
_ORDERED = {"eq": "==", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_REVERSED = {"neu": "==", "ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<"}
_INTEGERS = {"s32": "int", "u32": "uint", "s64": "ll", "u64": "ull"}


def statement(names: Names, instruction: Instruction) -> str | None:
    """The statement of a floating-point instruction; None if C++ has no word for it."""
    if instruction.opcode == "cvt":
        return _convert(names, instruction)
    kind = instruction.modifiers[-1] if instruction.modifiers else ""
    if instruction.opcode not in _OPCODES or kind not in _WORDS or _SPECIAL & set(instruction.modifiers):
        return None
    if instruction.opcode == "setp":
        return _compare(names, instruction, kind)
    target, *sources = instruction.operands
    values = [f"as_{kind}({names.value(s, kind)})" for s in sources]
    expression = _expression(instruction, kind, values)
    return None if expression is None else assign(names, target, f"bits({expression})")


def _expression(instruction: Instruction, kind: str, values: list[str]) -> str | None:
    opcode, words = instruction.opcode, instruction.modifiers[:-1]
    if opcode in _ARITHMETIC and set(words) <= set(_MODES):
        mode = words[0] if words else "rn"
        return f"__{_word_of(opcode, kind)}_{_ROUNDED.get(mode, mode)}({', '.join(values)})"
    if words:
        return None
    ending = "f" if kind == "f32" else ""
    if opcode in ("min", "max"):
        return f"f{opcode}{ending}({', '.join(values)})" if len(values) == 2 else None
    if opcode == "abs":
        return f"fabs{ending}({values[0]})"
    return f"-{values[0]}" if opcode == "neg" else None


def _word_of(opcode: str, kind: str) -> str:
    """`fadd` and `dadd`, but `fmaf` and `fma`."""
    if opcode == "fma":
        return "fmaf" if kind == "f32" else "fma"
    return ("f" if kind == "f32" else "d") + opcode


def _compare(names: Names, instruction: Instruction, kind: str) -> str | None:
    """Ordered relations as C++ has them; the unordered are the negation of the opposite."""
    relation = instruction.modifiers[0]
    _, first, second, *_ = instruction.operands
    a, b = (f"as_{kind}({names.value(o, kind)})" for o in (first, second))
    if relation in _ORDERED:
        condition = f"{a} {_ORDERED[relation]} {b}"
    elif relation in _REVERSED:
        condition = f"!({a} {_REVERSED[relation]} {b})"
    elif relation == "ne":
        condition = f"({a} < {b} || {a} > {b})"
    elif relation == "equ":
        condition = f"!({a} < {b} || {a} > {b})"
    elif relation in ("num", "nan"):
        condition = f"{'!' if relation == 'nan' else ''}({a} == {a} && {b} == {b})"
    else:
        return None
    return comparison(names, instruction, condition)


def _convert(names: Names, instruction: Instruction) -> str | None:
    """Between 32- and 64-bit numbers, one rounding: `__float2int_rz` and its like."""
    *words, to, of = instruction.modifiers
    if len(instruction.operands) != 2 or len(words) > 1 or (words and words[0].rstrip("i") not in _MODES):
        return None
    target, source = instruction.operands
    mode = words[0].rstrip("i") if words else "rn"
    mode = _ROUNDED.get(mode, mode)
    if of in _INTEGERS and to in _WORDS and words:
        number = f"({(SIGNED if of[0] == 's' else UNSIGNED)[bits_of(of)]}){names.value(source, of)}"
        exact = to == "f64" and bits_of(of) == 32
        ending = "rn" if exact else mode
        return assign(names, target, f"bits(__{_INTEGERS[of]}2{_WORDS[to]}_{ending}({number}))")
    if of in _WORDS and to in _INTEGERS and words and words[0].endswith("i"):
        return assign(
            names, target, f"__{_WORDS[of]}2{_INTEGERS[to]}_{mode}(as_{of}({names.value(source, of)}))"
        )
    if (of, to) == ("f64", "f32") and words and not words[0].endswith("i"):
        return assign(names, target, f"bits(__double2float_{mode}(as_f64({names.value(source, of)})))")
    if (of, to) == ("f32", "f64") and not words:
        return assign(names, target, f"bits((double)as_f32({names.value(source, of)}))")
    return None

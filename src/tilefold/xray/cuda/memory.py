"""Loads, stores, atomic operations and addresses in C++."""

from __future__ import annotations

from tilefold.xray.cuda.integers import assign
from tilefold.xray.cuda.names import SIGNED, UNSIGNED, Names, bits_of, plain
from tilefold.xray.ptx.syntax import Address, Instruction, Operand, Symbol, items_of

# Vectors by count and bits of an element; the element types may alias each other.
_LETTERS = "xyzw"
_ATOMICS = {"add": "atomicAdd", "min": "atomicMin", "max": "atomicMax", "and": "atomicAnd", "or": "atomicOr",
            "xor": "atomicXor", "exch": "atomicExch", "cas": "atomicCAS", "inc": "atomicInc", "dec": "atomicDec"}  # fmt: skip
_SEEN = {"u32": "unsigned", "s32": "int", "b32": "unsigned", "u64": "unsigned long long", "b64": "unsigned long long",
         "f32": "float", "f64": "double"}  # fmt: skip
_TYPES = {"add": ("u32", "s32", "u64", "f32", "f64"), "min": ("u32", "s32", "u64"), "max": ("u32", "s32", "u64"),
          "and": ("b32", "b64"), "or": ("b32", "b64"), "xor": ("b32", "b64"), "exch": ("b32", "b64"),
          "cas": ("b32", "b64"), "inc": ("u32",), "dec": ("u32",)}  # fmt: skip


def statement(names: Names, instruction: Instruction) -> str | None:
    """The statement of a memory instruction; None if C++ has no word for it."""
    opcode, words = instruction.opcode, instruction.modifiers
    if opcode == "ld" and words[0] == "param":
        return _parameter(names, instruction)
    if opcode in ("ld", "st"):
        return _move(names, instruction)
    if opcode in ("atom", "red"):
        return _atomic(names, instruction)
    if opcode == "cvta":
        return _convert_address(names, instruction)
    return None


def _parameter(names: Names, instruction: Instruction) -> str | None:
    """An argument; parameters that are arrays have another way in, their address."""
    target, source = instruction.operands
    if not isinstance(source, Address) or not isinstance(source.base, Symbol) or source.offset:
        return None
    value, kind = names.parameters[source.base.name], instruction.modifiers[-1]
    seen = (SIGNED if kind[0] == "s" else UNSIGNED)[bits_of(kind)]  # a wider register takes the sign
    return assign(names, target, f"({seen}){value}") if plain(kind) else None


def pointer(names: Names, operand: Operand, space: str, kind: str) -> str | None:
    """An address as a pointer to `kind`."""
    if not isinstance(operand, Address) or operand.coordinates is not None:
        return None
    offset = (
        f" + {operand.offset}" if operand.offset > 0 else f" - {-operand.offset}" if operand.offset else ""
    )
    if space == "shared":
        return f"({kind}*)__cvta_shared_to_generic({names.value(operand.base, 'b32')}{offset})"
    base = names.value(operand.base, "b64")
    if space == "local":
        return f"({kind}*)__cvta_local_to_generic({base}{offset})"
    return f"({kind}*)({base}{offset})"


def _move(names: Names, instruction: Instruction) -> str | None:
    words = [w for w in instruction.modifiers if w not in ("v2", "v4")]
    space = words[0] if words[0] in ("global", "shared", "local") else ""
    kind = words[-1]
    if words != ([space, kind] if space else [kind]) or not plain(kind) or len(instruction.operands) != 2:
        return None  # caches, volatile, acquire: said in PTX
    loading = instruction.opcode == "ld"
    data, place = instruction.operands if loading else instruction.operands[::-1]
    items = items_of(data)
    bits = bits_of(kind)
    held = f"Held{bits}" if len(items) == 1 else f"Held{bits}x{len(items)}"
    where = pointer(names, place, space, held)
    if where is None:
        return None
    if len(items) == 1:
        if loading:
            signed = f"(int{bits}_t)" if kind[0] == "s" else ""
            return assign(names, items[0], f"{signed}*{where}")
        return f"*{where} = {names.value(items[0], f'b{bits}')};"
    if loading:
        parts = " ".join(
            assign(names, item, f"moved.{_LETTERS[i]}") for i, item in enumerate(items) if not _nowhere(item)
        )
        return f"{{ {held} moved = *{where}; {parts} }}"
    return f"*{where} = {held}{{{', '.join(names.value(item, f'b{bits}') for item in items)}}};"


def _nowhere(item: Operand) -> bool:
    return isinstance(item, Symbol) and item.name == "_"


def _atomic(names: Names, instruction: Instruction) -> str | None:
    """C++'s atomic functions are relaxed, for the whole GPU."""
    words = [w for w in instruction.modifiers if w not in ("relaxed", "gpu")]
    operation, kind = (words[-2], words[-1]) if len(words) > 1 else ("", "")
    space = words[0] if words[0] in ("global", "shared") else ""
    if words != ([space, operation, kind] if space else [operation, kind]) or kind not in _TYPES.get(
        operation, ()
    ):
        return None
    first, *rest = instruction.operands
    target, place, sources = (
        (first, rest[0], rest[1:]) if instruction.opcode == "atom" else (None, first, rest)
    )
    where = pointer(names, place, space, _SEEN[kind])
    values = [
        f"as_{kind}({names.value(s, kind)})" if kind[0] == "f" else names.value(s, kind) for s in sources
    ]
    call = f"{_ATOMICS[operation]}({', '.join([where or '', *values])})"
    if where is None:
        return None
    if target is None or _nowhere(target):
        return f"{call};"
    return assign(names, target, f"bits({call})" if kind[0] == "f" else call)


def _convert_address(names: Names, instruction: Instruction) -> str | None:
    """Addresses of global memory and of parameters are their own generic addresses."""
    words, (target, source) = instruction.modifiers, instruction.operands
    value = names.value(source, "b64") if words[-1] == "u64" else None
    if value is None:
        return None
    if words[0] in ("global", "param") or words[:2] == ("to", "global"):
        return assign(names, target, value)
    if words[0] == "local":
        return assign(names, target, f"(uint64_t)__cvta_local_to_generic({value})")
    return None

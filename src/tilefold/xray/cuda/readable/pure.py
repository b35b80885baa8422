"""What an instruction without effects computes, as a value of the graph."""

from __future__ import annotations

from collections.abc import Callable

from tilefold.xray.cuda.readable import quotients
from tilefold.xray.cuda.readable.blocks import UnreadableError
from tilefold.xray.cuda.readable.values import Graph, Value
from tilefold.xray.ptx import Address, Immediate, Instruction, Operand, Pair, Register, Vector

Read = Callable[[Operand, int], Value]
# Instructions without effects that may stand as functions of inline PTX.
_PURE = {
    "add", "sub", "mul", "mad", "fma", "div", "rem", "sqrt", "rsqrt", "rcp", "ex2", "lg2", "sin", "cos", "tanh", "min",
    "max", "abs", "neg", "cvt", "popc", "clz", "brev", "bfind", "bfe", "bfi", "prmt", "shf", "shl", "shr", "lop3", "not",
    "and", "or", "xor", "setp", "copysign", "sad",
}  # fmt: skip
_RELATIONS = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_INTEGER = ("eq", "ne", "lt", "le", "gt", "ge", *_RELATIONS)
_FLOAT = ("eq", "neu", "lt", "le", "gt", "ge")
_WORDS = {f"{sign}{bits}" for sign in "bus" for bits in (32, 64)}


def bits_of(kind: str) -> int:
    """The width of a PTX type, as its name ends."""
    digits = kind.lstrip("busfe")
    return 1 if kind == "pred" else int(digits) if digits.isdigit() else 32


def pure(graph: Graph, instruction: Instruction, read: Read, width: int) -> Value | None:
    """The value that a register of `width` bits takes; None if the instruction has effects, or several results."""
    operands = instruction.operands
    if instruction.opcode not in (*_PURE, "mov", "selp", "cvta") or any(
        isinstance(o, Address | Pair) for o in operands
    ):
        return None
    if instruction.has("cc") or any(isinstance(o, Vector) for o in operands):
        return None
    kind = instruction.modifiers[-1]
    usual = bits_of(kind)

    def given(n: int, bits: int = usual) -> Value:
        return read(operands[n], bits)

    for rule in (_moved, _predicate, _integer, _shifted, _resized):
        made = rule(graph, instruction, given)
        if made is not None:
            return made
    return _named(graph, instruction, read, width)


Operands = Callable[..., Value]


def _moved(graph: Graph, instruction: Instruction, read: Operands) -> Value | None:
    """Copies and choices."""
    if instruction.opcode in ("mov", "cvta"):
        return read(1)
    if instruction.opcode == "selp":
        return graph.selected(read(3, 1), read(1), read(2))
    return None


def _predicate(graph: Graph, instruction: Instruction, read: Operands) -> Value | None:
    """Comparisons, joined with a third predicate or not, and logic."""
    opcode, words, operands = instruction.opcode, instruction.modifiers, instruction.operands
    if words[-1] == "pred" and opcode in ("and", "or", "xor"):
        return graph.binary(opcode, read(1), read(2))
    if words[-1] == "pred" and opcode == "not":
        return graph.negated(read(1))
    if opcode != "setp" or "ftz" in words:
        return None
    kind = words[-1][0]
    if words[0] not in (_FLOAT if kind == "f" else _INTEGER) or words[-1] in ("f16", "bf16", "f16x2"):
        return None
    unsigned = words[0] in _RELATIONS
    found = graph.compared(
        _RELATIONS.get(words[0], words[0]), "u" if unsigned or kind == "b" else kind, read(1), read(2)
    )
    return graph.binary(words[1], found, read(3, 1)) if len(operands) == 4 else found


def _integer(graph: Graph, instruction: Instruction, read: Operands) -> Value | None:
    """Sums, products and logic of 32 and 64 bits."""
    opcode, words = instruction.opcode, instruction.modifiers
    kind = words[-1]
    if kind not in _WORDS:
        return None  # of floats, of 16 bits, or of two halves at once, of which none carries into the other
    match opcode, words[:-1]:
        case ("add" | "sub" | "and" | "or" | "xor", ()):
            a, b = read(1), read(2)
            quotient = None
            if opcode == "add" and bits_of(kind) == 32:
                quotient = quotients.by_product(graph, a, b)
            elif opcode == "and" and bits_of(kind) == 32:
                quotient = quotients.by_mask(graph, a, b.constant)
            return quotient or graph.binary(opcode, a, b)
        case ("mul", ("lo",)):
            return graph.binary("mul", read(1), read(2))
        case ("mad", ("lo",)):
            return graph.binary("add", graph.binary("mul", read(1), read(2)), read(3))
        case ("mul" | "mad", ("wide",)) if bits_of(kind) == 32:
            signed = kind[0] == "s"
            product = graph.binary("mul", graph.extended(read(1), signed), graph.extended(read(2), signed))
            return product if opcode == "mul" else graph.binary("add", product, read(3, 64))
        case ("not", ()):
            return graph.make("not", read(1), bits=bits_of(kind))
        case ("neg", ()):
            return graph.make("neg", read(1), bits=bits_of(kind))
    return None


def _shifted(graph: Graph, instruction: Instruction, read: Operands) -> Value | None:
    """Shifts by constants, and fields."""
    opcode, words, operands = instruction.opcode, instruction.modifiers, instruction.operands
    kind = words[-1]
    width = bits_of(kind)
    if width not in (32, 64) or len(words) > 1 or not all(isinstance(o, Immediate) for o in operands[2:]):
        return None
    numbers = [o.value & 0xFFFFFFFF for o in operands[2:] if isinstance(o, Immediate)]
    if opcode == "shl":
        return graph.shl(read(1), numbers[0])
    if opcode == "shr":
        value, by = read(1), min(numbers[0], width)
        if kind[0] != "s" or not graph.possible(value) >> (width - 1):
            quotient = quotients.by_unsigned_product(graph, value, by) if kind[0] != "s" else None
            return quotient or graph.shr(value, by)
        return quotients.by_shift(graph, value, by) or graph.make(
            "sar", value, graph.const(min(by, width - 1)), bits=width
        )
    if opcode == "bfe" and numbers[1] and numbers[0] + numbers[1] <= width:
        field = graph.binary("and", graph.shr(read(1), numbers[0]), graph.const((1 << numbers[1]) - 1, width))
        if kind[0] == "u":
            return field
        return graph.make("neg", field, bits=width) if numbers[1] == 1 else None
    return None


def _resized(graph: Graph, instruction: Instruction, read: Operands) -> Value | None:
    """Integers made wider or narrower, between 32 and 64 bits."""
    if instruction.opcode != "cvt" or len(instruction.modifiers) != 2:
        return None
    to, of = instruction.modifiers
    if to[0] not in "us" or of[0] not in "us":
        return None
    if (bits_of(of), bits_of(to)) == (32, 64):
        return graph.extended(graph.cut(read(1), 32), of[0] == "s")
    if (bits_of(of), bits_of(to)) == (64, 32):
        return graph.truncated(read(1))
    return None


def _named(graph: Graph, instruction: Instruction, read: Read, width: int) -> Value | None:
    """An instruction by its name: C++ or a function of inline PTX says it."""
    if (
        instruction.opcode == "mov"
        or instruction.opcode == "cvta"
        or not isinstance(instruction.operands[0], Register)
    ):
        return None
    of = instruction.modifiers[-1]
    if any(not isinstance(o, Register | Immediate) for o in instruction.operands[1:]):
        return None
    fixed = (
        tuple(o.value for o in instruction.operands[4:] if isinstance(o, Immediate))
        if instruction.opcode == "lop3"
        else ()
    )
    sources = instruction.operands[1 : 4 if fixed else None]
    args = [read(o, _operand_bits(instruction, n, of)) for n, o in enumerate(sources)]
    if instruction.opcode == "cvt":  # whose operand may lie in a wider register
        args = [graph.cut(a, max(bits_of(of), 16)) for a in args]
    if any(a.bits == 1 for a in args):
        raise UnreadableError(
            f"cuda: operands must be no predicates, got {instruction.name}; take the plain form"
        )
    return graph.make("ptx", *args, data=(instruction.name, *fixed), bits=width)


def _operand_bits(instruction: Instruction, n: int, of: str) -> int:
    """The width of an immediate among the operands: counts of shifts, and accumulators, have their own."""
    if instruction.opcode in ("shl", "shr", "bfe", "bfi", "shf") and n >= 1:
        return 32 if instruction.opcode != "bfi" or n > 1 else bits_of(of)
    if n == 2 and instruction.has("wide"):
        return 2 * bits_of(of)
    return bits_of(of)

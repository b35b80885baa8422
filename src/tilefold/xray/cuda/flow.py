"""Jumps, barriers and instructions of a whole warp, in C++."""

from __future__ import annotations

from tilefold.xray.cuda.integers import assign
from tilefold.xray.cuda.names import SIGNED, UNSIGNED, Names
from tilefold.xray.ptx.syntax import Immediate, Instruction, Pair, Symbol, items_of

_SHUFFLES = {
    "bfly": "__shfl_xor_sync",
    "idx": "__shfl_sync",
    "down": "__shfl_down_sync",
    "up": "__shfl_up_sync",
}
_SYNCED = {"and": "and", "or": "or", "popc": "count"}
_VOTES = {"all": "__all_sync", "any": "__any_sync", "ballot": "__ballot_sync", "uni": "__uni_sync"}


def statement(names: Names, instruction: Instruction) -> str | None:
    """The statement of such an instruction; None if C++ has no word for it."""
    opcode, operands = instruction.opcode, instruction.operands
    if opcode == "bra" and isinstance(operands[0], Symbol):
        return f"goto {names.label(operands[0].name)};"
    if opcode in ("ret", "exit"):
        return "return;"
    if opcode == "trap":
        return "__trap();"
    if opcode == "call":
        return _call(names, instruction)
    if opcode in ("bar", "barrier"):
        return _barrier(names, instruction)
    if instruction.name.startswith("shfl.sync.") and instruction.modifiers[-1] == "b32":
        return _shuffle(names, instruction)
    if instruction.name.startswith("vote.sync.") and not isinstance(operands[0], Pair):
        call = f"{_VOTES[instruction.modifiers[1]]}({names.value(operands[2], 'b32')}, {names.value(operands[1], 'pred')})"
        return assign(names, operands[0], call)
    if instruction.name.startswith("redux.sync."):
        return _reduce(names, instruction)
    if instruction.name == "activemask.b32":
        return assign(names, operands[0], "__activemask()")
    if instruction.name.startswith(("membar.gl", "fence.acq_rel.gpu", "fence.sc.gpu")):
        return "__threadfence();"
    return None


def _call(names: Names, instruction: Instruction) -> str | None:
    """A device's failed assertions, which C++ has as a function of the same name; what it prints is left out."""
    name = next((o.name for o in instruction.operands if isinstance(o, Symbol)), "")
    values = [names.value(o, f"b{names.width(o) or 64}") for o in items_of(instruction.operands[-1])]
    if name == "vprintf":
        (result,) = items_of(instruction.operands[0])
        return assign(names, result, "0") + "  // printed a text; C++ has no vprintf on a device"
    if name == "__assertfail":
        texts = [f"(const char*){v}" for v in values]
        return f"__assertfail({texts[0]}, {texts[1]}, {values[2]}, {texts[3]}, {values[4]});"
    return None


def _barrier(names: Names, instruction: Instruction) -> str | None:
    operands = instruction.operands
    if instruction.name == "bar.warp.sync":
        return f"__syncwarp({names.value(operands[0], 'b32')});"
    if instruction.name in ("bar.sync", "barrier.sync") and operands == (Immediate(0),):
        return "__syncthreads();"
    if instruction.has("red") and len(operands) == 3 and operands[1] == Immediate(0):
        how = next((m for m in instruction.modifiers if m in _SYNCED), "")
        call = f"__syncthreads_{_SYNCED[how]}({names.value(operands[2], 'pred')})"
        return assign(names, operands[0], call)
    return None


def _shuffle(names: Names, instruction: Instruction) -> str | None:
    """C++ has no predicate, and segments that are whole warps here."""
    target, value, by, control, members = instruction.operands
    mode = instruction.modifiers[1]
    if isinstance(target, Pair) or control != Immediate(0 if mode == "up" else 31):
        return None
    words = [names.value(o, "b32") for o in (members, value, by)]
    return assign(names, target, f"{_SHUFFLES[mode]}({', '.join(words)})")


def _reduce(names: Names, instruction: Instruction) -> str | None:
    target, source, members = instruction.operands
    operation, kind = instruction.modifiers[1], instruction.modifiers[-1]
    if kind not in ("s32", "u32", "b32"):
        return None
    value = f"({(SIGNED if kind[0] == 's' else UNSIGNED)[32]}){names.value(source, kind)}"
    return assign(names, target, f"__reduce_{operation}_sync({names.value(members, 'b32')}, {value})")

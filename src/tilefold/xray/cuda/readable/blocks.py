"""A kernel's body as basic blocks: what follows each, what is alive at its begin, where paths meet, and its loops."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tilefold.errors import XrayError
from tilefold.xray.cuda.readable.jumps import Block, before_each, dominators, found_cycles, structured
from tilefold.xray.ptx import Entry, Instruction, Label, Operand, Register, Symbol
from tilefold.xray.ptx.syntax import registers_of

# Instructions whose first operand is no result.
SILENT = {
    "st", "red", "bar", "barrier", "fence", "membar", "cp", "prefetch", "bra", "ret", "exit", "trap", "wgmma", "stmatrix",
    "nanosleep", "discard", "griddepcontrol", "setmaxnreg", "tensormap",
}  # fmt: skip


class UnreadableError(XrayError):
    """What the readable form does not say; the plain form does."""


@dataclass(frozen=True)
class NaturalLoop:
    """A loop that is left from one block.

    What lies between that and the block that goes back is done in all rounds but the last.
    """

    blocks: frozenset[int]
    latch: int  # goes back
    exit: int
    leaves_to: int


class Flow:
    """The blocks of a kernel; the number after the last stands for its end."""

    def __init__(self, entry: Entry) -> None:
        self.blocks, self.predicates = structured(_blocks(entry))
        self.end = len(self.blocks)

    @cached_property
    def alive(self) -> list[frozenset[str]]:
        """Registers that some path from a block's begin reads before it writes them."""
        read, written = zip(*map(_read_and_written, self.blocks), strict=True) if self.blocks else ((), ())
        found = [frozenset[str]() for _ in range(self.end + 1)]
        changed = True
        while changed:
            changed = False
            for b in reversed(range(self.end)):
                behind = frozenset[str]().union(*(found[n] for n in self.blocks[b].follow))
                now = read[b] | (behind - written[b])
                changed |= now != found[b]
                found[b] = now
        return found

    def written(self, blocks: frozenset[int]) -> set[str]:
        """Registers that some of the blocks write."""
        return {name for b in blocks for name in _read_and_written(self.blocks[b])[1]}

    @cached_property
    def meets(self) -> list[int]:
        """The first block that all paths from a block pass, or the end."""
        follow = [set(b.follow) or {self.end} for b in self.blocks] + [set[int]()]
        return _closest(follow, self.end)

    @cached_property
    def loops(self) -> dict[int, NaturalLoop]:
        """Loops by the block that they begin with.

        Raises:
            UnreadableError: nothing ends a loop.
        """
        before = before_each(self.blocks)
        found = {}
        for cycle in found_cycles(self.blocks, before, dominators(before, 0)):
            out = [(b, n) for b in cycle.blocks for n in self.blocks[b].follow if n not in cycle.blocks]
            if not out:
                raise UnreadableError("cuda: a loop must end, got one that does not; take the plain form")
            ((leaving, to),), (latch,) = out, cycle.back
            found[cycle.head] = NaturalLoop(cycle.blocks, latch, leaving, to)
        return found


def _blocks(entry: Entry) -> list[Block]:
    pieces: list[tuple[list[Instruction], Instruction | None]] = [([], None)]
    begins: dict[str, int] = {}
    for item in entry.body:
        if isinstance(item, Label):
            if item.name in entry.targets:
                if pieces[-1][0] or any(at == len(pieces) - 1 for at in begins.values()) or len(pieces) == 1:
                    pieces.append(([], None))
                begins[item.name] = len(pieces) - 1
        elif item.opcode in ("bra", "ret", "exit"):
            pieces[-1] = (pieces[-1][0], item)
            pieces.append(([], None))
        else:
            pieces[-1][0].append(item)
    pieces.append(([], None))  # where a return under a condition goes
    return [_block(k, own, end, begins, len(pieces) - 1) for k, (own, end) in enumerate(pieces)]


def _block(
    k: int, own: list[Instruction], end: Instruction | None, begins: dict[str, int], count: int
) -> Block:
    after = (k + 1,) if k + 1 < count else ()
    if end is None:
        return Block(tuple(own), None, after)
    guard = None if end.guard is None else Register(end.guard.register, end.guard.negated)
    if end.opcode != "bra":
        return Block(tuple(own), guard if after else None, () if guard is None else (count, *after))
    target = end.operands[0]
    if not isinstance(target, Symbol):
        raise UnreadableError("cuda: a jump must have a label, got a register; take the plain form")
    to = begins[target.name]
    if guard is None or to in after:
        return Block(tuple(own), None, (to,))
    return Block(tuple(own), guard, (to, *after))


def _read_and_written(block: Block) -> tuple[frozenset[str], frozenset[str]]:
    """Registers read before they are written, and those written for sure."""
    read, written = set[str](), set[str]()
    for instruction in block.instructions:
        first, rest = results_and_sources(instruction)
        names = [n for o in rest for n in registers_of(o)]
        names += [instruction.guard.register] if instruction.guard else []
        made = [n for o in first for n in registers_of(o)]
        read.update(n for n in (*names, *(made if instruction.guard else ())) if n not in written)
        written.update(made)
    if block.condition is not None and block.condition.name not in written:
        read.add(block.condition.name)
    return frozenset(read), frozenset(written)


def results_and_sources(instruction: Instruction) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    """The operands that an instruction writes and those that it reads."""
    if instruction.name.startswith("wgmma.mma_async"):
        return instruction.operands[:1], instruction.operands
    if instruction.opcode in SILENT or not instruction.operands:
        return (), instruction.operands
    if instruction.opcode == "mbarrier" and instruction.modifiers[0] in ("init", "inval"):
        return (), instruction.operands
    return instruction.operands[:1], instruction.operands[1:]


def _closest(follow: list[set[int]], root: int) -> list[int]:
    """Of the blocks that every path to the root passes the one that comes first behind each block."""
    found = dominators(follow, root)
    chosen = []
    for b in range(root):
        others = found[b] - {b}
        chosen.append(max(others, key=lambda o: len(found[o])) if others else root)
    return chosen

"""Machine code as blocks: the instructions of each, and the blocks that may follow."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilefold.xray.ptx.parser import path_of
from tilefold.xray.reach import reached
from tilefold.xray.report.sass import PLACE

END = "end"  # the block that every warp comes to at last
_LABEL = re.compile(r"^(\.L_x_\d+):")
_CODE = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z]\w*)([^;]*);")
_TARGET = re.compile(r"^\s*(?:!?U?P\w+\s*,\s*)?`\((\.L_x_\d+)\)")
# Calls and indirect jumps are not followed.
_UNFOLLOWED = ("BRX", "JMX", "JMP", "CALL", "RET", "BREAK", "WARPSYNC")


@dataclass(frozen=True)
class Shared:
    """An instruction that PTX has as well: its innermost line, its kind, and whether a predicate stands before it."""

    file: str
    line: int
    kind: str
    guarded: bool


@dataclass
class Block:
    """Instructions without a jump among them, and their lines; `next` are the blocks that may follow. `sync`: it begins with
    `BSYNC`."""

    opcodes: Counter[str] = field(default_factory=Counter)
    shared: list[Shared] = field(default_factory=list)
    next: list[str] = field(default_factory=list)
    lines: set[tuple[str, int]] = field(default_factory=set)
    sync: bool = False


@dataclass(frozen=True)
class Code:
    """A kernel's blocks by name, the first of which is entered. `parts`: warps may diverge and converge.

    `aside` are blocks that stand for nothing but a predicate: a jump leads around each of them, and nothing else leads into
    it. They belong to the block that jumps; and the block behind both is told.
    """

    blocks: dict[str, Block]
    parts: bool
    aside: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def read_code(text: str) -> Code | None:
    """The code of one kernel as the disassembler writes it; None where it calls or jumps to what only registers know."""
    reader = _Reader()
    for row in text.splitlines():
        if found := PLACE.match(row):
            reader.place = (path_of(found[1]), int(found[2]))
        elif found := _LABEL.match(row):
            reader.begin(found[1])
        elif found := _CODE.match(row):
            if found[2] in _UNFOLLOWED:
                return None
            reader.instruction(found[1], found[2], found[3])
    blocks = reader.reached()
    return Code(blocks, any("BSSY" in block.opcodes for block in blocks.values()))


def straightened(code: Code) -> Code:
    """The code without jumps around one block each, behind which lanes converge or end: such a block is left out of the ways,
    whose lanes then do not diverge there, and is passed where a lane acted in it."""
    follow = {name: list(block.next) for name, block in code.blocks.items()}
    aside = dict[str, tuple[str, str]]()
    met = {END} | {name for name, block in code.blocks.items() if block.sync}
    while (found := _around(follow, met)) is not None:
        host, body, behind = found
        aside[body] = host, behind
        follow[host] = [behind]
        del follow[body]
    blocks = {n: replace(b, next=follow.get(n, [])) for n, b in code.blocks.items()}
    parts = any(len(set(after)) > 1 and "BSSY" in code.blocks[n].opcodes for n, after in follow.items())
    return Code(blocks, parts, aside)


def _around(follow: Mapping[str, Sequence[str]], met: set[str]) -> tuple[str, str, str] | None:
    """A block that jumps around another one, that one, and the block of `met` behind both."""
    into = Counter(b for after in follow.values() for b in after)
    for host, after in follow.items():
        for body, behind in (after, after[::-1]) if len(after) == 2 else ():
            if (
                behind in met
                and body != behind
                and into[body] == 1
                and follow[body] == [behind]
                and body != host
            ):
                return host, body, behind
    return None


def kind_of_machine(opcode: str, rest: str) -> str:
    """What an instruction is in PTX as well: load, store, copy, barrier, shuffle, atomic, group, shared load or store; a
    special function, a sum or fused sum; else ""."""
    if opcode == "SHFL":  # an index that all lanes share may become a move to a uniform register
        return "" if rest.startswith(".IDX") else "shuffle"
    return {
        "LDG": "load", "STG": "store", "LDGSTS": "copy", "BAR": "barrier", "HGMMA": "group", "LDS": "shared load",
        "ATOMG": "atomic", "REDG": "atomic", "RED": "atomic", "STS": "shared store", "MUFU": "special",
        "FADD": "sum", "FFMA": "sum",
    }.get(opcode, "")  # fmt: skip


class _Reader:
    """Blocks cut behind jumps and before labels."""

    def __init__(self) -> None:
        self.place = ("", 0)
        self._blocks = {"": Block()}
        self._current = self._blocks[""]
        self._falls = True  # whether the block before goes on into the next one

    def begin(self, name: str) -> None:
        """A new block here."""
        if self._falls:
            self._current.next.append(name)
        self._current = self._blocks[name] = Block()
        self._falls = True

    def instruction(self, guard: str | None, opcode: str, rest: str) -> None:
        """One instruction, which may end the block."""
        block = self._current
        block.sync |= opcode == "BSYNC" and not block.opcodes
        block.opcodes[opcode] += 1
        block.lines.add(self.place)
        if kind := kind_of_machine(opcode, rest):
            block.shared.append(Shared(*self.place, kind, guard is not None))
        if opcode not in ("BRA", "EXIT"):
            return
        jump = _TARGET.match(rest) if opcode == "BRA" else None
        block.next.append(END if jump is None else jump[1])
        self._falls = guard is not None or (jump is not None and not rest.lstrip().startswith("`"))
        self.begin(f"after {len(self._blocks)}")

    def reached(self) -> dict[str, Block]:
        """The blocks that something leads to, in the order of the code, and the end."""
        self._blocks[END] = Block()
        found = {*reached([""], lambda name: self._blocks[name].next)}
        return {name: block for name, block in self._blocks.items() if name in found}

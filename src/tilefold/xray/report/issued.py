"""How often the machine's instructions are issued, from what executing the PTX showed.

The assembler unrolls loops, splits and merges instructions, so counts of PTX are not the machine's. But some instructions are
the same on both sides - accesses to global memory, barriers, shuffles - and a warp walks through the blocks of the machine's
code on one way. Where only one way agrees with what the warp did in the PTX, all counts of the machine are known.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilefold.xray.execution import Execution
from tilefold.xray.machine import Outcome
from tilefold.xray.machine.types import Array
from tilefold.xray.ptx.syntax import Instruction
from tilefold.xray.report.machine_code import Code, read_code
from tilefold.xray.report.static import Lines
from tilefold.xray.report.ways import Ways


@dataclass(frozen=True, eq=False)
class _Anchor:
    """Instructions that PTX and the machine share: their numbers in the PTX, and how many of them each block holds.

    `guarded`: whether the machine's stand behind predicates; None where only some do.
    """

    numbers: list[int]
    weights: Array
    guarded: bool | None

    def times(self, outcome: Outcome, warp: int) -> int | None:
        """How often a warp issued them; None where the machine's may be fewer than those of PTX."""
        stood = int(outcome.issued[self.numbers, warp].sum())
        acted = int(outcome.acted[self.numbers, warp].sum())
        # Behind a predicate the machine issues for nobody, behind a jump it does not.
        return stood if self.guarded or stood == acted else None if self.guarded is None else acted


def issued(
    text: str, entry: Sequence[Instruction], lines: Lines, execution: Execution
) -> Mapping[str, int] | None:
    """Machine instructions that warps of the executed programs issue, by opcode; None where that is not decided."""
    code = read_code(text)
    if code is None or (code.parts and any(o.parted.any() for o in execution.outcomes)):
        return None
    # The assembler may put an instruction to a neighbour's line: then only its kind is known.
    for exact in (True, False):
        anchors = _anchors(code, entry, lines, exact=exact)
        total = _total(code, anchors, execution)
        if total is not None:
            return total
    return None


def _total(code: Code, anchors: Sequence[_Anchor], execution: Execution) -> Mapping[str, int] | None:
    alike = Counter(
        tuple(anchor.times(outcome, warp) for anchor in anchors)
        for outcome in execution.outcomes
        for warp in range(outcome.issued.shape[1])
    )
    ways, total = Ways(code), Counter[str]()
    for times, warps in alike.items():
        known = [(a.weights, n) for a, n in zip(anchors, times, strict=True) if n is not None]
        passed = ways.passed(known)
        if passed is None:
            return None
        for block, n in zip(code.blocks.values(), passed, strict=True):
            for opcode, count in block.opcodes.items():
                total[opcode] += count * n * warps
    return dict(total)


def _anchors(code: Code, entry: Sequence[Instruction], lines: Lines, *, exact: bool) -> list[_Anchor]:
    """What both sides share, by line and kind, or by kind alone."""
    ours: dict[tuple[str, int, str], list[int]] = defaultdict(list)
    for number, instruction in enumerate(entry):
        kind, place = _kind(instruction), lines.place(instruction)
        if kind:
            ours[(*place[0], kind) if exact and place else ("", 0, kind)].append(number)
    theirs: dict[tuple[str, int, str], list[tuple[int, bool]]] = defaultdict(list)
    for i, block in enumerate(code.blocks.values()):
        for one in block.shared:
            theirs[(one.file, one.line, one.kind) if exact else ("", 0, one.kind)].append((i, one.guarded))
    found = []
    for key, machines in theirs.items():
        numbers = ours.get(key)
        if numbers is None:
            continue
        # What writes memory keeps its order, so that each can be told from the others.
        if key[2] in ("store", "atomic") and len(numbers) == len(machines):
            found += [_anchor([n], [m], code) for n, m in zip(numbers, machines, strict=True)]
        else:
            found.append(_anchor(numbers, machines, code))
    return found


def _anchor(numbers: list[int], machines: list[tuple[int, bool]], code: Code) -> _Anchor:
    weights = np.zeros(len(code.blocks))
    for block, _ in machines:
        weights[block] += 1
    flags = {guarded for _, guarded in machines}
    return _Anchor(numbers, weights, None if len(flags) > 1 else flags.pop())


def _kind(instruction: Instruction) -> str:
    """The kind of `kind_of_machine` of an instruction of PTX."""
    opcode, name = instruction.opcode, instruction.name
    if opcode in ("ld", "st") and instruction.has("global"):
        return "load" if opcode == "ld" else "store"
    if name.startswith(("cp.async.ca", "cp.async.cg")):
        return "copy"
    if opcode in ("bar", "barrier"):
        return "" if instruction.has("warp") else "barrier"
    if opcode == "shfl":
        return "" if instruction.has("idx") else "shuffle"
    if opcode in ("atom", "red"):
        return "atomic"
    return "group" if name.startswith("wgmma.mma_async") else ""

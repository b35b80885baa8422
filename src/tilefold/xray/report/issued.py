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

_MOVED = "shared load"  # behind jumps, and so no help in finding a warp's way


@dataclass(frozen=True, eq=False)
class _Anchor:
    """Instructions of a kind that PTX and the machine share: their numbers in the PTX, and how many each block holds.

    `guarded`: whether the machine's stand behind predicates; None where only some do.
    """

    kind: str
    numbers: list[int]
    weights: Array
    guarded: bool | None

    def times(self, outcome: Outcome, warp: int) -> int | None:
        """How often a warp issued them; None where the machine's may be fewer than those of PTX."""
        stood = int(outcome.issued[self.numbers, warp].sum())
        acted = int(outcome.acted[self.numbers, warp].sum())
        # Behind a predicate the machine issues for nobody, behind a jump it does not.
        return stood if self.guarded or stood == acted else None if self.guarded is None else acted


@dataclass(frozen=True)
class Issued:
    """What warps issue of the machine's code.

    `opcodes` counts by opcode. `absent` names loads of shared memory that warps make in the PTX and not on the machine,
    since the assembler moved them behind a jump: the load's number in the PTX, with pairs of executed program and warp.
    """

    opcodes: Mapping[str, int]
    absent: Mapping[int, Sequence[tuple[int, int]]]


def issued(
    text: str, entry: Sequence[Instruction], lines: Lines, execution: Execution
) -> tuple[Issued | None, str]:
    """What warps of the executed programs issue; None where their way through the code is not decided, and what stopped
    the search if something did."""
    code = read_code(text)
    if code is None or (code.parts and any(o.parted.any() for o in execution.outcomes)):
        return None, ""
    ways = Ways(code)
    if ways.too_many:
        return None, f"too many ways lead through the machine's {len(code.blocks)} blocks"
    # The assembler may put an instruction to a neighbour's line: then only its kind is known.
    for exact in (True, False):
        anchors = _anchors(code, entry, lines, exact=exact)
        passed = _passed(ways, [a for a in anchors if a.kind != _MOVED], execution)
        if passed is not None:
            moved = [a for a in anchors if a.kind == _MOVED]
            return Issued(_opcodes(code, passed), _absent(moved, passed)), ""
    return None, ""


def _passed(
    ways: Ways, anchors: Sequence[_Anchor], execution: Execution
) -> dict[tuple[int, int], list[int]] | None:
    """How often each block is passed, by executed program and warp."""
    found = dict[tuple[int, int], list[int]]()
    seen: dict[tuple[int | None, ...], list[int] | None] = {}
    for program, outcome in enumerate(execution.outcomes):
        for warp in range(outcome.issued.shape[1]):
            times = tuple(anchor.times(outcome, warp) for anchor in anchors)
            if times not in seen:
                known = [(a.weights, n) for a, n in zip(anchors, times, strict=True) if n is not None]
                seen[times] = ways.passed(known)
            passed = seen[times]
            if passed is None:
                return None
            found[program, warp] = passed
    return found


def _opcodes(code: Code, passed: Mapping[tuple[int, int], Sequence[int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for block, times in zip(code.blocks.values(), np.sum(list(passed.values()), axis=0), strict=True):
        for opcode, count in block.opcodes.items():
            total[opcode] += count * int(times)
    return dict(total)


def _absent(
    moved: Sequence[_Anchor], passed: Mapping[tuple[int, int], Sequence[int]]
) -> dict[int, list[tuple[int, int]]]:
    """Instructions that have one counterpart each, with the warps that never pass it."""
    return {
        anchor.numbers[0]: [who for who, times in passed.items() if not anchor.weights @ np.array(times)]
        for anchor in moved
        if len(anchor.numbers) == 1 == anchor.weights.sum()
    }


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
        # What writes memory keeps its order, and so do loads from shared memory: each can be told from the others.
        if key[2] in ("store", "atomic", _MOVED) and len(numbers) == len(machines):
            found += [_anchor(key[2], [n], [m], code) for n, m in zip(numbers, machines, strict=True)]
        else:
            found.append(_anchor(key[2], numbers, machines, code))
    return found


def _anchor(kind: str, numbers: list[int], machines: list[tuple[int, bool]], code: Code) -> _Anchor:
    weights = np.zeros(len(code.blocks))
    for block, _ in machines:
        weights[block] += 1
    flags = {guarded for _, guarded in machines}
    return _Anchor(kind, numbers, weights, None if len(flags) > 1 else flags.pop())


def _kind(instruction: Instruction) -> str:
    """The kind of `kind_of_machine` of an instruction of PTX."""
    opcode, name = instruction.opcode, instruction.name
    if opcode == "ld" and instruction.has("shared"):
        return _MOVED
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

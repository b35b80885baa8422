"""How often the machine's instructions are issued, by the executed PTX.

The assembler unrolls loops, splits and merges instructions, so counts of PTX are not the machine's. But some instructions are
the same on both sides - accesses to global memory, barriers, shuffles - and a warp walks through the blocks of the machine's
code on one way. Where only one way agrees with what the warp did in the PTX, all counts of the machine are known.

A jump around one block is a predicate in the PTX: what stands in the block counts as guarded, for the ways, and the block is
passed as often as a lane acted in it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from tilefold.xray.execution import Execution
from tilefold.xray.machine import Outcome
from tilefold.xray.machine.types import Array
from tilefold.xray.ptx.syntax import Instruction
from tilefold.xray.report.machine_code import END, Code, read_code, straightened
from tilefold.xray.report.static import Lines
from tilefold.xray.report.ways import Ways

_MOVED = "shared load"  # behind jumps, and so no help in finding a warp's way
# Merged, split and moved more freely: asked only of what the others leave open.
_LOOSE = ("shared store", "special", "sum")
# Those that keep their order, so that each can be told from the others; and that stand behind a jump as behind a predicate.
_ORDERED = ("store", "atomic", "shared store", _MOVED)
_TELLING = ("load", "store", "copy", "atomic", "shared store")
_SPECIAL = ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh", "div")


@dataclass(frozen=True, eq=False)
class _Anchor:
    """Instructions of a kind that PTX and the machine share: their numbers in the PTX, the block of each of the machine's,
    and how many each block on a way holds (those of a block aside count for the one that jumps around it).

    `guarded`: whether the machine's stand behind predicates; None where only some do. `predicated`: whether the PTX's do.
    """

    kind: str
    numbers: list[int]
    places: list[int]
    weights: Array
    guarded: bool | None
    predicated: bool

    @property
    def alike(self) -> bool:
        """Whether the machine has each of them, or copies of all: fewer were merged."""
        return not len(self.places) % len(self.numbers)

    def times(self, outcome: Outcome, warp: int) -> int | None:
        """How often a warp issued them; None where the machine's may be fewer than those of PTX."""
        stood = int(outcome.issued[self.numbers, warp].sum())
        acted = int(outcome.acted[self.numbers, warp].sum())
        # Behind a predicate the machine issues for nobody, behind a jump it does not.
        return stood if self.guarded or stood == acted else None if self.guarded is None else acted

    def aside(self, block: int, outcome: Outcome, warp: int, passes: Sequence[int]) -> tuple[int, int] | None:
        """How often a warp passes a block aside with some of these in it, and how often only some of its lanes do. `passes`
        are those of the block that each of the machine's hangs on or is in."""
        lanes = slice(32 * warp, 32 * warp + 32)
        turns = [a.active[lanes] for a in outcome.accesses if a.instruction == self.numbers[0]]
        if len(self.places) != len(self.numbers) or set(self.places) != {block}:
            stood, acted = outcome.issued[self.numbers, warp], outcome.acted[self.numbers, warp]
            if len(self.numbers) == 1 and len(turns) == stood[0] == sum(passes):
                turns = [t for t, at in zip(turns, self._in_turn(passes), strict=True) if at == block]
            elif acted.any() and ((acted != stood).any() or not all(t.all() for t in turns)):
                return None
            else:
                return (passes[self.places.index(block)] if acted.any() else 0), 0
        passed = sum(bool(t.any()) for t in turns)
        return passed, passed - sum(bool(t.all()) for t in turns)

    def _in_turn(self, passes: Sequence[int]) -> Iterator[int]:
        """The blocks of the machine's copies, as a warp comes to them: neighbours that are passed alike are a loop's body."""
        for often, body in groupby(zip(passes, self.places, strict=True), key=lambda pair: pair[0]):
            yield from [block for _, block in body] * often


@dataclass(frozen=True)
class Issued:
    """What warps issue of the machine's code.

    `opcodes` counts by opcode. `absent` names loads of shared memory that warps make in the PTX and not on the machine,
    since the assembler moved them behind a jump: the load's number in the PTX, with pairs of executed program and warp.
    """

    opcodes: Mapping[str, int]
    absent: Mapping[int, Sequence[tuple[int, int]]]


_Passed = dict[tuple[int, int], list[int]]  # how often each block is passed, by executed program and warp


def issued(
    text: str, entry: Sequence[Instruction], lines: Lines, execution: Execution
) -> tuple[Issued | None, str]:
    """What warps of the executed programs issue; None where their way through the code is not decided, and what stopped
    the search if something did."""
    whole = read_code(text)
    if whole is None or any(map(_looped, entry)):
        return None, ""
    parted, stopped = any(o.parted.any() for o in execution.outcomes), ""
    for code in (whole, straightened(whole)):
        if code.parts and parted:
            continue
        ways = Ways(code)
        if ways.too_many:
            stopped = f"too many ways lead through the machine's {len(code.blocks)} blocks"
            continue
        # The assembler may put an instruction to a neighbour's line: then only its kind is known.
        foreign = _Foreign(code, entry, lines)
        for exact in (True, False):
            anchors = _anchors(code, entry, lines, exact=exact)
            for chosen in _choices(anchors):
                passed = _passed(ways, chosen, execution, foreign)
                again = None if passed is None else _beside(code, anchors, passed, execution)
                if passed is not None and again is not None:
                    moved = [a for a in anchors if a.kind == _MOVED]
                    return Issued(_opcodes(code, passed, again), _absent(moved, passed)), ""
    return None, stopped


def _choices(anchors: Sequence[_Anchor]) -> list[list[_Anchor]]:
    """Anchors to find ways by: those that every compilation keeps; those of which none was merged; looser ones, too."""
    kept = [a for a in anchors if a.kind not in (_MOVED, *_LOOSE)]
    alike = [a for a in kept if a.alike]
    loose = [a for a in anchors if a.kind in _LOOSE and a.alike]
    some = [a for a in loose if a.kind in _LOOSE[:2]]
    return [kept, alike, [*alike, *some], [*alike, *loose]]


class _Foreign:
    """Tells between ways that agree with the same counts."""

    def __init__(self, code: Code, entry: Sequence[Instruction], lines: Lines) -> None:
        numbers: dict[tuple[str, int], list[int]] = defaultdict(list)
        for number, instruction in enumerate(entry):
            for place in lines.place(instruction)[:1]:
                numbers[place].append(number)
        self._size = np.array([sum(block.opcodes.values()) for block in code.blocks.values()])
        self._lines = [
            (at, np.array([place in block.lines for block in code.blocks.values()]))
            for place, at in numbers.items()
        ]

    def likeliest(self, ways: Sequence[tuple[int, ...]], outcome: Outcome, warp: int) -> list[int] | None:
        """The way with the fewest blocks that have lines of which the warp issued nothing; of those that are left, which
        differ in copies of a loop's body, the shortest: an unrolled loop takes all turns that it can. None of none."""
        idle = [blocks for at, blocks in self._lines if not outcome.issued[at, warp].any()]
        unseen = np.any(idle, axis=0) if idle else np.zeros(len(self._size), bool)
        ranked = sorted(ways, key=lambda way: (np.array(way)[unseen].sum(), self._size @ np.array(way)))
        return list(ranked[0]) if ranked else None


def _passed(
    ways: Ways, anchors: Sequence[_Anchor], execution: Execution, foreign: _Foreign
) -> _Passed | None:
    """How often each block is passed, but for those aside; None where the anchors do not say."""
    found = _Passed()
    seen: dict[tuple[int | None, ...], list[tuple[int, ...]]] = {}
    for program, outcome in enumerate(execution.outcomes):
        for warp in range(outcome.issued.shape[1]):
            times = tuple(anchor.times(outcome, warp) for anchor in anchors)
            if times not in seen:
                known = [(a.weights, n) for a, n in zip(anchors, times, strict=True) if n is not None]
                seen[times] = ways.passed(known)
            passed = foreign.likeliest(seen[times], outcome, warp)
            if passed is None:
                return None
            found[program, warp] = passed
    return found


def _beside(code: Code, anchors: Sequence[_Anchor], passed: _Passed, execution: Execution) -> int | None:
    """Count the passes of blocks aside, by what stands in them; None where that is not known of all. Gives how often `BSYNC`
    is issued once more, since lanes come to it that jumped and lanes that did not."""
    names, again = list(code.blocks), 0
    at = {name: i for i, name in enumerate(names)}
    for name, (host, behind) in reversed(list(code.aside.items())):
        inside = [a for a in anchors if at[name] in a.places and (a.kind in _TELLING or a.predicated)]
        hosts = [
            [at[code.aside[names[p]][0]] if names[p] in code.aside else p for p in a.places] for a in inside
        ]
        for (program, warp), times in passed.items():
            most = times[at[host]]
            each = (
                a.aside(at[name], execution.outcomes[program], warp, [times[p] for p in hosts[n]])
                for n, a in enumerate(inside)
            )
            often = next((n for n in each if n is not None), None) if most else (0, 0)
            if often is None or (often[1] and behind != END and not code.blocks[behind].sync):
                return None
            times[at[name]] = min(often[0], most)
            again += often[1] * (behind != END)
    return again


def _opcodes(code: Code, passed: _Passed, again: int) -> dict[str, int]:
    total = Counter(BSYNC=again) if again else Counter[str]()
    for block, times in zip(code.blocks.values(), np.sum(list(passed.values()), axis=0), strict=True):
        for opcode, count in block.opcodes.items():
            total[opcode] += count * int(times)
    return dict(total)


def _absent(
    moved: Sequence[_Anchor], passed: Mapping[tuple[int, int], Sequence[int]]
) -> dict[int, list[tuple[int, int]]]:
    """Instructions that have one counterpart each, with the warps that never pass it."""
    return {
        anchor.numbers[0]: [who for who, times in passed.items() if not times[anchor.places[0]]]
        for anchor in moved
        if len(anchor.numbers) == 1 == len(anchor.places)
    }


def _anchors(code: Code, entry: Sequence[Instruction], lines: Lines, *, exact: bool) -> list[_Anchor]:
    """What both sides share, by line and kind, or by kind alone."""
    ours: dict[tuple[str, int, str], list[int]] = defaultdict(list)
    for number, instruction in enumerate(entry):
        kind, place = _kind(instruction), lines.place(instruction)
        if kind:
            ours[(*place[0], kind) if exact and place else ("", 0, kind)].append(number)
    theirs: dict[tuple[str, int, str], list[tuple[int, bool]]] = defaultdict(list)
    for i, (name, block) in enumerate(code.blocks.items()):
        for one in block.shared:
            found = (i, one.guarded or name in code.aside)
            theirs[(one.file, one.line, one.kind) if exact else ("", 0, one.kind)].append(found)
    anchors = []
    for key, machines in theirs.items():
        numbers = ours.get(key)
        if numbers is None:
            continue
        if key[2] in _ORDERED and len(numbers) == len(machines):
            anchors += [
                _anchor(key[2], [n], [m], code, entry) for n, m in zip(numbers, machines, strict=True)
            ]
        else:
            anchors.append(_anchor(key[2], numbers, machines, code, entry))
    return anchors


def _anchor(
    kind: str, numbers: list[int], machines: list[tuple[int, bool]], code: Code, entry: Sequence[Instruction]
) -> _Anchor:
    names, weights = list(code.blocks), np.zeros(len(code.blocks))
    for block, _ in machines:
        name = names[block]
        while name in code.aside:
            name, _ = code.aside[name]
        weights[names.index(name)] += 1
    flags = {guarded for _, guarded in machines}
    places = [block for block, _ in machines]
    predicated = all(entry[n].guard is not None for n in numbers)
    return _Anchor(kind, numbers, places, weights, None if len(flags) > 1 else flags.pop(), predicated)


def _looped(instruction: Instruction) -> bool:
    """Whether it is an atomic of 16 bits: a loop of the machine, until no other lane or warp comes between."""
    last = instruction.modifiers[-1:]
    return (
        instruction.opcode in ("atom", "red")
        and last in (("f16",), ("bf16",))
        and not any(instruction.has(v) for v in ("v2", "v4", "v8"))
    )


def _kind(instruction: Instruction) -> str:
    """The kind of `kind_of_machine` of an instruction of PTX."""
    opcode, name = instruction.opcode, instruction.name
    if opcode in ("ld", "st") and instruction.has("shared"):
        return _MOVED if opcode == "ld" else "shared store"
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
    if instruction.modifiers and instruction.modifiers[-1] == "f32":
        return "special" if opcode in _SPECIAL else "sum" if opcode in ("add", "sub", "fma") else ""
    return "group" if name.startswith("wgmma.mma_async") else ""

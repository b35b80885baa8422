"""Any jumps as loops with one way in, one way out and one way back, by predicates that say where to go on.

A loop that is left at several places, or from inside of another, gets one last block: each way there sets whether there is
another round, and behind the loop where to go on. What is entered at several places gets one first block in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from tilefold.xray.machine.order import components
from tilefold.xray.ptx import Immediate, Instruction, Register
from tilefold.xray.reach import reached


@dataclass(frozen=True)
class Block:
    """Instructions without jumps; at the end the condition of a jump (None: always) and what follows, the jump's first."""

    instructions: tuple[Instruction, ...]
    condition: Register | None
    follow: tuple[int, ...]


@dataclass(frozen=True)
class Cycle:
    """The blocks of a loop, and what goes back to its first."""

    head: int
    blocks: frozenset[int]
    back: tuple[int, ...]


def structured(blocks: Iterable[Block]) -> tuple[tuple[Block, ...], frozenset[str]]:
    """Blocks that do the same, whose loops have one way in, out and back; and the predicates that this takes."""
    jumps = _Jumps(list(blocks))
    while jumps.mended():
        pass
    return tuple(jumps.blocks), frozenset(jumps.made)


class _Jumps:
    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = blocks
        self.made: list[str] = []

    def mended(self) -> bool:
        """Mend one place; whether there was one."""
        reached = reachable(self.blocks)
        if (heads := _entries(self.blocks, reached, 0)) is not None:
            self._one_way_in(heads)
            return True
        before = before_each(self.blocks)
        above = dominators(before, 0)
        cycles = sorted(found_cycles(self.blocks, before, above), key=lambda c: len(c.blocks))
        for k, cycle in enumerate(cycles):
            inner = {b for c in cycles[:k] if c.blocks < cycle.blocks for b in c.blocks}
            out = self._ways(cycle.blocks, {*range(len(self.blocks))} - cycle.blocks)
            if not out:
                continue  # nothing ends it
            ((leaving, _), *more) = out
            (latch, *others) = cycle.back
            if not more and not others and not {leaving, latch} & inner and leaving in above[latch]:
                continue
            self._one_way_out(cycle, out)
            return True
        return False

    def _ways(self, blocks: Collection[int], to: Collection[int]) -> list[tuple[int, int]]:
        return [(b, n) for b in sorted(blocks) for n in self.blocks[b].follow if n in to]

    def _one_way_out(self, cycle: Cycle, out: list[tuple[int, int]]) -> None:
        """All ways out and back meet in one block, which decides."""
        again = self._predicate("again")
        goals = list(dict.fromkeys(n for _, n in out))
        behind, choices = self._dispatch(goals)
        last = self._add(Block((), Register(again), (cycle.head, behind)))
        for b in cycle.back:
            self._turn(b, cycle.head, last, {again: 1, **dict.fromkeys(choices, 0)})
        for b, n in out:
            self._turn(
                b, n, last, {again: 0, **{c: int(g == n) for c, g in zip(choices, goals[1:], strict=True)}}
            )

    def _one_way_in(self, heads: list[int]) -> None:
        """All ways to several blocks pass one, which knows where they go."""
        ways = self._ways(range(len(self.blocks)), heads)
        first, choices = self._dispatch(heads)
        for b, n in ways:
            self._turn(b, n, first, {c: int(g == n) for c, g in zip(choices, heads[1:], strict=True)})

    def _dispatch(self, goals: list[int]) -> tuple[int, list[str]]:
        """A block that goes to one of several, and the predicates that choose all but the first."""
        choices = [self._predicate("way") for _ in goals[1:]]
        at = goals[0]
        for choice, goal in zip(choices, goals[1:], strict=True):
            at = self._add(Block((), Register(choice), (goal, at)))
        return (at if choices else self._add(Block((), None, (at,)))), choices

    def _turn(self, block: int, old: int, new: int, told: dict[str, int]) -> None:
        """A way goes elsewhere, and sets predicates on it."""
        held = self.blocks[block]
        line = held.instructions[-1].line if held.instructions else 0
        sets = tuple(
            Instruction("mov", ("pred",), (Register(p), Immediate(to)), None, line) for p, to in told.items()
        )
        between = self._add(Block(sets, None, (new,)))
        self.blocks[block] = replace(held, follow=tuple(between if n == old else n for n in held.follow))

    def _predicate(self, word: str) -> str:
        self.made.append(f"%{word}{len(self.made)}")
        return self.made[-1]

    def _add(self, block: Block) -> int:
        self.blocks.append(block)
        return len(self.blocks) - 1


def reachable(blocks: Sequence[Block]) -> set[int]:
    """The blocks that some path from the first reaches."""
    return {*reached([0], lambda b: blocks[b].follow)}


def before_each(blocks: Sequence[Block]) -> list[set[int]]:
    """The blocks that a block follows, those that nothing reaches left out."""
    before: list[set[int]] = [set() for _ in blocks]
    for b in reachable(blocks):
        for n in blocks[b].follow:
            before[n].add(b)
    return before


def found_cycles(blocks: Sequence[Block], before: list[set[int]], above: list[set[int]]) -> list[Cycle]:
    """The loops whose first block all ways into them pass."""
    back: dict[int, list[int]] = {}
    for b, block in enumerate(blocks):
        for head in block.follow:
            if head in above[b] and 0 in above[b]:
                back.setdefault(head, []).append(b)
    return [Cycle(head, _held(head, latches, before), tuple(latches)) for head, latches in back.items()]


def _held(head: int, latches: Sequence[int], before: Sequence[set[int]]) -> frozenset[int]:
    """The blocks of a loop: those from which its latches are reached, down to its first."""
    return frozenset({head, *reached(latches, lambda b: () if b == head else before[b])})


def _entries(blocks: list[Block], held: set[int], root: int) -> list[int] | None:
    """The first blocks of a loop that is entered at several; None where there is none among some blocks."""
    follow = {b: [n for n in blocks[b].follow if n in held] for b in sorted(held)}
    # What others lead into comes behind them.
    for part in map(set, reversed(components(follow, follow))):
        if len(part) == 1:
            continue
        heads = sorted({n for b in held - part for n in blocks[b].follow if n in part} | ({root} & part))
        if len(heads) > 1:
            return heads
        (head,) = heads or [min(part)]
        if (found := _entries(_without(blocks, part, head), part, head)) is not None:
            return found
    return None


def _without(blocks: list[Block], part: set[int], head: int) -> list[Block]:
    """The same where nothing goes back to a loop's first block."""
    return [
        replace(x, follow=tuple(n for n in x.follow if n != head)) if b in part else x
        for b, x in enumerate(blocks)
    ]


def dominators(before: list[set[int]], root: int) -> list[set[int]]:
    """The blocks that every path from the root to a block passes, itself among them."""
    whole = set(range(len(before)))
    found = [{root} if b == root else set(whole) for b in range(len(before))]
    changed = True
    while changed:
        changed = False
        for b, held in enumerate(before):
            if b != root:
                now = {b} | (set.intersection(*(found[p] for p in held)) if held else set())
                changed |= now != found[b]
                found[b] = now
    return found

"""From PTX to the tree of effects: registers become values, jumps become ifs and loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tilefold.xray.cuda.readable.blocks import Flow, NaturalLoop, UnreadableError
from tilefold.xray.cuda.readable.counted import counted
from tilefold.xray.cuda.readable.effects import Effects, Places
from tilefold.xray.cuda.readable.multiples import holds, multiples
from tilefold.xray.cuda.readable.olds import without_olds
from tilefold.xray.cuda.readable.tree import Carried, Effect, If, Loop, Region
from tilefold.xray.cuda.readable.values import Graph, Value
from tilefold.xray.ptx import Entry, Module, Variable

# The leaf of a variable's address, and what C++ calls it; what is asked for at the launch and a thread's own have one name.
_MEMORY = {
    ".shared": ("shared", "smem"),
    ".local": ("local", "local"),
    ".global": ("table", ""),
    ".const": ("table", ""),
}


@dataclass(frozen=True)
class Lifted:
    """A kernel as a tree; `dropped` names what it does not say, hints that change no result; bytes of a thread's
    memory; arrays of shared memory whose size is fixed.
    """

    entry: Entry
    graph: Graph
    body: Region
    dropped: tuple[str, ...]
    local: int = 0
    fixed: tuple[Variable, ...] = ()


def lift(
    module: Module,
    places: Places,
    elements: Mapping[int, int],
    waits: Mapping[int, tuple[str, ...]] = MappingProxyType({}),
) -> Lifted:
    """The tree of a module's one kernel. `elements` has the bits of what those parameters point to whose elements are halves,
    `waits` the registers that are only whole behind a line's instruction, in which products are waited for.

    Raises:
        UnreadableError: control flow or an instruction has no place in the tree.
    """
    (entry,) = module.entries
    known = [v for v in (*module.variables, *entry.variables) if v.space in _MEMORY]
    fixed = tuple(v for v in known if v.space == ".shared" and v.count != 0)
    memory = {v.name: _MEMORY[v.space] for v in known}
    memory |= {v.name: ("table", v.name) for v in known if _MEMORY[v.space][0] == "table"}
    memory |= {v.name: ("shared", v.name.replace("$", "_")) for v in fixed}
    if any([*memory.values()].count(place) > 1 for place in _MEMORY.values()):
        raise UnreadableError("cuda: memory of a block must have one name, got several; take the plain form")
    lifter = _Lifter(entry, places, memory, elements, waits)
    region = lifter.whole()
    if zeros := multiples(region, lifter.graph):  # which make some sums of what is or is not one
        again = _Lifter(entry, places, memory, elements, waits, zeros)
        other = again.whole()
        if holds(other, again.graph):
            lifter, region = again, other
    local = sum(v.count or 1 for v in entry.variables if v.space == ".local")
    region = counted(without_olds(region, lifter.graph), lifter.graph)
    return Lifted(entry, lifter.graph, region, tuple(dict.fromkeys(lifter.dropped)), local, fixed)


class _Lifter(Effects):
    """Executes blocks on values."""

    def __init__(
        self,
        entry: Entry,
        places: Places,
        memory: Mapping[str, tuple[str, str]],
        elements: Mapping[int, int],
        waits: Mapping[int, tuple[str, ...]],
        zeros: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        super().__init__(entry, places, memory, elements, waits, zeros)
        self._flow = Flow(entry)
        self._widths |= dict.fromkeys(self._flow.predicates, 1)
        self._inside: list[int] = []  # heads of the loops around
        self._ends: dict[int, set[int]] = {}  # the last blocks of these
        self._again: dict[int, Value] = {}  # the condition on which each goes on

    def whole(self) -> Region:
        """The kernel's body."""
        self._walk(0, self._flow.end)
        return Region(tuple(self._effects))

    # --------------------------------------------------------------------------------------------- structure
    def _walk(self, block: int, stop: int) -> None:
        """Effects from a block on, until paths meet at another."""
        flow = self._flow
        while block != stop and block != flow.end:
            loop = flow.loops.get(block)
            if loop is not None and block not in self._inside:
                self._loop(block)
                block = loop.leaves_to
                continue
            for instruction in flow.blocks[block].instructions:
                self._step(instruction)
            ends = [head for head in self._inside if block in self._ends[head]]
            if ends:
                if ends != self._inside[-1:]:
                    raise UnreadableError(
                        "cuda: loops must end one after the other, got two at once; take the plain form"
                    )
                self._end(flow.loops[ends[0]], block)
                return
            block = self._follow(block)

    def _end(self, loop: NaturalLoop, block: int) -> None:
        """The condition to go on, at the block that leaves a loop, and what is still done before the next round."""
        flow = self._flow
        if block != loop.exit:
            return  # the end of what is still done
        last = flow.blocks[block]
        assert last.condition is not None, "what leaves a loop has two ways"
        condition = self._read(last.condition, 1)
        inside = next(n for n in last.follow if n != loop.leaves_to)
        condition = self.graph.negated(condition) if last.follow[0] == loop.leaves_to else condition
        self._again[self._inside[-1]] = condition
        if block != loop.latch:
            begin = dict(self._held)
            then = self._arm(inside, flow.end, begin)
            alive = flow.alive[self._inside[-1]] | flow.alive[loop.leaves_to]
            self._merge(condition, then, ([], begin), alive)

    def _follow(self, block: int) -> int:
        """The block behind one, after the ways that lead there."""
        held = self._flow.blocks[block]
        if held.condition is None:
            return held.follow[0] if held.follow else self._flow.end
        meet = self._flow.meets[block]
        condition = self._read(held.condition, 1)
        first, second = held.follow
        begin = dict(self._held)
        then = self._arm(first, meet, begin)
        other = self._arm(second, meet, begin)
        self._merge(condition, then, other, self._flow.alive[meet])
        return meet

    def _arm(self, block: int, meet: int, begin: dict[str, Value]) -> tuple[list[Effect], dict[str, Value]]:
        outside, self._effects, self._held = self._effects, [], dict(begin)
        self._walk(block, meet)
        made, self._effects = self._effects, outside
        return made, self._held

    def _merge(
        self,
        condition: Value,
        then: tuple[list[Effect], dict[str, Value]],
        other: tuple[list[Effect], dict[str, Value]],
        alive: frozenset[str],
    ) -> None:
        """Registers that the arms leave different become variables, or choices where nothing else is done."""
        (one, held), (two, rest) = then, other
        merged: list[tuple[Value, Value, Value]] = []
        place = self.graph.place
        for name in sorted(alive & self._widths.keys(), key=_by_number):  # without the chip's own
            a, b = (
                h.get(name, self.graph.make("undefined", bits=self._widths.get(name, 32)))
                for h in (held, rest)
            )
            if a is not b and not one and not two:
                a = self.graph.selected(condition, a, b)
            elif a is not b:
                same = next((v for v, x, y in merged if x is a and y is b), None)
                variable = same or self._variable(a.bits)
                merged += [] if same else [(variable, a, b)]
                a = variable
            held[name] = a
        self._held = held
        if one or two:
            if not one:
                condition, one, two = self.graph.negated(condition), two, one
                merged = [(v, b, a) for v, a, b in merged]
            elif condition.op == "not" and two:
                condition, one, two = condition.args[0], two, one
                merged = [(v, b, a) for v, a, b in merged]
            self._effects.append(If(condition, Region(tuple(one)), Region(tuple(two)), tuple(merged), place))

    def _loop(self, head: int) -> None:
        loop, flow = self._flow.loops[head], self._flow
        written = flow.written(loop.blocks)
        names = sorted(written & (flow.alive[head] | flow.alive[loop.leaves_to]), key=_by_number)
        undefined = {n: self.graph.make("undefined", bits=self._widths[n]) for n in names}
        # What is written before it is read begins with nothing: what a register held may be gone, inside of another loop.
        first = {n: self._held.get(n, undefined[n]) if n in flow.alive[head] else undefined[n] for n in names}
        begins = {n: begin for n in names if (begin := _begin(first[n])) is not None}
        first |= {n: self.graph.binary("sub", first[n], begin) for n, begin in begins.items()}
        inside = {n: self._variable(self._widths[n]) for n in names}
        self._points |= {inside[n]: first[n] for n in names if first[n].bits == 64}
        outside, self._effects = self._effects, []
        self._held |= {n: self._from(begins.get(n), v) for n, v in inside.items()}
        place = self.graph.place
        self._inside.append(head)
        self._ends[head] = {loop.exit, loop.latch}
        self._walk(head, flow.end)
        self._inside.pop()
        condition = self._again[head]
        body, self._effects = Region(tuple(self._effects)), outside
        carried: list[Carried] = []
        for n in names:
            value = self._held[n]
            value = value if n not in begins else self.graph.binary("sub", value, begins[n])
            same = next((c for c in carried if c.next is value and n not in flow.alive[head]), None)
            if same is None:
                same = Carried(inside[n], self._variable(value.bits), first[n], value)
                carried.append(same)
            self._held[n] = self._from(begins.get(n), same.behind)
        self._effects.append(Loop(body, tuple(carried), condition, place))

    def _from(self, begin: Value | None, offset: Value) -> Value:
        """What lies behind the begin of memory, or a value that does not."""
        return offset if begin is None else self.graph.binary("add", begin, offset)


def _by_number(name: str) -> tuple[int, str]:
    """Registers in the order of their numbers, in which neighbours have neighbouring ones."""
    return len(name), name


def _begin(value: Value) -> Value | None:
    """The memory of a block or thread that a sum is an address in."""
    while value.op in ("add", "sub"):
        value = value.args[0]
    return value if value.op in ("shared", "local") else None

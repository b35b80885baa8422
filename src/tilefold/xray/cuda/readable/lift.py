"""From PTX to the tree of effects: registers become values, jumps become ifs and loops."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from tilefold.xray.cuda.readable.blocks import Flow, NaturalLoop, UnreadableError
from tilefold.xray.cuda.readable.counted import counted
from tilefold.xray.cuda.readable.inline import Operands, assembly
from tilefold.xray.cuda.readable.pure import bits_of, pure
from tilefold.xray.cuda.readable.tree import (
    Atomic,
    Barrier,
    Carried,
    Effect,
    If,
    Load,
    Loop,
    Region,
    Shuffle,
    Store,
)
from tilefold.xray.cuda.readable.values import Graph, Place, Value, leaves
from tilefold.xray.ptx import (
    Address,
    Entry,
    Immediate,
    Instruction,
    Module,
    Operand,
    Pair,
    Register,
    Symbol,
    Vector,
)

Places = Callable[[int], Place | None]
_SPECIAL = re.compile(r"%(tid|ctaid|nctaid)\.[xyz]$")
_HINTS = re.compile(r"L1::|L2::|(ca|cg|cs|nc|lu|wb|wt)$")
_ALL = 0xFFFFFFFF
_MEMORY = {".shared": "shared", ".local": "local", ".global": "table", ".const": "table"}


@dataclass(frozen=True)
class Lifted:
    """A kernel as a tree; `dropped` names what it does not say, hints that change no result; bytes of a thread's memory."""

    entry: Entry
    graph: Graph
    body: Region
    dropped: tuple[str, ...]
    local: int = 0


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
    memory = {v.name: _MEMORY[v.space] for v in (*module.variables, *entry.variables) if v.space in _MEMORY}
    if any([*memory.values()].count(space) > 1 for space in ("shared", "local")):
        raise UnreadableError("cuda: memory of a block must have one name, got several; take the plain form")
    lifter = _Lifter(entry, places, memory, elements, waits)
    region = lifter.whole()
    local = sum(v.count or 1 for v in entry.variables if v.space == ".local")
    region = counted(region, lifter.graph)
    return Lifted(entry, lifter.graph, region, tuple(dict.fromkeys(lifter.dropped)), local)


class _Lifter:
    """Executes blocks on values."""

    def __init__(
        self,
        entry: Entry,
        places: Places,
        memory: Mapping[str, str],
        elements: Mapping[int, int],
        waits: Mapping[int, tuple[str, ...]],
    ) -> None:
        self._entry, self._memory, self._elements, self._waits = entry, memory, elements, waits
        self._points: dict[
            Value, Value
        ] = {}  # variables that walk through memory, by the address that they begin with
        self.graph = Graph(entry.threads)
        self.dropped: list[str] = []
        self._places, self._flow = places, Flow(entry)
        self._widths = {
            r.name: 1 if r.type == ".pred" else bits_of(r.type[1:])
            for r in entry.registers
            if r.count is None
        }
        for r in entry.registers:
            width = 1 if r.type == ".pred" else bits_of(r.type[1:])
            self._widths |= {f"{r.name}{k}": width for k in range(r.count or 0)}
        self._parameters = {p.name: k for k, p in enumerate(entry.parameters) if not p.count}
        self._held: dict[str, Value] = {}
        self._effects: list[Effect] = []
        self._inside: list[int] = []  # heads of the loops around
        self._ends: dict[int, set[int]] = {}  # the last blocks of these
        self._again: dict[int, Value] = {}  # the condition on which each goes on
        self._made = 0
        self._products: set[Value | str | None] = (
            set()
        )  # results of asynchronous products, and their registers

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
        for name in sorted(alive, key=_by_number):
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
        first = {n: self._held.get(n, undefined[n]) for n in names}
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

    # ------------------------------------------------------------------------------------------------ values
    def _variable(self, bits: int) -> Value:
        self._made += 1
        return self.graph.make("variable", data=(self._made,), bits=bits)

    def _result(self, bits: int) -> Value:
        self._made += 1
        return self.graph.make("result", data=(self._made,), bits=bits)

    def _read(self, operand: Operand, bits: int) -> Value:
        match operand:
            case Immediate(value):
                return self.graph.const(value, bits)
            case Symbol(name) if name in self._memory:
                return self.graph.make(self._memory[name], data=(name,), bits=bits)
            case Register(name, negated):
                held = self._held.get(name)
                if held is None and name not in self._widths:
                    return self._special(name)
                held = held if held is not None else self.graph.make("undefined", bits=self._widths[name])
                return self.graph.negated(held) if negated else held
        raise UnreadableError(
            f"cuda: an operand must be a register or a number, got {operand}; take the plain form"
        )

    def _special(self, name: str) -> Value:
        """A number that the chip gives; the size of a block is known."""
        if name.startswith("%ntid."):
            return self.graph.const(self._entry.threads if name.endswith("x") else 1)
        if not _SPECIAL.match(name):
            raise UnreadableError(f"cuda: a special register must be known, got {name}; take the plain form")
        return self.graph.make("special", data=(name,))

    def _put(self, target: Operand, value: Value, guard: Value | None) -> None:
        if isinstance(target, Symbol) and target.name == "_":
            return
        if not isinstance(target, Register):
            raise UnreadableError("cuda: a result must be one register, got several; take the plain form")
        if guard is not None:
            value = self.graph.selected(guard, value, self._read(Register(target.name), value.bits))
        if value.bits != self._widths[target.name]:
            raise UnreadableError(
                f"cuda: {target.name} must hold {value.bits} bits, got another width; take the plain form"
            )
        self._held[target.name] = value

    # ------------------------------------------------------------------------------------------ instructions
    def _step(self, instruction: Instruction) -> None:
        self.graph.place = self._places(instruction.line)
        if instruction.opcode in ("ld", "st", "atom", "red") and instruction.has("shared::cta"):
            words = ("shared" if w == "shared::cta" else w for w in instruction.modifiers)
            instruction = replace(instruction, modifiers=tuple(words))
        guard = None
        if instruction.guard is not None:
            guard = self._read(Register(instruction.guard.register, instruction.guard.negated), 1)
        operands = instruction.operands
        if guard is not None and guard.constant is not None:
            if not guard.constant:
                return
            guard = None
        target = operands[0] if operands else None
        width = self._widths.get(target.name, 32) if isinstance(target, Register) else 32
        value = self._parts(instruction, guard) or pure(self.graph, instruction, self._read, width)
        if value is not None:
            assert target is not None, "what has a value has a target"
            if not isinstance(target, Vector):
                self._put(target, value, guard)
            return
        self._effect(instruction, guard)

    def _parts(self, instruction: Instruction, guard: Value | None) -> Value | None:
        """`mov` between a register and its pieces."""
        if instruction.opcode != "mov" or not any(isinstance(o, Vector) for o in instruction.operands):
            return None
        target, source = instruction.operands
        width = bits_of(instruction.modifiers[-1])
        if isinstance(source, Vector):
            return self.graph.packed(*(self._read(i, width // len(source.items)) for i in source.items))
        assert isinstance(target, Vector), "one of the two is"
        whole = self._read(source, width)
        for k, item in enumerate(target.items):
            self._put(item, self.graph.part(whole, k, width // len(target.items)), guard)
        return whole

    def _effect(self, instruction: Instruction, guard: Value | None) -> None:
        opcode, words, place = instruction.opcode, instruction.modifiers, self.graph.place
        if opcode == "ld" and words[0] == "param":
            self._parameter(instruction)
        elif opcode in ("ld", "st") and self._plain(instruction):
            if not (self._load if opcode == "ld" else self._store)(instruction, guard):
                self._assembly(instruction, guard)
        elif (
            instruction.name in ("bar.sync", "barrier.sync")
            and instruction.operands == (Immediate(0),)
            and guard is None
        ):
            self._effects.append(Barrier(False, place))
        elif (
            instruction.name == "bar.warp.sync" and instruction.operands == (Immediate(-1),) and guard is None
        ):
            self._effects.append(Barrier(True, place))
        elif not (
            (opcode in ("atom", "red") and self._atomic(instruction, guard))
            or (opcode == "shfl" and self._shuffle(instruction, guard))
        ):
            self._assembly(instruction, guard)

    def _parameter(self, instruction: Instruction) -> None:
        target, source = instruction.operands
        if not isinstance(source, Address) or not isinstance(source.base, Symbol) or source.offset:
            raise UnreadableError("cuda: a parameter must be read whole, got a part; take the plain form")
        if source.base.name not in self._parameters:
            raise UnreadableError(
                "cuda: a parameter must be a number or pointer, got an array; take the plain form"
            )
        number = self._parameters[source.base.name]
        kind = instruction.modifiers[-1]
        value = self.graph.make("parameter", data=(number,), bits=bits_of(kind))
        wide = isinstance(target, Register) and self._widths[target.name] == 64 and value.bits == 32
        self._put(target, self.graph.extended(value, kind[0] == "s") if wide else value, None)

    def _plain(self, instruction: Instruction) -> bool:
        """Whether a load or store is of neighbours in global or shared memory, and no order of memory is asked for."""
        kept = [w for w in instruction.modifiers if not _HINTS.match(w)]
        if len(kept) != len(instruction.modifiers):
            self.dropped += [f"{instruction.opcode}: {w}" for w in instruction.modifiers if _HINTS.match(w)]
        return kept[0] in ("global", "shared", "local") and all(
            re.fullmatch(r"global|shared|local|v\d|[bus]\d+|f32|f64", w) for w in kept
        )

    def _address(self, operand: Operand, space: str) -> Value:
        if not isinstance(operand, Address) or operand.coordinates is not None:
            raise UnreadableError(
                "cuda: an address must be a register and an offset, got a box; take the plain form"
            )
        base = self._read(operand.base, 64 if space == "global" else 32)
        return self.graph.binary("add", base, self.graph.const(operand.offset, base.bits))

    def _load(self, instruction: Instruction, guard: Value | None) -> bool:
        """A load that fills its registers, or of a byte; False if it is no such."""
        target, source = instruction.operands[:2]
        space, bits = instruction.modifiers[0], bits_of(instruction.modifiers[-1])
        parts = target.items if isinstance(target, Vector) else (target,)
        if bits == 8 and len(parts) == 1 and isinstance(parts[0], Register):
            before = None if guard is None else self._read(parts[0], self._widths[parts[0].name]).constant
            if guard is None or (before is not None and before < 256):
                self._byte(parts[0], self._address(source, space), space, guard, before)
                return True
        if bits < 16 or any(not isinstance(p, Register) or self._widths[p.name] != bits for p in parts):
            return False
        old = tuple(
            self._read(p, bits) if guard is not None else self.graph.make("undefined", bits=bits)
            for p in parts
        )
        address = self._address(source, space)
        piece = self._piece(address, space, bits)
        made = tuple(self._result(piece) for _ in range(len(parts) * bits // piece))
        if piece < bits:
            old = self._split(old, piece)
        self._effects.append(Load(space, address, made, guard, old, self.graph.place))
        each = bits // piece
        for k, part in enumerate(parts):
            own = made[each * k : each * (k + 1)]
            self._put(part, own[0] if each == 1 else self.graph.packed(*own), None)
        return True

    def _byte(
        self, target: Register, address: Value, space: str, guard: Value | None, old: int | None
    ) -> None:
        """A register is wider than a byte."""
        made = self._result(8)
        before = self.graph.make("undefined", bits=8) if old is None else self.graph.const(old, 8)
        self._effects.append(Load(space, address, (made,), guard, (before,), self.graph.place))
        self._put(target, self.graph.make("widen", made, bits=self._widths[target.name]), None)

    def _piece(self, address: Value, space: str, bits: int) -> int:
        """The bits of an element of memory that is read or written in words."""
        if space != "global" or bits <= 16:
            return bits
        found = set[int]()
        waiting = [address]
        while waiting:
            for leaf in leaves(waiting.pop()):
                if leaf.op == "parameter" and leaf.bits == 64:
                    found.add(leaf.data[0])
                elif leaf in self._points:
                    waiting.append(self._points[leaf])
        return self._elements.get(found.pop(), bits) if len(found) == 1 else bits

    def _split(self, values: tuple[Value, ...], piece: int) -> tuple[Value, ...]:
        """Words as their pieces."""
        return tuple(self._part(v, k, piece) for v in values for k in range(v.bits // piece))

    def _part(self, value: Value, k: int, piece: int) -> Value:
        if value.op == "undefined":
            return self.graph.make("undefined", bits=piece)
        if value.constant is not None:
            return self.graph.const(value.constant >> (k * piece), piece)
        return self.graph.part(value, k, piece)

    def _store(self, instruction: Instruction, guard: Value | None) -> bool:
        """A store of whole registers, or of bytes of them; False if it is no such."""
        target, source = instruction.operands[:2]
        space, bits = instruction.modifiers[0], bits_of(instruction.modifiers[-1])
        parts = source.items if isinstance(source, Vector) else (source,)
        values = tuple(self._read(p, bits) for p in parts)
        values = tuple(self.graph.narrowed(v, 8) if bits == 8 and v.bits > 8 else v for v in values)
        if any(v.bits != bits for v in values):
            return False
        address = self._address(target, space)
        piece = self._piece(address, space, bits)
        if space == "shared" and all(v.op == "pack" and v.args[0].bits == 16 for v in values):
            piece = 16
        values = values if piece == bits else self._split(values, piece)
        self._effects.append(Store(space, address, values, guard, self.graph.place))
        return True

    def _atomic(self, instruction: Instruction, guard: Value | None) -> bool:
        """An atomic operation on words; False if it is no such."""
        bits, space = bits_of(instruction.modifiers[-1]), instruction.modifiers[0]
        first = instruction.operands[0] if instruction.opcode == "atom" else None
        rest = instruction.operands[1:] if first is not None else instruction.operands
        words = bits in (32, 64) and instruction.modifiers[-1][0] in "busf" and space in ("global", "shared")
        if not words or any(isinstance(o, Vector) for o in rest) or len(instruction.operands) > 4:
            return False
        values = tuple(self._read(o, bits) for o in rest[1:])
        result = None if first is None or isinstance(first, Symbol) else self._result(bits)
        self._effects.append(
            Atomic(
                instruction.name,
                space,
                self._address(rest[0], space),
                values,
                result,
                guard,
                self.graph.place,
            )
        )
        if result is not None and first is not None:
            self._put(first, result, guard)
        return True

    def _shuffle(self, instruction: Instruction, guard: Value | None) -> bool:
        """A shuffle of whole warps; False if it is of parts of them."""
        target, *sources = instruction.operands
        value, by, control, members = (self._read(o, 32) for o in sources)
        mode = instruction.modifiers[1]
        if (
            guard is not None
            or isinstance(target, Pair)
            or members.constant != _ALL
            or control.constant != (0 if mode == "up" else 31)
        ):
            return False
        whole = self._other_half(value, mode, by)
        if whole is not None:
            result = self.graph.part(whole, 1, 32)
        else:
            result = self._result(32)
            self._effects.append(Shuffle(mode, value, by, result, self.graph.place))
        self._put(target, result, None)
        return True

    def _other_half(self, value: Value, mode: str, by: Value) -> Value | None:
        """64 bits of another lane, where the shuffle before took the lower half of what this one takes the upper of."""
        before = self._effects[-1] if self._effects else None
        if not isinstance(before, Shuffle) or (before.mode, before.by) != (mode, by) or value.op != "part":
            return None
        whole, low = value.args[0], before.value
        lower = low.args == (whole,) and (low.op == "trunc" or (low.op == "part" and low.data == (0,)))
        if value.data != (1,) or not lower or whole.bits != 64 or self.graph.uses(before.result):
            return None
        made = self._result(64)
        self._effects[-1] = Shuffle(mode, whole, by, made, before.place)
        half = self.graph.part(made, 0, 32)
        self._held |= {name: half for name, held in self._held.items() if held is before.result}
        return made

    def _assembly(self, instruction: Instruction, guard: Value | None) -> None:
        """Registers as operands, numbers in the text."""
        if instruction.opcode == "call":
            raise UnreadableError("cuda: a kernel must call no functions, got a call; take the plain form")
        waited = [n for n in self._waits.get(instruction.line, ()) if self._is_product(n)]
        operands = Operands(self._read, self._address, self._result, self._widths)
        effect, written = assembly(instruction, self.graph, operands, waited, guard)
        self._effects.append(effect)
        if instruction.name.startswith("wgmma.mma_async"):
            self._products |= {*effect.results, *(target.name for target, _ in written)}
        for target, value in written:
            self._put(target, value, guard)

    def _is_product(self, name: str) -> bool:
        """Whether a register may have what is not done yet: a product's result, by its name or by its value."""
        return name in self._products or self._held.get(name) in self._products


def _by_number(name: str) -> tuple[int, str]:
    """Registers in the order of their numbers, in which neighbours have neighbouring ones."""
    return len(name), name


def _begin(value: Value) -> Value | None:
    """The memory of a block or thread that a sum is an address in."""
    while value.op in ("add", "sub"):
        value = value.args[0]
    return value if value.op in ("shared", "local") else None

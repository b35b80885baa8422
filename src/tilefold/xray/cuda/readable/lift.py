"""From PTX to the tree of effects: registers become values, jumps become ifs and loops."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilefold.xray.cuda.readable.blocks import Flow, UnreadableError, results_and_sources
from tilefold.xray.cuda.readable.pure import bits_of, pure
from tilefold.xray.cuda.readable.tree import (
    Assembly,
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
_SPECIAL = re.compile(r"%(tid|ctaid)\.[xyz]$")
_HINTS = re.compile(r"L1::|L2::|(ca|cg|cs|nc|lu|wb|wt)$")
_ALL = 0xFFFFFFFF


@dataclass(frozen=True)
class Lifted:
    """A kernel as a tree; `dropped` names what it does not say, hints that change no result."""

    entry: Entry
    graph: Graph
    body: Region
    dropped: tuple[str, ...]


def lift(module: Module, places: Places, elements: Mapping[int, int]) -> Lifted:
    """The tree of a module's one kernel. `elements` has the bits of what those parameters point to whose elements are halves.

    Raises:
        UnreadableError: control flow or an instruction has no place in the tree.
    """
    (entry,) = module.entries
    shared = {v.name for v in (*module.variables, *entry.variables) if v.space == ".shared" and not v.count}
    lifter = _Lifter(entry, places, shared, elements)
    region = lifter.whole()
    return Lifted(entry, lifter.graph, region, tuple(dict.fromkeys(lifter.dropped)))


class _Lifter:
    """Executes blocks on values."""

    def __init__(self, entry: Entry, places: Places, shared: set[str], elements: Mapping[int, int]) -> None:
        self._elements = elements
        self._points: dict[
            Value, Value
        ] = {}  # variables that walk through memory, by the address that they begin with
        self._shared = shared
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
        self._made = 0

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
            if any(flow.loops[head].latch == block for head in self._inside):
                if flow.loops[self._inside[-1]].latch != block:
                    raise UnreadableError(
                        "cuda: loops must end one after the other, got two at once; take the plain form"
                    )
                return
            block = self._follow(block)

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
        self._merge(condition, then, other, meet)
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
        meet: int,
    ) -> None:
        """Registers that the arms leave different become variables, or choices where nothing else is done."""
        (one, held), (two, rest) = then, other
        merged: list[tuple[Value, Value, Value]] = []
        place = self.graph.place
        for name in sorted(self._flow.alive[meet]):
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
        names = sorted(written & (flow.alive[head] | flow.alive[loop.leaves_to]))
        undefined = {n: self.graph.make("undefined", bits=self._widths[n]) for n in names}
        first = {n: self._held.get(n, undefined[n]) for n in names}
        inside = {n: self._variable(self._widths[n]) for n in names}
        self._points |= {inside[n]: first[n] for n in names if first[n].bits == 64}
        outside, self._effects = self._effects, []
        self._held |= inside
        place = self.graph.place
        self._inside.append(head)
        self._walk(head, flow.end)
        self._inside.pop()
        last = flow.blocks[loop.latch]
        assert last.condition is not None, "a latch has two ways"
        condition = self._read(last.condition, 1)
        if last.follow[0] != head:
            condition = self.graph.negated(condition)
        body, self._effects = Region(tuple(self._effects)), outside
        carried: list[Carried] = []
        for n in names:
            value = self._held[n]
            same = next((c for c in carried if c.next is value and n not in flow.alive[head]), None)
            if same is None:
                same = Carried(inside[n], self._variable(value.bits), first[n], value)
                carried.append(same)
            self._held[n] = same.behind
        self._effects.append(Loop(body, tuple(carried), condition, place))

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
            case Symbol(name) if name in self._shared and len(self._shared) == 1:
                return self.graph.make("shared", data=(name,), bits=bits)
            case Register(name, negated):
                held = self._held.get(name)
                if held is None and name not in self._widths:
                    if not _SPECIAL.match(name):
                        raise UnreadableError(
                            f"cuda: a special register must be known, got {name}; take the plain form"
                        )
                    return self.graph.make("special", data=(name,))
                held = held if held is not None else self.graph.make("undefined", bits=self._widths[name])
                return self.graph.negated(held) if negated else held
        raise UnreadableError(
            f"cuda: an operand must be a register or a number, got {operand}; take the plain form"
        )

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
            (self._load if opcode == "ld" else self._store)(instruction, guard)
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
        elif opcode in ("atom", "red") and len(instruction.operands) < 5 and words[0] in ("global", "shared"):
            self._atomic(instruction, guard)
        elif opcode == "shfl":
            self._shuffle(instruction, guard)
        else:
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
        self._put(
            target,
            self.graph.make("parameter", data=(number,), bits=bits_of(instruction.modifiers[-1])),
            None,
        )

    def _plain(self, instruction: Instruction) -> bool:
        """Whether a load or store is of neighbours in global or shared memory, and no order of memory is asked for."""
        kept = [w for w in instruction.modifiers if not _HINTS.match(w)]
        if len(kept) != len(instruction.modifiers):
            self.dropped += [f"{instruction.opcode}: {w}" for w in instruction.modifiers if _HINTS.match(w)]
        return kept[0] in ("global", "shared") and all(
            re.fullmatch(r"global|shared|v\d|[bus]\d+|f32|f64", w) for w in kept
        )

    def _address(self, operand: Operand, space: str) -> Value:
        bits = 32 if space == "shared" else 64
        if not isinstance(operand, Address) or operand.coordinates is not None:
            raise UnreadableError(
                "cuda: an address must be a register and an offset, got a box; take the plain form"
            )
        return self.graph.binary(
            "add", self._read(operand.base, bits), self.graph.const(operand.offset, bits)
        )

    def _load(self, instruction: Instruction, guard: Value | None) -> None:
        target, source = instruction.operands[:2]
        space, bits = instruction.modifiers[0], bits_of(instruction.modifiers[-1])
        parts = target.items if isinstance(target, Vector) else (target,)
        if bits == 8 and len(parts) == 1 and guard is None and isinstance(parts[0], Register):
            self._byte(parts[0], self._address(source, space), space)
            return
        if bits < 16 or any(not isinstance(p, Register) or self._widths[p.name] != bits for p in parts):
            raise UnreadableError(
                f"cuda: a load must fill its registers, got {instruction.name}; take the plain form"
            )
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

    def _byte(self, target: Register, address: Value, space: str) -> None:
        """A register is wider than a byte."""
        made = self._result(8)
        self._effects.append(
            Load(space, address, (made,), None, (self.graph.make("undefined", bits=8),), self.graph.place)
        )
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

    def _store(self, instruction: Instruction, guard: Value | None) -> None:
        target, source = instruction.operands[:2]
        space, bits = instruction.modifiers[0], bits_of(instruction.modifiers[-1])
        parts = source.items if isinstance(source, Vector) else (source,)
        values = tuple(self._read(p, bits) for p in parts)
        values = tuple(self.graph.narrowed(v, 8) if bits == 8 and v.bits > 8 else v for v in values)
        if any(v.bits != bits for v in values):
            raise UnreadableError(
                f"cuda: a store must take whole registers, got {instruction.name}; take the plain form"
            )
        address = self._address(target, space)
        piece = self._piece(address, space, bits)
        if space == "shared" and all(v.op == "pack" and v.args[0].bits == 16 for v in values):
            piece = 16
        values = values if piece == bits else self._split(values, piece)
        self._effects.append(Store(space, address, values, guard, self.graph.place))

    def _atomic(self, instruction: Instruction, guard: Value | None) -> None:
        bits, space = bits_of(instruction.modifiers[-1]), instruction.modifiers[0]
        first = instruction.operands[0] if instruction.opcode == "atom" else None
        rest = instruction.operands[1:] if first is not None else instruction.operands
        if (
            any(isinstance(o, Vector) for o in rest)
            or bits not in (32, 64)
            or instruction.modifiers[-1][0] not in "busf"
        ):
            raise UnreadableError(
                f"cuda: an atomic must be of words, got {instruction.name}; take the plain form"
            )
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

    def _shuffle(self, instruction: Instruction, guard: Value | None) -> None:
        target, *sources = instruction.operands
        value, by, control, members = (self._read(o, 32) for o in sources)
        mode = instruction.modifiers[1]
        if (
            guard is not None
            or isinstance(target, Pair)
            or members.constant != _ALL
            or control.constant != (0 if mode == "up" else 31)
        ):
            raise UnreadableError(
                "cuda: a shuffle must be of whole warps, got parts of them; take the plain form"
            )
        result = self._result(32)
        self._effects.append(Shuffle(mode, value, by, result, self.graph.place))
        self._put(target, result, None)

    def _assembly(self, instruction: Instruction, guard: Value | None) -> None:
        """Registers as operands, numbers in the text."""
        targets, sources = results_and_sources(instruction)
        if any(isinstance(o, Pair) for o in targets) or instruction.opcode in (
            "call",
            "trap",
            "wgmma",
            "mbarrier",
        ):
            raise UnreadableError(
                f"cuda: an instruction must be known, got {instruction.name}; take the plain form"
            )
        outs = [t for o in targets for t in (o.items if isinstance(o, Vector) else (o,))]
        made = [self._result(self._widths[t.name]) for t in outs if isinstance(t, Register)]
        if len(made) != len(outs) or any(m.bits == 1 for m in made):
            raise UnreadableError(
                f"cuda: an instruction must be known, got {instruction.name}; take the plain form"
            )
        template = _Template(self, instruction, len(outs))
        text = [template.results(o) for o in targets] + [template.source(o) for o in sources]
        says = f"{instruction.name} {', '.join(text)};" if text else f"{instruction.name};"
        self._effects.append(
            Assembly(
                instruction.name,
                says,
                tuple(made),
                tuple(template.inputs),
                tuple(template.roles),
                guard,
                self.graph.place,
            )
        )
        for target, value in zip(outs, made, strict=True):
            self._put(target, value, guard)


class _Template:
    """The text of an instruction with numbered operands."""

    def __init__(self, lifter: _Lifter, instruction: Instruction, outs: int) -> None:
        self.inputs: list[Value] = []
        self.roles: list[str] = []
        self._lifter, self._instruction, self._outs, self._at = lifter, instruction, outs, 0

    def results(self, operand: Operand) -> str:
        if isinstance(operand, Vector):
            return "{" + ", ".join(self.results(i) for i in operand.items) + "}"
        self._at += 1
        return f"%{self._at - 1}"

    def source(self, operand: Operand) -> str:
        match operand:
            case Vector(items):
                return "{" + ", ".join(self.source(i) for i in items) + "}"
            case Immediate(value, bits):
                return f"0{'f' if bits == 32 else 'd'}{value:0{bits // 4}X}" if bits else str(value)
            case Address():
                shared = self._instruction.has("shared") and "shared" not in self.roles
                space = "shared" if shared else "global"
                return f"[{self._add(self._lifter._address(operand, space), space)}]"
        read = self._lifter._read(operand, 32)
        if read.bits == 1:
            raise UnreadableError(
                f"cuda: operands must be no predicates, got {self._instruction.name}; take the plain form"
            )
        return self._add(read, "value")

    def _add(self, value: Value, role: str) -> str:
        self.inputs.append(value)
        self.roles.append(role)
        return f"%{self._outs + len(self.inputs) - 1}"

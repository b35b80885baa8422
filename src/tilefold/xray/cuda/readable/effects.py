"""Instructions on values: what registers hold afterwards, and the effects that there are."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from tilefold.xray.cuda.readable.blocks import UnreadableError
from tilefold.xray.cuda.readable.inline import Operands, assembly
from tilefold.xray.cuda.readable.pure import bits_of, pure
from tilefold.xray.cuda.readable.tree import Assembly, Atomic, Barrier, Effect, Load, Shuffle, Store
from tilefold.xray.cuda.readable.values import Graph, Place, Value, leaves
from tilefold.xray.ptx import Address, Entry, Immediate, Instruction, Operand, Pair, Register, Symbol, Vector
from tilefold.xray.ptx.syntax import items_of

Places = Callable[[int], Place | None]
_SPECIAL = re.compile(r"%(tid|ctaid|nctaid)\.[xyz]$")
_HINTS = re.compile(r"L1::|L2::|(ca|cg|cs|nc|lu|wb|wt)$")
_ALL = 0xFFFFFFFF


class Effects:
    """Executes instructions without jumps on values."""

    def __init__(
        self,
        entry: Entry,
        places: Places,
        memory: Mapping[str, tuple[str, str]],
        elements: Mapping[int, int],
        waits: Mapping[int, tuple[str, ...]],
        zeros: Mapping[int, int],
    ) -> None:
        self._entry, self._memory, self._elements, self._waits = entry, memory, elements, waits
        self._points: dict[
            Value, Value
        ] = {}  # variables that walk through memory, by the address that they begin with
        self.graph = Graph(entry.threads, zeros)
        self.dropped: list[str] = []
        self._places = places
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
        self._made = 0
        self._products: set[Value | str | None] = (
            set()
        )  # results of asynchronous products, and their registers

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
                leaf, array = self._memory[name]
                return self.graph.make(leaf, data=(array,), bits=bits)
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
        """A number that the chip gives: the size of a block is known, and blocks have one axis; C++ has a word for some."""
        if name.startswith("%ntid."):
            return self.graph.const(self._entry.threads if name.endswith("x") else 1)
        if name == "%laneid":
            return self.graph.binary(
                "and", self.graph.make("special", data=("%tid.x",)), self.graph.const(31)
            )
        if _SPECIAL.match(name):
            return self.graph.make("special", data=(name,))
        if not re.fullmatch(r"%[a-z]\w*(\.[xyz])?", name) or name.startswith("%r"):
            raise UnreadableError(f"cuda: a special register must be known, got {name}; take the plain form")
        bits = 64 if name in ("%clock64", "%globaltimer", "%gridid") else 32
        result = self._result(bits)
        self._effects.append(
            Assembly(name[1:], f"mov.u{bits} %0, %{name};", (result,), (), (), (), (), None, self.graph.place)
        )
        return result

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
        width = self._widths[target.name] if isinstance(target, Register) else value.bits
        self._put(target, self._widened(value, width, kind[0] == "s"), None)

    def _widened(self, value: Value, width: int, signed: bool) -> Value:
        """A number in a wider register."""
        if width == value.bits:
            return value
        if (value.bits, width) == (32, 64):
            return self.graph.extended(value, signed)
        if signed:  # the instruction that extends takes a byte in a register of 16 bits
            held = self._widened(value, 16, False)
            return self.graph.make("ptx", held, data=(f"cvt.s{width}.s{value.bits}",), bits=width)
        return self.graph.make("widen", value, bits=width)

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
        parts = items_of(target)
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
        parts = items_of(source)
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

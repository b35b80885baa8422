"""The values a PTX module is read into. Frozen: every later stage only looks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias


@dataclass(frozen=True)
class Location:
    """A place in the kernel's source: a line as `.loc` gives it, and the call it was inlined at."""

    file: int
    line: int
    column: int
    inlined_at: Location | None = None


@dataclass(frozen=True)
class Register:
    """A register or a special register: `%r1`, `%tid.x`. `negated` stands for `!` before a predicate."""

    name: str
    negated: bool = False


@dataclass(frozen=True)
class Immediate:
    """A number. `bits` is 32 or 64 for a float given by its bit pattern, 0 for an integer."""

    value: int
    bits: int = 0


@dataclass(frozen=True)
class Symbol:
    """A name that is no register: a label, a variable, a parameter, `_`."""

    name: str


@dataclass(frozen=True)
class Vector:
    """`{a, b, c, d}`."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Address:
    """`[base + offset]`, or a tensor's `[base, {coordinates}]`."""

    base: Register | Symbol | Immediate
    offset: int = 0
    coordinates: Vector | None = None


@dataclass(frozen=True)
class Pair:
    """`a|b`: two results of one instruction."""

    first: Operand
    second: Operand


Operand: TypeAlias = Register | Immediate | Symbol | Vector | Address | Pair


def items_of(operand: Operand) -> tuple[Operand, ...]:
    """The operands inside of a vector, or the one."""
    return operand.items if isinstance(operand, Vector) else (operand,)


def registers_of(operand: Operand) -> Iterator[str]:
    """The names of the registers inside of an operand."""
    match operand:
        case Register(name):
            yield name
        case Vector(items):
            for item in items:
                yield from registers_of(item)
        case Pair(first, second):
            yield from registers_of(first)
            yield from registers_of(second)
        case Address(base, _, coordinates):
            yield from registers_of(base)
            if coordinates is not None:
                yield from registers_of(coordinates)


@dataclass(frozen=True)
class Guard:
    """`@%p1` or `@!%p1`."""

    register: str
    negated: bool = False


@dataclass(frozen=True)
class Instruction:
    """One instruction: `opcode` without and `modifiers` with all that follows its first dot.

    `line` is the line of the PTX text, `location` that of the kernel's source.
    """

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Guard | None
    line: int
    location: Location | None = None

    @property
    def name(self) -> str:
        """Opcode and modifiers as PTX writes them."""
        return ".".join((self.opcode, *self.modifiers))

    def has(self, modifier: str) -> bool:
        """Whether the modifier is among the instruction's."""
        return modifier in self.modifiers


@dataclass(frozen=True)
class Label:
    """A place to jump to."""

    name: str


@dataclass(frozen=True)
class Parameter:
    """A kernel's parameter: `.param .u64 .ptr .global .align 1 name`. `count` is its length if it is an array, else 0."""

    type: str
    name: str
    attributes: tuple[str, ...] = ()
    count: int = 0


@dataclass(frozen=True)
class Variable:
    """Memory with a name: `.extern .shared .align 16 .b8 global_smem[]`. `count`: None without brackets, 0 for `[]`."""

    linkage: tuple[str, ...]
    space: str
    align: int
    type: str
    name: str
    count: int | None = None
    initial: tuple[int, ...] = ()


@dataclass(frozen=True)
class Registers:
    """`.reg .b32 %r<15>`: `count` registers of a name, or one where `count` is None."""

    type: str
    name: str
    count: int | None = None


@dataclass(frozen=True)
class Entry:
    """A kernel. Scopes inside its body are opened: their registers get names of their own and stand among `registers`."""

    name: str
    linkage: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    directives: tuple[tuple[str, tuple[int, ...]], ...]
    registers: tuple[Registers, ...]
    variables: tuple[Variable, ...]
    body: tuple[Instruction | Label, ...]

    @property
    def threads(self) -> int:
        """Threads of a block, as `.reqntid` or `.maxntid` fix them."""
        for name, numbers in self.directives:
            if name in (".reqntid", ".maxntid"):
                return math.prod(numbers)
        return 0

    @cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        """The body without its labels."""
        return tuple(item for item in self.body if isinstance(item, Instruction))

    @cached_property
    def targets(self) -> frozenset[str]:
        """The labels that jumps name; those of a list that a jump chooses from are not among them."""
        jumps = (i for i in self.instructions if i.opcode == "bra")
        return frozenset(o.name for i in jumps for o in i.operands if isinstance(o, Symbol))


@dataclass(frozen=True)
class Function:
    """A function that kernels call: what it takes and gives back, and its body."""

    name: str
    results: tuple[Parameter, ...]
    parameters: tuple[Parameter, ...]
    registers: tuple[Registers, ...]
    variables: tuple[Variable, ...]
    body: tuple[Instruction | Label, ...]


@dataclass(frozen=True)
class Module:
    """A whole PTX file without its debug sections."""

    version: str
    target: tuple[str, ...]
    address_size: int
    variables: tuple[Variable, ...]
    entries: tuple[Entry, ...]
    files: tuple[tuple[int, str], ...]
    declarations: tuple[str, ...] = ()

    def file(self, number: int) -> str:
        """The path that `.loc` means by a number."""
        return dict(self.files)[number]

"""Chosen programs of a grid, executed: memory laid out for the arguments, and a log of each instruction."""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilefold.errors import ArgumentError, ExecutionError, UnknownInstructionError
from tilefold.xray import machine
from tilefold.xray.compile.arguments import TYPES, Argument, Storage
from tilefold.xray.compile.job import Compiled
from tilefold.xray.machine import Access, Kernel, Memory, Outcome, Transfer, load
from tilefold.xray.machine.bulk.tensormap import unpack
from tilefold.xray.machine.programs import neighbours
from tilefold.xray.machine.run import LIMIT, Turns
from tilefold.xray.machine.types import Array
from tilefold.xray.ptx import Module

Program = tuple[int, int, int]
# Numbers that memory without data is filled with; bytes at random for all others.
_KINDS = {"bf16": "bf16", "fp8e5": "bytes", "fp8e4nv": "bytes", "fp8e4b15": "bytes"}


@dataclass(frozen=True)
class Bound:
    """A pointer whose memory is known: elements lie in [base, end), in bytes."""

    name: str
    base: int
    end: int


@dataclass(frozen=True, eq=False)
class Execution:
    """Programs and their logs. `memory` is their memory afterwards; `arguments` are those that reach the PTX, with the
    `addresses` of pointers (0 of numbers); `stopped` says why fewer programs ran than were asked for."""

    kernel: Kernel
    programs: tuple[Program, ...]
    outcomes: tuple[Outcome, ...]
    bounds: tuple[Bound, ...]
    memory: Memory
    arguments: tuple[Argument, ...]
    addresses: tuple[int, ...]
    stopped: str = ""

    def owners(self, addresses: Array) -> Array:
        """The number of the argument that each address belongs to, -1 where it is none's."""
        named = [a.name.partition(":")[0] for a in self.memory.allocations]
        numbers = np.array([int(n) if n.isdecimal() else -1 for n in named] + [-1])
        found: Array = numbers[self.memory.owners(addresses)]
        return found

    def named(self, address: int) -> tuple[str, int]:
        """The argument that an address belongs to, and the element; for shared memory the byte."""
        owner = int(self.owners(np.array([address]))[0])
        if owner < 0:
            return "shared memory", address
        argument = self.arguments[owner]
        return argument.name, (address - self.addresses[owner]) // argument.itemsize

    def within(self, address: int) -> int:
        """Bytes from the address of the argument that an address belongs to."""
        owner = int(self.owners(np.array([address]))[0])
        return address if owner < 0 else address - self.addresses[owner]

    def element(self, address: int) -> tuple[int, str]:
        """Bytes and type of the element at an address; words where it is no argument's."""
        owner = int(self.owners(np.array([address]))[0])
        return (4, "u32") if owner < 0 else (self.arguments[owner].itemsize, self.arguments[owner].type)

    def warps(self) -> Array:
        """Warps that issued each instruction."""
        total: Array = np.sum([o.warps for o in self.outcomes], axis=0)
        return total

    def lanes(self) -> Array:
        """Lanes that each instruction acted for."""
        total: Array = np.sum([o.lanes for o in self.outcomes], axis=0)
        return total

    def accesses(
        self, absent: Mapping[int, Sequence[tuple[int, int]]] | None = None
    ) -> dict[int, list[Access]]:
        """Accesses by the number of their instruction; without those of `absent` warps, given as (program, warp)."""
        found: dict[int, list[Access]] = {}
        for program, outcome in enumerate(self.outcomes):
            for access in outcome.accesses:
                warps = [w for p, w in (absent or {}).get(access.instruction, ()) if p == program]
                found.setdefault(access.instruction, []).append(_without(access, warps))
        return found

    def transfers(self) -> dict[int, list[Transfer]]:
        """Boxes that the tensor memory accelerator moved, by the number of their instruction."""
        found: dict[int, list[Transfer]] = {}
        for outcome in self.outcomes:
            for transfer in outcome.transfers:
                found.setdefault(transfer.instruction, []).append(transfer)
        return found


def _without(access: Access, warps: Sequence[int]) -> Access:
    if not warps:
        return access
    active = access.active.copy()
    active.reshape(-1, 32)[list(warps)] = False
    return replace(access, active=active)


def chosen_programs(grid: Program, wanted: Sequence[Program] | None) -> tuple[Program, ...]:
    """The programs asked for, or the first, a middle and the last.

    Raises:
        ArgumentError: one lies outside the grid.
    """
    if wanted is None:
        return machine.chosen_programs(grid)
    for program in wanted:
        if not all(0 <= at < size for at, size in zip(program, grid, strict=True)):
            raise ArgumentError(
                f"xray: a program must lie in the grid {grid}, got {program}; give --grid, or another --program"
            )
    return tuple(wanted)


def execute(
    compiled: Compiled, module: Module, programs: Sequence[Program], *, sign: int = 0, steps: int = LIMIT,
    turns: Turns = "together",
) -> Execution:  # fmt: skip
    """Run programs one after the other on memory filled at random (or with what the arguments hold).

    `sign`: of the random numbers, 0 for both. `steps` bounds the blocks that a program may execute, `turns` says which of its
    warps go on first. A program that fails
    ends the execution; what those before it did is kept, and `stopped` says why.

    Raises:
        UnknownInstructionError: a thread of the first program reached an instruction that has no meaning to the interpreter.
        ExecutionError: the first program did what no chip defines, took too many steps, or does not fit into the chip.
        ArgumentError: a number has no value.
    """
    _refuse_without_values(compiled.parameters)
    chip, kernel = compiled.job.chip, load(module, shared=compiled.shared)
    if (
        kernel.shared > chip.shared_bytes_block
    ):  # a launch is refused; beyond, addresses of matrices wrap around
        raise ExecutionError(
            f"xray: a program must fit into {chip.shared_bytes_block} bytes of shared memory ({chip.name}), "
            f"got {kernel.shared}; take fewer stages or a smaller tile"
        )
    memory = Memory(sign=sign)
    values, bounds = _laid_out(memory, compiled.parameters)
    # What Triton adds behind the kernel's own parameters: memory that it allocates for it.
    rest = len(kernel.entry.parameters) - len(values)
    values += [memory.place_open(f"scratch {i}") for i in range(rest)]
    outcomes: list[Outcome] = []
    job = compiled.job
    run = functools.partial(
        machine.execute, kernel, memory, values, grid=job.grid, steps=steps, turns=turns, cluster=job.cluster
    )
    groups = itertools.groupby(programs, lambda program: neighbours(program, job.cluster))
    stopped = next((said for _, together in groups if (said := _next(outcomes, run, [*together]))), "")
    places = tuple(_address(v) if a.pointer else 0 for a, v in zip(compiled.parameters, values, strict=False))
    return Execution(
        kernel, tuple(programs)[: len(outcomes)], tuple(outcomes), tuple(bounds), memory, compiled.parameters, places, stopped
    )  # fmt: skip


def _refuse_without_values(arguments: Sequence[Argument]) -> None:
    for argument in arguments:
        if not argument.pointer and argument.value is None:
            raise ArgumentError(
                f"xray: executing needs a value for every number, got none for {argument.name!r}; "
                f"write {argument.name}={argument.type}:1000"
            )


def _laid_out(memory: Memory, arguments: Sequence[Argument]) -> tuple[list[int | bytes], list[Bound]]:
    """The arguments of a launch, with memory for the pointers; and the ends of pointers whose size is known."""
    values: list[int | bytes] = []
    bounds: list[Bound] = []
    begins: dict[Storage, int] = {}  # where memory begins that several arguments may share
    for number, argument in enumerate(arguments):
        if not argument.pointer:
            values.append(bits_of(argument))
            continue
        first = begins.get(argument.storage) if argument.storage else None
        if first is None:
            first = _placed(memory, f"{number}:{argument.name}", _longest(argument, arguments))
            begins |= {argument.storage: first} if argument.storage else {}
            bounds += [] if argument.size is None else [_bound(argument, first)]
        address = first + argument.before * argument.itemsize
        values.append(address if argument.map is None else replace(argument.map, address=address).pack())
    return values, bounds


def _address(value: int | bytes) -> int:
    """Where a pointer, or the tensor of a map, begins."""
    return value if isinstance(value, int) else unpack(value).address


def _next(outcomes: list[Outcome], run: Callable[..., tuple[Outcome, ...]], programs: list[Program]) -> str:
    """Execute programs of one more cluster; why they failed, if they did and are not the first."""
    try:
        outcomes += run(programs=programs)
    except (ExecutionError, UnknownInstructionError) as error:
        if not outcomes:
            raise
        return f"program {programs[0]}: {str(error).removeprefix('xray: ')}"
    return ""


def _longest(argument: Argument, among: Sequence[Argument]) -> Argument:
    """Of the arguments that share an argument's memory the one that was given most bytes of it: itself, but for odd bytes."""
    shared = [(a.data.nbytes, a) for a in among if a.data is not None and a.storage == argument.storage]
    return max(shared, key=lambda pair: pair[0])[1] if argument.storage and shared else argument


def _placed(memory: Memory, key: str, argument: Argument) -> int:
    """The first byte of a pointer's memory: as divisible as promised and no more."""
    if argument.data is None:
        kind = _KINDS.get(argument.type, TYPES[argument.type])
        return memory.place_open(key, kind) + argument.shift
    return memory.place(key, np.ascontiguousarray(argument.data), before=argument.shift)


def _bound(argument: Argument, first: int) -> Bound:
    """Where a pointer's elements lie, the memory of which begins at `first`."""
    assert argument.size is not None, "somebody said how many there are"
    return Bound(argument.name, first, first + (argument.before + argument.size) * argument.itemsize)


def bits_of(argument: Argument) -> int:
    """A number's bits as the launch passes them."""
    value, kind = argument.value, argument.type
    assert value is not None
    if kind == "bf16":
        return int(struct.unpack("<I", struct.pack("<f", value))[0]) >> 16
    dtype = np.dtype(TYPES[kind])
    if dtype.kind == "f":
        return int.from_bytes(np.array(value, dtype).tobytes(), "little")
    return int(value) & ((1 << 8 * dtype.itemsize) - 1)

"""Chosen programs of a grid, executed: memory laid out for the arguments, and what each instruction did."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilefold.errors import ArgumentError
from tilefold.xray import machine
from tilefold.xray.compile.arguments import TYPES, Argument
from tilefold.xray.compile.job import Compiled
from tilefold.xray.machine import Access, Kernel, Memory, Outcome, Transfer, load
from tilefold.xray.machine.types import Array
from tilefold.xray.ptx import Module

Program = tuple[int, int, int]
# Numbers that memory without data is filled with; bytes at random for all others.
_KINDS = {"bf16": "bf16", "fp8e5": "bytes", "fp8e4nv": "bytes"}


@dataclass(frozen=True)
class Bound:
    """A pointer whose memory is known: elements lie in [base, end), in bytes."""

    name: str
    base: int
    end: int


@dataclass(frozen=True, eq=False)
class Execution:
    """Programs and what they did. `memory` is what they left behind; `places` the addresses of pointers."""

    kernel: Kernel
    programs: tuple[Program, ...]
    outcomes: tuple[Outcome, ...]
    bounds: tuple[Bound, ...]
    memory: Memory

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


def execute(compiled: Compiled, module: Module, programs: Sequence[Program]) -> Execution:
    """Run programs one after the other on memory filled at random (or with what the arguments hold).

    Raises:
        UnknownInstructionError: a thread reached an instruction that has no meaning to the interpreter.
        ExecutionError: a program did what no chip defines.
        ArgumentError: a number has no value.
    """
    for argument in compiled.parameters:
        if not argument.pointer and argument.value is None:
            raise ArgumentError(
                f"xray: executing needs a value for every number, got none for {argument.name!r}; "
                f"write {argument.name}={argument.type}:1000"
            )
    kernel = load(module, shared=compiled.shared)
    memory, bounds = Memory(), []
    values: list[int | bytes] = []
    for number, argument in enumerate(compiled.parameters):
        if argument.pointer:
            address, bound = _placed(memory, f"{number}:{argument.name}", argument)
            values.append(address)
            bounds += [] if bound is None else [bound]
        else:
            values.append(bits_of(argument))
    # What Triton adds behind the kernel's own parameters: memory that it allocates for it.
    rest = len(kernel.entry.parameters) - len(values)
    values += [memory.place_open(f"scratch {i}") for i in range(rest)]
    outcomes = machine.execute(kernel, memory, values, grid=compiled.job.grid, programs=programs)
    return Execution(kernel, tuple(programs), outcomes, tuple(bounds), memory)


def _placed(memory: Memory, key: str, argument: Argument) -> tuple[int, Bound | None]:
    """A pointer's address: as divisible as promised and no more."""
    if argument.data is None:
        kind = _KINDS.get(argument.type, TYPES[argument.type])
        first = base = memory.place_open(key, kind) + argument.shift
    else:
        first = memory.place(key, np.ascontiguousarray(argument.data), before=argument.shift)
        base = first + argument.before * argument.itemsize
    if argument.size is None:
        return base, None
    return base, Bound(argument.name, first, base + argument.size * argument.itemsize)


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

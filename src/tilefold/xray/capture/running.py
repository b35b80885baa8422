"""A launch carried out on the tensors that it was given: every program, as long as a budget of instructions lasts."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

from tilefold.errors import ExecutionError, UnknownInstructionError, XrayError
from tilefold.xray import machine
from tilefold.xray.capture import arguments
from tilefold.xray.capture.driver import Asked
from tilefold.xray.capture.marks import Addresses
from tilefold.xray.capture.memory import HostMemory
from tilefold.xray.compile.arguments import Argument
from tilefold.xray.compile.job import Compiled
from tilefold.xray.execution import bits_of
from tilefold.xray.machine import TensorMap
from tilefold.xray.machine.programs import neighbours
from tilefold.xray.ptx import parse

Program = tuple[int, int, int]


@dataclass
class Carried:
    """What was carried out: instructions of warps, programs, the storages read and written, the first access outside of all,
    and why not every program ran (empty where all did)."""

    instructions: int = 0
    programs: int = 0
    read: tuple[Any, ...] = ()
    written: tuple[Any, ...] = ()
    outside: str = ""
    why: str = ""


def carry_out(asked: Asked, compiled: Compiled, addresses: Addresses, budget: int) -> Carried:
    """Execute a launch's programs one after the other; none beyond the first if all would need more than `budget`."""
    memory = HostMemory(addresses.find)
    try:
        kernel = _kernel(asked, compiled)
    except XrayError as error:
        return Carried(why=str(error).removeprefix("xray: "))
    values = [_bits(leaf, memory, addresses) for leaf in asked.leaves]
    rest = len(kernel.entry.parameters) - len(values)
    values += [_pointer(value, memory, addresses) for value in asked.scratch[:rest]]
    done = Carried()
    x, y, z = asked.grid
    cluster = asked.cluster
    grid = (x * cluster, y, z)
    programs = itertools.product(range(z), range(y), range(x))
    try:
        for number, (k, j, i) in enumerate(programs):
            together = neighbours((i * cluster, j, k), cluster)
            outcomes = machine.execute(kernel, memory, values, grid=grid, programs=together, cluster=cluster)
            done.instructions += sum(o.instructions for o in outcomes)
            done.programs = number + 1
            if done.instructions / done.programs * x * y * z > budget:
                done.why = (
                    f"its {x * y * z} programs need about {done.instructions // done.programs * x * y * z:,} instructions of "
                    f"warps, more than the budget leaves ({budget:,})"
                )
                break
    except (ExecutionError, UnknownInstructionError) as error:
        done.why = f"program {(i, j, k)}: {str(error).removeprefix('xray: ')}"
    done.read, done.written = memory.storages(memory.read_from), memory.storages(memory.written)
    if memory.faults:
        fault = memory.faults[0]
        done.outside = (
            f"{fault.threads} threads reach outside of every tensor in {kernel.place(fault.instruction)}"
        )
    return done


def _kernel(asked: Asked, compiled: Compiled) -> machine.Kernel:
    """The kernel bound to the machine, once for all launches of it."""
    launcher: Any = asked.launcher
    if getattr(launcher, "kernel", None) is None:
        launcher.kernel = machine.load(parse(compiled.ptx), shared=compiled.shared)
    found: machine.Kernel = launcher.kernel
    return found


def _bits(leaf: arguments.Leaf, memory: HostMemory, addresses: Addresses) -> int | bytes:
    """A value as the kernel's parameter holds it, with the memory that it points to."""
    if leaf.type == "map":
        base, made = leaf.value
        held: TensorMap = replace(made, address=_pointer(base, memory, addresses))
        return held.pack()
    if leaf.type.startswith("*"):
        return _pointer(leaf.value, memory, addresses)
    argument: Argument = arguments.described(leaf, 1, addresses, False)
    return bits_of(argument)


def _pointer(value: Any, memory: HostMemory, addresses: Addresses) -> int:
    where = arguments.address(value)
    storage = addresses.find(where)
    if storage is not None:
        memory.hold(storage)
    return where

"""The evidence of a report and its observations: a kernel's parsed texts and its executed programs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tilefold.errors import TilefoldError
from tilefold.xray.compile import offline
from tilefold.xray.compile.arguments import Storage, held
from tilefold.xray.compile.job import Compiled, Machine
from tilefold.xray.execution import Execution, Program, execute
from tilefold.xray.ir import Function, read
from tilefold.xray.machine import Kernel
from tilefold.xray.ptx import Entry, Module, parse
from tilefold.xray.report.static import Lines
from tilefold.xray.stages import Stages


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that observations may look at besides the report: the texts read, and the execution where there is one."""

    compiled: Compiled
    module: Module
    entry: Entry
    places: Lines
    ttir: Function
    ttgir: Function
    machine: Machine
    execution: Execution | None


def gather(
    compiled: Compiled, programs: Sequence[Program], *, run: bool, stages: Stages
) -> tuple[Evidence, list[str]]:
    """Read a kernel's texts and (if `run`) execute programs of it; notes say what could not be done."""
    execution, notes = None, [*_promises(compiled), *_shared(compiled)]
    with ThreadPoolExecutor(1) as pool:
        machine = pool.submit(offline.assemble, compiled)  # other programs, which run while this one executes
        with stages.stage("reading"):
            module = parse(compiled.ptx)
        if run:
            try:
                with stages.stage("executing"):
                    execution = execute(compiled, module, programs)
                notes += _unreached(execution.kernel)
                notes += [f"Not all executed: {execution.stopped}"] if execution.stopped else []
            except TilefoldError as error:
                notes.append(f"Not executed: {str(error).removeprefix('xray: ')}")
        (entry,) = module.entries
        with stages.stage("reading"):
            ttir, ttgir = read(compiled.ttir), read(compiled.ttgir)
            places = Lines(module, compiled.ptx, compiled.ttir)
        with stages.stage("assembling"):
            return Evidence(compiled, module, entry, places, ttir, ttgir, machine.result(), execution), notes


def _promises(compiled: Compiled) -> list[str]:
    """A note on each number that what is promised to divide it does not: what is executed is then no launch of Triton's."""
    return [
        f"{a.name} is promised to be a multiple of {a.divisor}, which {a.value} is not: no launch is compiled so."
        for a in compiled.parameters
        if not a.pointer and isinstance(a.value, int) and a.value % a.divisor
    ]


def _shared(compiled: Compiled) -> list[str]:
    """A note on arguments that point to the same memory."""
    named: dict[Storage, list[str]] = {}
    for a in compiled.parameters:
        if a.pointer and a.storage is not None:
            named.setdefault(a.storage, []).append(a.name)
    return [f"{' and '.join(names)} share their memory." for names in named.values() if len(names) > 1]


def _unreached(kernel: Kernel) -> list[str]:
    """A note that names what the interpreter does not know and no executed thread came to."""
    named = [f"{kernel.entry.instructions[n].name} in {kernel.place(n)}" for n in kernel.unknown]
    return [f"Not reached, and unknown to the interpreter: {'; '.join(named)}"] if named else []


def integer_arguments(evidence: Evidence) -> dict[str, int]:
    """Values of the function's integer arguments, by their names in the TTIR."""
    return {name: value for name, value in given_arguments(evidence).items() if isinstance(value, int)}


def given_arguments(evidence: Evidence) -> dict[str, int | float]:
    """Values of the function's numbers, by their names in the TTIR; floats as the argument's type holds them."""
    pairs = zip(evidence.ttir.parameters, evidence.compiled.parameters, strict=False)
    found: dict[str, int | float] = {}
    for name, argument in pairs:
        if argument.value is not None and not argument.pointer:
            found[name] = held(argument.value, argument.type)
    return found

"""The evidence of a report and its observations: a kernel's parsed texts and its executed programs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tilefold.errors import TilefoldError
from tilefold.xray.compile import offline
from tilefold.xray.compile.arguments import Argument, Storage, held
from tilefold.xray.compile.job import Compiled, Machine
from tilefold.xray.execution import Execution, Program, execute
from tilefold.xray.ir import Function, read
from tilefold.xray.machine import Kernel
from tilefold.xray.ptx import Entry, parse
from tilefold.xray.report.static import Lines
from tilefold.xray.stages import Stages


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that observations may look at besides the report: the texts read, and the execution where there is one."""

    compiled: Compiled
    entry: Entry
    places: Lines
    ttir: Function
    ttgir: Function
    machine: Machine
    execution: Execution | None

    @property
    def parameters(self) -> list[tuple[str, Argument]]:
        """The arguments that reach the PTX, with their names in the TTIR."""
        return [*zip(self.ttir.parameters, self.compiled.parameters, strict=False)]

    def line(self, number: int) -> tuple[str, int]:
        """The line of an instruction by its number; ("", 0) of none."""
        return self.places.line(self.entry.instructions[number]) or ("", 0)

    def at(self, *places: tuple[str, int] | None) -> list[int]:
        """The numbers of the instructions at some lines."""
        return [n for n, i in enumerate(self.entry.instructions) if self.places.line(i) in places]


def gather(
    compiled: Compiled, programs: Sequence[Program], *, run: bool, stages: Stages
) -> tuple[Evidence, list[str]]:
    """Read a kernel's texts and (if `run`) execute programs of it; notes name the parts that could not be done."""
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
            return Evidence(compiled, entry, places, ttir, ttgir, machine.result(), execution), notes


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
    return {
        name: held(a.value, a.type)
        for name, a in evidence.parameters
        if a.value is not None and not a.pointer
    }

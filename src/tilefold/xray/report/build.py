"""A report from a compiled kernel: its texts read, some programs executed, everything put to its line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from tilefold.errors import TilefoldError
from tilefold.xray.chips import Chip
from tilefold.xray.compile import offline
from tilefold.xray.compile.job import Compiled, Job, Machine
from tilefold.xray.execution import Execution, Program, chosen_programs, execute
from tilefold.xray.ir import Function, read
from tilefold.xray.machine import Kernel
from tilefold.xray.ptx import Entry, Module, parse
from tilefold.xray.report.issued import issued
from tilefold.xray.report.lines import source_lines
from tilefold.xray.report.model import SCHEMA, Line, Report, Roofline, Totals, Work
from tilefold.xray.report.occupancy import occupancy
from tilefold.xray.report.sass import count_by_line
from tilefold.xray.report.static import Lines


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


def examine(job: Job, programs: Sequence[Program] | None = None, *, run: bool = True) -> Report:
    """Compile a job, execute programs of it (if `run`), and report.

    Raises:
        CompileError: the kernel does not compile.
        ArgumentError: a program outside the grid.
    """
    from tilefold.xray.observe import observe

    compiled = offline.compile_job(job)
    evidence, notes = _evidence(compiled, chosen_programs(job.grid, programs), run)
    report = _report(evidence, notes)
    return replace(report, observations=observe(report, evidence))


def _evidence(compiled: Compiled, programs: Sequence[Program], run: bool) -> tuple[Evidence, list[str]]:
    module = parse(compiled.ptx)
    execution, notes = None, []
    with ThreadPoolExecutor(1) as pool:
        machine = pool.submit(offline.assemble, compiled)  # other programs, which run while this one executes
        if run:
            try:
                execution = execute(compiled, module, programs)
                notes += _unreached(execution.kernel)
            except TilefoldError as error:
                notes.append(f"Not executed: {str(error).removeprefix('xray: ')}")
        (entry,) = module.entries
        ttir, ttgir, places = read(compiled.ttir), read(compiled.ttgir), Lines(module, compiled.ptx)
        return Evidence(compiled, module, entry, places, ttir, ttgir, machine.result(), execution), notes


def _unreached(kernel: Kernel) -> list[str]:
    """A note that names what the interpreter does not know and no executed thread came to."""
    named = [f"{kernel.entry.instructions[n].name} in {kernel.place(n)}" for n in kernel.unknown]
    return [f"Not reached, and unknown to the interpreter: {'; '.join(named)}"] if named else []


def _report(evidence: Evidence, notes: list[str]) -> Report:
    compiled, job, execution = evidence.compiled, evidence.compiled.job, evidence.execution
    used = evidence.machine.resources
    sass = count_by_line(evidence.machine.code, evidence.entry.instructions, evidence.places)
    entry, places = evidence.entry, evidence.places
    machine = None
    if execution is not None:
        machine = issued(evidence.machine.code, entry.instructions, places, execution)
    lines = source_lines(entry, places, evidence.ttgir, compiled.num_warps, sass, execution, machine)
    totals = _totals(lines, execution is not None)
    if machine is not None:
        totals = replace(totals, machine=tuple(Counter(machine.opcodes).most_common()))
    programs = () if execution is None else execution.programs
    grid = job.grid[0] * job.grid[1] * job.grid[2]
    return Report(
        SCHEMA, job.name, job.chip.target, job.chip.name, compiled.version, job.grid, compiled.num_warps, job.num_stages,
        tuple(str(a) for a in job.arguments), tuple(f"{k}={v}" for k, v in job.constants), programs, lines, totals, used,
        occupancy(job.chip, used, compiled.num_warps), _roofline(totals, len(programs), grid, job.chip), (), tuple(notes),
    )  # fmt: skip


def _totals(lines: Sequence[Line], executed: bool) -> Totals:
    plain = Totals(sum(x.ptx for x in lines), sum(x.sass for x in lines))
    if not executed:
        return plain
    work = sum((x.work for x in lines if x.work is not None), Work())
    accesses = [a for x in lines for a in x.accesses]
    moved = [a for a in accesses if a.sectors is not None]
    shared = [a for a in accesses if a.passes is not None]
    return replace(
        plain,
        work=work,
        requests=sum(a.requests or 0 for a in moved),
        sectors=sum(a.sectors or 0 for a in moved),
        ideal_sectors=sum(a.ideal or 0 for a in moved),
        bytes_asked=sum(a.asked or 0 for a in moved),
        bytes_moved=32 * sum(a.sectors or 0 for a in moved),
        shared_passes=sum(a.passes or 0 for a in shared),
        shared_ideal=sum(a.ideal or 0 for a in shared),
    )


def _roofline(totals: Totals, executed: int, grid: int, chip: Chip) -> Roofline | None:
    """The grid's time at the chip's limits, from the mean of the executed programs."""
    if not executed or totals.work is None or totals.bytes_moved is None:
        return None
    moved, flops = totals.bytes_moved * grid // executed, totals.work.flops * grid // executed
    units = "tensor cores" if totals.work.tensor else "fp32 units"
    rate = chip.fp16_per_clock if totals.work.tensor else chip.fp32_per_clock
    return Roofline(
        grid, moved, flops,
        moved / chip.gb_per_s / 1e3,
        flops / (rate * chip.cores * chip.clock_mhz),
        units,
    )  # fmt: skip

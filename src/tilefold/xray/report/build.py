"""A report from a compiled kernel: its texts read, some programs executed, everything put to its line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tilefold.xray.evidence import Evidence, integer_arguments
from tilefold.xray.report.issued import issued
from tilefold.xray.report.lines import source_lines
from tilefold.xray.report.model import SCHEMA, Line, Occupancy, Report, Roofline, Totals, Work
from tilefold.xray.report.occupancy import occupancy
from tilefold.xray.report.sass import count_by_line
from tilefold.xray.report.traffic import traffic

PORT = 64  # bytes that an SM takes from L2 in a clock at most


def build(evidence: Evidence, notes: list[str]) -> Report:
    """The report without its observations."""
    compiled, job, execution = evidence.compiled, evidence.compiled.job, evidence.execution
    used = evidence.machine.resources
    sass = count_by_line(evidence.machine.code, evidence.entry.instructions, evidence.places)
    entry, places = evidence.entry, evidence.places
    machine = None
    if execution is not None:
        machine, stopped = issued(evidence.machine.code, entry.instructions, places, execution)
        notes += [f"The machine's instructions are not counted: {stopped}."] if stopped else []
    lines = source_lines(entry, places, evidence.ttgir, compiled.num_warps, sass, execution, machine)
    totals = _totals(lines, execution is not None)
    if machine is not None:
        totals = replace(totals, machine=tuple(Counter(machine.opcodes).most_common()))
    programs = () if execution is None else execution.programs
    held = occupancy(job.chip, used, compiled.num_warps)
    return Report(
        SCHEMA, job.name, job.chip.target, job.chip.name, compiled.version, job.grid, compiled.num_warps, job.num_stages,
        tuple(str(a) for a in job.arguments), tuple(f"{k}={v}" for k, v in job.constants), programs, lines, totals, used,
        held, _roofline(evidence, totals, held), (), tuple(notes), job.cluster,
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


def _roofline(evidence: Evidence, totals: Totals, held: Occupancy) -> Roofline | None:
    """The grid's time at the chip's limits, on the SMs that it fills."""
    execution, job = evidence.execution, evidence.compiled.job
    if execution is None or totals.work is None:
        return None
    chip, count = job.chip, job.grid[0] * job.grid[1] * job.grid[2]
    sizes = [a.itemsize if a.pointer else 0 for a in evidence.compiled.parameters]
    whole = traffic(execution, evidence.entry, evidence.ttir, integer_arguments(evidence), sizes, job.grid)
    sms = min(chip.sms, count)
    units = "tensor cores" if totals.work.tensor else "fp32 units"
    rate = chip.fp16_per_clock if totals.work.tensor else chip.fp32_per_clock
    return Roofline(
        count, whole.asked, whole.once, whole.flops, sms, count / (chip.sms * max(held.blocks, 1)),
        whole.once / chip.gb_per_s / 1e3, whole.asked / (PORT * sms * chip.clock_mhz),
        whole.flops / count * -(-count // chip.sms) / (rate * chip.clock_mhz),
        units,
    )  # fmt: skip

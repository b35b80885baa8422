"""Summaries of one report and of two, as plain texts and numbers, for every view."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilefold.xray.render import words
from tilefold.xray.report.model import Line, Report, Roofline


def summary(report: Report) -> Iterator[tuple[str, str]]:
    """The kernel as a whole: what each text is about, and the text."""
    used, held = report.resources, report.occupancy
    limited = "" if held.limiter == "nothing" else f", limited by {held.limiter}"
    yield (
        "occupies",
        f"{used.registers} registers a thread ({used.spilled or 'no'} bytes spilled), {words.size(used.shared)} of shared "
        f"memory; {held.warps} of {held.warps_at_most} warps an SM{limited}",
    )
    yield "code", f"{report.totals.ptx} instructions of PTX, {report.totals.sass} of the machine"
    if not report.executed or report.totals.work is None:
        return
    n, totals, work = len(report.programs), report.totals, report.totals.work
    shown = ", ".join("(" + ",".join(map(str, p)) + ")" for p in report.programs)
    mean = "" if n == 1 else " on average"
    off = work.lanes_off / max(32 * work.issued, 1)
    machines = sum(times for _, times in totals.machine or ())
    machine = f" ({words.count(machines / n)} of the machine)" if machines else ""
    yield (
        "executed",
        f"program{'s' * (n > 1)} {shown}:{mean} {words.count(work.issued / n)} instructions of a warp{machine}, "
        f"{off:.0%} of lanes off",
    )
    moved, asked = totals.bytes_moved or 0, totals.bytes_asked or 0
    sectors, ideal = totals.sectors or 0, totals.ideal_sectors or 0
    spare = f", {1 - ideal / sectors:.0%} of it not needed" if sectors > ideal else ""
    passes, least = totals.shared_passes or 0, totals.shared_ideal or 0
    shared = f"; {words.count(passes / n)} passes through shared memory" if passes else ""
    conflicts = f", {words.count((passes - least) / n)} of them by conflicts" if passes > least else ""
    yield (
        "memory",
        f"{words.size(asked / n)} asked for, {words.size(moved / n)} moved{spare}{shared}{conflicts}",
    )
    if report.roofline is not None:
        yield "grid", _grid(report.roofline)


def _grid(line: Roofline) -> str:
    """The bytes and operations of the whole launch, and its bound."""
    return (
        f"{words.size(line.bytes_once)} each byte once, {words.size(line.bytes_moved)} asked of L2, "
        f"{words.count(line.flops)} operations in {words.plural(line.programs, 'program')} on "
        f"{words.plural(line.sms, 'SM')} ({words.waves(line.waves)}): {words.duration(line.memory_us)} of memory, "
        f"{words.duration(line.l2_us)} of L2, "
        f"{words.duration(line.compute_us)} of {line.units}, {line.bound} bound"
    )


def differs(first: Report, second: Report) -> bool:
    """Whether two reports differ in anything but the files' names."""
    return _anonymous(first) != _anonymous(second)


def _anonymous(report: Report) -> Report:
    """The report without the files of its lines."""
    lines = tuple(replace(line, file="") for line in report.lines)
    found = tuple(
        replace(o, file="", also=tuple(("", line) for _, line in o.also)) for o in report.observations
    )
    return replace(report, lines=lines, observations=found)


def figures(report: Report) -> dict[str, float | None]:
    """The compared numbers by name; executed numbers are a program's."""
    used, totals, n = report.resources, report.totals, max(len(report.programs), 1)
    work, grid = totals.work, report.roofline

    def of(name: str, by: int = 1) -> float | None:
        return None if work is None else getattr(work, name) / by

    each: dict[str, float | None] = {
        "instructions issued": of("issued"),
        "lanes off": of("lanes_off"),
        "bytes asked for": totals.bytes_asked,
        "bytes moved": totals.bytes_moved,
        "sectors": totals.sectors,
        "sectors needed": totals.ideal_sectors,
        "shared passes": totals.shared_passes,
        "shared passes needed": totals.shared_ideal,
        "shuffles": of("shuffles"),
        "barriers": of("barriers", report.num_warps),
        "tensor-core instructions": of("tensor"),
        "atomics": of("atomics"),
        "operations": of("flops"),
    }
    whole = {
        "registers a thread": used.registers,
        "bytes spilled": used.spilled,
        "shared memory, bytes": used.shared,
        "warps an SM": report.occupancy.warps,
        "PTX instructions": totals.ptx,
        "machine instructions": totals.sass,
    }
    ends = (
        {} if grid is None else {"grid: us of memory": grid.memory_us, "grid: us of compute": grid.compute_us}
    )
    shared = {name: None if value is None else value / n for name, value in each.items()}
    return {**whole, **shared, **ends}


def cell(value: float | None) -> str:
    """A figure in a column."""
    return "-" if value is None else f"{value:.3g}" if value < 10 and value != int(value) else f"{value:,.0f}"


def changed_lines(first: Report, second: Report) -> list[tuple[str, str, str, str]]:
    """Lines of one text whose machine code, work or accesses differ: number, source, what each report says."""
    theirs = {(line.text, line.line): line for line in second.lines}
    same_text = {line.text: line for line in second.lines}
    rows = []
    for line in first.lines:
        other = theirs.get((line.text, line.line)) or same_text.get(line.text)
        if other is not None and line.text and (a := _said(line, first)) != (b := _said(other, second)):
            rows.append((str(line.line), line.text, a, b))
    return rows


def _said(line: Line, report: Report) -> str:
    n = max(len(report.programs), 1)
    issued = [f"{words.count(line.work.issued / n)} issued"] if line.work is not None else []
    return "\n".join(
        [
            f"{line.sass} of code",
            *issued,
            *(words.access(a, n) for a in line.accesses),
            *words.others(line, report),
        ]
    )

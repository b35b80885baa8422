"""A report for a terminal: what it is, totals, the source line by line, observations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from tilefold.xray.render import words
from tilefold.xray.report.model import Line, Observation, Report

WIDE = 140  # columns from which layouts stand beside the source instead of under it
STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def render_report(report: Report) -> RenderableType:
    """The whole report; as wide as the console it is printed on."""
    parts: list[RenderableType] = [
        Rule(Text(report.kernel, style="bold"), align="left", style="dim"),
        Text(words.launch(report)),
        Text("  ".join((*report.arguments, *report.constants)), style="dim"),
        Text(),
        render_summary(report),
        Text(),
        _Source(report),
        *render_observations(report),
    ]
    parts += [Text(note, style="magenta") for note in report.notes]
    return Group(*parts, Text())


def render_summary(report: Report) -> RenderableType:
    """The kernel as a whole: resources, code, what was executed, memory, the grid."""
    return _pairs(summary(report))


def _pairs(pairs: Iterable[tuple[str, str]]) -> Table:
    """Names and texts in two columns, without a frame."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in pairs:
        table.add_row(name, Text(text))
    return table


def summary(report: Report) -> Iterator[tuple[str, str]]:
    """The kernel as a whole: what each text is about, and the text."""
    used, held = report.resources, report.occupancy
    spills = used.spill_stores + used.spill_loads
    limited = "" if held.limiter == "nothing" else f", limited by {held.limiter}"
    yield (
        "occupies",
        f"{used.registers} registers a thread ({spills or 'no'} bytes spilled), {words.size(used.shared)} of shared memory; "
        f"{held.warps} of {held.warps_at_most} warps a core{limited}",
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
    if (line := report.roofline) is not None:
        yield (
            "grid",
            f"{words.size(line.bytes_moved)} and {words.count(line.flops)} operations in "
            f"{words.plural(line.programs, 'program')}: {words.duration(line.memory_us)} of memory, "
            f"{words.duration(line.compute_us)} of {line.units}, {line.bound} bound",
        )


class _Source:
    """The source with what became of it. Decides by the console's width where layouts stand."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width >= WIDE
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, expand=True, padding=(0, 1))
        table.add_column("line", justify="right", style="dim", no_wrap=True)
        table.add_column("source" if wide else "source, and who holds what", ratio=5, overflow="fold")
        if wide:
            table.add_column("who holds what", ratio=4, overflow="fold")
        table.add_column("code", justify="right", no_wrap=True)
        table.add_column("issued", justify="right", no_wrap=True)
        table.add_column("memory, and across threads", ratio=3, overflow="fold")
        file = None
        for line in self._report.lines:
            if line.file != file:
                file = line.file
                table.add_row("", Text(_shown(file), style="bold", overflow="ellipsis", no_wrap=True))
            self._row(table, line, wide)
        yield table
        yield Text("code: instructions of the machine; issued: by warps, a program.", style="dim")
        yield Text()

    def _row(self, table: Table, line: Line, wide: bool) -> None:
        n = max(len(self._report.programs), 1)
        layouts = words.layouts(line.layouts)
        source = Text(line.text or ("(no line is known)" if not line.line else ""))
        cells: list[Text] = [Text(str(line.line or "")), source]
        if wide:
            cells.append(Text("\n".join(layouts), style="dim"))
        elif layouts:
            source.append("\n" + "\n".join(layouts), style="dim")
        issued = "" if line.work is None else words.count(line.work.issued / n)
        memory = [words.access(a, n) for a in line.accesses] + words.others(line, self._report)
        table.add_row(*cells, Text(str(line.sass)), Text(issued), Text("\n".join(memory)))


def _shown(file: str) -> str:
    return Path(file).name if file else "without a line"


def render_observations(report: Report) -> list[RenderableType]:
    """Each observation with its evidence, reason and change; the costly ones first."""
    if not report.observations:
        return [Text("No observations.", style="green"), Text()]
    parts: list[RenderableType] = []
    for found in report.observations:
        head = Text.assemble(
            (found.severity, STYLES[found.severity]), "  ", (found.code, "bold"), f"  {_place(found)}"
        )
        parts.append(head)
        texts = (("found", found.evidence), ("why", found.reason), ("do", found.change))
        parts += [Padding(_pairs(texts), (0, 0, 0, 2)), Text()]
    return parts


def _place(found: Observation) -> str:
    return f"{Path(found.file).name}:{found.line}" if found.line else "the whole kernel"

"""A report for a terminal: the kernel, totals, the source line by line, observations."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from tilefold.xray.render import words
from tilefold.xray.render.summary import summary
from tilefold.xray.report.model import Line, Report

WIDE = 140  # columns from which layouts stand beside the source instead of under it
STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def render_report(report: Report, *, everything: bool = False) -> RenderableType:
    """The whole report; as wide as the console it is printed on. `everything`: also notes with nothing to do."""
    parts: list[RenderableType] = [
        Rule(Text(report.kernel, style="bold"), align="left", style="dim"),
        Text(words.launch(report)),
        Text("  ".join((*report.arguments, *report.constants)), style="dim"),
        Text(),
        render_summary(report),
        Text(),
        _Source(report),
        *render_observations(report, everything=everything),
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


def render_observations(report: Report, *, everything: bool = False) -> list[RenderableType]:
    """Each observation with its evidence, reason and change, the costly ones first; those with nothing to do are counted in
    a line, or shown like the others (`everything`)."""
    shown = [o for o in report.observations if everything or not o.quiet]
    parts: list[RenderableType] = [] if shown else [Text("No observations.", style="green"), Text()]
    for found in shown:
        head = Text.assemble(
            (found.severity, STYLES[found.severity]), "  ", (found.code, "bold"), f"  {words.place(found)}"
        )
        parts.append(head)
        parts += [Padding(_pairs(words.observation(found)), (0, 0, 0, 2)), Text()]
    if not everything:
        parts += [part for text in words.hidden(report) for part in (Text(text, style="dim"), Text())]
    return parts

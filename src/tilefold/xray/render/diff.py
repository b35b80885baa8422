"""Two reports side by side: differences of the launch, the totals, the lines and the observations."""

from __future__ import annotations

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tilefold.xray.render import words
from tilefold.xray.render.summary import cell, changed_lines, differs, figures
from tilefold.xray.report.model import Report


def render_diff(first: Report, second: Report) -> RenderableType:
    """Totals that both have, lines whose work differs, and observations that only one has."""
    alike = [] if differs(first, second) else [Text("Nothing differs.", style="green"), Text()]
    return Group(
        *alike,
        Text(f"A  {first.kernel}: {words.launch(first)}"),
        Text(f"   {'  '.join((*first.arguments, *first.constants))}", style="dim"),
        Text(f"B  {second.kernel}: {words.launch(second)}"),
        Text(f"   {'  '.join((*second.arguments, *second.constants))}", style="dim"),
        Text(),
        _totals(first, second),
        *_lines(first, second),
        *_observations(first, second),
        Text(),
    )


def _totals(first: Report, second: Report) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in ("A", "B", "B / A"):
        table.add_column(name, justify="right", no_wrap=True)
    left, right = figures(first), figures(second)
    for name in {**left, **right}:
        a, b = left.get(name), right.get(name)
        if not (a is b is None) and not (not a and not b):
            table.add_row(name, cell(a), cell(b), *_ratio(a, b))
    return table


def _ratio(a: float | None, b: float | None) -> tuple[Text]:
    if a is None or b is None or not a:
        return (Text(""),)
    ratio = b / a
    return (Text(f"{ratio:.2f}", style="" if 0.995 < ratio < 1.005 else "bold"),)


def _lines(first: Report, second: Report) -> Iterator[RenderableType]:
    """Lines of one text whose machine code, work or accesses differ."""
    rows = changed_lines(first, second)
    if not rows:
        return
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, expand=True)
    table.add_column("line", justify="right", style="dim", no_wrap=True)
    for name in ("source", "A", "B"):
        table.add_column(name, ratio=1, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    yield Text()
    yield table


def _observations(first: Report, second: Report) -> Iterator[RenderableType]:
    for name, mine, other in (("A", first, second), ("B", second, first)):
        for found in mine.observations:
            if found.code not in other.codes():
                yield Text(f"only {name}: {found.code}, line {found.line}: {found.evidence}")

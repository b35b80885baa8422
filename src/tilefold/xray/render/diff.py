"""Two reports side by side: what differs of the launch, the totals, the lines and the observations."""

from __future__ import annotations

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tilefold.xray.render import words
from tilefold.xray.report.model import Line, Report


def render_diff(first: Report, second: Report) -> RenderableType:
    """Totals that both have, lines whose work differs, and observations that only one has."""
    return Group(
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


def figures(report: Report) -> dict[str, float | None]:
    """What is compared, by its name; executed numbers are a program's."""
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
        "bytes spilled": used.spill_stores + used.spill_loads,
        "shared memory, bytes": used.shared,
        "warps a core": report.occupancy.warps,
        "PTX instructions": totals.ptx,
        "machine instructions": totals.sass,
    }
    ends = (
        {} if grid is None else {"grid: us of memory": grid.memory_us, "grid: us of compute": grid.compute_us}
    )
    shared = {name: None if value is None else value / n for name, value in each.items()}
    return {**whole, **shared, **ends}


def _totals(first: Report, second: Report) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in ("A", "B", "B / A"):
        table.add_column(name, justify="right", no_wrap=True)
    left, right = figures(first), figures(second)
    for name in {**left, **right}:
        a, b = left.get(name), right.get(name)
        if not (a is b is None) and not (not a and not b):
            table.add_row(name, _cell(a), _cell(b), *_ratio(a, b))
    return table


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 10 and value != int(value) else f"{value:,.0f}"


def _ratio(a: float | None, b: float | None) -> tuple[Text]:
    if a is None or b is None or not a:
        return (Text(""),)
    ratio = b / a
    return (Text(f"{ratio:.2f}", style="" if 0.995 < ratio < 1.005 else "bold"),)


def _lines(first: Report, second: Report) -> Iterator[RenderableType]:
    """Lines of one text whose machine code, work or accesses differ."""
    theirs = {(line.text, line.line): line for line in second.lines}
    same_text = {line.text: line for line in second.lines}
    rows = []
    for line in first.lines:
        other = theirs.get((line.text, line.line)) or same_text.get(line.text)
        if other is not None and line.text and (a := _said(line, first)) != (b := _said(other, second)):
            rows.append((str(line.line), line.text, a, b))
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


def _observations(first: Report, second: Report) -> Iterator[RenderableType]:
    for name, mine, other in (("A", first, second), ("B", second, first)):
        for found in mine.observations:
            if found.code not in other.codes():
                yield Text(f"only {name}: {found.code}, line {found.line}: {found.evidence}")

"""The display of a run: a live table with progress and time left if there are rich and a terminal, else a line a case."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

from tilefold.bench.results import ERROR, WRONG, CaseResult, Measurement

SHOWN_ROWS = 14
# Where a terminal has no room for all columns whole: a time cut short would be another time.
DROPPED_FIRST = ("plan", "limit us", "quartiles us", "graph us", "of the limit", "host us")


class Display(Protocol):
    """The events of a run, for its display."""

    def say(self, text: str) -> None:
        """A line of its own."""

    def warmed(self, done: int, total: int) -> None:
        """So many variants are compiled."""

    def measured(self, case: CaseResult, done: int, total: int) -> None:
        """One case is done."""

    def close(self) -> None:
        """Nothing more comes."""


HEADS = (
    "case", "variant", "median us", "quartiles us", "graph us", "host us", "limit us", "of the limit", "plan",
)  # fmt: skip


def cells(case: CaseResult, row: Measurement) -> tuple[str, ...]:
    """A measurement's texts, by `HEADS`."""
    if row.time_us is None:
        return (case.name, row.variant, row.status, "", "", "", "", "", row.note or "")
    spread = row.time_us
    return (
        case.name,
        row.variant,
        time_text(spread.median_us),
        "" if spread.q1_us is None else f"{time_text(spread.q1_us)} - {time_text(spread.q3_us)}",
        time_text(row.graph_us),
        time_text(row.host_us),
        time_text(row.limit_us),
        "" if row.fraction is None else f"{row.fraction:.3f}",
        row.plan or "",
    )


def time_text(time_us: float | None) -> str:
    """Microseconds in three digits or more; nothing for None."""
    if time_us is None:
        return ""
    return f"{time_us:.0f}" if time_us >= 1000 else f"{time_us:.1f}" if time_us >= 10 else f"{time_us:.2f}"


def line_of(case: CaseResult) -> str:
    """A case in one line: each variant's median, fraction and host time, or why it has none."""
    parts = []
    for row in case.measurements:
        spread = row.time_us
        if spread is None:
            told = f": {row.note}" if row.status in (WRONG, ERROR) else ""
            parts.append(f"{row.variant} {row.status.upper()}{told}")
            continue
        share = "" if row.fraction is None else f" ({row.fraction:.3f})"
        host = "" if row.host_us is None else f" host {time_text(row.host_us)}"
        parts.append(f"{row.variant} {time_text(spread.median_us)}{share}{host}")
    return "  ".join(
        [f"{case.name:44s}", *parts, *(note for note in case.notes if not note.startswith("warm"))]
    )


def left_text(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class PlainDisplay:
    """Lines, for pipes, files and machines without rich."""

    def __init__(self) -> None:
        """Start the clock of the time left."""
        self._start: float | None = None
        self._said = 0.0

    def say(self, text: str) -> None:
        """A line."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def warmed(self, done: int, total: int) -> None:
        """A line every ten seconds, and at the end."""
        if done == total or time.monotonic() - self._said > 10:
            self._said = time.monotonic()
            self.say(f"compiled {done} of {total}")

    def measured(self, case: CaseResult, done: int, total: int) -> None:
        """A line a case, the time left before it."""
        now = time.monotonic()
        self._start = now if self._start is None or done == 1 else self._start
        # The first case is where the clock starts: it says nothing yet, unless it is the last.
        each = (now - self._start) / (done - 1) if done > 1 else None
        left = "" if each is None and total > 1 else f", {left_text((each or 0.0) * (total - done))} left"
        self.say(f"[{done}/{total}{left}] {line_of(case)}")

    def close(self) -> None:
        """Nothing to undo."""


class RichDisplay:
    """A table of the latest cases over a progress bar with the time left; the whole table stays when all is done."""

    def __init__(self, rich_console: Any) -> None:
        """Start showing."""
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = rich_console
        self._rows: list[tuple[str, ...]] = []
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=rich_console,
        )
        self._task = self._bar.add_task("getting ready", total=None)
        self._live = Live(self._shown(), console=rich_console, refresh_per_second=4, transient=True)
        self._live.start()

    def say(self, text: str) -> None:
        """A line above the table."""
        self._console.print(text, markup=False, highlight=False)

    def warmed(self, done: int, total: int) -> None:
        """Move the bar."""
        self._bar.update(self._task, description="compiling", completed=done, total=total)

    def measured(self, case: CaseResult, done: int, total: int) -> None:
        """Add a case's rows and move the bar."""
        if done == 1:
            self._bar.reset(self._task, description="measuring", total=total)
        self._rows += [cells(case, row) for row in case.measurements]
        self._bar.update(self._task, description="measuring", completed=done, total=total)
        self._live.update(self._shown())

    def close(self) -> None:
        """Leave the whole table."""
        self._live.stop()
        if self._rows:
            table, dropped = fitting_table(self._console, self._rows)
            self._console.print(table)
            if dropped:
                self.say(f"Not shown at this width (tilefold bench show has all): {', '.join(dropped)}.")

    def _shown(self) -> Any:
        from rich.console import Group

        return Group(fitting_table(self._console, self._rows[-SHOWN_ROWS:])[0], self._bar)


def fitting_table(console: Any, rows: Sequence[tuple[str, ...]]) -> tuple[Any, list[str]]:
    """A table of as many whole columns as fit a terminal, and the others."""
    from rich.measure import Measurement

    endless = console.options.update(width=100_000)  # a measure is cut at the width that it is taken in
    for count in range(len(DROPPED_FIRST) + 1):
        dropped = [head for head in HEADS if head in DROPPED_FIRST[:count]]
        kept = [i for i, head in enumerate(HEADS) if head not in dropped]
        table = render_table([tuple(row[i] for i in kept) for row in rows], [HEADS[i] for i in kept])
        if Measurement.get(console, endless, table).minimum <= console.width:
            break
    return table, dropped


def render_table(rows: Sequence[tuple[str, ...]], heads: Sequence[str] = HEADS) -> Any:
    """A rich table; a case's name stands at its first row only."""
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE, pad_edge=False, show_edge=False, header_style="bold")
    for i, head in enumerate(heads):
        left, wraps = head in ("case", "variant", "plan", "tolerance"), head == "plan"
        # Without it rich would measure a column by its longest word.
        whole = None if wraps else max(len(row[i]) for row in [tuple(heads), *rows])
        table.add_column(head, justify="left" if left else "right", no_wrap=not wraps, min_width=whole)
    before = None
    for row in rows:
        table.add_row(*(Text("" if i == 0 and cell == before else cell) for i, cell in enumerate(row)))
        before = row[0]
    return table


def new_display() -> Display:
    """A live table where rich is installed and stdout is a terminal, else lines."""
    try:
        from rich.console import Console
    except ImportError:
        return PlainDisplay()
    console = Console()
    return RichDisplay(console) if console.is_terminal else PlainDisplay()


def show_rows(rows: Sequence[tuple[str, ...]], heads: Sequence[str]) -> str:
    """Rows as aligned text, two blanks between columns."""
    widths = [max(len(row[i]) for row in [tuple(heads), *rows]) for i in range(len(heads))]
    lines = [
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in [heads, *rows]
    ]
    return "\n".join(lines)

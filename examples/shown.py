"""How the walk shows things: headings, wrapped paragraphs, small tables and plans, within the terminal's width."""

from __future__ import annotations

import importlib.util
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from tilefold.bench.results import SuiteResult, read_results

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "h200"


def find_width() -> int:
    """The terminal's width, within what reads well; 100 into a pipe or a file."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return max(60, min(Console().width, 120)) if known else 100


WIDTH = find_width()
console = Console(width=WIDTH, highlight=False)


def heading(title: str) -> None:
    """A new part."""
    console.print()
    console.print(Rule(Text(title, style="bold cyan"), align="left", style="cyan"))


def say(text: str, style: str = "", indent: str = "") -> None:
    """A paragraph."""
    for paragraph in text.split("\n\n"):
        lines = textwrap.wrap(paragraph, WIDTH, initial_indent=indent, subsequent_indent=indent)
        console.print(Text("\n".join(lines), style=style))


def label(text: str) -> None:
    """What the next lines are."""
    console.print(Text(f"\n{text}", style="bold"))


def show_plan(title: str, plan: Any) -> None:
    """A plan, its long lines wrapped under themselves."""
    label(title)
    for line in str(plan).splitlines():
        hang = " " * (len(line) - len(line.lstrip()) + 5)
        console.print(Text(textwrap.fill(line, WIDTH - 2, initial_indent="  ", subsequent_indent=hang)))


def show_table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> None:
    """A small table: `texts` columns to the left, numbers to the right."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for position, name in enumerate(head):
        table.add_column(name, justify="left" if position < texts else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def committed(suite: str) -> SuiteResult:
    """A suite's committed run on an H200."""
    return read_results(RESULTS / f"{suite}.json")


def measured_on(results: SuiteResult) -> str:
    """Where and when a committed run was made."""
    run = results.runs[0]
    return f"Measured on an {run.chip.removeprefix('NVIDIA ')}, {(run.date or '')[:10]}, microseconds"


def has_triton() -> bool:
    """Whether kernels can be compiled here; says so where not."""
    found = importlib.util.find_spec("triton") is not None
    if not found:
        say("Triton is not installed (it is made for Linux): nothing is compiled here.", "yellow")
    return found

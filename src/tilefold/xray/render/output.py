"""Where commands put reports: files, the output, tables where rich is installed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tilefold.errors import ArgumentError
from tilefold.xray.check import failing
from tilefold.xray.render.words import place
from tilefold.xray.report.model import SCHEMA, Report


def write(path: str, text: str) -> None:
    """Text into a file, or to the output for "-"."""
    if path == "-":
        sys.stdout.write(text + "\n")
        return
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ArgumentError(
            f"xray: an output must be a file that can be written, got {path!r} ({error.strerror}); choose another"
        ) from None


def write_reports(path: str, reports: Iterable[Report]) -> None:
    """Reports as JSON into a file, or to the output for "-"."""
    document = {"schema": SCHEMA, "reports": [report.as_json() for report in reports]}
    write(path, json.dumps(document, indent=1))


def failures(reports: Iterable[Report], what: str) -> list[str]:
    """A line for each observation that a run is to fail for, as `check.failing` takes `what`."""
    return [
        f"xray: {found.severity} {found.code} at {place(found)}: {found.evidence}"
        for report in reports
        for found in failing(report, what)
    ]


def rich_is_here() -> bool:
    """Whether rich is installed."""
    import importlib.util

    return importlib.util.find_spec("rich") is not None


def show(reports: Sequence[Report], everything: bool) -> None:
    """As tables where rich is installed, else as lines."""
    if rich_is_here():
        from tilefold.xray.render.terminal import render_report

        print_all([render_report(report, everything=everything) for report in reports])
    else:
        from tilefold.xray.render.plain import report_text

        sys.stdout.write("\n".join(report_text(report, everything=everything) for report in reports))


def print_all(shown: Sequence[Any]) -> None:
    """Renderables of rich; 160 columns wide in a pipe or a file."""
    from rich.console import Console

    console = Console(soft_wrap=False)
    if not (console.is_terminal or "COLUMNS" in os.environ):
        console = Console(width=160)  # a pipe or a file
    for renderable in shown:
        console.print(renderable)

"""Where commands put reports: files, the output, tables where rich is installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilefold.errors import ArgumentError
from tilefold.xray.report.model import Report


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

"""Texts and tables that the pages of measured results share."""

from __future__ import annotations

import re

from tilefold.bench.plot_labels import shape_label
from tilefold.bench.results import Run, SuiteResult
from tilefold.bench.statistics import geometric_mean
from tilefold.bench.summary import OURS, SIZE_CLASSES, fractions, median_us, size_class

PEERS = {"torch": "torch", "compile": "torch.compile"}


def provenance(results: SuiteResult) -> str:
    """Chip, versions and day of the first run in the file."""
    run = results.runs[0]
    return f"{run.chip}, torch {run.torch}, Triton {run.triton}, {(run.date or '')[:10]}"


def command_text(run: Run) -> str:
    """The command that made a run, without where it left its output."""
    return re.sub(r" --out \S+", "", run.command or "")


def time_text(time_us: float | None) -> str:
    """Microseconds in two or three digits."""
    if time_us is None:
        return "-"
    return f"{time_us:.0f} us" if time_us >= 20 else f"{time_us:.1f} us"


def markdown(head: list[str], rows: list[list[str]], texts: int = 2) -> list[str]:
    """A table whose first `texts` columns are text and whose others are numbers."""
    rule = "|" + "---|" * texts + "---:|" * (len(head) - texts)
    return [f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)]


def limits_text(results: SuiteResult) -> str:
    """The limits that the runs measured."""
    said = []
    for run in results.runs:
        launches = ", ".join(f"{kind} {us:.2f} us" for kind, us in (run.empty_us or {}).items())
        said.append(
            f"`{command_text(run)}`: copy {run.copy_gb_per_s or 0:.0f} GB/s; empty launches {launches}."
        )
    return " ".join(said)


def classes(results: SuiteResult) -> list[str]:
    """The mean and the least of every dtype and size class."""
    rows = []
    cases = [case for case in results.cases if fractions([case])]
    for dtype in dict.fromkeys(case.dtype for case in cases):
        for name in SIZE_CLASSES:
            some = fractions([c for c in cases if c.dtype == dtype and size_class(c.floor_us) == name])
            if some:
                rows.append([dtype, name, str(len(some)), f"{geometric_mean(some):.3f}", f"{min(some):.3f}"])
    return markdown(["dtype", "bytes alone", "cells", "geometric mean", "least"], rows)


def farthest(results: SuiteResult, count: int = 25) -> list[str]:
    """The cells farthest from their limit."""
    cases = sorted((c for c in results.cases if fractions([c])), key=lambda case: fractions([case])[0])
    rows = [
        [
            f"{c.operation} dim {c.dim}",
            f"{shape_label(c)} {c.dtype}",
            f"{fractions([c])[0]:.3f}",
            time_text(median_us(c, OURS)),
        ]
        for c in cases[:count]
    ]
    return markdown(["fold", "shape", "of the limit", "time"], rows)

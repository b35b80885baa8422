"""A report as lines of text, where rich is not installed: the same words, without tables and colours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tilefold.xray.render import words
from tilefold.xray.render.summary import cell, changed_lines, differs, figures, summary
from tilefold.xray.report.model import Line, Observation, Report


def report_text(report: Report, *, everything: bool = False) -> str:
    """The whole report. `everything`: also notes with nothing to do."""
    lines = [report.kernel, words.launch(report), "  ".join((*report.arguments, *report.constants)), ""]
    lines += [f"{name:9s} {text}" for name, text in summary(report)]
    file = None
    for line in report.lines:
        if line.file != file:
            file = line.file
            lines += ["", Path(file).name if file else "without a line"]
        lines += _line(line, report)
    shown = [o for o in report.observations if everything or not o.quiet]
    lines += ["", *(part for found in shown for part in _observation(found))]
    lines += [] if shown else ["No observations."]
    lines += [] if everything else words.hidden(report)
    return "\n".join([*lines, *report.notes]) + "\n"


def _line(line: Line, report: Report) -> Iterator[str]:
    """The source, and under it who holds what, the work and the memory."""
    n = max(len(report.programs), 1)
    yield f"{line.line or '':>5}  {line.text or '(no line is known)'}"
    issued = "" if line.work is None else f", {words.count(line.work.issued / n)} issued by warps, a program"
    yield f"{'':9}{line.sass} instructions of the machine{issued}"
    for text in (*words.layouts(line.layouts), *(words.access(a, n) for a in line.accesses)):
        yield f"{'':9}{text}"
    for text in words.others(line, report):
        yield f"{'':9}{text}"


def _observation(found: Observation) -> Iterator[str]:
    """Its evidence, reason and change."""
    yield f"{found.severity}  {found.code}  {words.place(found)}"
    for name, text in words.observation(found):
        yield f"  {name:6s}{text}"
    yield ""


def diff_text(first: Report, second: Report) -> str:
    """Totals that both have, lines whose work differs, and observations that only one has."""
    lines = [
        text
        for name, report in (("A", first), ("B", second))
        for text in (
            f"{name}  {report.kernel}: {words.launch(report)}",
            f"   {'  '.join((*report.arguments, *report.constants))}",
        )
    ]
    lines = lines if differs(first, second) else ["Nothing differs.", *lines]
    left, right = figures(first), figures(second)
    for name in {**left, **right}:
        a, b = left.get(name), right.get(name)
        if a or b:
            ratio = f"{b / a:.2f}" if a and b is not None else ""
            lines.append(f"{name:26s} {cell(a):>12s} {cell(b):>12s} {ratio:>6s}")
    for number, source, a_said, b_said in changed_lines(first, second):
        lines.append(f"{number:>5}  {source}")
        for name, said in (("A", a_said), ("B", b_said)):
            lines.append(f"{'':7}{name}: {', '.join(said.splitlines())}")
    for name, mine, other in (("A", first, second), ("B", second, first)):
        unique = [found for found in mine.observations if found.code not in other.codes()]
        lines += [f"only {name}: {found.code}, line {found.line}: {found.evidence}" for found in unique]
    return "\n".join(lines) + "\n"

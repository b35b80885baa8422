"""Plots of results: latency by shape with one line a variant, one a group and one for the grid; bars of the fraction."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilefold.bench.results import CaseResult, SuiteResult
from tilefold.bench.summary import SIZE_CLASSES, fractions, median_us, size_class, timed
from tilefold.errors import BackendError

LINES = ("#1b6ca8", "#d1495b", "#66a182", "#edae49", "#8d6a9f", "#4f4f4f", "#00798c", "#b56576")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
FEW = 6  # variants whose names find room within a panel


def draw_plots(result: SuiteResult, folder: Path) -> list[Path]:
    """Write PNG files into `folder` (made where it is missing) and give their paths: SUITE-GROUP..., SUITE-grid, SUITE-limit.

    Cases of which nothing was timed are left out of the grid, and a group's panel if it has no others.

    Raises:
        BackendError: matplotlib is not installed.
    """
    figure_class = matplotlib_figure()
    folder.mkdir(parents=True, exist_ok=True)
    pages: dict[str, dict[str, list[CaseResult]]] = {}
    shown = {case.group for case in result.cases if _any_timed(case)}
    for case in (case for case in result.cases if case.group in shown):
        page, _, panel = case.group.partition(", ")
        pages.setdefault(page, {}).setdefault(panel, []).append(case)
    paths = [
        _saved(draw_latency(figure_class, result, panels, page), folder, f"{result.suite}-{page}")
        for page, panels in pages.items()
    ]
    paths.append(_saved(draw_grid(figure_class, result), folder, f"{result.suite}-grid"))
    if any(fractions([case], variant) for case in result.cases for variant in result.variants):
        paths.append(_saved(draw_fractions(figure_class, result), folder, f"{result.suite}-limit"))
    return paths


def _any_timed(case: CaseResult) -> bool:
    return any(timed(case, row.variant) for row in case.measurements)


def matplotlib_figure() -> Any:
    """Matplotlib's Figure, used without pyplot: no window, no global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise BackendError(
            "bench plot: plots need matplotlib, got none; pip install 'tilefold[bench]', or plot the JSON elsewhere"
        ) from None
    return Figure


def _saved(figure: Any, folder: Path, name: str) -> Path:
    path = folder / file_name(name)
    figure.savefig(path, dpi=80, metadata={"Software": None})
    return path


def file_name(name: str) -> str:
    """A plot's file: small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-") + ".png"


def style_of(variants: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A colour and a mark a variant, the same in every plot of a suite; ours is drawn widest, and those beyond the colours
    with dots between their marks, or stripes on their bars.
    """
    return {
        name: {
            "color": LINES[i % len(LINES)],
            "marker": MARKS[i % len(MARKS)],
            "linestyle": ":" if i >= len(LINES) else "-",
            "linewidth": 2.4 if name == "ours" else 1.3,
            "markersize": 5,
            "zorder": 3 if name == "ours" else 2,
        }
        for i, name in enumerate(variants)
    }


def draw_latency(
    figure_class: Any, result: SuiteResult, panels: dict[str, list[CaseResult]], title: str
) -> Any:
    """Microseconds by shape, a panel for each part of a group; quartiles shaded, the limit dashed."""
    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    figure = figure_class(figsize=(6.4 * columns, 4.2 * rows), layout="constrained")
    figure.suptitle(f"{result.suite}: {title}, {_chips(result)}")
    for number, (panel, unsorted) in enumerate(panels.items(), 1):
        cases = sorted(unsorted, key=lambda case: (case.floor_us, case.shape[0], case.name))
        axes = figure.add_subplot(rows, columns, number)
        axes.set_title(panel, fontsize=10)
        _draw_lines(axes, result, cases)
        axes.set_xticks(range(len(cases)), labels_of(cases), rotation=40, ha="right")
        axes.set_xlabel("shape (elements)" if len({case.shape for case in cases}) > 1 else "case")
    _name_lines(figure)
    return figure


def labels_of(cases: Sequence[CaseResult]) -> list[str]:
    """What tells cases apart: operation, shape, dim, dtype, as far as they differ in it; the shape where in nothing else."""
    parts: list[tuple[str, ...]] = [
        (case.operation, shape_label(case), f"dim {case.dim}", case.dtype) for case in cases
    ]
    differ = [len(set(column)) > 1 for column in zip(*parts, strict=True)]
    differ[1] = differ[1] or not any(differ)
    return [", ".join(part for part, shown in zip(row, differ, strict=True) if shown) for row in parts]


def draw_grid(figure_class: Any, result: SuiteResult) -> Any:
    """Every case, sorted by the bytes it must move."""
    cases = sorted(filter(_any_timed, result.cases), key=lambda case: (case.floor_us, case.name))
    figure = figure_class(figsize=(12.8, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(f"{result.suite}: {len(cases)} cases, {_chips(result)}")
    _draw_lines(axes, result, cases, marks=len(cases) <= 40)
    axes.set_xlabel("case, by the bytes it must move")
    if len(cases) <= 40:
        axes.set_xticks(range(len(cases)), labels_of(cases), rotation=60, ha="right", fontsize=7)
    _name_lines(figure)
    return figure


def _name_lines(figure: Any) -> None:
    """Names within each panel; many of them once, beside the panels."""
    named = [(axes, *axes.get_legend_handles_labels()) for axes in figure.axes]
    most = max(named, key=lambda entry: len(entry[2]))
    if len(most[2]) > FEW + 1:
        width, height = figure.get_size_inches()
        figure.set_size_inches(width + 2.2, height)
        figure.legend(*most[1:], fontsize=8, loc="outside right upper")
        return
    for axes, _, names in named:
        if names:
            axes.legend(fontsize=8)


def _draw_lines(axes: Any, result: SuiteResult, cases: Sequence[CaseResult], marks: bool = True) -> None:
    host = result.suite == "host"
    for name, style in style_of(result.variants).items():
        points = [(i, median_us(case, name)) for i, case in enumerate(cases)]
        if host:
            points = [(i, m.host_us if (m := timed(case, name)) else None) for i, case in enumerate(cases)]
        if all(value is None for _, value in points):
            continue
        # A case without a time is a hole in the line.
        drawn = [(i, math.nan if value is None else value) for i, value in points]
        look = style | ({} if marks else {"marker": None, "linewidth": 2.0 if name == "ours" else 0.7})
        axes.plot(*zip(*drawn, strict=True), label=name, **look)
        if not host:
            _shade(axes, cases, name, style["color"])
    limits = [(i, m.limit_us) for i, case in enumerate(cases) if (m := timed(case)) and m.limit_us]
    if limits and not host:
        axes.plot(*zip(*limits, strict=True), "--", color="black", linewidth=1, label="limit of ours")
    axes.set_yscale("log")
    _plain_ticks(axes)
    axes.set_ylabel("host time a call (us)" if host else "time a call, median (us)")
    axes.grid(True, axis="y", which="major", alpha=0.3)


def _plain_ticks(axes: Any) -> None:
    """1, 2, 5, 10 ... in place of powers: a panel often spans less than one."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _shade(axes: Any, cases: Sequence[CaseResult], variant: str, color: str) -> None:
    """Between the quartiles."""
    spreads = [(i, m.time_us) for i, case in enumerate(cases) if (m := timed(case, variant)) and m.time_us]
    known = [(i, s.q1_us, s.q3_us) for i, s in spreads if s.q1_us is not None and s.q3_us is not None]
    places, low, high = ([entry[n] for entry in known] for n in range(3))
    axes.fill_between(places, low, high, color=color, alpha=0.15, linewidth=0)


def draw_fractions(figure_class: Any, result: SuiteResult) -> Any:
    """Bars of limit over time: the geometric mean of each dtype and size class, or each case where there are few."""
    from tilefold.bench.statistics import geometric_mean

    groups = _bar_groups(result)
    variants = [v for v in result.variants if fractions(result.cases, v)]
    across = len(groups) * max(0.75, 0.22 * len(variants))
    figure = figure_class(figsize=(max(7.0, across + 3), 4.6), layout="constrained")
    axes = figure.add_subplot()
    width, styles = 0.8 / max(len(variants), 1), style_of(result.variants)
    for number, name in enumerate(variants):
        heights = [geometric_mean(fractions(cases, name)) for cases in groups.values()]
        places = [i + (number - (len(variants) - 1) / 2) * width for i in range(len(groups))]
        style = styles[name]
        stripes = {"hatch": "////", "edgecolor": "white", "linewidth": 0} if style["linestyle"] == ":" else {}
        axes.bar(
            places, [0 if h != h else h for h in heights], width, color=style["color"], label=name, **stripes
        )
    axes.axhline(1, color="black", linewidth=1, linestyle="--")
    axes.set_xticks(range(len(groups)), list(groups), rotation=30, ha="right", fontsize=8)
    axes.set_ylabel("fraction of the limit (1 = perfect)")
    axes.set_xlabel("dtype, time of the bytes alone (cases)" if len(result.cases) > 16 else "input")
    axes.set_title(f"{result.suite}: limit / time, {_chips(result)}")
    figure.legend(*axes.get_legend_handles_labels(), fontsize=8, loc="outside right upper")
    return figure


def _bar_groups(result: SuiteResult) -> dict[str, list[CaseResult]]:
    if len(result.cases) <= 16:
        return {label: [case] for label, case in zip(labels_of(result.cases), result.cases, strict=True)}
    groups: dict[str, list[CaseResult]] = {}
    for dtype in dict.fromkeys(case.dtype for case in result.cases):
        for name in SIZE_CLASSES:
            some = [c for c in result.cases if c.dtype == dtype and size_class(c.floor_us) == name]
            if some:
                groups[f"{dtype}, {name} ({len(some)})"] = some
    return groups


def shape_label(case: CaseResult) -> str:
    """A shape whose long axes are powers of two reads better with them as such."""
    return "x".join(
        f"2^{n.bit_length() - 1}" if n >= 1 << 20 and n & (n - 1) == 0 else str(n) for n in case.shape
    )


def _chips(result: SuiteResult) -> str:
    return ", ".join(dict.fromkeys(run.chip for run in result.runs))

"""Points in rows. Few variants: a row a case and a colour a variant. Many: a row a variant and a shade a case."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilefold.bench.plot_labels import (
    by_size,
    labels_of,
    name_of,
    provenance,
    style_of,
    time_label,
    timed_variants,
)
from tilefold.bench.results import CaseResult, SuiteResult
from tilefold.bench.summary import SKINNY, figure, fractions, median_us

FEW = 4  # variants whose points can be told apart within a row
ROW = 0.26  # inches


@dataclass(frozen=True)
class Measure:
    """A plot's point of a case and a variant: a number, and its words."""

    of: Callable[[CaseResult, str], float | None]
    axis: str
    title: str
    fraction: bool = False


FRACTION = Measure(
    functools.partial(figure, "fraction"),
    "speed, as a fraction of the memory limit (1 = a copy's)",
    "fraction of the memory limit",
    True,
)
TIME = Measure(median_us, "median time of a call (us), cold L2", "time of a call")
HOST = Measure(
    functools.partial(figure, "host_us"), "time until a call returns (us)", "the host's time of a call"
)


def measure_of(result: SuiteResult) -> Measure:
    """The measure of a suite: the host's time, the time of a product, else the fraction of the limit where it is known."""
    if result.suite == "host":
        return HOST
    known = any(fractions(result.cases, variant) for variant in result.variants)
    return TIME if result.suite in SKINNY or not known else FRACTION


def draw_points(
    figure_class: Any, result: SuiteResult, panels: Mapping[str, Sequence[CaseResult]], title: str
) -> Any:
    """A panel for each part of a group, two in a row."""
    measure = measure_of(result)
    cases = [case for some in panels.values() for case in some]
    variants = timed_variants(result, cases)
    by_case = len(variants) <= FEW
    most = max(map(len, panels.values())) if by_case else len(variants)
    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    width = (6.2 if by_case else 7.4) * columns + (0 if columns > 1 else 1.5)
    figure = figure_class(figsize=(width, rows * (ROW * most + 1.3) + 0.9), layout="constrained")
    better = "right is better" if measure.fraction else "left is better"
    about = result.suite if title == result.suite else f"{result.suite}, {title}"
    figure.suptitle(f"{about}: {measure.title} ({better})\n{provenance(result)}", fontsize=11)
    for number, (panel, some) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(rows, columns, number)
        axes.set_title(panel, fontsize=10)
        draw = _rows_of_cases if by_case else _rows_of_variants
        draw(axes, result, by_size(some), measure)
        _finish(axes, measure)
    widest = max(axes.get_xlim()[1] for axes in figure.axes)
    for axes in figure.axes:
        axes.set_xlim(0, widest)
    # Once for all panels: the panel that shows most names.
    named = max((axes.get_legend_handles_labels() for axes in figure.axes), key=lambda entry: len(entry[1]))
    columns = legend_columns(width, named[1])
    figure.legend(*named, loc="outside lower center", ncols=columns, fontsize=9, frameon=False)
    return figure


def legend_columns(inches: float, labels: Sequence[str]) -> int:
    """How many names of nine points lie side by side in a figure so wide: a character takes a twelfth of an inch at most."""
    each = max(map(len, labels), default=0) / 12 + 0.6  # and its mark
    return max(1, min(len(labels), int(inches / each)))


def _rows_of_cases(axes: Any, result: SuiteResult, cases: Sequence[CaseResult], measure: Measure) -> None:
    """The largest input at the top; tilefold's time stands at the right."""
    for place, case in enumerate(cases):
        values = [value for variant in result.variants if (value := measure.of(case, variant))]
        if values:
            axes.plot([min(values), max(values)], [place, place], color="#cccccc", linewidth=1.5, zorder=1)
    for variant, style in style_of(result.variants).items():
        points = [(value, i) for i, case in enumerate(cases) if (value := measure.of(case, variant))]
        if points:
            size = 52 if variant == "ours" else 34
            axes.scatter(*zip(*points, strict=True), s=size, label=name_of(variant, result.suite), **style)
    axes.set_yticks(range(len(cases)), labels_of(cases), fontsize=9)
    axes.set_ylim(-0.6, len(cases) - 0.4)
    _times(axes, cases, measure)


def _times(axes: Any, cases: Sequence[CaseResult], measure: Measure) -> None:
    """Tilefold's times at the right of each row, where the axis shows something else."""
    if not measure.fraction:
        return
    times = [median_us(case, "ours") for case in cases]
    right = axes.twinx()
    right.set_ylim(axes.get_ylim())
    right.set_yticks(range(len(cases)), [time_label(t) if t else "" for t in times], fontsize=8)
    right.tick_params(length=0, colors="#0072B2")
    right.set_ylabel("tilefold's time", fontsize=8, color="#0072B2", labelpad=6)
    for side in ("top", "right", "left"):
        right.spines[side].set_visible(False)


def _rows_of_variants(axes: Any, result: SuiteResult, cases: Sequence[CaseResult], measure: Measure) -> None:
    """Tilefold at the top, a row a variant; the darker a point, the larger the input."""
    from matplotlib import colormaps

    variants = timed_variants(result, cases)[::-1]
    shades = colormaps["viridis_r"]
    for number, (case, label) in enumerate(zip(cases, labels_of(cases), strict=True)):
        points = [(value, i) for i, variant in enumerate(variants) if (value := measure.of(case, variant))]
        if points:
            colour = shades(0.08 + 0.92 * number / max(len(cases) - 1, 1))
            axes.scatter(*zip(*points, strict=True), s=36, color=colour, label=label, zorder=3)
    axes.set_yticks(range(len(variants)), [name_of(v, result.suite) for v in variants], fontsize=9)
    axes.set_ylim(-0.6, len(variants) - 0.4)
    for label, variant in zip(axes.get_yticklabels(), variants, strict=True):
        label.set_fontweight("bold" if variant == "ours" else "normal")


def _finish(axes: Any, measure: Measure) -> None:
    """From 0 on, with lines to read values by, and the limit where the axis is a fraction of it."""
    axes.set_xlim(left=0)
    if measure.fraction:
        axes.set_xlim(0, max(1.05, axes.get_xlim()[1]))
        axes.axvline(1, color="black", linewidth=1, linestyle="--", zorder=2)
    axes.set_xlabel(measure.axis, fontsize=9)
    axes.grid(True, axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)


def draw_problems(figure_class: Any, result: SuiteResult) -> Any:
    """A point a problem and variant: the fraction of the limit by the bytes that must move, a panel a dtype."""
    dtypes = list(dict.fromkeys(case.dtype for case in result.cases if timed_variants(result, [case])))
    columns = min(len(dtypes), 2)
    rows = -(-len(dtypes) // columns)
    figure = figure_class(figsize=(6.2 * columns, 3.6 * rows + 0.8), layout="constrained")
    figure.suptitle(
        f"{result.suite}: each problem's fraction of the memory limit (up is better)\n{provenance(result)}",
        fontsize=11,
    )
    for number, dtype in enumerate(dtypes, 1):
        axes = figure.add_subplot(rows, columns, number)
        cases = [case for case in result.cases if case.dtype == dtype and timed_variants(result, [case])]
        axes.set_title(f"{dtype}, {len(cases)} problems", fontsize=10)
        for variant, style in style_of(result.variants).items():
            found = [(case.compulsory_bytes / 1e6, FRACTION.of(case, variant)) for case in cases]
            points = [(size, share) for size, share in found if share]
            if points:
                axes.scatter(
                    *zip(*points, strict=True), s=26, alpha=0.8, label=name_of(variant, result.suite), **style
                )
        axes.axhline(1, color="black", linewidth=1, linestyle="--")
        axes.set_xscale("log")
        plain_ticks(axes.xaxis)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("bytes that must move (MB)", fontsize=9)
        axes.set_ylabel("fraction of the limit", fontsize=9)
        axes.grid(True, alpha=0.3)
    named = figure.axes[0].get_legend_handles_labels()
    figure.legend(*named, loc="outside lower center", ncols=6, fontsize=9, frameon=False)
    return figure


def plain_ticks(axis: Any) -> None:
    """1, 2, 5, 10 ... in place of powers: a panel often spans less than one."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())

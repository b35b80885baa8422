"""Maps of numbers: every case of a suite at once, its number in each cell; and bars of means."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilefold.bench.plot_labels import (
    NAMES,
    by_size,
    dims_label,
    labels_of,
    name_of,
    provenance,
    shape_label,
    style_of,
    timed_variants,
)
from tilefold.bench.plot_points import HOST, draw_points, measure_of
from tilefold.bench.results import CaseResult, SuiteResult
from tilefold.bench.statistics import geometric_mean
from tilefold.bench.summary import OURS, SIZE_CLASSES, SKINNY, fractions, median_us, over_the_best, size_class

Cells = list[list[float | None]]
FEW = 4  # variants whose bars stand side by side
EVEN = "#f7f7f7"


def draw_grid(figure_class: Any, result: SuiteResult) -> Any:
    """Every case that was timed: of few variants tilefold's share of the limit and its speed beside the best other one (as
    points where operations share no shapes), of many each one's time over tilefold's.
    """
    cases = [case for case in result.cases if timed_variants(result, [case])]
    if len(timed_variants(result, cases)) > FEW:
        return _by_variant(figure_class, result, cases)
    if groups := [] if measure_of(result) is HOST else _grids(cases):
        return _by_operation(figure_class, result, groups)
    panels: dict[str, list[CaseResult]] = {}
    for case in cases:
        panels.setdefault(case.dtype, []).append(case)
    return draw_points(figure_class, result, panels, "all")


def _by_operation(figure_class: Any, result: SuiteResult, groups: Sequence[Sequence[CaseResult]]) -> Any:
    """A row an operation, a column a shape and dims; for each dtype a map of fractions and one of speeds beside others."""
    others = [variant for variant in result.variants if variant != OURS]
    measures: list[tuple[str, Callable[[CaseResult], float | None]]] = [
        ("tilefold's fraction of the memory limit", lambda case: next(iter(fractions([case])), None))
    ]
    if others:
        words = "time of the fastest other over tilefold's (above 1: tilefold is faster)"
        measures.append((words, lambda case: _over(1.0, over_the_best(case, others))))
    heights = [len({case.operation for case in group}) for group in groups for _ in measures]
    widest = max(len({_column(case) for case in group}) for group in groups)
    figure = figure_class(
        figsize=(
            max(9.0, 0.47 * widest + 2.2),
            0.26 * sum(heights) + 0.8 * len(heights) + 1.1 * len(groups) + 0.7,
        ),
        layout="constrained",
    )
    figure.suptitle(f"{result.suite}: {sum(map(len, groups))} cases\n{provenance(result)}", fontsize=11)
    places = iter(figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0])
    for group in groups:
        there = {case.operation for case in group}
        rows = [name for name in dict.fromkeys(case.operation for case in result.cases) if name in there]
        columns = list(dict.fromkeys(map(_column, by_size(group))))
        for words, of in measures:
            axes, last = next(places), words == measures[-1][0]
            found = {(case.operation, _column(case)): of(case) for case in group}
            cells: Cells = [[found.get((row, column)) for column in columns] for row in rows]
            _draw_map(axes, cells, rows, columns if last else [""] * len(columns), ratio="over" in words)
            axes.set_title(f"{group[0].dtype}: {words}", fontsize=10)
    return figure


def _column(case: CaseResult) -> str:
    return f"{shape_label(case)}, dim {dims_label(case)}"


def _grids(cases: Sequence[CaseResult]) -> list[list[CaseResult]]:
    """Cases that share a map: of one dtype and of operations over the same shapes. One operation alone has its own plot."""
    shapes: dict[tuple[str, str], set[tuple[int, ...]]] = {}
    for case in cases:
        shapes.setdefault((case.dtype, case.operation), set()).add(case.shape)
    groups: dict[tuple[str, frozenset[tuple[int, ...]]], list[CaseResult]] = {}
    for case in cases:
        key = (case.dtype, frozenset(shapes[case.dtype, case.operation]))
        groups.setdefault(key, []).append(case)
    return [group for group in groups.values() if len({case.operation for case in group}) > 1]


def _by_variant(figure_class: Any, result: SuiteResult, cases: Sequence[CaseResult]) -> Any:
    """A row a variant, a column a case, a map for each operation and dtype: times over tilefold's."""
    kinds: dict[str, list[CaseResult]] = {}
    for case in cases:
        kinds.setdefault(_kind(case, cases), []).append(case)
    names = timed_variants(result, cases)
    rows = [sum(1 for v in names if timed_variants(result, some).count(v)) for some in kinds.values()]
    widest = max(map(len, kinds.values()))
    figure = figure_class(
        figsize=(max(9.0, 0.36 * widest + 4), 0.25 * sum(rows) + 1.75 * len(kinds) + 0.8),
        layout="constrained",
    )
    figure.suptitle(
        f"{result.suite}: time over tilefold's (above 1: tilefold is faster)\n{provenance(result)}",
        fontsize=11,
    )
    for axes, (kind, some) in zip(
        figure.subplots(len(kinds), 1, squeeze=False, height_ratios=[r + 5 for r in rows])[:, 0],
        kinds.items(),
        strict=True,
    ):
        ordered = sorted(some, key=lambda case: (case.shape, case.dims))
        variants = [v for v in timed_variants(result, some) if v != OURS]
        cells: Cells = [
            [_over(median_us(case, v), median_us(case, OURS)) for case in ordered] for v in variants
        ]
        _draw_map(axes, cells, [name_of(v, result.suite) for v in variants], labels_of(ordered), ratio=True)
        axes.set_title(kind, fontsize=10)
        if any("x" in label for label in labels_of(ordered)) and result.suite in SKINNY:
            axes.set_xlabel("M x N x K", fontsize=9)
    return figure


def _kind(case: CaseResult, cases: Sequence[CaseResult]) -> str:
    """Operation and dtype, as far as the cases differ in them."""
    several = [len({c.operation for c in cases}) in range(2, 5), len({c.dtype for c in cases}) > 1]
    return ", ".join(part for part, shown in zip((case.operation, case.dtype), several, strict=True) if shown)


def _over(theirs: float | None, ours: float | None) -> float | None:
    return theirs / ours if theirs and ours else None


def _draw_map(axes: Any, cells: Cells, rows: Sequence[str], columns: Sequence[str], ratio: bool) -> None:
    """A number a cell. Ratios are red below 1 and blue above; fractions darken towards 1."""
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm, Normalize

    norm = LogNorm(1 / 3, 3, clip=True) if ratio else Normalize(0.3, 1.0, clip=True)
    colours = colormaps["RdBu" if ratio else "YlGnBu"].with_extremes(bad=EVEN)
    values = [[math.nan if value is None else value for value in row] for row in cells]
    axes.imshow(values, aspect="auto", cmap=colours, norm=norm, interpolation="nearest")
    for i, row in enumerate(cells):
        for j, value in enumerate(row):
            if value is not None:
                dark = abs(norm(value) - 0.5) > 0.27 if ratio else norm(value) > 0.6
                text = _cell_text(value, ratio)
                axes.text(
                    j, i, text, ha="center", va="center", fontsize=7.5, color="white" if dark else "black"
                )
    upright = any("\n" in column for column in columns)
    slope = {} if upright else {"rotation": 55, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(range(len(columns)), columns, fontsize=8, **slope)
    axes.set_yticks(range(len(rows)), rows, fontsize=9)
    for label in axes.get_yticklabels():
        label.set_fontweight("bold" if label.get_text() == NAMES[OURS] else "normal")
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _cell_text(value: float, ratio: bool) -> str:
    return f"{value:.2f}" if not ratio or value < 9.95 else f"{value:.0f}"


def draw_fractions(figure_class: Any, result: SuiteResult) -> Any:
    """Limit over time: the geometric mean of each dtype and size class, or each case where there are few."""
    groups = _groups(result)
    variants = [v for v in result.variants if fractions(result.cases, v)]
    means = {v: {label: _mean(fractions(cases, v)) for label, cases in groups.items()} for v in variants}
    title = f"{result.suite}: fraction of the memory limit (1 = a copy's speed)\n{provenance(result)}"
    if len(variants) > FEW:
        figure = figure_class(
            figsize=(max(8.0, 0.55 * len(groups) + 4), 0.28 * len(variants) + 2.6), layout="constrained"
        )
        cells = [list(means[v].values()) for v in variants]
        _draw_map(
            figure.add_subplot(),
            cells,
            [name_of(v, result.suite) for v in variants],
            list(groups),
            ratio=False,
        )
        figure.suptitle(title, fontsize=11)
        return figure
    figure = figure_class(figsize=(max(7.5, 0.95 * len(groups) + 2), 4.4), layout="constrained")
    figure.suptitle(title, fontsize=11)
    _draw_bars(figure.add_subplot(), means, list(groups), result.suite)
    figure.legend(loc="outside lower center", ncols=len(variants), fontsize=9, frameon=False)
    return figure


def _mean(shares: Sequence[float]) -> float | None:
    return geometric_mean(shares) if shares else None


def _draw_bars(
    axes: Any, means: Mapping[str, Mapping[str, float | None]], labels: Sequence[str], suite: str
) -> None:
    """Bars side by side, each with its number."""
    width = 0.84 / max(len(means), 1)
    for number, (variant, found) in enumerate(means.items()):
        places = [i + (number - (len(means) - 1) / 2) * width for i in range(len(labels))]
        heights = [found[label] or 0.0 for label in labels]
        colour = style_of(list(means))[variant]["color"]
        bars = axes.bar(places, heights, width * 0.94, color=colour, label=name_of(variant, suite))
        axes.bar_label(bars, [f"{h:.2f}" if h else "" for h in heights], fontsize=7.5, padding=1)
    axes.axhline(1, color="#999999", linewidth=1, linestyle="--", zorder=0)
    axes.set_xticks(range(len(labels)), labels, fontsize=9, rotation=0 if "\n" in labels[0] else 30)
    axes.set_ylabel("fraction of the limit", fontsize=9)
    if "\n" in labels[0]:
        text = "dtype, and the time that the bytes alone would take (number of cases; a peer's bar: those that it ran)"
        axes.set_xlabel(text, fontsize=9)
    axes.set_ylim(0, max(1.1, 1.06 * max((h or 0 for of in means.values() for h in of.values()), default=1)))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _groups(result: SuiteResult) -> dict[str, list[CaseResult]]:
    if len(result.cases) <= 16:
        return {label: [case] for label, case in zip(labels_of(result.cases), result.cases, strict=True)}
    groups: dict[str, list[CaseResult]] = {}
    cases = [case for case in result.cases if timed_variants(result, [case])]
    for dtype in dict.fromkeys(case.dtype for case in cases):
        for name in SIZE_CLASSES:
            some = [c for c in cases if c.dtype == dtype and size_class(c.floor_us) == name]
            if some:
                groups[f"{dtype}\n{name}\n({len(some)})"] = some
    return groups

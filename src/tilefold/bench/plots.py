"""Plots of results as PNG files: which there are, and where they go."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tilefold.bench.plot_labels import timed_variants
from tilefold.bench.results import CaseResult, SuiteResult
from tilefold.bench.summary import DRAWN, fractions
from tilefold.errors import BackendError

DOTS_PER_INCH = 90


def draw_plots(result: SuiteResult, folder: Path) -> list[Path]:
    """Write PNG files into `folder` (made where it is missing) and give their paths: SUITE-GROUP..., SUITE-grid, SUITE-limit;
    of random problems SUITE-problems and SUITE-limit.

    Cases of which nothing was timed are left out, and a group's panel if it has no others.

    Raises:
        BackendError: matplotlib is not installed.
    """
    figure_class = matplotlib_figure()
    from tilefold.bench.plot_maps import draw_fractions, draw_grid
    from tilefold.bench.plot_points import draw_points, draw_problems

    folder.mkdir(parents=True, exist_ok=True)
    if result.suite in DRAWN:
        paths = [_saved(draw_problems(figure_class, result), folder, f"{result.suite}-problems")]
    else:
        paths = [
            _saved(draw_points(figure_class, result, panels, page), folder, f"{result.suite}-{page}")
            for page, panels in pages_of(result).items()
        ]
        paths.append(_saved(draw_grid(figure_class, result), folder, f"{result.suite}-grid"))
    if any(fractions([case], variant) for case in result.cases for variant in result.variants):
        paths.append(_saved(draw_fractions(figure_class, result), folder, f"{result.suite}-limit"))
    return paths


def pages_of(result: SuiteResult) -> dict[str, dict[str, list[CaseResult]]]:
    """The cases by page and panel: a group "sum, dim 1, bf16" is the panel "dim 1, bf16" of the page "sum"."""
    pages: dict[str, dict[str, list[CaseResult]]] = {}
    for case in result.cases:
        if timed_variants(result, [case]):
            page, _, panel = case.group.partition(", ")
            pages.setdefault(page, {}).setdefault(panel, []).append(case)
    return pages


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
    figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Software": None})
    return path


def file_name(name: str) -> str:
    """A plot's file: small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-") + ".png"

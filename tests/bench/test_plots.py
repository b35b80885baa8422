"""Plots: the files are there, and every axis says what it shows and in what unit."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from made import case_result, measurement, suite_result

from tilefold.bench import plots
from tilefold.bench.results import CaseResult, Measurement, read_results
from tilefold.errors import BackendError

ROOT = Path(__file__).parents[2]
CASES = tuple(
    case_result(measurement(10.0 * n), measurement(30.0 * n, "torch"), shape=(n, 8), dtype=dtype)
    for n in (1, 2, 4)
    for dtype in ("bf16", "fp32")
)
RESULT = suite_result(*CASES)


def figure() -> type:
    return plots.matplotlib_figure()


def test_a_plot_a_group_one_for_the_grid_and_bars(tmp_path: Path) -> None:
    paths = plots.draw_plots(RESULT, tmp_path / "new")
    assert [path.name for path in paths] == ["folds-sum.png", "folds-grid.png", "folds-limit.png"]
    assert all(path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000 for path in paths)


def panels() -> dict[str, list[CaseResult]]:
    return {dtype: [case for case in CASES if case.dtype == dtype] for dtype in ("bf16", "fp32")}


def test_latency_has_a_line_a_variant_and_labelled_axes() -> None:
    drawn = plots.draw_latency(figure(), RESULT, panels(), "sum")
    assert len(drawn.axes) == 2
    for axes in drawn.axes:
        assert axes.get_ylabel() == "time a call, median (us)"
        assert axes.get_xlabel() == "shape (elements)"
        assert [text.get_text() for text in axes.get_legend().get_texts()] == [
            "ours",
            "torch",
            "limit of ours",
        ]
        assert [text.get_text() for text in axes.get_xticklabels()] == ["1x8", "2x8", "4x8"]
        assert axes.lines[0].get_ydata().tolist() == [10.0, 20.0, 40.0]
    assert "NVIDIA X" in drawn.get_suptitle()


def test_a_case_without_a_time_is_a_hole_in_the_line() -> None:
    wrong = Measurement("torch", "wrong", "3 of 4 elements differ")
    rows = [measurement(30.0, "torch"), wrong, measurement(50.0, "torch")]
    cases = [case_result(measurement(10.0), row, shape=(n, 8)) for n, row in enumerate(rows, 1)]
    axes = plots.draw_latency(figure(), suite_result(*cases), {"bf16": cases}, "sum").axes[0]
    assert str(axes.lines[1].get_ydata().tolist()) == "[30.0, nan, 50.0]"


def test_grid_and_bars_have_labelled_axes() -> None:
    grid = plots.draw_grid(figure(), RESULT).axes[0]
    assert grid.get_ylabel() == "time a call, median (us)"
    assert grid.get_xlabel() == "case, by the bytes it must move"
    bars = plots.draw_fractions(figure(), RESULT).axes[0]
    assert bars.get_ylabel() == "fraction of the limit (1 = perfect)"
    assert bars.get_xlabel()
    assert [round(bar.get_height(), 2) for bar in bars.patches] == [0.98] * 12


def test_bars_of_many_cases_are_means_by_size() -> None:
    many = suite_result(*(case_result(measurement(10.0), shape=(n, 8)) for n in range(1, 20)))
    labels = [t.get_text() for t in plots.draw_fractions(figure(), many).axes[0].get_xticklabels()]
    assert labels == ["bf16, >= 30 us (19)"]


def test_host_costs_are_drawn_as_such() -> None:
    axes = plots.draw_latency(figure(), suite_result(*CASES, suite="host"), panels(), "dim 1").axes[0]
    assert axes.get_ylabel() == "host time a call (us)"
    assert axes.lines[0].get_ydata().tolist() == [9.0, 9.0, 9.0]


def test_without_matplotlib_one_line_names_the_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(BackendError, match=r"pip install 'tilefold\[bench\]'"):
        plots.draw_plots(RESULT, tmp_path)


def test_the_docs_hold_the_plots_of_the_committed_results() -> None:
    drawn = {path.name for path in (ROOT / "docs" / "plots").glob("*.png")}
    for path in (ROOT / "benchmarks" / "results" / "h200").glob("*.json"):
        result = read_results(path)
        pages = {case.group.partition(", ")[0] for case in result.cases}
        assert {plots.file_name(f"{result.suite}-{page}") for page in (*pages, "grid")} <= drawn


def test_cases_are_told_apart_by_what_differs() -> None:
    of_one_shape = [replace(CASES[0], operation=name) for name in ("sum", "amax")]
    assert plots.labels_of(of_one_shape) == ["sum", "amax"]
    assert plots.labels_of(CASES[:2]) == ["bf16", "fp32"]
    assert plots.labels_of(CASES[:1]) == ["1x8"]
    bars = plots.draw_fractions(figure(), suite_result(*of_one_shape)).axes[0]
    assert [text.get_text() for text in bars.get_xticklabels()] == ["sum", "amax"]

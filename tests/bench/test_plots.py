"""Plots: the files are there, every axis says what it shows and in what unit, and names are those that users know."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from made import RUN, case_result, measurement, suite_result

from tilefold.bench import plots
from tilefold.bench.peers import known_peers
from tilefold.bench.plot_labels import labels_of, name_of, provenance, style_of, time_label
from tilefold.bench.plot_maps import draw_fractions, draw_grid
from tilefold.bench.plot_points import draw_points, draw_problems, legend_columns
from tilefold.bench.results import CaseResult, Measurement, read_results
from tilefold.bench.suites import load_suite, suite_names
from tilefold.bench.summary import DRAWN
from tilefold.errors import BackendError

ROOT = Path(__file__).parents[2]
FRACTION = "speed, as a fraction of the memory limit (1 = a copy's)"
CASES = tuple(
    case_result(
        measurement(10.0 * n), measurement(30.0 * n, "torch", fraction=0.4), shape=(n, 8), dtype=dtype
    )
    for n in (1, 2, 4)
    for dtype in ("bf16", "fp32")
)
RESULT = suite_result(*CASES)
MANY = ("ours", "torch", "compile", "bmm", "serial reducer", "vector reducer")
PRODUCTS = tuple(
    replace(
        case_result(*(measurement(10.0 + n, name) for n, name in enumerate(MANY)), shape=(16, 16, depth)),
        operation="matmul", dim=None, group="M = N = 16, bf16",
    )
    for depth in (8192, 16384, 32768)
)  # fmt: skip


def figure() -> type:
    return plots.matplotlib_figure()


def texts(labels: object) -> list[str]:
    return [label.get_text() for label in labels]  # type: ignore[attr-defined]  # matplotlib's


def panels() -> dict[str, list[CaseResult]]:
    return {dtype: [case for case in CASES if case.dtype == dtype] for dtype in ("bf16", "fp32")}


def test_a_plot_a_group_one_for_the_grid_and_bars(tmp_path: Path) -> None:
    paths = plots.draw_plots(RESULT, tmp_path / "new")
    assert [path.name for path in paths] == ["folds-sum.png", "folds-grid.png", "folds-limit.png"]
    assert all(path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000 for path in paths)


def test_a_row_a_shape_and_a_point_a_variant() -> None:
    drawn = draw_points(figure(), RESULT, panels(), "sum")
    shown = [axes for axes in drawn.axes if axes.get_xlabel()]
    assert len(shown) == 2
    for axes in shown:
        assert axes.get_xlabel() == FRACTION
        assert texts(axes.get_yticklabels()) == ["1x8", "2x8", "4x8"]
        assert axes.get_xlim() == (0, shown[0].get_xlim()[1]), "lengths are seen from 0, by one scale"
        ours, theirs = axes.collections
        assert ours.get_offsets().tolist() == [[0.98, 0.0], [0.98, 1.0], [0.98, 2.0]]
        assert theirs.get_offsets().tolist() == [[0.4, 0.0], [0.4, 1.0], [0.4, 2.0]]
        assert [len(line.get_xdata()) for line in axes.lines] == [2, 2, 2, 2], "no line joins two shapes"
    assert texts(drawn.legends[0].get_texts()) == ["tilefold", "torch eager"]
    assert "10.0 us" in texts(next(a for a in drawn.axes if a not in shown).get_yticklabels())


def test_the_limit_is_a_line_at_1() -> None:
    shown = [axes for axes in draw_points(figure(), RESULT, panels(), "sum").axes if axes.get_xlabel()]
    for axes in shown:
        assert [list(line.get_xdata()) for line in axes.lines if line.get_linestyle() == "--"] == [[1, 1]]
        assert axes.get_xlim()[0] == 0
        assert axes.get_xlim()[1] >= 1.05


def test_titles_say_what_is_better_on_which_chip_and_when() -> None:
    title = draw_points(figure(), RESULT, panels(), "sum").get_suptitle()
    assert title == "folds, sum: fraction of the memory limit (right is better)\nNVIDIA X, 2031-02-03"
    for drawn in (
        draw_grid(figure(), RESULT),
        draw_fractions(figure(), RESULT),
        draw_problems(figure(), RESULT),
    ):
        assert drawn.get_suptitle().endswith("\nNVIDIA X, 2031-02-03")
    later = replace(RUN, date="2031-02-04T10:00")
    assert provenance(replace(RESULT, runs=(RUN, later))) == "NVIDIA X, 2031-02-03, 2031-02-04"


def test_a_case_without_a_time_has_no_point() -> None:
    wrong = Measurement("torch", "wrong", "3 of 4 elements differ")
    rows = [measurement(30.0, "torch"), wrong, measurement(50.0, "torch")]
    cases = [case_result(measurement(10.0), row, shape=(n, 8)) for n, row in enumerate(rows, 1)]
    axes = draw_points(figure(), suite_result(*cases), {"bf16": cases}, "sum").axes[0]
    assert [place for _, place in axes.collections[1].get_offsets().tolist()] == [0.0, 2.0]


def test_many_variants_are_rows_and_cases_are_shades() -> None:
    result = suite_result(*PRODUCTS, suite="decompose-k")
    drawn = draw_points(figure(), result, {"bf16": PRODUCTS}, "M = N = 16")
    (axes,) = drawn.axes
    assert axes.get_xlabel() == "median time of a call (us), cold L2"
    assert texts(axes.get_yticklabels())[::-1] == [
        "tilefold", "torch eager (cuBLAS)", "torch.compile", "bmm, then sum", "split-K, serial sum", "split-K, vector sum",
    ]  # fmt: skip
    assert texts(drawn.legends[0].get_texts()) == ["K = 8192", "K = 16384", "K = 32768"]
    colours = {tuple(points.get_facecolor()[0].tolist()) for points in axes.collections}
    assert len(colours) == 3
    assert "left is better" in drawn.get_suptitle()


def test_the_grid_of_many_variants_is_a_map_of_ratios() -> None:
    (axes,) = draw_grid(figure(), suite_result(*PRODUCTS, suite="decompose-k")).axes
    assert texts(axes.get_yticklabels())[0] == "torch eager (cuBLAS)"
    assert texts(axes.get_xticklabels()) == ["K = 8192", "K = 16384", "K = 32768"]
    assert texts(axes.texts) == [f"{(10 + n) / 10:.2f}" for n in range(1, 6) for _ in range(3)]


def test_the_grid_of_few_variants_has_the_fraction_and_the_speed() -> None:
    cases = [
        replace(case, operation=name, dims=(dim,), dim=dim, name=f"{name} {dim} {case.name}")
        for case in CASES
        for name in ("sum", "var")
        for dim in (0, 1)
    ]
    drawn = draw_grid(figure(), suite_result(*cases))
    assert [axes.get_title().split(":")[0] for axes in drawn.axes] == ["bf16", "bf16", "fp32", "fp32"]
    share, speed = drawn.axes[:2]
    assert texts(share.get_yticklabels()) == ["sum", "var"]
    assert texts(speed.get_xticklabels())[:2] == ["1x8, dim 0", "1x8, dim 1"]
    assert set(texts(share.texts)) == {"0.98"}
    assert set(texts(speed.texts)) == {"3.00"}
    assert len(share.texts) == 2 * 6


def test_bars_have_labelled_axes_and_numbers() -> None:
    axes = draw_fractions(figure(), RESULT).axes[0]
    assert axes.get_ylabel() == "fraction of the limit"
    assert [round(bar.get_height(), 2) for bar in axes.patches] == [0.98] * 6 + [0.4] * 6
    assert texts(axes.texts) == ["0.98"] * 6 + ["0.40"] * 6


def test_bars_of_many_cases_are_means_by_size() -> None:
    many = suite_result(*(case_result(measurement(10.0), shape=(n, 8)) for n in range(1, 20)))
    axes = draw_fractions(figure(), many).axes[0]
    assert texts(axes.get_xticklabels()) == ["bf16\n>= 30 us\n(19)"]
    assert axes.get_xlabel() == (
        "dtype, and the time that the bytes alone would take (number of cases; a peer's bar: those that it ran)"
    )


def test_host_costs_are_drawn_as_such() -> None:
    host = suite_result(*CASES, suite="host")
    for drawn in (draw_points(figure(), host, panels(), "dim 1"), draw_grid(figure(), host)):
        axes = drawn.axes[0]
        assert axes.get_xlabel() == "time until a call returns (us)"
        assert {x for x, _ in axes.collections[0].get_offsets().tolist()} == {9.0}


def test_random_problems_are_points_by_their_bytes() -> None:
    axes = draw_problems(figure(), suite_result(*CASES, suite="shapes")).axes[0]
    assert axes.get_xlabel() == "bytes that must move (MB)"
    assert axes.collections[0].get_offsets().tolist() == [[pytest.approx(536.870912), 0.98]] * 3


def test_without_matplotlib_one_line_names_the_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(BackendError, match=r"pip install 'tilefold\[bench\]'"):
        plots.draw_plots(RESULT, tmp_path)


def test_the_docs_hold_the_plots_of_the_committed_results() -> None:
    drawn = {path.name for path in (ROOT / "docs" / "plots").glob("*.png")}
    for path in (ROOT / "benchmarks" / "results" / "h200").glob("*.json"):
        result = read_results(path)
        pages = ["problems", "limit"] if result.suite in DRAWN else [*plots.pages_of(result), "grid", "limit"]
        assert {plots.file_name(f"{result.suite}-{page}") for page in pages} <= drawn


# ----------------------------------------------------------------------------------------------------------- names


def test_every_variant_has_a_name_that_says_what_it_is() -> None:
    """No suite's or peer's variant is shown by what the code calls it, where that says less."""
    for suite in suite_names():
        for variant in (*(v.name for v in load_suite(suite).variants), *known_peers()):
            assert name_of(variant, suite) not in (
                "ours",
                "compile",
                "torch",
                "custom op",
                "custom op with ours",
            )
    assert name_of("ours, rules") == "tilefold, rules"
    assert name_of("torch") == "torch eager"
    assert name_of("cublaslt") == "cuBLASLt"


def test_colours_tell_variants_apart() -> None:
    for suite in suite_names():
        names = [v.name for v in load_suite(suite).variants] + ["torch", "compile"]
        styles = style_of(list(dict.fromkeys(names)))
        looks = [(style["color"], style["marker"]) for style in styles.values()]
        assert len(set(looks)) == len(looks), suite


def test_the_common_ones_look_the_same_everywhere() -> None:
    alone, among = style_of(["ours", "torch"]), style_of(["bmm", "torch", "cupy", "ours"])
    assert alone["ours"] == among["ours"]
    assert alone["torch"] == among["torch"]


def test_cases_are_told_apart_by_what_differs() -> None:
    of_one_shape = [replace(CASES[0], operation=name) for name in ("sum", "amax")]
    assert labels_of(of_one_shape) == ["sum", "amax"]
    assert labels_of(CASES[:2]) == ["bf16", "fp32"]
    assert labels_of(CASES[:1]) == ["1x8"]
    assert labels_of(PRODUCTS) == ["K = 8192", "K = 16384", "K = 32768"]
    assert labels_of([replace(CASES[0], dims=dims, dim=None) for dims in ((0, 1), (1,))]) == [
        "dim 0,1",
        "dim 1",
    ]
    bars = draw_fractions(figure(), suite_result(*of_one_shape)).axes[0]
    assert texts(bars.get_xticklabels()) == ["sum", "amax"]


def test_times_in_words() -> None:
    assert [time_label(t) for t in (4.02, 19.96, 133.2, 25_000.0)] == ["4.0 us", "20.0 us", "133 us", "25 ms"]


def test_a_legend_is_no_wider_than_its_figure() -> None:
    assert legend_columns(13.0, ["32x2048x32x128, dim 1,2"] * 16) == 5
    assert legend_columns(13.0, ["bf16", "fp32"]) == 2
    assert legend_columns(1.0, ["a name that is wider than the figure"]) == 1
    assert legend_columns(13.0, []) == 1

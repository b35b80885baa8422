"""The files: their schema, what is refused, merging, and what is said of them."""

from __future__ import annotations

import csv
import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from made import RUN, case_result, measurement, suite_result

from tilefold.bench import machine
from tilefold.bench.results import (
    CSV_COLUMNS,
    SCHEMA,
    Measurement,
    csv_rows,
    merge_results,
    read_results,
    write_results,
)
from tilefold.bench.summary import failed, not_slower, size_class, summary
from tilefold.errors import ArgumentError, FileError

ROOT = Path(__file__).parents[2]
# One folder a machine. Below it lie experiments, which are no suites and have files of their own kind.
COMMITTED = sorted((ROOT / "benchmarks" / "results").glob("*/*.json"))
RESULT = suite_result(
    case_result(measurement(100.0), measurement(150.0, "torch", plan=None)),
    case_result(measurement(10.0), Measurement("torch", "wrong", "9 elements differ"), shape=(4, 8)),
)


def test_json_comes_back_as_it_was(tmp_path: Path) -> None:
    as_json, _ = write_results(RESULT, tmp_path / "new" / "folder")
    assert as_json == tmp_path / "new" / "folder" / "folds.json"
    assert read_results(as_json) == RESULT
    assert sorted(p.name for p in as_json.parent.iterdir()) == ["folds.csv", "folds.json"]


def test_json_has_what_a_reader_needs_to_judge_it(tmp_path: Path) -> None:
    document = json.loads(write_results(RESULT, tmp_path)[0].read_text())
    assert document["schema"] == SCHEMA
    assert {
        "chip",
        "driver",
        "torch",
        "triton",
        "commit",
        "command",
        "date",
        "peers",
        "copy_gb_per_s",
    } <= set(document["runs"][0])
    row = document["cases"][0]["measurements"][0]
    assert set(row["time_us"]) == {"median_us", "q1_us", "q3_us", "samples"}
    assert {"plan", "fraction", "limit_us", "graph_us", "host_us", "status"} <= set(row)


def test_csv_has_a_row_a_variant(tmp_path: Path) -> None:
    with write_results(RESULT, tmp_path)[1].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(CSV_COLUMNS)
    assert [(r["case"], r["variant"], r["status"], r["median_us"]) for r in rows] == [
        ("sum dim1 1x268435456 bf16", "ours", "ok", "100.0"),
        ("sum dim1 1x268435456 bf16", "torch", "ok", "150.0"),
        ("sum dim1 4x8 bf16", "ours", "ok", "10.0"),
        ("sum dim1 4x8 bf16", "torch", "wrong", ""),
    ]
    assert (rows[0]["chip"], rows[0]["plan"], rows[0]["commit"]) == ("NVIDIA X", "rows:k1", "abc")
    assert set(csv_rows(RESULT)[0]) == set(CSV_COLUMNS)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_results_can_be_read(path: Path) -> None:
    result = read_results(path)
    assert result.suite == path.stem
    assert any(m.time_us for case in result.cases for m in case.measurements)
    assert path.with_suffix(".csv").exists()
    assert not failed(result)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_figures_follow_from_each_other(path: Path) -> None:
    """The CSV is the JSON; a fraction is the limit over the median, the limit launches and bytes as docs/bench.md has it."""
    result = read_results(path)
    with path.with_suffix(".csv").open(newline="", encoding="utf-8") as file:
        shown = [
            {key: "" if value is None else str(value) for key, value in row.items()}
            for row in csv_rows(result)
        ]
        assert list(csv.DictReader(file)) == shown
    for case in result.cases:
        made = result.runs[case.run]
        assert made.copy_gb_per_s
        assert case.floor_us == pytest.approx(case.compulsory_bytes / made.copy_gb_per_s / 1e3)
        for row in case.measurements:
            if row.time_us is None:
                assert row.fraction is None
                continue
            assert row.time_us.q1_us <= row.time_us.median_us <= row.time_us.q3_us  # type: ignore[operator]  # all are there
            assert row.fraction == pytest.approx(row.limit_us / row.time_us.median_us)  # type: ignore[operator]  # is there
            overlap = "+overlap" * ("overlap" in (row.plan or "") and (row.launches or 1) > 1)
            kind = f"{row.launches or 1}{overlap}"
            launches = case.empty_us.get(kind) or made.empty_us.get(kind, 0.0)
            assert row.limit_us == pytest.approx(launches + case.floor_us)


def test_a_suites_committed_results_hold_its_cases() -> None:
    from tilefold.bench.suites import load_suite

    assert {path.stem for path in COMMITTED} >= {"folds", "or-small-axis"}
    for path in COMMITTED:
        if path.parent.name == "h200":
            result = read_results(path)
            drawn = [
                run.settings[name]
                for run in result.runs[:1]
                for name in ("seed", "count")
                if name in run.settings
            ]
            cases = load_suite(path.stem).select("full", *(drawn or (0, 0)))
            assert {c.name for c in result.cases} == {c.name for c in cases}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("{", "readable JSON", id="no json"),
        pytest.param("[]", "`schema` must be 3, got None", id="no object"),
        pytest.param('{"schema": 2}', "`schema` must be 3, got 2", id="an older schema"),
        pytest.param('{"schema": 3, "suite": "x"}', "fields of schema 3", id="a field missing"),
        pytest.param(
            '{"schema": 3, "suite": "x", "runs": [], "cases": [], "more": 1}', "more", id="a field too many"
        ),
        pytest.param('{"schema": 3, "suite": 5, "runs": [], "cases": []}', "5 is no str", id="another type"),
        pytest.param('{"schema": 3, "suite": "x", "runs": [[]], "cases": []}', "is no object", id="a list"),
        pytest.param('{"schema": 3, "suite": "x", "runs": {}, "cases": []}', "is no list", id="an object"),
        pytest.param('{"schema": 3, "suite": "x", "runs": null, "cases": []}', "is no list", id="null"),
        pytest.param("[" * 100_000, "readable JSON", id="deeper than Python reads"),
        pytest.param("\ufeff{}", "readable JSON", id="a byte order mark"),
    ],
)
def test_a_foreign_file_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(FileError, match=said) as raised:
        read_results(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("found", "replacement", "said"),
    [
        ('"median_us": 100.0', '"median_us": NaN', "finite"),
        ('"median_us": 100.0', '"median_us": 1e999', "finite"),
        ('"median_us": 100.0', '"median_us": 0', "not positive"),
        ('"median_us": 100.0', '"median_us": true', "True is no float"),
        ('"fraction": 0.98', '"fraction": -1.0', "not positive"),
        ('"run": 0', '"run": 7', "of run 7, of 1 runs"),
        ('"notes": []', '"notes": "abc"', "is no list"),
        ('"clocks_mhz": null', '"clocks_mhz": [1]', "1 values, not 2"),
        ('"empty_us": {', '"empty_us": [], "x": {', "unknown fields"),
    ],
)
def test_values_that_no_run_leaves_are_refused(
    tmp_path: Path, found: str, replacement: str, said: str
) -> None:
    path = write_results(RESULT, tmp_path)[0]
    text = path.read_text()
    assert found in text
    path.write_text(text.replace(found, replacement, 1))
    with pytest.raises(FileError, match=said):
        read_results(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(tmp_path: Path, share: float) -> None:
    path = write_results(RESULT, tmp_path)[0]
    text = path.read_text()
    path.write_text(text[: int(len(text) * share)])
    with pytest.raises(FileError, match="readable JSON"):
        read_results(path)


def test_two_runs_may_write_into_one_folder(tmp_path: Path) -> None:
    """The last to finish is what stays, whole; nobody's half file is in the other's way."""
    results = [
        suite_result(*(case_result(measurement(time), shape=(n, 8)) for n in range(40)))
        for time in (1.0, 2.0)
    ]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: write_results(results[number % 2], tmp_path), range(60)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folds.csv", "folds.json"]
    assert read_results(tmp_path / "folds.json") in results


def test_a_note_that_utf_8_has_not_is_no_reason_to_lose_a_run(tmp_path: Path) -> None:
    write_results(suite_result(case_result(Measurement("ours", "error", "file \udcff"))), tmp_path)
    assert "file \\udcff" in (tmp_path / "folds.csv").read_text()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match=r"must be a folder that can be written, got .*file"):
        write_results(RESULT, tmp_path / "file")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="must be a readable JSON file"):
        read_results(tmp_path / "none.json")


def test_parts_merge_and_keep_their_own_runs() -> None:
    first = suite_result(case_result(measurement(5.0)), case_result(Measurement("ours"), shape=(4, 8)))
    other = replace(suite_result(case_result(measurement(7.0), shape=(4, 8)), case_result(Measurement("ours"))),
                    runs=(replace(RUN, copy_gb_per_s=3000.0),))  # fmt: skip
    merged = merge_results([first, other])
    assert len(merged.cases) == 2
    assert [case.measurements[0].time_us.median_us for case in merged.cases] == [5.0, 7.0]  # type: ignore[union-attr]  # all were timed
    assert [merged.runs[case.run].copy_gb_per_s for case in merged.cases] == [4000.0, 3000.0]
    newer = replace(other, cases=tuple(replace(case, run=0) for case in merged.cases))
    again = merge_results([first, newer])
    assert again.runs == other.runs, "of the first no case is left"


def test_other_suites_do_not_merge() -> None:
    with pytest.raises(ArgumentError, match="one suite, got folds, host"):
        merge_results([RESULT, suite_result(suite="host")])


# ------------------------------------------------------------------------------------------------------ summary


def test_summary_classes_and_shares() -> None:
    cases = [case_result(measurement(t, fraction=f), measurement(100.0, "torch"), shape=(n, 8))
             for t, f, n in ((102.0, 0.5, 1), (110.0, 0.98, 2))]  # fmt: skip
    text = "\n".join(summary(suite_result(*cases)))
    assert "2 of 2 cases checked and timed" in text
    assert "bf16, bytes alone >= 30 us: geometric mean 0.700 of the limit, least 0.500, of 2" in text
    assert "not slower than torch beyond 3 %, all: 1 of 2" in text
    assert "worst of 2 headline cases: sum dim1 1x8 bf16 0.500" in text
    assert not_slower(cases, "torch") == (1, 2)


def test_summary_names_what_is_wrong_and_what_was_not_run() -> None:
    text = "\n".join(summary(suite_result(*RESULT.cases, case_result(Measurement("ours"), shape=(2, 2)))))
    assert "WRONG: sum dim1 4x8 bf16, torch: 9 elements differ" in text
    assert "1 cases not run" in text


def test_summary_of_host_costs() -> None:
    case = case_result(measurement(5.0, host_us=12.0), measurement(5.0, "torch", host_us=8.0))
    assert "host time over torch's: 1.50 on average; sum dim1 1x268435456 bf16 1.50" in summary(
        suite_result(case, suite="host")
    )


def test_the_commit_of_somebody_elses_checkout_is_not_this_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment often lies in a project's folder."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
    installed = tmp_path / "venv" / "machine.py"
    installed.parent.mkdir()
    installed.write_text("")
    monkeypatch.setattr(machine, "__file__", str(installed))
    assert machine.commit() is None
    subprocess.run([*git, "add", "venv"], check=True)
    assert re.fullmatch(r"[0-9a-f]{12}\+", machine.commit() or "")


def test_what_a_run_says_of_itself_is_shown() -> None:
    noted = replace(RESULT, runs=(replace(RUN, notes=("the copy ran at 3000 GB/s when all was done",)),))
    assert "the copy ran at 3000 GB/s when all was done" in summary(noted)


def test_without_ours_what_was_timed_counts() -> None:
    only = suite_result(case_result(measurement(5.0, "torch")))
    assert not failed(only)
    assert summary(only)[0] == "1 of 1 cases checked and timed"


def test_nothing_is_said_of_host_costs_that_were_not_measured() -> None:
    case = case_result(Measurement("ours"), Measurement("torch"))
    assert summary(suite_result(case, suite="host")) == ["0 of 1 cases checked and timed", "1 cases not run"]


def test_only_tilefolds_own_failures_fail() -> None:
    assert not failed(RESULT)
    assert failed(suite_result(case_result(Measurement("ours", "wrong", "x"), measurement(1.0, "torch"))))
    assert failed(suite_result(case_result(Measurement("ours"))))


@pytest.mark.parametrize(
    ("floor", "name"), [(30, ">= 30 us"), (29.9, "8 to 30 us"), (8, "8 to 30 us"), (1, "< 8 us")]
)
def test_size_classes(floor: float, name: str) -> None:
    assert size_class(floor) == name

"""Constants of the planners as variants, and cases that a file names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tilefold import cli
from tilefold.bench import settings
from tilefold.bench.selection import Selection, asked_suite, selected
from tilefold.bench.suites import load_suite
from tilefold.bench.suites.shapes import build_ours
from tilefold.errors import ArgumentError
from tilefold.planner import scan_tiles

SCANS = "tilefold.planner.scan_tiles"
TWO = {"fewer": {SCANS: {"WARPS_AN_SM": 8, "MOST_WARPS": 4}}, "as it is": {SCANS: {}}}


def written(folder: Path, what: Any) -> str:
    path = folder / "settings.json"
    path.write_text(what if isinstance(what, str) else json.dumps(what))
    return str(path)


def test_each_setting_is_a_variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.variants_of(build_ours) == ()
    monkeypatch.setenv(settings.SETTINGS, written(tmp_path, TWO))
    made = settings.variants_of(build_ours)
    assert [variant.name for variant in made] == ["ours, fewer", "ours, as it is"]
    assert all(variant.asked_only for variant in made)


def test_constants_hold_within_a_call_and_executables_are_its_own() -> None:
    seen = []

    def call(x: torch.Tensor) -> torch.Tensor:
        seen.append((scan_tiles.WARPS_AN_SM, scan_tiles.MOST_WARPS))
        settings.dispatch._executables["one"] = x
        return x

    before = dict(settings.dispatch._executables)
    executables: dict[Any, Any] = {}
    was = (scan_tiles.WARPS_AN_SM, scan_tiles.MOST_WARPS)
    again = settings.under_constants(call, TWO["fewer"], executables)
    assert (again(torch.ones(1)), again(torch.ones(1))) == (1, 1)
    assert seen == [(8, 4)] * 2
    assert was == (scan_tiles.WARPS_AN_SM, scan_tiles.MOST_WARPS)
    assert list(executables) == ["one"]
    assert dict(settings.dispatch._executables) == before


@pytest.mark.parametrize(
    "what", ["{", "[1]", {"a": {"tilefold.none": {"X": 1}}}, {"a": {SCANS: {"NONE": 1}}}, {"a": {SCANS: 3}}]
)
def test_a_file_that_says_nothing_to_us_is_an_error(tmp_path: Path, what: Any) -> None:
    with pytest.raises(ArgumentError, match="bench: TILEFOLD_BENCH_SETTINGS must name a file of JSON"):
        settings.settings_of(written(tmp_path, what))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"got '.*none.json'"):
        settings.settings_of(str(tmp_path / "none.json"))


def test_the_command_takes_cases_that_a_file_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = [c.name for c in selected(asked_suite(load_suite("shapes"), Selection()), Selection())]
    (tmp_path / "cases.txt").write_text(f"{cases[3]}\n\n  {cases[1]}\n{cases[3]}\n")
    assert cli.run(["bench", "shapes", "--dry-run", "--cases", str(tmp_path / "cases.txt")]) == 0
    shown = capsys.readouterr().out
    assert "2 cases" in shown
    assert shown.index(cases[3]) < shown.index(cases[1])
    (tmp_path / "cases.txt").write_text("sum of nothing\n")
    assert cli.run(["bench", "shapes", "--dry-run", "--cases", str(tmp_path / "cases.txt")]) == 2
    assert "--cases must name cases that there are, got 'sum of nothing'" in capsys.readouterr().err
    assert cli.run(["bench", "shapes", "--dry-run", "--cases", str(tmp_path)]) == 2
    assert "must be a text file" in capsys.readouterr().err

"""What two versions of the library do, compared call by call: benchmarks/recording.py."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def recording() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "recording.py"
    spec = importlib.util.spec_from_file_location("recording", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_two_recordings_of_one_version_agree(
    recording: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    for path in (one, other):
        recording.record(path, 24, 7, ["host", "segment"])
    assert recording.main(["compare", str(one), str(other)]) == 0
    assert "50 calls, 0 of them executed from PTX; differences: none" in capsys.readouterr().out
    lines = [json.loads(line) for line in one.read_text(encoding="utf-8").splitlines()]
    assert sum("plan" in line for line in lines) > 44
    assert sum("answers" in line for line in lines) > 6
    assert [line["call"] for line in lines[24:26]] == [line["case"] for line in lines[24:26]]


@pytest.mark.parametrize("kind", ["plan", "launches", "kernels", "answers", "refused"])
def test_a_difference_is_said(
    recording: ModuleType, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    recording.record(one, 3, 1, [])
    lines = [json.loads(line) for line in one.read_text(encoding="utf-8").splitlines()]
    lines[1][kind] = "changed"
    other.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    assert recording.main(["compare", str(one), str(other)]) == 1
    said = capsys.readouterr().out
    assert f"{kind}: 1 {lines[1]['call']}" in said
    assert f"3 calls, 0 of them executed from PTX; differences: {{'{kind}': 1}}" in said


def test_calls_are_those_of_their_seed(recording: ModuleType) -> None:
    assert recording.drawn(3, 5)[0] == recording.drawn(3, 5)[0] != recording.drawn(4, 5)[0]


def test_results_of_ptx_are_recorded_of_the_first_calls_and_of_changed_ones(
    recording: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    recording.record(one, 6, 1, [], ptx=1)
    lines = [json.loads(line) for line in one.read_text(encoding="utf-8").splitlines()]
    able = [n for n, line in enumerate(lines) if "answers" in line and line.get("launches")]
    assert [n for n, line in enumerate(lines) if "ptx" in line] == able[:1]
    changed = able[1]
    lines[changed]["launches"] = ["others"]
    one.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    recording.record(other, 6, 1, [], beside=one)
    again = [json.loads(line) for line in other.read_text(encoding="utf-8").splitlines()]
    assert [n for n, line in enumerate(again) if "ptx" in line] == [changed]
    lines[changed]["ptx"] = "wrong"
    one.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    assert recording.main(["compare", str(one), str(other)]) == 1
    said = capsys.readouterr().out
    assert f"ptx: {changed} " in said
    assert "1 of them executed from PTX" in said


def test_calls_nearest_to_limits_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a function's comparisons, its minimum and its conditions; what it gives stays the same."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import limits

    text = "def f(x, y):\n    if 4 < x <= 64 and y:\n        return min(x, 3 * y)\n    return x == y\n"
    plain: dict[str, Any] = {}
    exec(text, plain)
    watch = limits.Watch()
    told: dict[str, Any] = {f"{name}__": getattr(watch, name) for name in ("near", "ends", "truth")}
    tree = limits.ast.fix_missing_locations(limits.Sites("f").visit(limits.ast.parse(text)))
    exec(compile(tree, "f", "exec"), told)
    calls = [(x, y) for x in (1, 3, 5, 9, 50, 63, 64, 70) for y in (0, 1, 3, 20)]
    for number, (x, y) in enumerate(calls):
        watch.call = "limits", number
        assert told["f"](x, y) == plain["f"](x, y)
    taken = {calls[number] for _, (_, number) in watch.found.values()}
    assert {3, 5, 64, 70} <= {x for x, _ in taken}
    assert {(9, 3), (63, 20)} <= taken, "of the minimum both sides, and where they are equal"

"""Two sources beside each other: cells made and timed in processes of their own, and what is told of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
import beside  # noqa: E402  # it stands beside the package


class Known:
    """Stands for a process: what it answers when a cell is made, and its times in turn."""

    def __init__(self, made: Any, *times: float) -> None:
        self.made, self.times = made, list(times)

    def ask(self, do: str, suite: str, case: str = "") -> Any:
        return ["a", "b", "c"] if do == "names" else self.made if do == "make" else self.times.pop(0)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (Known([8.0], 10, 20), Known([8.01], 10, 18), "0 slower by 5 % in both repeats"),
        (Known([8.0], 10, 10), Known([8.0], 11, 10.6), "s: 1 of 1 cells, new / old 1.0600, 1 slower"),
        (Known([8.0], 10, 10), Known([8.0], 11, 10.6), "  a: 10.0, 10.0 -> 11.0, 10.6 us"),
        (Known([8.0], 10, 10), Known([8.0], 11, 10.4), "0 slower"),
        (Known([8.0], 10, 10), Known([8.1], 10, 10), "  a: answers differ"),
        (Known([8.0], 10, 10), Known([8.0, 1.0], 10, 10), "  a: answers differ"),
        (Known([8.0]), Known({"error": "TypeError: no"}), "  a: {'new': 'TypeError: no'}"),
    ],
)
def test_a_cell(old: Any, new: Any, said: str) -> None:
    row = beside.cell({"old": old, "new": new}, "s", "a")
    assert said in "\n".join(beside.told([row]))


def test_cells_of_both_as_long_as_there_is_time() -> None:
    sides: Any = {"old": Known([1.0], *[1] * 6), "new": Known([1.0], *[1] * 6)}
    sides["old"].ask = lambda do, *rest: ["a", "b"] if do == "names" else Known.ask(sides["old"], do, *rest)
    rows = list(beside.rows_of(sides, ["s"], "", float("inf")))
    assert [row.get("errors") for row in rows] == [None, None, {"old": "no such case"}]
    assert [row["case"] for row in beside.rows_of(sides, ["s"], "b", float("inf"))] == ["b"]
    assert not list(beside.rows_of(sides, ["s"], "", 0.0))


def test_a_run_without_a_gpu(tmp_path: Path) -> None:
    out = tmp_path / "beside.jsonl"
    words = [str(ROOT / "src")] * 2 + ["real", "--size", "small", "--device", "cpu", "--jobs", "1"]
    run = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "beside.py"), *words, "--only", "logsumexp", "--out", str(out)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows
    assert f"real: {len(rows)} of {len(rows)} cells" in run.stdout
    assert all(not row["differ"] and min(row["old_us"] + row["new_us"]) > 0 for row in rows)


def test_a_process_that_ends_is_named() -> None:
    side = beside.Side([sys.executable, "-c", "raise SystemExit(3)"], {})
    with pytest.raises(RuntimeError, match="exit code 3 at make s a"):
        side.ask("make", "s", "a")

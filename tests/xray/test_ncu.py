"""How `benchmarks/xray_ncu` reads a profile and compares it, on a profile made up here."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tilefold.xray.examine import examined
from tilefold.xray.machine import all_programs
from xray.versions import TRITON

FOLDER = Path(__file__).parents[2] / "benchmarks" / "xray_ncu"
HEADER = "ID,Kernel Name,Block Size,Grid Size,l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum,sass__inst_executed_per_opcode"
PROFILE = f"""==PROF== Connected to process 1
{HEADER}
,,,,sector,inst
0,vector_add,"(128, 1, 1)","(4, 1, 1)","1,024","1,100 (BAR: 8; LDG: 64; SHFL: 1,000)"
1,void at::native::fill<int>,"(128, 1, 1)","(4, 1, 1)",n/a,n/a
2,strided_copy,"(128, 1, 1)","(4, 1, 1)",1000,n/a
"""


@pytest.fixture(scope="module")
def tool() -> Iterator[Any]:
    """The script's modules, which import each other by their bare names."""
    sys.path.insert(0, str(FOLDER))
    import comparing
    import counters
    import launches
    import page

    yield SimpleNamespace(comparing=comparing, counters=counters, launches=launches, page=page)
    sys.path.remove(str(FOLDER))


@pytest.fixture
def rows(tool: Any, tmp_path: Path) -> list[dict[str, str]]:
    (tmp_path / "hardware.csv").write_text(PROFILE)
    found: list[dict[str, str]] = tool.counters.read(tmp_path / "hardware.csv")
    return found


def test_a_profile_is_read(tool: Any, rows: list[dict[str, str]]) -> None:
    kept = tool.counters.launched(rows, [("a", "vector_add"), ("b", "strided_copy")])
    assert [row["Kernel Name"] for row in kept] == ["vector_add", "strided_copy"]
    found = tool.counters.counters(kept[0])
    assert found["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] == 1024
    assert (found["@BAR"], found["@SHFL"]) == (8, 1000)


def test_another_order_of_launches_is_refused(tool: Any, rows: list[dict[str, str]]) -> None:
    with pytest.raises(SystemExit, match="the profile must hold"):
        tool.counters.launched(rows, [("b", "strided_copy"), ("a", "vector_add")])


def test_what_was_not_counted_is_not_compared(tool: Any, rows: list[dict[str, str]]) -> None:
    (barriers,) = [q for q in tool.counters.QUANTITIES if q.name == "barriers"]
    assert tool.counters.theirs(barriers, tool.counters.counters(rows[0])) == ("BAR", 8)
    assert tool.counters.theirs(barriers, tool.counters.counters(rows[2])) is None


def test_the_x_ray_stands_beside_a_profile(tool: Any, rows: list[dict[str, str]]) -> None:
    launch = tool.launches.launches()[0]
    ((name, job),) = tool.comparing.jobs(launch)
    found = tool.comparing.one(name, job, rows[0])
    counts = {c["quantity"]: (c["xray"], c["ncu"], c["agrees"]) for c in found["counts"]}
    assert counts["sectors loaded"] == (1024, 1024, True)
    assert counts["barriers"] == (0, 8, False)
    assert "tensor instructions" not in counts
    made = {"date": "2026-01-01", "versions": dict.fromkeys(("ncu", "device", "torch", "triton"), "?")}
    text = tool.page.page(made | {"launches": [found]})
    assert "| vector add | barriers | 0 | 8 | -100.00 % |" in text
    assert "- vector add, barriers: 0 for 8. Not explained." in text


def test_another_grid_is_refused(tool: Any, rows: list[dict[str, str]]) -> None:
    ((name, job),) = tool.comparing.jobs(tool.launches.launches()[0])
    with pytest.raises(SystemExit, match="must be launched as"):
        tool.comparing.one(name, job, rows[0] | {"Grid Size": "(5, 1, 1)"})


def test_there_are_enough_launches_of_each_kind(tool: Any) -> None:
    names = [launch.name for launch in tool.launches.launches()]
    assert len(names) == len(set(names)) >= 26
    assert sum(isinstance(x, tool.launches.Fold) for x in tool.launches.launches()) >= 6


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "results.json").read_text())
    return found


def test_the_page_is_made_of_the_results(tool: Any, results: dict[str, Any]) -> None:
    assert (FOLDER.parents[1] / "docs" / "xray-ncu.md").read_text() == tool.page.page(results)


def test_every_launch_was_profiled(tool: Any, results: dict[str, Any]) -> None:
    names = [launch["name"].removeprefix("fold: ").split(", launch")[0] for launch in results["launches"]]
    assert list(dict.fromkeys(names)) == [launch.name for launch in tool.launches.launches()]


def test_most_kernels_agree_and_what_does_not_is_explained(tool: Any, results: dict[str, Any]) -> None:
    different = {x["kernel"] for x in results["launches"] if not tool.page.agrees(x)}
    assert len({x["kernel"] for x in results["launches"]} - different) >= 38
    found = {(x["name"], c["quantity"]) for x in results["launches"] for c in x["counts"] if not c["agrees"]}
    assert {f for f in found if f[1] != "sectors of atomics"} == set(tool.page.REASONS)
    assert "Not explained" not in tool.page.page(results)


LOOPED = (
    "recurrence",
    "ragged sums",
    "buckets",
    "rows of lengths",
    "newton",
    "jagged softmax",
    "sparse rows",
    "tickets",
)


@pytest.mark.skipif(TRITON != (3, 6), reason="counted of what Triton 3.6 compiles")
@pytest.mark.parametrize("name", LOOPED)
def test_what_depends_on_data_has_the_counters_numbers(tool: Any, results: dict[str, Any], name: str) -> None:
    """Machine instructions of loops and jumps, and sectors of atomics, of every program."""
    (launch,) = [x for x in tool.launches.launches() if x.name == name]
    (known,) = [x for x in results["launches"] if x["name"] == name]
    ((_, job),) = tool.comparing.jobs(launch)
    report = examined(job, all_programs(job.grid)).report
    wanted = {c["quantity"]: c["ncu"] for c in known["counts"]}
    ours = {q.name: q.ours(report) for q in tool.counters.QUANTITIES}
    for quantity in ("all instructions", "sectors of atomics"):
        assert ours[quantity] == wanted.get(quantity, 0)

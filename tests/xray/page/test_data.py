"""A page's data: every row at the line that it comes from, every number the report's, every drawing the machine's."""

from __future__ import annotations

import itertools
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilefold.xray.compile import offline
from tilefold.xray.examine import examined
from tilefold.xray.explain import make_job
from tilefold.xray.machine.counts import global_cost, shared_cost
from tilefold.xray.page import document
from tilefold.xray.render import words
from tilefold.xray.report.sass import placed
from tilefold.xray.report.static import line_of
from xray.observe.planted import PLANTED
from xray.page.shown import CASES, made, page_of

TARGETS = ["sm_80", "sm_90"]
ALL = [(case, target) for case in CASES for target in TARGETS]


def lit(page: dict[str, Any], name: str) -> dict[int, str]:
    """The line of source of each numbered row of a text that has one, as "file:line"."""
    keys = page["keys"]
    (text,) = (text for text in page["texts"] if text["name"] == name)
    return {n: f"{keys[key]['file']}:{keys[key]['line']}" for n, key, *_ in text["rows"] if key >= 0}


def told(place: tuple[str, int] | None) -> str:
    return "" if place is None else f"{Path(place[0]).name}:{place[1]}"


@pytest.mark.parametrize(("case", "target"), ALL)
def test_every_row_is_at_its_line(case: str, target: str) -> None:
    page, evidence = page_of(case, target), made(case, target).evidence
    for name, function in (("TTIR", evidence.ttir), ("TTGIR", evidence.ttgir)):
        own = {o.row + 1: told(place) for o in function.walk() if (place := line_of(o.place)) is not None}
        assert lit(page, name) == own
    ptx = {i.line: told(place) for i in evidence.entry.instructions if (place := evidence.places.line(i))}
    assert lit(page, "PTX") == ptx
    sass = {
        n + 1: told(place) for n, code, place in placed(evidence.machine.code, evidence.entry.instructions, evidence.places)
        if place[1] and code != "NOP"
    }  # fmt: skip
    assert lit(page, "SASS") == sass


@pytest.mark.parametrize(("case", "target"), ALL)
def test_llvms_rows_are_at_the_lines_of_their_places(case: str, target: str) -> None:
    """A store in LLVM's IR is at the line of the store in PTX; a row of a function that was called is at its own line."""
    page, compiled = page_of(case, target), made(case, target).evidence.compiled
    llvm, ptx = lit(page, "LLVM"), lit(page, "PTX")
    rows = compiled.llir.splitlines()
    placed_rows = {n + 1 for n, row in enumerate(rows) if ", !dbg " in row and row.startswith("  ")}
    assert set(llvm) == placed_rows
    ours, theirs = (
        {at for n, at in lines.items() if "st.global" in text.splitlines()[n - 1]}
        for lines, text in ((llvm, compiled.llir), (ptx, compiled.ptx))
    )
    assert ours == theirs != set()
    if case == "wide":
        halving = {at for n, at in llvm.items() if "fmul" in rows[n - 1]}
        assert halving == {at for n, at in ptx.items() if "mul.f32" in compiled.ptx.splitlines()[n - 1]}
    (shown,) = (text["rows"] for text in page["texts"] if text["name"] == "LLVM")
    assert not any("!dbg" in text or text.startswith(("!", "declare")) for _, _, text, _ in shown)


@pytest.mark.parametrize(("case", "target"), ALL)
def test_cuda_is_at_the_lines_of_its_comments(case: str, target: str) -> None:
    page = page_of(case, target)
    (cuda,) = (text for text in page["texts"] if text["name"] == "CUDA")
    headings = [(key, text) for _, key, text, _ in cuda["rows"] if re.match(r"\s*// \d+: ", text)]
    assert headings
    for key, text in headings:
        assert page["keys"][key]["line"] == int(text.split("//")[1].split(":")[0])


@pytest.mark.parametrize(("case", "target"), ALL)
def test_the_margin_has_the_reports_numbers(case: str, target: str) -> None:
    report, page = made(case, target).report, page_of(case, target)
    n = len(report.programs)
    shown = {(key["file"], key["line"]): key for key in page["keys"]}
    heads = [column[0] for column in page["columns"]]
    assert heads[:2] == ["instr.", "sectors"]
    for line in report.lines:
        if not line.line:
            continue
        cells = shown[Path(line.file).name, line.line]["cells"]
        sectors = sum(a.sectors for a in line.accesses if a.sectors is not None)
        assert line.work is not None
        expected = [line.work.issued / n, sectors / n]
        assert [cell[0] for cell in cells[:2]] == [words.count(x) if x else "" for x in expected]
    hottest = max(key["cells"][0][1] for key in page["keys"] if key["cells"])
    assert hottest == 1


@pytest.mark.parametrize(("case", "target"), ALL)
def test_one_warps_accesses_cost_what_is_said(case: str, target: str) -> None:
    evidence, page = made(case, target).evidence, page_of(case, target)
    assert evidence.execution is not None
    worst: dict[tuple[str, str, int], int] = {}
    for number, accesses in evidence.execution.accesses().items():
        key = told(evidence.places.line(evidence.entry.instructions[number]))
        for access in accesses:
            if access.space not in ("global", "shared") or not access.active.any():
                continue
            cost = global_cost([access]).sectors if access.space == "global" else shared_cost([access]).passes
            warps = int(access.active.reshape(-1, 32).any(1).sum())
            kind = key, access.space, access.bytes
            worst[kind] = max(worst.get(kind, 0), -(-cost // warps))
    drawn = {
        (f"{key['file']}:{key['line']}", one["space"], one["bytes"]): one
        for key in page["keys"] for one in key["accesses"]
    }  # fmt: skip
    assert set(drawn) == set(worst)
    for kind, one in drawn.items():
        assert one["served"] >= worst[kind]  # the worst warp is no better than the mean
        if one["space"] == "global" and one["kind"] != "atomic":
            lanes = [a for a in one["lanes"] if a is not None]
            assert one["served"] == len({byte // 32 for a in lanes for byte in (a, a + one["bytes"] - 1)})


def test_waste_is_marked_where_it_is() -> None:
    page = page_of("columns")
    spare = {
        page["keys"][n]["line"]
        for n, key in enumerate(page["keys"])
        if any(cell[2] > 0.1 for cell in key["cells"])
    }
    report = made("columns").report
    assert spare == {
        line.line for line in report.lines for a in line.accesses
        if a.sectors is not None and a.sectors - (a.ideal or 0) > 0.1 * a.sectors
    }  # fmt: skip
    assert spare


@pytest.mark.parametrize(("case", "target"), ALL)
def test_each_element_of_a_drawn_tile_is_held(case: str, target: str) -> None:
    page, warps = page_of(case, target), made(case, target).evidence.compiled.num_warps
    assert page["tiles"]
    for tile in page["tiles"]:
        parts = [tile[where] for where in ("register", "lane", "warp")]
        assert (len(tile["lane"]), 2 ** len(tile["warp"])) == (5, warps)
        places = [np.zeros(len(tile["shape"]), int)]
        for basis in itertools.chain(*parts):
            places += [place ^ np.array(basis) for place in places]
        held = {tuple(place.tolist()) for place in places}
        assert held == set(itertools.product(*map(range, tile["shape"])))


@pytest.mark.parametrize("case", list(CASES))
def test_the_passes_lead_to_the_ttgir(case: str) -> None:
    page = page_of(case)
    assert len(page["passes"]) > 3
    assert "tritongpu-coalesce" in {one["name"] for one in page["passes"]}
    sides = []
    for one in page["passes"]:
        assert one["added"] or one["gone"]
        sides.append([[page["rows"][n][2] for mark, n in one["rows"] if mark != gone] for gone in "+-"])
    (ttgir,) = ([row[2] for row in text["rows"]] for text in page["texts"] if text["name"] == "TTGIR")
    assert sides[-1][1] == ttgir
    plain = [[re.sub(r"[%#][\w$.]+", "", row) for row in rows] for pair in sides for rows in pair]
    assert (
        plain[1:-1:2] == plain[2::2]
    )  # what one pass leaves is what the next one that changes something begins with


def test_observations_come_with_what_was_tried() -> None:
    found = {one["code"]: one for one in page_of("columns")["observations"]}
    (tried,) = found["strong-atomic"]["tried"]
    rows = {mark: text for mark, text in tried["rows"] if mark != " "}
    assert "acq_rel" in rows["-"]
    assert "relaxed" in rows["+"] or "release" in rows["+"]
    report = made("columns").report
    assert [one["code"] for one in page_of("columns")["observations"]] == list(report.codes())


def test_the_roofline_has_both_kinds_of_bytes() -> None:
    line, shown = made("product").report.roofline, page_of("product")["roofline"]
    assert line is not None
    assert (shown["once"], shown["moved"], shown["flops"]) == (line.bytes_once, line.bytes_moved, line.flops)
    assert [share for *_, share, _ in shown["times"]].count(100.0) == 1
    assert shown["times"][0][1] == words.duration(line.memory_us)
    assert line.bytes_once / shown["memory_gb"] / 1e3 == pytest.approx(line.memory_us)
    assert line.bytes_moved / shown["l2_gb"] / 1e3 == pytest.approx(line.l2_us)


def test_what_is_not_executed_has_static_numbers_and_all_texts() -> None:
    page = page_of("product", run=False)
    assert [column[0] for column in page["columns"]] == ["code", "PTX"]
    assert page["roofline"] is None
    assert not any(key["accesses"] for key in page["keys"])
    assert all(text["rows"] for text in page["texts"])


@pytest.mark.parametrize("case", list(CASES))
def test_all_of_it_is_plain_json(case: str) -> None:
    page = page_of(case)
    assert json.loads(json.dumps(page, allow_nan=False)).keys() == page.keys()


@pytest.mark.parametrize("case", list(CASES))
def test_each_change_is_that_of_its_pass(case: str) -> None:
    page = page_of(case)
    (one,) = (one for one in page["passes"] if one["name"] == "convert-triton-to-tritongpu")
    before, after = ([page["rows"][n][2] for mark, n in one["rows"] if mark != gone] for gone in "+-")
    assert not any("#blocked" in row for row in before)
    assert any("#blocked" in row for row in after)


def test_dumping_passes_leaves_nothing_behind(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLIR_ENABLE_DUMP", "0")
    job = made("product").evidence.compiled.job
    first, second = offline.passes(job), offline.passes(job)
    assert first == second != []
    assert os.environ["MLIR_ENABLE_DUMP"] == "0"
    assert offline.compile_job(job).ptx == made("product").evidence.compiled.ptx
    os.write(2, b"still there\n")
    assert capfd.readouterr().err == "still there\n"


@pytest.mark.parametrize(
    "code",
    [
        "fold-in-loop",
        "small-axis-shuffles",
        "redundant-threads",
        "older-tensor-core",
        "tf32-dot",
        "wrong-fill",
    ],
)
def test_whatever_was_tried_has_its_difference(code: str) -> None:
    plant, _ = PLANTED[code]
    job = make_job(plant.kernel, plant.args, plant.constants, **{"grid": 2, **plant.options})
    page = document(examined(job))
    (found, *_) = (one for one in page["observations"] if one["code"] == code)
    said = dict(found["parts"])["do"]
    assert bool(found["tried"]) >= ("(tried" in said)
    if found["tried"] and "num_warps=" in said:
        (launch,) = (one["rows"] for one in found["tried"] if one["title"] == "the launch")
        assert launch[0] == ["-", f"num_warps={job.num_warps}"]
        assert launch[1][1] in said


def test_what_was_tried_is_with_the_observation_that_it_was_tried_for() -> None:
    """Two observations of one line have each their own; launches stand with the one that tried them."""
    plant, _ = PLANTED["wrong-fill"]
    page = document(
        examined(make_job(plant.kernel, plant.args, plant.constants, **{"grid": 2, **plant.options}))
    )
    found = {one["code"]: one for one in page["observations"]}
    assert found["wrong-fill"]["keys"] == found["scalar-access"]["keys"]
    new = {
        code: [row for tried in found[code]["tried"] for mark, row in tried["rows"] if mark == "+"]
        for code in ("wrong-fill", "scalar-access")
    }
    assert not set(new["wrong-fill"]) & set(new["scalar-access"])
    assert all("arith.constant" in row or "tt.load" in row for row in new["wrong-fill"])
    plant, _ = PLANTED["narrow-copy"]
    page = document(
        examined(make_job(plant.kernel, plant.args, plant.constants, **{"grid": 2, **plant.options}))
    )
    found = {one["code"]: one for one in page["observations"]}
    launches = [one["rows"][1][1] for one in found["bank-conflict"]["tried"] if one["title"] == "the launch"]
    assert launches
    assert all(row.startswith("num_warps=") for row in launches)
    assert len(set(launches)) == len(launches) == 3
    assert not [one for one in found["narrow-copy"]["tried"] if one["title"] == "the launch"]

"""`tilefold xray`: what it prints, writes and exits with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tilefold
from tilefold import cli, monoids
from tilefold.api.explain import request_of
from tilefold.planner.chips import chip_of
from tilefold.xray.command import read_reports
from tilefold.xray.compile.folds import jobs_of_request
from tilefold.xray.cuda import find_nvcc
from xray import kernels

needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="no nvcc")
FILE = kernels.__file__
SOFTMAX = [
    f"{FILE}::softmax",
    "--arg",
    "x_ptr=*fp32",
    "--arg",
    "y_ptr=*fp32",
    "--arg",
    "n=i32:1000",
    "--const",
    "BLOCK=1024",
]


def main(arguments: list[str]) -> int:
    return cli.run(["xray", *arguments])


@pytest.mark.parametrize("width", [80, 100, 160])
def test_a_report_fits_its_terminal(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main([*SOFTMAX, "--grid", "64"]) == 0
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if len(line) > width] == []
    for part in (
        "sm_90 (H200), 4 warps, 3 stages, grid 64", "x_ptr=*fp32!div16", "programs (0,0,0), (32,0,0), (63,0,0)",
        "load 4 B x8: 125", "28 shuffles", "2 barriers", "scalar-access  kernels.py:",
        "divisibility: with n a multiple of 4",
    ):  # fmt: skip
        assert part in re.sub(r"\s+", " ", shown) or part in shown
    assert "a thread" in shown


def test_the_static_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SOFTMAX, "--static", "--target", "sm_100", "--num-warps", "8", "--num-stages", "2"]) == 0
    shown = capsys.readouterr().out
    assert "sm_100 (B200), 8 warps, 2 stages" in shown
    assert "executed" not in shown


def test_json_and_its_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, n in (("a", 1000), ("b", 1008)):
        arguments = [a.replace("1000", str(n)) for a in SOFTMAX]
        assert main([*arguments, "--json", str(tmp_path / f"{name}.json")]) == 0
    assert capsys.readouterr().out == ""
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["schema"] == 2
    first, *_ = document["reports"][0]["observations"]
    assert (first["code"], len(first["also"])) == ("scalar-access", 1)
    assert document["reports"][0]["observations"][0]["line"] > 0
    assert len(read_reports(tmp_path / "b.json")) == 1
    assert main(["diff", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"machine instructions +\d+ +\d+ +0\.\d+", shown)
    assert "load 4 B x8" in shown
    assert "load 16 B" in shown
    assert "only A: scalar-access" in shown


def test_a_comparison_of_two_configurations(capsys: pytest.CaptureFixture[str]) -> None:
    quoted = " ".join(SOFTMAX)
    assert main(["diff", quoted, f"{quoted} --num-warps 1 --static"]) == 0
    assert re.search(r"registers a thread", capsys.readouterr().out)


def test_json_on_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--fold", "any dim=1 1000x64 i32", "--static", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["reports"][0]["grid"][0] > 0


def test_cuda(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SOFTMAX, "--static", "--json", "-", "--cuda", str(tmp_path / "softmax.cu")]) == 0
    assert "softmax as readable" in capsys.readouterr().err
    assert "float* y_row = y_ptr" in (tmp_path / "softmax.cu").read_text()
    assert (
        main([*SOFTMAX, "--static", "--json", "-", "--cuda", str(tmp_path / "plain.cu"), "--as", "plain"])
        == 0
    )
    assert "softmax as plain" in capsys.readouterr().err
    assert "argument_0" in (tmp_path / "plain.cu").read_text()


def test_the_cuda_of_two_kernels_side_by_side(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "203")
    quoted = " ".join(SOFTMAX)
    assert main(["diff", "--cuda", quoted, f"{quoted} --num-warps 1"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert any(
        re.match(r'extern "C" .*_bounds__\(128\) softmax\( +\| extern "C" .*_bounds__\(32\) softmax', r)
        for r in rows
    )
    assert max(map(len, rows)) <= 203
    assert any("__syncthreads();" in r and r.endswith("<") for r in rows), "one warp has no barriers"


def test_the_cuda_of_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        cli.run(["plan", "64x512", "--monoid", "sum", "--dtype", "fp32", "--cuda", str(tmp_path / "sum.cu")])
        == 0
    )
    out, said = capsys.readouterr()
    assert "64 results of 512 elements" in out
    assert "sum.cu is reduce of 64x512 as readable" in said
    assert 'extern "C" __global__' in (tmp_path / "sum.cu").read_text()


# Of each operation beside folds a call that a GPU would be planned for.
PLANNED: dict[str, tuple[Any, dict[str, Any]]] = {
    "softmax": (tilefold.softmax, {"dim": 1}),
    "layer_norm": (tilefold.layer_norm, {"normalized_shape": (512,)}),
    "cumsum": (tilefold.cumsum, {"dim": 1}),
    "topk": (tilefold.topk, {"k": 8, "dim": 1}),
    "transpose": (tilefold.transpose, {"dim0": 0, "dim1": 1}),
    "segment_reduce": (
        tilefold.segment_reduce,
        {"monoid": monoids.SUM, "dim": 0, "offsets": torch.empty(9, dtype=torch.int64, device="meta")},
    ),
}


@pytest.mark.parametrize("name", PLANNED)
def test_every_operation_has_jobs(name: str) -> None:
    operation, words = PLANNED[name]
    x = torch.empty(256, 512, device="meta")
    found = request_of(x, operation, None, "run_to_run", words)
    assert found is not None
    jobs = jobs_of_request(*found, name, chip_of("h200"))
    plan = tilefold.explain_plan(x, operation, **words)
    assert [job.kernel for job in jobs] == [step.kernel for step in plan.launched]
    given = [a for job in jobs for a in job.arguments if a.data is not None]
    assert all(np.array_equal(a.data, np.arange(9) * 32) for a in given), "segments of one length"
    assert bool(given) == (name == "segment_reduce")


@needs_nvcc
def test_a_product_is_taken_along(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "product.cu")
    assert cli.run(["plan", "16x64", "--operation", "matmul", "--by", "64x16", "--cuda", file]) == 0
    assert "product.cu is matmul of 16x64 as readable, proven" in capsys.readouterr().err
    assert cli.run(["plan", "16x64", "--operation", "matmul"]) == 2
    assert "matmul must have --by, the second operand's shape, got none" in capsys.readouterr().err
    assert cli.run(["plan", "0x64", "--operation", "softmax", "--cuda", file]) == 2
    assert "a call must launch kernels of the library to be written as CUDA" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ([], "a kernel must be named"),
        (["diff", "--cuda", "a.json", "b.json"], "must have the options of two reports, got 'a.json'"),
        ([f"{FILE}::nothing"], "must name a kernel of the file, got 'nothing'"),
        (["nowhere.py::x"], "must name a file"),
        ([*SOFTMAX, "--arg", "z=i32:1"], "--arg must name one of softmax"),
        ([*SOFTMAX, "--arg", "n"], "must be written NAME="),
        ([*SOFTMAX, "--const", "BLOCK=tl.nothing"], "a name of triton.language"),
        ([*SOFTMAX, "--grid", "a"], "--grid must be one to three numbers, got 'a'"),
        ([*SOFTMAX, "--num-warps", "two"], "--num-warps must be a whole number from 0 on, got 'two'"),
        (["--fold", "sum 0x8 fp32"], "a fold must have elements"),
        ([*SOFTMAX, "--program", "7"], "must lie in the grid"),
        ([*SOFTMAX, "--target", "sm_70"], "must be one of sm_80"),
        ([*SOFTMAX, "--case", "x"], "--case needs a file with a function xray_cases()"),
        ([*SOFTMAX, "--const", "BLOCK=1<<10"], "--const must be a literal"),
        ([*SOFTMAX, "--const", "BLOCK=1000"], "must compile for sm_90"),
        (["--fold", "sum dim=0 8 fp32", "--grid", "8"], "--fold plans its own kernels, got also grid"),
        ([*SOFTMAX, "--static", "--json", "/nowhere/x.json"], "a file that can be written"),
        (["diff", "a.json"], "required: B; tilefold xray diff --help has all"),
        (["diff", "/nowhere/a.json", "/nowhere/b.json"], "write one with --json a.json"),
    ],
)
def test_what_cannot_be_done_is_one_message_and_exit_code_2(
    arguments: list[str], rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, said = capsys.readouterr()
    assert out == ""
    assert rule in said
    assert "Traceback" not in said


def test_tritons_own_message_keeps_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SOFTMAX, "--const", "BLOCK=1000"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("xray: ")
    assert len(said.splitlines()) > 1
    assert "\\n" not in said


FOLD = ["--fold", "logsumexp dim=1 64x512 fp32"]


@pytest.mark.parametrize(("what", "code"), [("error", 0), ("approximate-math", 1)])
def test_a_run_fails_on_what_it_is_told_to(what: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FOLD, "--fail-on", what]) == code
    said = capsys.readouterr().err.splitlines()
    assert all(line.startswith(f"xray: note {what} at ") for line in said)
    assert bool(said) == bool(code)


def test_notes_with_nothing_to_do_are_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(FOLD) == 0
    assert "Nothing to do about approximate-math" in capsys.readouterr().out
    assert main([*FOLD, "--all"]) == 0
    shown = capsys.readouterr().out
    assert "Nothing to do about" not in shown
    assert "approximate-math" in shown


@pytest.mark.parametrize(("kind", "word"), [("ttgir", "tt.func"), ("ptx", ".entry"), ("sass", "EXIT")])
def test_the_texts_that_a_report_cites(
    kind: str, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"kernel.{kind}"
    assert main([*FOLD, "--static", f"--{kind}", str(file)]) == 0
    rows = file.read_text(encoding="utf-8").splitlines()
    assert [int(row.split()[0]) for row in rows] == list(range(1, len(rows) + 1))
    assert any(word in row for row in rows)
    capsys.readouterr()
    assert main([*FOLD, "--static", f"--{kind}", "-"]) == 0
    assert capsys.readouterr().out.splitlines() == rows


CASES = """
import triton
import triton.language as tl


@triton.jit
def twice(x):
    return x + x


@triton.autotune([triton.Config({}, num_warps=2)], key=["n"])
@triton.jit
def scaled(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr, TWICE: tl.constexpr = False):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n) * factor
    if TWICE:
        x = twice(x)
    tl.store(y_ptr + offs, x, mask=offs < n)


def xray_cases():
    return {
        "small": dict(
            kernel=scaled, args={"x_ptr": "*fp32[100]", "y_ptr": "*fp32[100]", "n": 100, "factor": 2.0},
            constants={"BLOCK": 32}, grid=lambda meta: triton.cdiv(meta["n"], meta["BLOCK"]),
        ),
        "fixed": dict(kernel=scaled, args={"x_ptr": "*fp32", "y_ptr": "*fp32", "n": 64, "factor": 2.0},
                      constants={"BLOCK": 64}, num_warps=1),
        "none": 7,
    }
"""


@pytest.fixture
def cases(tmp_path: Path) -> str:
    path = tmp_path / "cases_of_scaled.py"
    path.write_text(CASES)
    return str(path)


def test_a_file_alone_lists_its_kernels_and_cases(cases: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([cases]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"kernels of {cases}:",
        "  twice(x)  (called by scaled)",
        "  scaled(x_ptr, y_ptr, n, factor, BLOCK: const, TWICE: const = False)",
        "cases:",
        "  small: scaled x_ptr=*fp32[100] y_ptr=*fp32[100] n=100 factor=2.0 BLOCK=32 grid=by the launch",
        "  fixed: scaled x_ptr=*fp32 y_ptr=*fp32 n=64 factor=2.0 BLOCK=64 num_warps=1",
        "  none: no case: a int",
    ]
    assert main([FILE]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "no cases: the file has no xray_cases()"


def report_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main([*arguments, "--json", "-"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["reports"][0]
    return found


@pytest.mark.parametrize(
    ("given", "arguments", "constants", "grid"),
    [
        ([], ["n=i32:100", "factor=fp32:2"], ["BLOCK=32", "TWICE=False"], 4),
        (["--arg", "n=i32:77"], ["n=i32:77", "factor=fp32:2"], ["BLOCK=32", "TWICE=False"], 3),
        (["--arg", "n=77", "--arg", "factor=0.5"], ["n=i32:77", "factor=fp32:0.5"], ["BLOCK=32", "TWICE=False"], 3),
        (["--const", "TWICE=True", "--const", "BLOCK=16"], ["n=i32:100", "factor=fp32:2"], ["BLOCK=16", "TWICE=True"], 7),
        (["--grid", "2"], ["n=i32:100", "factor=fp32:2"], ["BLOCK=32", "TWICE=False"], 2),
    ],
)  # fmt: skip
def test_what_is_given_beside_a_case_goes_before_it(
    given: list[str], arguments: list[str], constants: list[str], grid: int, cases: str, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    found = report_of([cases, "--case", "small", *given, "--static"], capsys)
    assert [a for a in found["arguments"] if a[0] in "nf"] == arguments
    assert (found["constants"], found["grid"]) == (constants, [grid, 1, 1])


def test_what_is_given_beside_a_case_must_be_of_the_kernel(
    cases: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([cases, "--case", "small", "--arg", "m=i32:1"]) == 2
    assert "--arg must name one of scaled's parameters" in capsys.readouterr().err


def test_quick_tries_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from tilefold.xray.compile import offline

    def recompiled(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(offline, "recompile", recompiled)
    found = report_of([*SOFTMAX, "--quick"], capsys)
    assert found["totals"]["sectors"] > 0
    assert [o["code"] for o in found["observations"]] == ["approximate-math"] * 2
    assert [note.partition(":")[0] for note in found["notes"]] == ["No trials were asked for"]


def test_progress_says_where_the_seconds_went(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SOFTMAX, "--json", "-", "--progress"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert all(re.match(r"xray: softmax: [a-z ]+( x\d+)? \(\d+\.\d s\)$", line) for line in lines[:-1])
    assert re.match(r"xray: softmax: \d+\.\d s: .*compiling trials( x\d+)? \d", lines[-1])
    for silent in ([], ["--no-progress"]):  # stderr is no terminal here
        assert main([*SOFTMAX, "--static", "--json", "-", *silent]) == 0
        assert capsys.readouterr().err == ""

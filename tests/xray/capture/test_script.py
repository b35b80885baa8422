"""`tilefold xray run`: a script as Python runs it, the table behind its output, its exit code."""

from __future__ import annotations

import importlib
import json
import sys
from itertools import pairwise

import pytest

from tilefold.errors import ArgumentError
from tilefold.xray.command import run

SCRIPT = """
import sys
import torch, triton, triton.language as tl
import beside

@triton.jit
def one_kernel(x_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(x_ptr + offs, tl.load(x_ptr + offs) + 1)

@triton.jit
def other_kernel(x_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offs, tl.load(x_ptr + offs) * 2)

if __name__ == "__main__":
    x = torch.zeros(64, device="cuda")
    one_kernel[(1,)](x, BLOCK=64)
    one_kernel[(1,)](x, BLOCK=64)
    other_kernel[(2,)](x, BLOCK=32)
    print("sum", x.sum().item(), sys.argv[1:])
    print("time", triton.testing.do_bench(lambda: None))
    sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "beside.py").write_text("")
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    yield file
    sys.modules.pop("beside", None)


def test_a_script_runs_with_its_arguments_and_ends_with_its_code(script, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    argv, path = sys.argv, list(sys.path)
    assert run(["run", str(script), "3", "--kernel", "mine"]) == 3
    out, err = capsys.readouterr()
    assert "sum 256.0 ['3', '--kernel', 'mine']" in out
    assert "time nan" in out
    assert "3 launches reached for sm_90, 3 captured, 3 executed; 2 distinct" in out
    (row,) = [line.split() for line in out.splitlines() if " one_kernel " in line]
    assert row[:6] == ["1", "one_kernel", "script.py:18", "2", "1x1x1", "all"]
    assert "it exits with 3" in err
    assert (sys.argv, sys.path) == (argv, path)


@pytest.mark.parametrize(
    ("ending", "code"),
    [("", 0), ("sys.exit()", 0), ("sys.exit(0)", 0), ("sys.exit(4)", 4), ("sys.exit('no')", 1)],
)
def test_a_script_ends_by_itself_or_with_what_it_says(script, ending, code):
    script.write_text(SCRIPT.replace("sys.exit(int(sys.argv[1]))", ending or "pass"))
    assert run(["run", "--quick", str(script)]) == code


def test_reports_files_and_failures_are_of_the_kernels_asked_for(script, capsys, tmp_path):
    out = tmp_path / "reports.json"
    folder = tmp_path / "saved"
    words = ["--kernel", "other*", "--quick", "--json", str(out), "--save", str(folder), str(script), "0"]
    assert run(["run", *words]) == 0
    (report,) = json.loads(out.read_text())["reports"]
    assert report["kernel"] == "other_kernel"
    assert [file.name for file in folder.iterdir()] == ["launch_3_other_kernel.py"]
    shown = capsys.readouterr().out
    assert "* 2" in shown, "the kernel's lines"


def reports(out):
    """The kernels that full reports are of, in their order: a report says under its head how its kernel is launched."""
    lines = out.splitlines()
    return [line.split()[0] for line, under in pairwise(lines) if under.startswith("sm_90 (")]


def test_first_is_the_reports_of_the_table_s_first_rows(script, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["run", "--quick", str(script), "0"]) == 0
    table = capsys.readouterr().out
    order = [line.split()[1] for line in table.splitlines() if "script.py:" in line]
    assert sorted(order) == ["one_kernel", "other_kernel"]
    assert reports(table) == []
    for first, expected in (("1", order[:1]), ("2", order), ("9", order)):
        assert run(["run", "--quick", "--first", first, str(script), "0"]) == 0
        assert reports(capsys.readouterr().out) == expected


def test_all_is_the_reports_of_all_distinct_launches(script, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(importlib.import_module("tilefold.xray.capture.command"), "MANY", 1)
    assert run(["run", "--quick", str(script), "0"]) == 0
    assert "2 distinct, 1 not shown here" in capsys.readouterr().out
    assert run(["run", "--quick", "--all", str(script), "0"]) == 0
    out = capsys.readouterr().out
    assert "2 distinct" in out
    assert "not shown here" not in out
    assert sorted(reports(out)) == ["one_kernel", "other_kernel"]


def test_an_instruction_that_the_machine_lacks_is_named(script, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    script.write_text(
        SCRIPT.replace(
            "tl.load(x_ptr + offs) * 2",
            'tl.inline_asm_elementwise("vadd.u32.u32.u32 $0, $1, $1;", "=r,r", '
            "[tl.load(x_ptr + offs).to(tl.int32)], tl.int32, True, 1)",
        )
    )
    assert run(["run", "--quick", "--kernel", "other_kernel", str(script), "0"]) == 0
    out, err = capsys.readouterr()
    assert "3 launches reached for sm_90, 3 captured, 2 executed" in out
    lacks = "an instruction must be known to be executed, got 'vadd.u32.u32.u32' in PTX line"
    assert f"Not executed: {lacks}" in " ".join(out.split())
    assert f"{script}:20: launch 3, other_kernel, was not executed: program (0, 0, 0): {lacks}" in err
    assert "source line 14" in err
    assert "what it writes is unknown" in err


@pytest.mark.parametrize(
    ("words", "rule"),
    [([], "must be given a script"), (["absent.py"], "must be given a script's file, got 'absent.py'"),
     (["--kernel", "absent", "SCRIPT", "0"], "--kernel must name a kernel that was launched, got 'absent'")],
    ids=["none", "no-file", "no-kernel"],
)  # fmt: skip
def test_what_cannot_run_is_one_line(script, words, rule):
    with pytest.raises(ArgumentError, match=rule):
        run(["run", *(str(script) if word == "SCRIPT" else word for word in words)])


def test_a_script_that_fails_says_where(script, capsys):
    script.write_text("import torch\n\ntorch.cuda.CUDAGraph()\n")
    assert run(["run", str(script)]) == 1
    assert (
        f"without torch.cuda.CUDAGraph where no GPU is, got a call at {script}:3" in capsys.readouterr().err
    )
    script.write_text("1 / 0\n")
    assert run(["run", str(script)]) == 1
    assert f"ZeroDivisionError at {script}:1: division by zero" in capsys.readouterr().err
    script.write_text("raise KeyError()\n")
    assert run(["run", str(script)]) == 1
    assert f"the script ended early: KeyError at {script}:1\n" in capsys.readouterr().err

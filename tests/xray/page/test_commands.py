"""`--html` of `xray`, `xray run` and `xray diff`: files, lines that name them, one line for what cannot be done."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import triton

from commands import run
from watch.test_page import Parts

KERNELS = """
import triton, triton.language as tl

@triton.jit
def double(x_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offs, tl.load(x_ptr + offs) * 2)

def xray_cases():
    return {name: dict(kernel=double, args={"x_ptr": "*fp32"}, constants={"BLOCK": size}, grid=2)
            for name, size in (("a", 64), ("b", 128))}
"""
SCRIPT = """
import torch
from kernels import double
x = torch.zeros(256, device="cuda")
for size in (64, 64, 128):
    double[(2,)](x, BLOCK=size)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "kernels", raising=False)  # of other tests
    return tmp_path


def test_a_page_of_a_kernel_and_two_side_by_side(folder: Path) -> None:
    shown = run(["xray", "kernels.py", "--case", "a", "--quick", "--html", "a.html"])
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert re.fullmatch(r"a\.html: \d+ kB, opens in any browser\n", shown.stdout)
    assert Parts((folder / "a.html").read_text(encoding="utf-8")).text_of("h1") == ["double"]
    both = run(["xray", "diff", "a.html", "kernels.py --case b --quick", "--html", "both.html"])
    assert both.exit_code == 0
    text = (folder / "both.html").read_text(encoding="utf-8")
    assert "BLOCK=64" in text
    assert "BLOCK=128" in text
    in_terminal = run(["xray", "diff", "a.html", "a.html"])
    assert "Nothing differs." in in_terminal.stdout


TUNED = """
import torch, triton, triton.language as tl

SIZES = [triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256})]

@triton.autotune(SIZES, ["n"])
@triton.jit
def doubled(x_ptr, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK != 128)
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offs, tl.load(x_ptr + offs, offs < n) * 2, offs < n)

x = torch.ones(512, device="cuda")
for _ in range(2):
    doubled[lambda meta: (triton.cdiv(512, meta["BLOCK"]),)](x, 512)
assert (x == 4).all()
"""


@pytest.mark.parametrize("every", [True, False], ids=["all", "first"])
def test_all_configurations_of_a_tuned_kernel_stand_in_a_table(folder: Path, every: bool) -> None:
    (folder / "tuned.py").write_text(TUNED)
    words = ["--configurations", "all"] if every else []
    shown = run(["xray", "run", *words, "--quick", "--html", "all.html", "tuned.py"])
    assert (shown.exit_code, shown.stderr) == (0, "")
    tables = " ".join(Parts((folder / "all.html").read_text(encoding="utf-8")).text_of("td"))
    for text in (shown.stdout, tables):
        found = [(block, said) for block in (64, 128, 256) if (said := text.partition(f"BLOCK: {block},")[2])]
        assert [block for block, _ in found] == ([64, 128, 256] if every else [])
        assert ["not compiled" in said.partition("BLOCK: ")[0] for _, said in found] == (
            [False, True, False] if every else []
        )
    assert ("configurations of doubled, launch 1" in shown.stdout) == every
    assert "2 launches reached for sm_90, 2 captured, 2 executed; 1 distinct" in shown.stdout


def test_a_script_has_an_index_and_a_page_a_launch(folder: Path) -> None:
    shown = run(["xray", "run", "--html", "runs & all.html", "script.py"])
    assert shown.exit_code == 0
    assert "runs & all.html: " in shown.stdout
    index = Parts((folder / "runs & all.html").read_text(encoding="utf-8"))
    links = [a["href"] for tag, a in index.elements if tag == "a"]
    assert sorted(map(str, links)) == ["runs%20%26%20all.1.html", "runs%20%26%20all.3.html"]
    page = Parts((folder / "runs & all.3.html").read_text(encoding="utf-8"))
    assert [a["href"] for tag, a in page.elements if tag == "a"] == ["runs%20%26%20all.html"]
    assert "BLOCK=128" in page.text_of("code")


NEWEST = next(iter(sorted(Path(sys.prefix).glob("triton-*"))), None)  # as `make xray-newest` installs it


@pytest.mark.skipif(NEWEST is None, reason="no second Triton (make xray-newest installs one)")
@pytest.mark.skipif(
    NEWEST is not None and Path(triton.__file__).is_relative_to(NEWEST),
    reason="it is the Triton of these tests",
)
def test_the_same_kernel_by_two_versions_of_triton(folder: Path) -> None:
    words = ["kernels.py", "--case", "a", "--quick", "--html"]
    assert run(["xray", *words, "old.html"]).exit_code == 0
    path = os.pathsep.join([str(NEWEST), *sys.path])
    command = [sys.executable, "-m", "tilefold", "xray", *words, "new.html"]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True, capture_output=True)
    both = run(["xray", "diff", "old.html", "new.html", "--html", "both.html"])
    assert (both.exit_code, both.stderr) == (0, "")
    parts = Parts((folder / "both.html").read_text(encoding="utf-8"))
    said = " ".join(parts.text_of("p") + parts.text_of("li"))
    newest = str(NEWEST).rpartition("-")[2]
    assert f"Triton {triton.__version__}" in said
    assert f"Triton {newest}" in said
    assert f"Triton {newest}" in run(["xray", "diff", "old.html", "new.html"]).stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["diff", "no.html", "a.json"], "a page to compare must be one that --html wrote for a kernel, got 'no.html'"),
        (["diff", "other.html", "a.json"], "a page to compare must be one that --html wrote for a kernel, got 'other"),
        (["run", "--html", "-", "script.py"], "run --html must name a file, beside which the pages are written"),
        (["kernels.py", "--case", "a", "--quick", "--html", "."], "--html must be a file that can be written, got '.'"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_line(folder: Path, arguments: list[str], line: str) -> None:
    (folder / "other.html").write_text("<p>another page")
    shown = run(["xray", *arguments])
    assert shown.exit_code == 2
    assert shown.stderr.startswith(f"xray: {line}")
    assert shown.stderr.count("\n") == 1


def test_what_is_missing_is_said_in_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygments", None)
    shown = run(["xray", "kernels.py", "--case", "a", "--html", "a.html"])
    assert shown.exit_code == 2
    assert shown.stderr == "xray: pages need pygments, got none; pip install 'tilefold[cli]'\n"


def test_the_page_of_a_run_has_pages_to_compare_beside_it(folder: Path) -> None:
    (folder / "all.html").write_text("<p>all")
    for name in ("all.2.html", "all.10.html", "all.more.html"):
        (folder / name).write_text("<p>one")
    said = run(["xray", "diff", "all.html", "all.2.html"]).stderr
    assert "got 'all.html' (a page of a run); take one of all.2.html, all.10.html\n" in said


@pytest.mark.parametrize(
    ("option", "path"),
    [
        ("--html", "no/x.html"),
        ("--html", "kernels.py/x.html"),
        ("--json", "no/x"),
        ("--save", "kernels.py/x"),
    ],
)
def test_a_place_that_cannot_be_written_ends_the_run_before_the_script(
    folder: Path, option: str, path: str
) -> None:
    (folder / "script.py").write_text("print('it ran')")
    shown = run(["xray", "run", option, path, "script.py"])
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert f"{option} must" in shown.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [("nomodule", "No module named nomodule"), ("os.nomodule", "Error while"), ("json", "is a package")],
)
def test_a_module_that_is_none_is_said_in_one_line(folder: Path, name: str, said: str) -> None:
    shown = run(["xray", "run", "-m", name])
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert re.fullmatch(
        rf"xray: run -m must be given a module that python -m runs, got '{name}' \(.*{said}.*\); check .*\n",
        shown.stderr,
    )


def test_an_import_that_a_module_s_own_code_misses_is_the_script_s(folder: Path) -> None:
    (folder / "wants.py").write_text("import nomodule")
    shown = run(["xray", "run", "-m", "wants"])
    assert shown.exit_code == 1
    assert re.search(r"the script ended early: ModuleNotFoundError at .*wants\.py:1: No module", shown.stderr)


def test_cases_are_named_where_several_kernels_have_no_name(folder: Path) -> None:
    shown = run(["xray", "kernels.py", "--html", "a.html"])
    assert shown.exit_code == 2
    assert "it has double, or name a case with --case" in shown.stderr

"""The house itself: examples, the walk and the pages' code run, the README shows what was measured, importing is light."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import importlib.util
import inspect
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import tilefold
from tilefold.bench import summary
from tilefold.bench.cpu_operations import OPERATIONS
from tilefold.bench.results import (
    SCHEMA,
    CaseResult,
    Measurement,
    Run,
    SuiteResult,
    read_results,
    write_results,
)
from tilefold.bench.statistics import Quartiles

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "benchmarks")]
import readme  # noqa: E402  # lives in benchmarks/
import readme_suites  # noqa: E402
import readme_tables  # noqa: E402


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ----------------------------------------------------------------------------------------------------- examples


def test_or_of_bit_masks() -> None:
    assert all(count > 20 for count in load("or_of_bit_masks").main().values())


def test_online_softmax_pair() -> None:
    assert load("online_softmax_pair").main() < 1e-6


def test_longest_run() -> None:
    module = load("longest_run")
    assert module.main() > 5
    assert not module.longest_run.commutative


def test_skinny_product() -> None:
    assert len(load("skinny_product").main()) == 16


def test_wrong_fill() -> None:
    pytest.importorskip("triton")
    first = load("wrong_fill").main().observations[0]
    assert (first.code, first.severity) == ("wrong-fill", "error")


# What the walk shows of each thing that the project was asked for, its lines joined.
WALKED = (
    # a short axis
    "OR, AND, XOR of int32 [6, 40, 16] over any axis: shapes of the results, whose bits are numpy's dim 0 dim 1 dim 2",
    "XOR [40, 16] [6, 16] [6, 40] [40] []",
    "executed here from its PTX: tilefold's bits instructions bytes moved tl.reduce of a 3-D tile",
    "K unrolled loads",
    "tl.reduce of flat rows",
    "int64 limit tilefold 3-D loads flat compile of limit 64x128x4",
    "1024x2048x8",
    "tilefold bench or-small-axis --against torch,compile",
    # reductions and online algorithms
    "max equal equal equal equal equal equal min equal equal equal equal equal equal cumsum",
    "a state of (unit, elements, count, pivot, sum, squares)",
    "each held whole 1. ring_rows",
    "rows of 4194304 elements, read again from the L2 1. clear",
    "max -inf (float32) -128 (int8)",
    "and -1 (int32) 255 (uint8)",
    "error wrong-fill wrong_fill.py:",
    "tilefold's own maximum of such rows, 64x1000 fp32: nothing found.",
    "build/welford.html",
    # kernels explained
    "13 A transposed matrix confirmed 14 A sigmoid confirmed 15 A small product confirmed",
    "if (p1) r1 = *(Held32*)(rd1);",
    "Executed from its PTX, it copies 1000 floats.",
    # skinny products
    "of float64's, and so is tilefold.inductor.matmul",
    "28 products of bf16 with ReLU",
    "torch.compile, max-autotune 1",
    "custom op, S chosen by Inductor 1",
    "two kernels, a serial reducer 1",
    "two kernels, a vector reducer 1",
    "for exact shapes and for ranges of rows, and with mm=True for torch.mm itself",
    "T tilefold eager compile custom op 1",
    "leave these as CSV and plots",
    # transposes and atomic sums
    "bytes tilefold torch compile of limit 1 (int8)",
    "256 of a row wasted-sectors",
    "a tile, 64 x 64 none",
    "triton: atomics, 1 result of 16777216 elements, rows contiguous, atomic add",
    'fp32 tilefold "none" relaxed acquire release acq_rel torch',
    'warning strong-atomic: an atomic of order "acq_rel"',
)


@pytest.mark.parametrize("width", ["80", "120"])
def test_the_walk(width: str) -> None:
    """As in a terminal of that width, without the demo's checkpoint or with it."""
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "walk.py")]
    shown = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**ENVIRONMENT, "COLUMNS": width}
    ).stdout
    lines = shown.splitlines()
    assert [line for line in lines if len(line) > int(width)] == []
    headings = [line.split(" ", 1)[0] for line in lines if line.endswith("─") and line[0].isdigit()]
    assert headings == [f"{n}." for n in range(1, 13)]
    one_line = " ".join(shown.split())
    assert [part for part in WALKED if part not in one_line] == []
    for part in (
        "either = tilefold.Monoid(",
        "overflow",
        "build/softmax_pair.html",
        "ordered",
        "No NaN, no inf.",
        "! NaN or inf in 1 of 2",
        "float64 gives the same",
        "error  wrong-fill  wrong_fill.py:",
    ):
        assert part in shown
    if not torch.cuda.is_available():
        assert "results measured elsewhere" in shown
        assert shown.count("Its plan on an H200 (planned here, not run)") == 4
        assert readme.load().runs[0].chip in shown


# -------------------------------------------------------------------------------------------------------- pages

DOCS = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]
PAGES = ["README.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md", *DOCS]
CODE = [page for page in PAGES if "```python" in (ROOT / page).read_text(encoding="utf-8")]


def test_pages_with_code_are_found() -> None:
    assert {"README.md", "docs/algebra.md", "docs/describe.md", "docs/guarantees.md"} <= set(CODE)


@pytest.mark.parametrize("page", CODE)
def test_code_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's blocks, one after the other, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / page).read_text(encoding="utf-8")
    scope: dict[str, Any] = {"__name__": "page"}
    for match in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
        line = text[: match.start()].count("\n") + 1
        exec(compile("\n" * line + match[1], str(ROOT / page), "exec"), scope)  # our own pages
    if page == "README.md":
        torch.testing.assert_close(scope["result"], torch.logsumexp(scope["x"], 1))
        assert scope["bits"].tolist() == [7, 9]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), f"{page} links to {target}"


RECORDS = sorted((ROOT / "docs" / "experiments").glob("*.md"))


@pytest.mark.parametrize("path", RECORDS, ids=[path.stem for path in RECORDS])
def test_a_record_has_its_four_sections_and_stands_in_the_index(path: Path) -> None:
    sections = re.findall(r"^## (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert sections == ["Question", "Tried", "Result", "Decision"]
    index = (ROOT / "docs" / "measured.md").read_text(encoding="utf-8")
    assert index.count(f"(experiments/{path.name})") >= 1


# What a comment says of where numbers come from: a record, or one of these words.
ORIGIN = re.compile(
    r"docs/experiments/([\w-]+\.md)|\b(hardware|definitions?|not measured|no record)\b", re.IGNORECASE
)
UNKNOWN = {"not measured", "no record"}
PLANNER = ROOT / "src" / "tilefold" / "planner"
# Costs of products come from tables that are fitted to runs (docs/matmul.md).
PLANNED = sorted(path for path in PLANNER.rglob("*.py") if path.parent.name != "products")


def comments_over(lines: list[str], node: ast.stmt) -> Iterator[str]:
    """A constant's own comment, then those above it in its paragraph, the nearest one first."""
    yield " ".join(line.partition("#")[2] for line in lines[node.lineno - 1 : node.end_lineno])
    paragraph = itertools.takewhile(str.strip, reversed(lines[: node.lineno - 1]))
    for is_comment, some in itertools.groupby(paragraph, lambda line: line.startswith("#")):
        if is_comment:
            yield " ".join(reversed(list(some)))


def origins(text: str) -> dict[str, set[str]]:
    """Of each constant of a module that has a number: the records and the words that say where it comes from."""
    lines, found = text.splitlines(), {}
    for node in ast.parse(text).body:
        values = list(ast.walk(node)) if isinstance(node, (ast.Assign, ast.AnnAssign)) else []
        if not any(isinstance(value, ast.Constant) and type(value.value) in (int, float) for value in values):
            continue
        target = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)  # type: ignore[attr-defined]  # an assignment
        said = map(ORIGIN.findall, comments_over(lines, node))
        found[target.strip("()")] = {(name or word.lower()) for name, word in next(filter(None, said), [])}
    return found


def test_origins_of_constants() -> None:
    text = (
        "# docs/experiments/a.md:\nA = 1  # of what\n# Of what:\nB, C = 2, (3, 4)\nD = 5  # docs/experiments/b.md\n\n"
        "E = 6  # of what\nF = 7  # not measured\nG = 'text'\n# By definition\n# a word.\nH: int = 1 << 3\n"
    )
    assert origins(text) == {
        "A": {"a.md"},
        "B, C": {"a.md"},
        "D": {"b.md"},
        "E": set(),
        "F": {"not measured"},
        "H": {"definition"},
    }


@pytest.mark.parametrize("path", PLANNED, ids=lambda path: path.relative_to(PLANNER).as_posix())
def test_a_number_of_the_planner_names_its_experiment(path: Path) -> None:
    """Or says that it is a limit of the hardware, a definition, or not measured."""
    found = origins(path.read_text(encoding="utf-8"))
    assert [name for name, said in found.items() if not said] == []
    records = {one for said in found.values() for one in said if one.endswith(".md")}
    assert records <= {record.name for record in RECORDS}


def test_numbers_that_were_not_measured_are_listed() -> None:
    unknown = {
        f"{path.stem}.{name}"
        for path in PLANNED
        for names, said in origins(path.read_text(encoding="utf-8")).items()
        for name in names.split(", ")
        if said & UNKNOWN
    }
    record = (ROOT / "docs" / "experiments" / "thresholds-not-measured.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+\.\w+)` \|", record, re.MULTILINE)
    assert sorted(listed) == sorted(unknown)


def test_commands_that_pages_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in PAGES:
        named = re.findall(
            r"(?:^|`)make ([a-z][a-z-]*)", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE
        )
        assert set(named) <= targets, page


def test_readme_names_every_public_function() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in public() if not re.search(rf"\b{name}\b", page)] == []


# ----------------------------------------------------------------------------------------------- measured results


def test_pages_show_the_committed_results(capsys: pytest.CaptureFixture[str]) -> None:
    assert readme.main(["--check"]) == 0, "run: python benchmarks/readme.py"
    assert capsys.readouterr().out == ""


def results(torch_us: float | None = 260.0, compile_us: float | None = None, **changes: Any) -> SuiteResult:
    """One headline case, as it would be read from a file."""
    ours = Measurement("ours", "ok", None, Quartiles(130.0, 129.0, 131.0, 9), fraction=0.98)
    peers = [
        Measurement(name, "ok", None, Quartiles(time, time, time, 9))
        for name, time in (("torch", torch_us), ("compile", compile_us))
        if time is not None
    ]
    case = CaseResult(
        "sum dim1 1x268435456 bf16", "sum", 1, (1, 1 << 28), "bf16", "sum, dim 1, bf16", True, 1 << 29, 1 << 28, 125.0,
        "why", (replace(ours, **changes), *peers),
    )  # fmt: skip
    run = Run(
        "NVIDIA X", None, "9", "8", None, None, None, "2031-02-03T00:00",
        "tilefold bench folds --out /some/where --jobs 2", 4000.0, None, {}, {}, {},
    )  # fmt: skip
    return SuiteResult(SCHEMA, "folds", (run,), (case,))


def test_a_changed_result_is_found_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "docs").mkdir()
    page, measured = tmp_path / "README.md", tmp_path / "docs" / "measured.md"
    data, _ = write_results(results(), tmp_path)
    suites = [readme.BEGIN_SUITES, readme.END_SUITES]
    for either, more in ((page, []), (measured, suites)):
        either.write_text("\n".join(["before", readme.BEGIN, readme.END, *more, "after\n"]))
    assert readme.main(["--check"], tmp_path, data) == 1
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert readme.main([], tmp_path, data) == 0
    assert readme.main(["--check"], tmp_path, data) == 0
    assert "| bf16 | >= 30 us | 1 | 0.980 | 0.980 |" in measured.read_text()
    assert "/some/where" not in measured.read_text()
    assert "| sum dim 1 | 1x2^28 bf16 | 130 us | 260 us | 2.0 | 0.98 |" in measured.read_text()
    assert "NVIDIA X, torch" in page.read_text()
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("after\n")
    write_results(results(time_us=Quartiles(100.0, 99.0, 101.0, 9)), tmp_path)
    assert readme.main(["--check"], tmp_path, data) == 1


def test_other_suites_are_shown_once_there_is_a_run(tmp_path: Path) -> None:
    assert readme_suites.load_all(tmp_path) == {}
    write_results(dataclasses.replace(results(compile_us=100.0), suite="real"), tmp_path)
    found = readme_suites.load_all(tmp_path)
    page = readme_suites.render_measured(found)
    assert "not slower beyond 3 % than torch eager in 1 of 1, torch.compile in 0 of 1" in page.replace(
        "\n", " "
    )
    assert "### real" in page
    assert "| bf16 | >= 30 us | 1 | 0.980 | 0.980 |" in page
    assert readme_suites.row(found["real"].cases[0], ["torch", "compile"])[2:] == [
        "130 us",
        "260 us",
        "100 us",
        "-",
        "0.8",
        "0.98",
    ]
    assert readme_suites.shortened("ERROR: \x1b[91mx\x1b[0m" + "y" * 200).startswith("ERROR: xyyy")


def test_cells_without_a_time_or_a_peer() -> None:
    untimed = results(status="wrong", time_us=None, fraction=None)
    assert readme.table(untimed) == [["fold", "input", "tilefold", "of the limit"]]
    assert readme.table(results(torch_us=None))[0] == ["fold", "input", "tilefold", "of the limit"]
    head, row = readme.table(results(compile_us=13.0))
    assert head == ["fold", "input", "tilefold", "torch", "torch.compile", "ratio", "of the limit"]
    assert row[2:] == ["130 us", "260 us", "13.0 us", "0.1", "0.98"]
    assert "0 of 1 cells" in readme.render_measured(untimed)
    assert readme_tables.command_text(results().runs[0]) == "tilefold bench folds --jobs 2"


def test_each_run_in_a_file_has_its_own_command() -> None:
    one = results()
    later = replace(one.runs[0], command="tilefold bench folds --dims 0", copy_gb_per_s=3000.0)
    text = readme_tables.limits_text(replace(one, runs=(*one.runs, later)))
    assert "`tilefold bench folds --jobs 2`: copy 4" in text
    assert "`tilefold bench folds --dims 0`: copy 3000 GB/s" in text


def tables_of(page: str, head: str) -> list[list[str]]:
    """The cells of the table whose head begins so."""
    lines = iter((ROOT / page).read_text(encoding="utf-8").splitlines())
    next(line for line in lines if line.startswith(head))
    next(lines)
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in itertools.takewhile(lambda line: line.startswith("|"), lines)
    ]


def shows(text: str, value: float) -> bool:
    """Whether a number is another one rounded to the digits that it has."""
    return abs(float(text) - value) <= 0.501 * 10.0 ** -len(text.partition(".")[2])


def test_the_table_of_or_is_the_committed_run() -> None:
    run = read_results(ROOT / "benchmarks" / "results" / "h200" / "or-small-axis.json")
    cases = {f"{case.dtype} {'x'.join(map(str, case.shape))}": case for case in run.cases}
    rows = tables_of("docs/experiments/or-short-axis.md", "| | ours | tree in registers")
    assert [row[0] for row in rows] == list(cases)
    order = ("ours", "register tree", "reduce flat", "reduce 3-D", "unrolled loads", "compile")
    for name, *times, share in rows:
        for variant, text in zip(order, times, strict=True):
            assert shows(text, summary.median_us(cases[name], variant) or 0), (name, variant, text)
        assert shows(share, summary.fractions([cases[name]])[0])


def test_the_table_of_the_cpu_is_the_committed_run() -> None:
    run = read_results(ROOT / "benchmarks" / "results" / "epyc-2-cores" / "cpu.json")
    found = {(case.operation, case.shape, case.dim): case for case in run.cases}
    layouts = [((1, 1 << 26), 1), ((8192, 8192), 1), ((8192, 8192), 0), ((1 << 20, 64), 1)]
    rows = tables_of("docs/experiments/cpu-folds.md", "| fold | 1-D | 8192x8192 dim 1")
    assert len(rows) * len(layouts) == len([case for case in run.cases if case.operation not in OPERATIONS])
    for name, *cells in rows:
        for (shape, dim), cell in zip(layouts, cells, strict=True):
            case = found[name, shape, dim]
            for variant, text in zip(("ours", "torch"), cell.split(" / "), strict=True):
                time_us = summary.median_us(case, variant)
                assert text == "-" if time_us is None else shows(text, time_us / 1e3), (case.name, variant)


def test_a_readme_without_markers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("nothing")
    with pytest.raises(SystemExit, match="must hold the lines"):
        readme.main([], tmp_path)


# ----------------------------------------------------------------------------------------------------- docstrings


def public() -> dict[str, Any]:
    """The public functions and classes by name."""
    found = {name: getattr(tilefold, name) for name in tilefold.__all__}
    return {
        name: value for name, value in found.items() if inspect.isfunction(value) or inspect.isclass(value)
    }


@pytest.mark.parametrize("name", sorted(public()))
def test_examples_in_docstrings(name: str) -> None:
    """Every example that stands in a public docstring runs and gives what it shows."""
    finder = doctest.DocTestFinder(recurse=False)
    scope = {"torch": torch, "tilefold": tilefold}
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    said: list[str] = []
    for case in finder.find(public()[name], name, globs=scope):
        runner.run(case, out=said.append)
    assert runner.failures == 0, "".join(said)


def test_every_public_thing_is_documented() -> None:
    assert [name for name, value in public().items() if not (inspect.getdoc(value) or "").strip()] == []


# ------------------------------------------------------------------------------------------------------ the import


def run_python(code: str, environment: dict[str, str] = ENVIRONMENT) -> str:
    """What a fresh interpreter prints."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def timed_import(bytecode: Path) -> float:
    """Seconds of the processor that all public names add after `import torch`, at best of four; bytecode is kept."""
    code = (
        "import torch, time; s = time.process_time(); from tilefold import *; print(time.process_time() - s)"
    )
    environment = {k: v for k, v in ENVIRONMENT.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(bytecode)
    return min(float(run_python(code, environment)) for _ in range(4))


def test_the_command_line_says_what_it_is_without_torch() -> None:
    code = "import sys; from tilefold.cli import run; run(['--version']); run(['--help']); print('torch' in sys.modules)"
    assert run_python(code).split()[-1] == "False"


def test_a_checker_sees_the_names_that_there_are() -> None:
    """Names are imported when they are first asked for; a type checker reads the imports."""
    tree = ast.parse((ROOT / "src" / "tilefold" / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    seen = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == {*tilefold.__all__} - {"__version__"}
    assert {*dir(tilefold)} == {*tilefold.__all__, "inductor", "xray"}


def test_import_is_light(tmp_path: Path) -> None:
    code = "import torch; import sys; before = set(sys.modules); from tilefold import *; print(*(set(sys.modules) - before))"
    loaded = run_python(code).split()
    assert not [m for m in loaded if m.split(".")[0] in ("triton", "rich", "typer", "safetensors")]
    assert timed_import(tmp_path) < 0.3


# ------------------------------------------------------------------------------------------------- places of tests

# Files about the whole library, and folders that test all packages.
WHOLE = {"house", "cli_style", "running"}
SHARED = {"fuzz", "mutants", "refusals"}


def test_tests_mirror_the_source() -> None:
    package, tests = ROOT / "src" / "tilefold", ROOT / "tests"
    packages = {path.parent.name for path in package.glob("*/__init__.py")}
    modules = {path.stem for path in package.glob("*.py")}
    folders = {path.parent.name for path in tests.glob("*/*.py")}
    assert sorted(folders - packages - SHARED) == []
    files = {path.stem.removeprefix("test_") for path in tests.glob("test_*.py")}
    assert sorted(files - packages - modules - WHOLE) == [], "these belong beside what they test"


def test_a_comparison_that_zeros_would_pass_is_refused() -> None:
    """By `tests/conftest.py`, for all tests."""
    small = torch.tensor([2e-30, 5.0])
    torch.testing.assert_close(small, small, rtol=1e-6, atol=0)
    for options in ({}, {"rtol": 1e-2, "atol": 1e-6}):
        with pytest.raises(AssertionError, match="zeros would pass for 1 of 2 numbers"):
            torch.testing.assert_close(small, small, **options)
    assert pytest.approx(2e-30) != 0
    assert pytest.approx(2e-30, rel=1e-3) != 2.1e-30
    assert pytest.approx(2e-30, abs=1e-12) == 0


# --------------------------------------------------------------------------------------------- lengths of functions

LONGEST = 40  # lines of a body without its docstring
KERNEL = "one function to the compiler: its phases share registers, masks and constants that calls would have to pass"
LONG = {
    "algebra.powers:_describe": "the functions of one monoid, with sums in units or in none",
    "algebra.powers:powers": "the functions of one monoid, for orders above and below 0",
    **dict.fromkeys(
        (
            "backends.triton.kernels.in_order:fold_in_order",
            "backends.triton.kernels.map_blocks:map_blocks",
            "backends.triton.kernels.map_offset:map_offset",
            "backends.triton.kernels.map_rings:folded",
            "backends.triton.kernels.map_rings:map_rings",
            "backends.triton.kernels.map_rows:map_rows",
            "backends.triton.kernels.map_spans:map_spans",
            "backends.triton.kernels.map_stripes:map_stripes",
            "backends.triton.kernels.moves:move_tiles",
            "backends.triton.kernels.scans:scan_tiles",
            "backends.triton.kernels.scans:scan_lines",
            "backends.triton.kernels.segment_runs:segment_runs",
            "backends.triton.kernels.segments:segment_columns",
            "backends.triton.kernels.segments:segment_rows",
            "backends.triton.kernels.selections:select_rows",
            "backends.triton.kernels.selections:take_best",
            "backends.triton.kernels.tiles:fold_part",
        ),
        KERNEL,
    ),
    "bench.peers:known_peers": "a table, an entry a peer",
    "xray.cuda.readable.expressions:Expressions._bits": "an operation an entry, its C++ beside it",
    "xray.cuda.readable.expressions:Expressions._operation": "an operation an entry, its C++ beside it",
    "xray.cuda.readable.reductions:block_reduction": "one pattern: every part of it is asked for",
}


def functions(node: ast.AST, outer: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function below a node, with the names of those around it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{outer}{child.name}"
            if not isinstance(child, ast.ClassDef):
                yield name, child
            yield from functions(child, f"{name}.")
        else:
            yield from functions(child, outer)


def lines_of_body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement after the docstring to the end."""
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    return 1 + (function.end_lineno or 0) - body[0].lineno if body else 0


def test_lines_of_a_body() -> None:
    text = 'class A:\n    def f(x,\n          y):\n        """One.\n\n        Two."""\n        x = 1\n\n        return x\n'
    ((name, found),) = functions(ast.parse(text))
    assert (name, lines_of_body(found)) == ("A.f", 3)
    ((_, found),) = functions(ast.parse('def f():\n    """One."""\n'))
    assert lines_of_body(found) == 0


def test_a_long_function_has_a_reason() -> None:
    package = ROOT / "src" / "tilefold"
    long = {
        f"{'.'.join(path.relative_to(package).with_suffix('').parts)}:{name}"
        for path in package.rglob("*.py")
        for name, function in functions(ast.parse(path.read_text(encoding="utf-8")))
        if lines_of_body(function) > LONGEST
    }
    assert sorted(long - set(LONG)) == [], "split these, or give a reason in LONG"
    assert sorted(set(LONG) - long) == [], "these are not long any more: take them out of LONG"


# ------------------------------------------------------------------------------------------------- backends
# What backends may import of planners: frozen classes, and functions of what was chosen.
DECIDED = {
    "planner.apart", "planner.atomics", "planner.device", "planner.folds", "planner.geometry", "planner.plan",
    "planner.stages", "planner.threads", "planner.view", "planner.walk",
    "planner.chips", "planner.products.epilogue", "planner.products.folded", "planner.products.functions",
    "planner.products.operands", "planner.products.packing", "planner.products.plan", "planner.products.row",
    "planner.products.steps", "planner.products.unchanged",
}  # fmt: skip


def test_every_module_that_chooses_is_forbidden_to_backends() -> None:
    """A new module of planners is in the contract "No backend plans" of pyproject.toml, or it chooses nothing."""
    contract = (
        (ROOT / "pyproject.toml").read_text(encoding="utf-8").split('id = "backends"')[1].split("\n]")[0]
    )
    forbidden = re.findall(r'"tilefold\.(planner\.[\w.]+)"', contract)
    found = {
        f"{package}.{path.stem}"
        for package in ("planner", "planner.products")
        for path in (ROOT / "src" / "tilefold" / package.replace(".", "/")).iterdir()
        if path.stem[0] != "_" and path.name not in ("tables", "products")
    }
    assert not DECIDED & set(forbidden)
    assert sorted([*DECIDED, *forbidden]) == sorted(found)


# ------------------------------------------------------------------------------------------------- python's versions

# Names of the standard library that are newer; the syntax is the parser's business.
NEWER = re.compile(
    r"\btomllib\b|\bStrEnum\b|\bExceptionGroup\b|\bTaskGroup\b|datetime\.UTC\b|contextlib\.chdir\b"
    r"|from typing import [^\n]*\b(?:Self|assert_never|LiteralString|Never|override|Unpack|TypeVarTuple)\b"
    r"|\bitertools\.batched\b|\bhashlib\.file_digest\b|\boperator\.call\b"
)


@pytest.mark.parametrize("folder", ["src", "tests", "examples", "benchmarks"])
def test_sources_are_python_3_10(folder: str) -> None:
    """`requires-python` says 3.10, and CI has one version only."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        ast.parse(text, str(path), feature_version=(3, 10))
        if path != Path(__file__):
            assert NEWER.findall(text) == [], path


@pytest.mark.parametrize(
    ("name", "module"), [("inductor", "integration.inductor"), ("nn", "nn"), ("xray", "xray")]
)
def test_a_room_is_there_when_it_is_asked_for(name: str, module: str) -> None:
    code = f"import sys, tilefold; print('tilefold.{module}' not in sys.modules, tilefold.{name}.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", f"tilefold.{module}"]

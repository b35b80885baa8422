"""The house itself: examples and the pages' code run, the README shows what was measured, importing is light."""

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


def test_gpt(tmp_path: Path) -> None:
    """The losses of torch's modules, up to what a last bit changes; the curves are drawn."""
    ours, theirs = load("gpt").main(steps=30, plot=tmp_path / "curves.png")
    assert theirs < 1e-4
    assert ours < 1e-4
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_recurrence() -> None:
    largest, losses = load("recurrence").main(steps=100)
    assert largest < 1e-5
    assert losses[-1] < 0.1 * losses[0]


def test_wrong_fill() -> None:
    pytest.importorskip("triton")
    first = load("wrong_fill").main().observations[0]
    assert (first.code, first.severity) == ("wrong-fill", "error")


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


def anchors(path: Path) -> set[str]:
    """Those of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    prose = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target, anchor in re.findall(r"\]\(([^)#:]*)#?([^)#:]*)\)", prose):
        linked = path.parent / target if target else path
        assert linked.exists(), f"{page} links to {target}"
        assert not anchor or anchor in anchors(linked), f"{page} links to {target}#{anchor}"


def test_cited_records_exist() -> None:
    """A comment over a number names the section of the record that set it."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        for name, anchor in re.findall(
            r"docs/experiments/([\w-]+\.md)(?:#([\w-]+))?", path.read_text(encoding="utf-8")
        ):
            record = ROOT / "docs" / "experiments" / name
            assert record.exists(), f"{path.name} cites {name}"
            assert not anchor or anchor in anchors(record), f"{path.name} cites {name}#{anchor}"


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
    rows = tables_of("docs/experiments/folds.md", "| | ours | tree in registers")
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
    rows = tables_of("docs/experiments/cpu.md", "| fold | 1-D | 8192x8192 dim 1")
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


def documented() -> dict[str, Any]:
    """The public functions and classes, modules' too."""
    return public() | {f"nn.{name}": getattr(tilefold.nn, name) for name in tilefold.nn.__all__}


@pytest.mark.parametrize("name", sorted(documented()))
def test_examples_in_docstrings(name: str) -> None:
    """Every example that stands in a public docstring runs and gives what it shows."""
    finder = doctest.DocTestFinder(recurse=False)
    scope = {"torch": torch, "tilefold": tilefold}
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    said: list[str] = []
    for case in finder.find(documented()[name], name, globs=scope):
        runner.run(case, out=said.append)
    assert runner.failures == 0, "".join(said)


def test_every_public_thing_is_documented() -> None:
    assert [name for name, value in documented().items() if not (inspect.getdoc(value) or "").strip()] == []


# ------------------------------------------------------------------------------------------------------ the import


def run_python(code: str, environment: dict[str, str] = ENVIRONMENT) -> str:
    """What a fresh interpreter prints."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def timed_import(bytecode: Path) -> tuple[float, list[str]]:
    """What all public names add to the processor's time of `import torch`, a share of it, and their modules; bytecode is
    kept.
    Torch's objects are no garbage to look through: when Python does that is not ours to say."""
    code = (
        "import gc, sys, time; s = time.process_time(); import torch; t = time.process_time(); gc.freeze(); "
        "before = set(sys.modules); b = time.process_time(); from tilefold import *; "
        "print((time.process_time() - b) / (t - s), *(set(sys.modules) - before))"
    )
    environment = {k: v for k, v in ENVIRONMENT.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(bytecode)
    share, *loaded = run_python(code, environment).split()
    return float(share), loaded


def test_the_command_line_says_what_it_is_without_torch() -> None:
    for asked in (["--version"], ["--help"]):
        seen = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "tilefold", *asked],
            capture_output=True,
            text=True,
            check=True,
        )
        assert not [line for line in seen.stderr.splitlines() if line.split("|")[-1].strip() == "torch"]


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
    _, loaded = timed_import(tmp_path)
    assert "tilefold.api.reduce" in loaded
    assert not [m for m in loaded if m.split(".")[0] in ("triton", "rich", "typer", "safetensors")]
    assert any(timed_import(tmp_path)[0] < 0.2 for _ in range(3)), "at best of three"


# ------------------------------------------------------------------------------------------------- comparisons of tests


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


# ------------------------------------------------------------------------------------------------- backends
# What backends may import of planners: frozen classes, and functions of what was chosen.
DECIDED = {
    "planner.kept_dims", "planner.atomics", "planner.device", "planner.folds", "planner.geometry", "planner.plan",
    "planner.stages", "planner.sizes", "planner.problem", "planner.programs",
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


def test_modules_are_there_when_they_are_asked_for() -> None:
    code = (
        "import sys, tilefold\n"
        "for name, module in (('inductor', 'integration.inductor'), ('nn', 'nn'), ('xray', 'xray')):\n"
        "    print(f'tilefold.{module}' not in sys.modules, getattr(tilefold, name).__name__)\n"
    )
    said = [line.split() for line in run_python(code).splitlines()]
    assert said == [["True", f"tilefold.{name}"] for name in ("integration.inductor", "nn", "xray")]

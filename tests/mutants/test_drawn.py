"""Faults that are drawn over src: the same from one seed, each one change that Python accepts, each with tests near to it."""

from __future__ import annotations

import ast
import difflib
from pathlib import Path

import pytest

from mutants.blocks import block_at, blocks
from mutants.drawn import changes, drawn, nearest
from mutants.planted import MUTANTS
from mutants.ran import PACKAGE, ROOT, TESTS, chosen, table


def test_a_seed_draws_the_same_faults() -> None:
    assert drawn(5, 20) == drawn(5, 20)
    assert drawn(5, 20)[:10] == drawn(5, 10)
    assert drawn(5, 20) != drawn(6, 20)


def test_a_module_that_nothing_imports_has_tests() -> None:
    assert nearest(PACKAGE / "__main__.py") == ("tests/test_cli.py",)


def test_no_tests_of_a_fault_need_a_device() -> None:
    sharded = (PACKAGE / "distributed").glob("*.py")
    assert not [path for path in sharded for test in nearest(path) if "gpu" in test]


def test_a_fault_is_one_change_with_tests_that_are_there() -> None:
    for fault in drawn(2, 60):
        assert ast.dump(ast.parse(fault.old)) != ast.dump(ast.parse(fault.new)), fault.name
        begins = [line[:2] for line in difflib.ndiff(fault.old.splitlines(), fault.new.splitlines())]
        assert "- " in begins, fault.name
        assert all((ROOT / test).is_file() for test in fault.tests), fault.name


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("a < b", {"(a <= b)", "(a >= b)"}),
        ("not a", {"(a)"}),
        ("a and b", {"(a or b)"}),
        ("f(a, b)", {"f(b, a)"}),
        ("min(a, b)", {"max(a, b)"}),
        ("x.any()", {"x.all()"}),
        ("a + b", {"(a - b)"}),
        ("'a' + b", set()),
        ("f(True)", {"False", "pass"}),
        ("x = zip(a, b, strict=True)", set()),
        ("raise E", {"pass"}),
        ("x: Literal[1] = y", set()),
    ],
)
def test_what_a_line_becomes(text: str, made: set[str], tmp_path: Path) -> None:
    path = tmp_path / "lines.py"
    path.write_text(f"def g():\n    {text}\n    return 'x'\n")
    assert {new for _, new in changes(path).get(2, ())} - {"pass"} == made - {"pass"}


TEXT = """
class C:
    def f(self):
        "Says."
        if a:
            return 1
        elif b:
            x = 2
        return x

    def g(self):
        def inner():
            return 3
        return inner
"""


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (2, None),
        (5, "C.f"),
        (6, "C.f.1"),
        (7, "C.f.2"),
        (8, "C.f.3"),
        (9, "C.f.4"),
        (13, "C.g.inner"),
        (14, "C.g"),
    ],
)
def test_a_line_is_in_its_innermost_block(line: int, name: str | None) -> None:
    block = block_at(blocks(ast.parse(TEXT)), line)
    assert (block and block.name) == name


def test_the_nearest_test_runs_little_else() -> None:
    tests = {
        "far.py": [frozenset({"m.py f", "m.py f.1", "m.py g", "n.py h"})],
        "near.py": [frozenset({"m.py f"}), frozenset({"m.py f"})],
        "slow.py": [frozenset({"m.py k"})],
    }
    text = chosen(tests, {"far.py": 10.0, "near.py": 10.0, "slow.py": 300.0})
    assert text.splitlines() == ["m.py", " near far: *", " slow: k", "n.py", " far: *"]


def test_the_table_names_modules_and_tests_that_are_there() -> None:
    """Most of them: it may be older than some."""
    tests = {file for of_module in table().values() for files in of_module.values() for file in files}
    for below, names in ((PACKAGE, table()), (TESTS, tests)):
        gone = [name for name in names if not (below / name).is_file()]
        assert len(gone) <= 0.1 * len(names), f"run make nearest: {gone}"


@pytest.mark.parametrize(
    ("module", "first"),
    [
        ("algebra/powers.py", "tests/algebra/test_powers.py"),
        ("algebra/proofs/cases.py", "tests/algebra/"),
        ("backends/triton/kernels/selections.py", "tests/api/test_topk.py"),
        ("functional/sums.py", "tests/functional/"),
        ("nn/layers.py", "tests/nn/test_layers.py"),
        ("bench/suites/normalize.py", "tests/bench/test_suites.py"),
    ],
)
def test_the_nearest_tests(module: str, first: str) -> None:
    assert nearest(PACKAGE / module)[0].startswith(first)


def test_planted_faults_have_names_of_their_own() -> None:
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)


def test_planted_faults_fit_their_files() -> None:
    """Each changes one place, into what Python reads."""
    for m in MUTANTS:
        source = (PACKAGE / m.file).read_text(encoding="utf-8")
        assert source.count(m.old) == 1, m.name
        if m.file.endswith(".py"):
            ast.parse(source.replace(m.old, m.new), m.name)

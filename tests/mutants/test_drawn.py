"""Faults that are drawn over src: the same from one seed, each one change that Python accepts, each with tests near to it."""

from __future__ import annotations

import ast
import difflib
from pathlib import Path

import pytest

from mutants.drawn import PACKAGE, ROOT, changes, drawn, nearest
from mutants.planted import MUTANTS


def test_a_seed_draws_the_same_faults() -> None:
    assert drawn(5, 20) == drawn(5, 20)
    assert drawn(5, 20)[:10] == drawn(5, 10)
    assert drawn(5, 20) != drawn(6, 20)


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


@pytest.mark.parametrize(
    ("module", "first"),
    [
        ("algebra/powers.py", "tests/algebra/test_powers.py"),
        ("algebra/proofs/cases.py", "tests/algebra/"),
        ("backends/triton/kernels/selections.py", "tests/api/test_topk.py"),
        ("functional/sums.py", "tests/functional/"),
        ("nn.py", "tests/test_nn.py"),
        ("bench/suites/normalize.py", "tests/bench/test_suites.py"),
    ],
)
def test_the_nearest_tests(module: str, first: str) -> None:
    assert nearest(PACKAGE / module)[0].startswith(first)


def test_planted_faults_have_names_of_their_own() -> None:
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)

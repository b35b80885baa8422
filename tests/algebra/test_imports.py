"""Imports inside the algebra go one way, those inside of functions too."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "src" / "tilefold"
MODULES = {
    "tilefold.math": FOLDER / "math.py",
    **{
        f"tilefold.{'.'.join(path.relative_to(FOLDER).with_suffix('').parts)}": path
        for path in (FOLDER / "algebra").rglob("[a-z]*.py")
    },
}


def imported(path: Path) -> set[str]:
    """The modules above that one imports, anywhere in its text."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & set(MODULES)


def test_imports_go_one_way() -> None:
    order = TopologicalSorter({name: imported(path) for name, path in MODULES.items()})
    try:
        first, *_ = order.static_order()
    except CycleError as error:
        pytest.fail(f"a cycle of imports: {' <- '.join(error.args[1])}")
    assert len(MODULES) > 20
    assert not imported(MODULES[first])


def test_the_algebra_knows_no_triton() -> None:
    for path in MODULES.values():
        assert "import triton" not in path.read_text(encoding="utf-8"), path
        assert "tilefold.backends" not in path.read_text(encoding="utf-8").replace("`backends", ""), path

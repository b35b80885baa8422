"""Imports inside of the X-ray go one way, those for annotations and those inside of functions, too."""

from __future__ import annotations

import ast
from pathlib import Path

import tilefold.xray
from tilefold.xray.machine.order import components

ROOT = Path(tilefold.xray.__file__).parent
NAME = "tilefold.xray"


def modules() -> dict[str, Path]:
    """Every module but the packages' own files, which only hand names on."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        if path.name != "__init__.py":
            found[".".join((NAME, *path.relative_to(ROOT).with_suffix("").parts))] = path
    return found


def exported(package: str) -> dict[str, str]:
    """Names that a package hands on, with the modules that they come from."""
    path = ROOT.joinpath(*package.split(".")[2:], "__init__.py")
    if not path.is_file():
        return {}
    imports = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom) and n.module]
    return {alias.name: str(n.module) for n in imports for alias in n.names}


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(NAME):
            if node.module in known:
                found.add(node.module)
                continue
            names = exported(node.module)
            found |= {
                f"{node.module}.{a.name}" if f"{node.module}.{a.name}" in known else names.get(a.name, "")
                for a in node.names
            }
    return found & set(known)


def test_no_module_imports_what_imports_it() -> None:
    known = modules()
    numbers = {name: i for i, name in enumerate(known)}
    follow = {numbers[n]: [numbers[m] for m in sorted(imported(path, known))] for n, path in known.items()}
    names = list(known)
    circles = [
        [names[i] for i in group]
        for group in components(range(len(names)), follow)
        if len(group) > 1 or group[0] in follow[group[0]]
    ]
    assert len(known) > 90
    assert sum(map(len, follow.values())) > 200
    assert circles == []


def test_the_machine_knows_no_report() -> None:
    """Lower packages import no upper ones."""
    above = {"ptx": "machine ir layouts compile report observe render", "machine": "compile report observe render ir",
             "ir": "machine compile report observe render", "report": "observe render examine",
             "observe": "render examine explain"}  # fmt: skip
    known = modules()
    for package, forbidden in above.items():
        wanted = tuple(f"{NAME}.{name}" for name in forbidden.split())
        for name, path in known.items():
            if name.startswith(f"{NAME}.{package}."):
                assert not [m for m in imported(path, known) if m.startswith(wanted)], name

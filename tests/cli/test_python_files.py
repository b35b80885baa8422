"""Files that a command names, imported as modules of their packages, wherever these lie."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tilefold.cli.python_files import load_file
from tilefold.errors import ArgumentError, CompileError

_NUMBERS = itertools.count()


@pytest.fixture
def top() -> Iterator[str]:
    """A name of a package that no other test has; what is imported and put on the path goes again."""
    path, name = list(sys.path), f"tilefold_made_{next(_NUMBERS)}"
    yield name
    sys.path[:] = path
    for held in [held for held in sys.modules if held.startswith(name)]:
        del sys.modules[held]


def made(folder: Path, files: Mapping[str, str]) -> Path:
    """Files of a project by their paths; the last is the one that is named."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / name


PROJECTS = {
    "a sibling": {"TOP/__init__.py": "", "TOP/tools.py": "N = 7", "TOP/k.py": "from .tools import N"},
    "two packages up": {
        "TOP/__init__.py": "", "TOP/tools.py": "N = 7", "TOP/ops/__init__.py": "", "TOP/ops/gpu/__init__.py": "",
        "TOP/ops/gpu/k.py": "from ...tools import N",
    },
    "its own package by its name": {
        "TOP/__init__.py": "", "TOP/tools.py": "N = 7", "TOP/ops/__init__.py": "", "TOP/ops/k.py": "from TOP.tools import N",
    },
    "what the package says": {"TOP/__init__.py": "N = 7", "TOP/k.py": "from . import N"},
    "a package under src": {"src/TOP/__init__.py": "", "src/TOP/tools.py": "N = 7", "src/TOP/k.py": "from .tools import N"},
    "a folder that is no package": {"TOP/tools.py": "N = 7", "TOP/k.py": "from .tools import N"},
    "above a package that is in none": {
        "TOP/tools.py": "N = 7", "TOP/ops/__init__.py": "", "TOP/ops/k.py": "from ..tools import N",
    },
    "a package beside its own": {
        "TOP/__init__.py": "", "TOP/k.py": "from TOP_more.tools import N", "TOP_more/__init__.py": "",
        "TOP_more/tools.py": "N = 7", "TOP/kernels.py": "from .k import N",
    },
    "a package's own file": {"TOP/__init__.py": "", "TOP/tools.py": "N = 7", "TOP/ops/__init__.py": "from ..tools import N"},
    "a folder with the name of an installed package": {
        "TOP/triton/__init__.py": "", "TOP/triton/tools.py": "N = 7",
        "TOP/triton/k.py": "import torch\nfrom .tools import N\nimport triton\ntriton.jit",
    },
    "a folder with a name of Python's own": {
        "TOP/json/__init__.py": "", "TOP/json/tools.py": "N = 7",
        "TOP/json/k.py": "from .tools import N\nimport json\njson.dumps(N)",
    },
    "a folder whose name is no word": {
        "TOP-1.2/__init__.py": "", "TOP-1.2/tools.py": "N = 7", "TOP-1.2/k.py": "from .tools import N",
    },
    "a file beside it": {"TOP_tools.py": "N = 7", "k.py": "from TOP_tools import N"},
    "a file beside it in a package": {
        "TOP/__init__.py": "", "TOP/TOP_tools.py": "N = 7", "TOP/k.py": "from TOP_tools import N",
    },
}  # fmt: skip


@pytest.mark.parametrize("project", PROJECTS)
def test_a_file_is_a_module_of_its_package(project: str, tmp_path: Path, top: str) -> None:
    files = {p.replace("TOP", top): text.replace("TOP", top) for p, text in PROJECTS[project].items()}
    path = made(tmp_path, files)
    module = load_file(path)
    assert (module.N, Path(module.__file__ or "")) == (7, path)
    assert load_file(path) is module


def test_files_beside_it_do_not_pass_for_packages_that_are_missing(tmp_path: Path, top: str) -> None:
    """As `python -m` has it: a package's folder is not where others are looked for."""
    files = {
        "TOP/__init__.py": "",
        "TOP/TOP_missing.py": "from .k import N",
        "TOP/tools.py": "import TOP_missing",
    }
    path = made(tmp_path, {p.replace("TOP", top): t.replace("TOP", top) for p, t in files.items()})
    (path.parent / "k.py").write_text("N = 7\nfrom . import tools\n")
    with pytest.raises(CompileError, match=f"No module named '{top}_missing' in tools.py:1; install it for"):
        load_file(path.parent / "k.py")


def test_a_file_and_its_package_are_imported_once(tmp_path: Path, top: str) -> None:
    path = made(tmp_path, {f"{top}/__init__.py": "from .k import Kind", f"{top}/k.py": "class Kind: ..."})
    assert load_file(path) is sys.modules[f"{top}.k"]
    assert sys.modules[top].Kind is load_file(path).Kind


def test_a_package_that_does_not_import_is_taken_without_its_init(
    tmp_path: Path, top: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = made(
        tmp_path,
        {f"{top}/__init__.py": "\nimport no_such_module", f"{top}/tools.py": "N = 7", f"{top}/k.py": "from .tools import N"},
    )  # fmt: skip
    assert load_file(path).N == 7
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"xray: {top}/__init__.py raises ModuleNotFoundError: No module named 'no_such_module'"
    )
    assert line.endswith("in __init__.py:2, so k.py is imported without it")


@pytest.mark.parametrize(
    ("files", "rule"),
    [
        ({"k.py": "\nimport no_such_module.part"},
         "k.py must import, got ModuleNotFoundError: No module named 'no_such_module' in k.py:2; install it for "),
        ({"TOP/__init__.py": "", "TOP/tools.py": "import no_such_module", "TOP/k.py": "from . import tools"},
         "No module named 'no_such_module' in tools.py:1; install it for "),
        ({"TOP/__init__.py": "", "bench/k.py": "import TOP"}, "No module named 'TOP' in k.py:1; set PYTHONPATH=ROOT$"),
        ({"TOP/__init__.py": "", "TOP/k.py": "from . import _C\nimport TOP._compiled"},
         r"cannot import name '_C' from 'TOP' .* in k.py:1; run it with python"),
        ({"TOP/__init__.py": "", "TOP/k.py": "import TOP._compiled"},
         r"No module named 'TOP._compiled' in k.py:1; TOP is here without it: build it, or install the version of TOP"),
        ({"k.py": "raise RuntimeError('0 active drivers ([]). There should only be one.')"},
         "what asks for a GPU must wait until it is called"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named_with_what_to_do(
    files: dict[str, str], rule: str, tmp_path: Path, top: str
) -> None:
    path = made(tmp_path, {p.replace("TOP", top): text.replace("TOP", top) for p, text in files.items()})
    with pytest.raises(CompileError, match=rule.replace("ROOT", str(tmp_path)).replace("TOP", top)) as raised:
        load_file(path)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "k.txt").write_text("")
    with pytest.raises(ArgumentError, match="a kernel's file must be Python"):
        load_file(tmp_path / "k.txt")

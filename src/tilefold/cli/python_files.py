"""Things in files of Python that a command names: `FILE.py::name`. The file is imported, so it runs as code."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.machinery
import importlib.util
import linecache
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from tilefold.cli.output import complain
from tilefold.errors import ArgumentError, CompileError


def split_target(text: str) -> tuple[Path, str]:
    """`FILE.py::name` in its two parts; the name may be left out where something else says it."""
    file, _, name = text.partition("::")
    return Path(file), name


def load_file(path: Path, call: str = "xray", what: str = "kernel") -> ModuleType:
    """Import a file, once a process, as the module of its package that it is.

    Its packages are the folders above it that have an `__init__.py`, and as many more as its relative imports go up. A
    package whose `__init__.py` raises is taken without it; stderr has a line about that. The folder above the packages is
    put behind all others of `sys.path`, and the file's own where it is in no package, or imports a file beside it by its bare
    name. `call` is the command that asks and `what` is sought in the file: both for messages.

    Raises:
        ArgumentError: the file does not exist.
        CompileError: the file raises; its message follows.
    """
    if not path.is_file():
        raise ArgumentError(f"{call}: FILE.py::{what} must name a file, got {str(path)!r}; check the path")
    path = path.resolve()
    if path.suffix not in importlib.machinery.SOURCE_SUFFIXES:
        raise ArgumentError(f"{call}: a {what}'s file must be Python, got {str(path)!r}; name a .py file")
    folders = _packages(path)
    at_hand = [folders[0].parent] if folders else []
    at_hand += [path.parent] if not folders or _imports_beside(path) else []
    sys.path += [str(folder) for folder in at_hand if str(folder) not in sys.path]
    linecache.checkcache(str(path))
    lacking: list[str] = []
    try:
        module = _imported(path, folders, lacking)
    except (Exception, SystemExit) as error:  # sys.exit would end the command, with the script's code
        got = said(error, path, folders[0] if folders else None)
        raise CompileError(f"{call}: {path.name} must import, got {got}; {_fix(error, path)}") from error
    for line in lacking:
        complain(f"{call}: {line}, so {path.name} is imported without it")
    return module


def _packages(path: Path) -> list[Path]:
    """The folders that are a file's packages, the outermost first."""
    above = list(path.parents)[:-1]
    count = next((n for n, folder in enumerate(above) if not (folder / "__init__.py").is_file()), len(above))
    return above[: max(count, _levels(path))][::-1]


def _levels(path: Path) -> int:
    """How many folders the relative imports of a file go up; 1 is its own."""
    return max((node.level for node in _imports(path) if isinstance(node, ast.ImportFrom)), default=0)


def _imports_beside(path: Path) -> bool:
    """Whether a file imports one of its folder as if it were in no package, and nothing else has the name."""
    nodes = _imports(path)
    named = [a.name for node in nodes if isinstance(node, ast.Import) for a in node.names]
    named += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    tops = {name.partition(".")[0] for name in named}
    beside = [name for name in tops if (path.parent / f"{name}.py").is_file()]
    return any(importlib.machinery.PathFinder.find_spec(name) is None for name in beside)


def _imports(path: Path) -> list[ast.Import | ast.ImportFrom]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # its import raises the error
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def _imported(path: Path, folders: Sequence[Path], lacking: list[str]) -> ModuleType:
    """The module of a file; `lacking` gets a line about each package that is taken without its `__init__.py`."""
    name = _private(path) if not folders else _top_name(folders[0], path)
    for number, folder in enumerate(folders):
        name = name if not number else f"{name}.{folder.name}"
        try:
            _module(name, folder / "__init__.py", folder)
        except (Exception, SystemExit) as error:
            if path == folder / "__init__.py":
                raise
            lacking.append(f"{folder.name}/__init__.py raises {said(error, folder / '__init__.py', folder)}")
            _hold(name, importlib.util.module_from_spec(_bare(name, folder)))
    if path.name == "__init__.py" and folders:
        return sys.modules[name]
    return _module(f"{name}.{path.stem}" if folders else name, path)


def _module(name: str, path: Path, folder: Path | None = None) -> ModuleType:
    """A module by its name and file, imported unless it is there; a `folder` without its file is a bare package."""
    if name in sys.modules:
        return sys.modules[name]
    specification = importlib.util.spec_from_file_location(
        name, path, submodule_search_locations=None if folder is None else [str(folder)]
    )
    if folder is not None and not path.is_file():
        specification = _bare(name, folder)
    assert specification is not None, "the suffix is that of a module"
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    if specification.loader is not None:
        try:
            with contextlib.redirect_stdout(sys.stderr):  # a file's prints are not part of a command's output
                specification.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(name, None)
            raise
    _hold(name, sys.modules[name])
    return sys.modules[name]


def _bare(name: str, folder: Path) -> importlib.machinery.ModuleSpec:
    """A package that runs nothing when it is imported."""
    made = importlib.machinery.ModuleSpec(name, None, is_package=True)
    made.submodule_search_locations = [str(folder)]
    return made


def _hold(name: str, module: ModuleType) -> None:
    """A module where imports find it: by its name, and as an attribute of its package."""
    sys.modules[name] = module
    package, _, own = name.rpartition(".")
    if package in sys.modules:
        setattr(sys.modules[package], own, module)


def _top_name(folder: Path, path: Path) -> str:
    """The name of a file's outermost package: the folder's, unless imports of that name mean another package."""
    name = folder.name
    if name in sys.modules:
        held = getattr(sys.modules[name], "__path__", ())
        return name if str(folder) in map(os.path.realpath, held) else _private(folder)
    if not name.isidentifier() or name in sys.stdlib_module_names:
        return _private(folder)
    try:
        found = importlib.machinery.PathFinder.find_spec(name)
    except (ImportError, ValueError):
        found = None
    places = [] if found is None else list(found.submodule_search_locations or ())
    if found is None or str(folder) in map(os.path.realpath, places):
        return name
    # Another copy of the same project has the file, too; then the file that was named is meant.
    return name if any((Path(p) / path.relative_to(folder)).is_file() for p in places) else _private(folder)


def _private(path: Path) -> str:
    """A module's name that nothing else has."""
    return f"tilefold_file_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"


def _fix(error: BaseException, path: Path) -> str:
    """What to do about a file that does not import."""
    if any(words in str(error) for words in _NO_GPU):
        return "what asks for a GPU must wait until it is called: a kernel's file must import where there is none"
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return "run it with python"
    top, _, rest = error.name.partition(".")
    roots = (folder for folder in path.parents if not (folder / "__init__.py").is_file())
    folder = next(
        (f for f in roots if (f / top / "__init__.py").is_file() or (f / f"{top}.py").is_file()), None
    )
    if top in sys.modules or (rest and folder is not None):
        return f"{top} is here without it: build it, or install the version of {top} that has it"
    if folder is not None:
        return f"set PYTHONPATH={folder}"
    return f"install it for {sys.executable} (-m pip install {top}, or the package that has it)"


# What torch and Triton say to who asks for a GPU where there is none.
_NO_GPU = ("not compiled with CUDA", "NVIDIA driver", "active drivers", "CUDA GPUs are available", "libcuda")


def said(error: BaseException, path: Path, within: Path | None = None) -> str:
    """An exception in one line, with the line that it came through last of a file, or of files `within` a folder."""
    frames = [(Path(f.filename), f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    rows = [(f, line) for f, line in frames if f == path or (within is not None and within in f.parents)]
    if isinstance(error, SyntaxError) and error.filename:
        rows = [(Path(error.filename), error.lineno)]
    where = f" in {rows[-1][0].name}:{rows[-1][1]}" if rows else ""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}{f': {message}' if message else ''}{where}"

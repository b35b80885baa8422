"""A kernel named on the command line: `FILE.py::kernel`, or a case that its file offers. The file runs as code."""

from __future__ import annotations

import hashlib
import importlib.util
import linecache
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from tilefold.errors import ArgumentError, CompileError


def load_file(path: Path) -> ModuleType:
    """Import a file, once a process, with its folder at hand for its own imports.

    Raises:
        ArgumentError: no such file.
        CompileError: the file raises; its message follows.
    """
    if not path.is_file():
        raise ArgumentError(f"xray: FILE.py::kernel must name a file, got {str(path)!r}; check the path")
    path = path.resolve()
    name = f"tilefold_xray_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    specification = importlib.util.spec_from_file_location(name, path)
    if specification is None or specification.loader is None:
        raise ArgumentError(f"xray: a kernel's file must be Python, got {str(path)!r}; name a .py file")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    linecache.checkcache(str(path))
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        specification.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise CompileError(
            f"xray: {path.name} must import, got {type(error).__name__}: {error}; run it with python"
        ) from error
    return module


def split_target(text: str) -> tuple[Path, str]:
    """`FILE.py::kernel` in its two parts; the kernel may be left out where a case names it."""
    file, _, kernel = text.partition("::")
    return Path(file), kernel


def find_kernel(module: ModuleType, name: str) -> Any:
    """A kernel of a module by its name.

    Raises:
        ArgumentError: it has none of that name.
    """
    if not name or not hasattr(module, name):
        known = sorted(n for n, v in vars(module).items() if type(v).__name__ in _DECORATED)
        raise ArgumentError(
            f"xray: FILE.py::kernel must name a kernel of the file, got {name!r}; it has {', '.join(known) or 'none'}"
        )
    return getattr(module, name)


_DECORATED = ("JITFunction", "Autotuner", "Heuristics")


def find_case(module: ModuleType, name: str) -> Mapping[str, Any]:
    """What a file's `xray_cases()` says under a name: keyword arguments of `explain`, `kernel` among them.

    Raises:
        ArgumentError: the file offers no cases, or none of that name.
    """
    offered = getattr(module, "xray_cases", None)
    if offered is None:
        raise ArgumentError(
            f"xray: --case needs a file with a function xray_cases(), got {module.__file__!r}; give --arg and --const"
        )
    cases: Mapping[str, Mapping[str, Any]] = offered()
    if name not in cases:
        raise ArgumentError(
            f"xray: --case must be one of {', '.join(cases) or '(none)'}, got {name!r}; take one of these"
        )
    return cases[name]

"""A kernel named on the command line: `FILE.py::kernel`, or a case that its file offers. The file runs as code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from tilefold.errors import ArgumentError, CompileError
from tilefold.python_files import load_file as load_file
from tilefold.python_files import said
from tilefold.python_files import split_target as split_target


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
        ArgumentError: the file offers no cases, or none of that name, or one that is no case.
        CompileError: `xray_cases()` raises; its message follows.
    """
    offered = getattr(module, "xray_cases", None)
    if offered is None:
        raise ArgumentError(
            f"xray: --case needs a file with a function xray_cases(), got {module.__file__!r}; give --arg and --const"
        )
    try:
        cases: Mapping[str, Mapping[str, Any]] = offered()
    except Exception as error:
        got = said(error, Path(module.__file__ or "").resolve())
        raise CompileError(f"xray: xray_cases() must return cases, got {got}; call it with python") from error
    if name not in cases:
        raise ArgumentError(
            f"xray: --case must be one of {', '.join(cases) or '(none)'}, got {name!r}; take one of these"
        )
    if not isinstance(cases[name], Mapping) or "args" not in cases[name]:
        raise ArgumentError(
            f"xray: a case must be a mapping with 'args', got {type(cases[name]).__name__} for {name!r}; write "
            "dict(kernel=..., args=..., constants=...)"
        )
    return cases[name]

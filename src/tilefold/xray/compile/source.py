"""A kernel named on the command line: `FILE.py::kernel`, or a case that its file offers. The file runs as code."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from tilefold.cli.python_files import load_file as load_file
from tilefold.cli.python_files import said
from tilefold.cli.python_files import split_target as split_target
from tilefold.errors import ArgumentError, CompileError


def find_kernel(module: ModuleType, name: str) -> Any:
    """A kernel of a module by its name.

    Raises:
        ArgumentError: it has none of that name.
    """
    found = kernels_of(module).get(name, getattr(module, name, None) if name else None)
    if found is None:
        known = [*kernels_of(module)]
        cases = "" if cases_of(module) is None or name else ", or name a case with --case"
        raise ArgumentError(
            f"xray: FILE.py::kernel must name a kernel of the file, got {name!r}; it has {', '.join(known) or 'none'}{cases}"
        )
    return found


_DECORATED = ("JITFunction", "Autotuner", "Heuristics")


def kernels_of(module: ModuleType) -> dict[str, Any]:
    """What a module has of Triton's functions, by name: its own, and those that it imports where it has none. A static method
    is named `Class.name`."""
    held = dict(vars(module))
    for name, kind in vars(module).items():
        if isinstance(kind, type) and kind.__module__ == module.__name__:
            held |= {f"{name}.{n}": getattr(v, "__func__", v) for n, v in vars(kind).items()}
    found = {n: v for n, v in held.items() if type(v).__name__ in _DECORATED}
    own = {n: v for n, v in found.items() if _written_in(v) == module.__name__}
    return own or dict(sorted(found.items()))


def _written_in(kernel: Any) -> str:
    """The module of a kernel, under the decorators that choose configurations."""
    while type(kernel).__name__ in _DECORATED and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return str(getattr(kernel, "__module__", ""))


def _under(kernel: Any, name: str) -> Any:
    """The object that has an attribute: the kernel, or the function under its decorators."""
    while not hasattr(kernel, name) and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel


def called_by(kernels: Mapping[str, Any]) -> dict[str, list[str]]:
    """Which of them others of them call, each with these."""
    used = {name: _names(kernel) for name, kernel in kernels.items()}
    callers = {name: [n for n, names in used.items() if name in names and n != name] for name in kernels}
    return {name: found for name, found in callers.items() if found}


def parameters_of(kernel: Any) -> list[str]:
    """A kernel's parameters as one reads them: `n`, `BLOCK: const`, `EVEN: const = False`."""
    return [
        f"{p.name}{': const' if p.is_constexpr else ''}{f' = {p.default!r}' if p.has_default else ''}"
        for p in _under(kernel, "params").params
    ]


def case_line(case: Any) -> str:
    """A case in one line: its kernel, and what it is launched with."""
    if not isinstance(case, Mapping):
        return f"no case: a {type(case).__name__}"
    kernel = _under(case.get("kernel"), "__name__")
    given = {**dict(case.get("args") or {}), **dict(case.get("constants") or {})}
    given |= {k: v for k, v in case.items() if k not in ("kernel", "args", "constants")}
    return f"{getattr(kernel, '__name__', '?')} " + " ".join(f"{k}={_short(v)}" for k, v in given.items())


def _short(value: Any) -> str:
    """A value of a case: of arrays and tensors what they hold, of the rest the text."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{str(value.dtype).removeprefix('torch.')}{[*value.shape]}"
    if callable(value):
        return "by the launch"
    return value if isinstance(value, str) else repr(value)


def _names(kernel: Any) -> set[str]:
    """Names that a kernel's text reads."""
    tree = ast.parse(textwrap.dedent(getattr(_under(kernel, "src"), "src", "")))
    named = (n.id if isinstance(n, ast.Name) else getattr(n, "attr", "") for n in ast.walk(tree))
    return {*named} - {""}


def find_case(module: ModuleType, name: str) -> Mapping[str, Any]:
    """The case of a file's `xray_cases()` by its name: keyword arguments of `explain`, `kernel` among them.

    Raises:
        ArgumentError: the file has no cases, none of that name, or one of a wrong form.
        CompileError: `xray_cases()` raises; its message follows.
    """
    cases = cases_of(module)
    if cases is None:
        raise ArgumentError(
            f"xray: --case needs a file with a function xray_cases(), got {module.__file__!r}; give --arg and --const"
        )
    if name not in cases:
        raise ArgumentError(
            f"xray: --case must be one of {', '.join(cases) or '(none)'}, got {name!r}; take one of these"
        )
    case = cases[name]
    if not isinstance(case, Mapping) or "args" not in case:
        raise ArgumentError(
            f"xray: a case must be a mapping with 'args', got {type(case).__name__} for {name!r}; write "
            "dict(kernel=..., args=..., constants=...)"
        )
    return case


def cases_of(module: ModuleType) -> Mapping[str, Any] | None:
    """The cases that a file's `xray_cases()` returns; None without this function.

    Raises:
        CompileError: `xray_cases()` raises, or returns no mapping; its message follows.
    """
    offered = getattr(module, "xray_cases", None)
    if offered is None:
        return None
    try:
        cases = offered()
        if not isinstance(cases, Mapping):
            raise TypeError(f"a {type(cases).__name__} and no mapping of names to cases")
    except Exception as error:
        got = said(error, Path(module.__file__ or "").resolve())
        raise CompileError(f"xray: xray_cases() must return cases, got {got}; call it with python") from error
    return cases

"""Things in files of Python that a command names: `FILE.py::name`. The file is imported, so it runs as code."""

from __future__ import annotations

import hashlib
import importlib.util
import linecache
import sys
import traceback
from pathlib import Path
from types import ModuleType

from tilefold.errors import ArgumentError, CompileError


def split_target(text: str) -> tuple[Path, str]:
    """`FILE.py::name` in its two parts; the name may be left out where something else says it."""
    file, _, name = text.partition("::")
    return Path(file), name


def load_file(path: Path, call: str = "xray", what: str = "kernel") -> ModuleType:
    """Import a file, once a process, with its folder at hand for its own imports.

    `call` is the command that asks and `what` is sought in the file: both for messages.

    Raises:
        ArgumentError: no such file.
        CompileError: the file raises; its message follows.
    """
    if not path.is_file():
        raise ArgumentError(f"{call}: FILE.py::{what} must name a file, got {str(path)!r}; check the path")
    path = path.resolve()
    name = f"tilefold_file_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    specification = importlib.util.spec_from_file_location(name, path)
    if specification is None or specification.loader is None:
        raise ArgumentError(f"{call}: a {what}'s file must be Python, got {str(path)!r}; name a .py file")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    linecache.checkcache(str(path))
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        specification.loader.exec_module(module)
    except (
        Exception,
        SystemExit,
    ) as error:  # a script's sys.exit would end the command, with the script's code
        del sys.modules[name]
        raise CompileError(
            f"{call}: {path.name} must import, got {said(error, path)}; run it with python"
        ) from error
    return module


def said(error: BaseException, path: Path) -> str:
    """An exception in one line, with the file's line that it came through last."""
    rows = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == path]
    line = error.lineno if isinstance(error, SyntaxError) else rows[-1] if rows else None
    where = "" if line is None else f" in {path.name}:{line}"
    message = " ".join(str(error).split())
    return f"{type(error).__name__}{f': {message}' if message else ''}{where}"

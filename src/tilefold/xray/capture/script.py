"""A script or a module run as `python` would run it, within a capture."""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilefold.errors import ArgumentError, CaptureError
from tilefold.xray.capture.launches import Captured
from tilefold.xray.capture.patches import script_line
from tilefold.xray.capture.session import capture


def run_script(words: Sequence[str], *, module: bool, **options: Any) -> tuple[Captured, int, str]:
    """Run `words` (a file or a module, and its arguments) within `capture(**options)`.

    Returns:
        What was captured; the exit code that the script would have; how it ended, where it did not end well.

    Raises:
        ArgumentError: no such file, or no such module.
    """
    name, *rest = words
    if not module and not Path(name).is_file():
        raise ArgumentError(
            f"xray: run must be given a script's file, got {name!r}; check the path, or write -m MODULE"
        )
    held, place = sys.argv, list(sys.path)
    sys.argv = [name, *rest]
    sys.path[0:0] = ["" if module else str(Path(name).resolve().parent)]
    try:
        with capture(**options) as captured:
            code, said = _ended(name, module)
    finally:
        sys.argv, sys.path[:] = held, place
    return captured, code, said


def _ended(name: str, module: bool) -> tuple[int, str]:
    """Run it; its exit code, and the error that it ended with."""
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True) if module else runpy.run_path(
            name, run_name="__main__"
        )
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        return code, f"it exits with {ended.code}" if code else ""
    except ImportError as error:
        if module and _is_runpy_s(error):
            said = str(error).partition(" (")[0]
            raise ArgumentError(
                f"xray: run -m must be given a module that python -m runs, got {name!r} ({said}); check the name, "
                "or write SCRIPT.py"
            ) from None
        return _failed(error)
    except CaptureError as error:
        return 1, str(error).removeprefix("xray: ")
    except Exception as error:
        return _failed(error)
    return 0, ""


def _failed(error: Exception) -> tuple[int, str]:
    """An error that the script ended with, after its traceback."""
    traceback.print_exception(type(error), error, _without_ours(error.__traceback__))
    place = _last(error)
    where = f" at {place}" if place else ""
    first = str(error).strip().partition("\n")[0]
    return 1, f"{type(error).__name__}{where}{f': {first}' if first else ''}"


def _is_runpy_s(error: ImportError) -> bool:
    """Whether the search for the module itself failed, before any of it ran."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and "runpy" in trace.tb_frame.f_code.co_filename


def _without_ours(trace: Any) -> Any:
    """A traceback from the script's own frame on."""
    while trace is not None and (
        "runpy" in trace.tb_frame.f_code.co_filename or trace.tb_frame.f_code.co_filename == __file__
    ):
        trace = trace.tb_next
    return trace


def _last(error: BaseException) -> str:
    """The innermost line of the script in an error's traceback."""
    trace, frame = error.__traceback__, None
    while trace is not None:
        frame, trace = (trace.tb_frame, trace.tb_lineno), trace.tb_next
    return script_line(frame[0]) if frame else "an unknown line"

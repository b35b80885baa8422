"""Attributes of other packages, replaced for a while; and the line of a script that asked for something."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import sysconfig
from typing import Any

from tilefold.errors import CaptureError

_ABSENT = object()


@functools.cache
def _no_scripts(file: str) -> bool:
    """Whether a file is of Python itself, or of what stands between a script and its launches: a package, or torch.compile's
    code, which lies in a cache."""
    folders = [os.path.dirname(m.__file__ or "") for n in _BETWEEN if (m := sys.modules.get(n)) is not None]
    if (cache := sys.modules.get("torch._inductor.runtime.cache_dir_utils")) is not None:
        folders.append(cache.cache_dir())
    if file.startswith("<") or any(file.startswith(folder + os.sep) for folder in folders):
        return True
    return file.startswith(sysconfig.get_path("stdlib") + os.sep) and "site-packages" not in file


_BETWEEN = ("torch", "triton", "tilefold", "_pytest", "pluggy", "xdist")


class Patches(contextlib.ExitStack):
    """Replacements that are undone, last first, when the stack is left."""

    def put(self, owner: Any, name: str, value: Any) -> Any:
        """Replace an attribute of a module or class (itself, not an inherited one), and return what stood there."""
        before = vars(owner).get(name, _ABSENT)
        self.callback(_restore, owner, name, before)
        setattr(owner, name, value)
        return None if before is _ABSENT else before

    def put_all(self, owner: Any, values: dict[str, Any]) -> None:
        """Several attributes of one owner."""
        for name, value in values.items():
            self.put(owner, name, value)


def _restore(owner: Any, name: str, before: Any) -> None:
    if before is _ABSENT:
        with contextlib.suppress(AttributeError):
            delattr(owner, name)
    else:
        setattr(owner, name, before)


def script_line(frame: Any = None) -> str:
    """FILE:LINE of the innermost frame, from this one out, that is no part of torch, Triton or this package; or ""."""
    frame = frame or sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not _no_scripts(file):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def refuse(what: str) -> Any:
    """A function that stands where nothing can be pretended: called, it says what was wanted and by which line."""

    def refused(*args: Any, **given: Any) -> Any:
        raise CaptureError(
            f"xray: a script must do without {what} where no GPU is, got a call at {script_line() or 'an unknown line'}; "
            "guard it, or run that part on a GPU"
        )

    return refused

"""Results that are kept by a function's arguments, and what torch keeps of compiled graphs."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from torch.compiler import config

from tilefold.runtime.modes import outside_modes

Function = TypeVar("Function", bound=Callable[..., Any])


def kept_outside_modes(most: int) -> Callable[[Function], Function]:
    """A function whose latest `most` results are kept, each made outside the modes of the caller who asked first."""

    def decorate(function: Function) -> Function:
        @functools.lru_cache(maxsize=most)
        @functools.wraps(function)
        def made(*arguments: Any, **named: Any) -> Any:
            with outside_modes():
                return function(*arguments, **named)

        return made  # type: ignore[return-value]  # of the same signature

    return decorate


_TOOLS = ("bench", "checkpoints", "cli", "watch", "xray")  # which no graph holds anything of


def source_tag(package: Path) -> str:
    """What a graph that torch keeps on disk depends on beside itself: the package's source, without its tools."""
    read = hashlib.sha256()
    for part in sorted(package.iterdir()):
        for file in () if part.name in _TOOLS else sorted([part, *part.rglob("*.py")]):
            if file.suffix == ".py":
                read.update(f"{file.relative_to(package).as_posix()}\n".encode() + file.read_bytes())
    return f"tilefold {read.hexdigest()[:16]}"


def keep_graphs_by(tag: str) -> None:
    """Have torch.compile find no graph on disk that was made under another tag.

    Torch looks a graph up by its operations' names and arguments, before it asks these for their derivatives and batching
    rules: one that was kept by another version of them would be run for this one.
    """
    tags = [given for given in config.cache_key_tag.split("; ") if given]
    if tag not in tags:
        config.cache_key_tag = "; ".join([*tags, tag])

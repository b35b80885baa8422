"""Results that are kept by what a function was given."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def kept_by_arguments(function: Function) -> Function:
    """A function whose latest 1024 results are kept; where an argument has no hash it is called each time."""
    kept = functools.lru_cache(maxsize=1024)(function)

    @functools.wraps(function)
    def called(*arguments: Any) -> Any:
        try:
            hash(arguments)
        except TypeError:
            return function(*arguments)
        return kept(*arguments)

    return called  # type: ignore[return-value]  # of the same signature, by position

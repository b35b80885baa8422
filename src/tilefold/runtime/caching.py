"""Results that are kept by a function's arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

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

"""What things lead to: values to what they are made of, blocks to those that follow."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

Thing = TypeVar("Thing", bound=Hashable)


def reached(begin: Iterable[Thing], following: Callable[[Thing], Iterable[Thing]]) -> Iterator[Thing]:
    """These things and all that they lead to, each once."""
    seen, waiting = set[Thing](), [*begin]
    while waiting:
        at = waiting.pop()
        if at not in seen:
            seen.add(at)
            yield at
            waiting += following(at)

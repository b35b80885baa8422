"""What a planted fault is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A fault: in which file below src/tilefold `old` becomes `new`, and which tests must then fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

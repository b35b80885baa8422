"""What a program asked of memory, access by access."""

from __future__ import annotations

from dataclasses import dataclass

from tilefold.xray.machine.types import Array


@dataclass(frozen=True, eq=False)
class Access:
    """One execution of one memory instruction by all threads of a block.

    `instruction` is its number in the kernel, `kind` load, store or atomic, `space` global, shared or local (where
    each thread has addresses of its own). `addresses` and
    `active` have an element a thread, in the order of `%tid`; `bytes` is what one thread asks for. `step` counts
    executed barriers, so that accesses between two of them can be told apart.
    """

    instruction: int
    kind: str
    space: str
    addresses: Array
    active: Array
    bytes: int
    step: int

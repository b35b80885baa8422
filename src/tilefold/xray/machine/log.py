"""What a program asked of memory, access by access, and what engines beside the threads moved."""

from __future__ import annotations

from dataclasses import dataclass

from tilefold.xray.machine.types import Array


@dataclass(frozen=True, eq=False)
class Access:
    """One execution of one memory instruction by all threads of a block.

    `instruction` is its number in the kernel, `kind` load, store or atomic, `space` global, shared, local (where
    each thread has addresses of its own) or mbarrier (a transaction barrier in shared memory, counted as no request).
    `addresses` and `active` have an element a thread, in the order of `%tid`; `bytes` is what one thread asks for.
    `step` counts executed barriers, so that accesses between two of them can be told apart. `written` are the bytes that
    each active thread stores to shared memory, where it gives them itself (a matrix or a copy comes from elsewhere).
    """

    instruction: int
    kind: str
    space: str
    addresses: Array
    active: Array
    bytes: int
    step: int
    written: Array | None = None


@dataclass(frozen=True, eq=False)
class Touch:
    """Bytes of shared memory that something asynchronous reads or writes on behalf of `warps` (a bit each).

    `when`: "opens" for the moment it may begin, "closes" for the one at which it is known to have ended. A write
    that a transaction barrier ended is known to all warps that waited there: `known`.
    """

    instruction: int
    warps: int
    addresses: Array
    bytes: int
    write: bool
    when: str
    step: int
    known: bool = False


@dataclass(frozen=True)
class Transfer:
    """One box that the tensor memory accelerator moved: `bytes` inside of the tensor, in `sectors` of global memory."""

    instruction: int
    kind: str
    bytes: int
    sectors: int
    step: int


@dataclass(frozen=True)
class Release:
    """One barrier that let its threads go on: `instruction` it was, `threads` that met. Releases are numbered by step."""

    instruction: int
    threads: int

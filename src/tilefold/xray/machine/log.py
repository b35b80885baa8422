"""The log of a program: its accesses, the transfers of engines beside the threads, how often each instruction was issued."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilefold.xray.machine.types import Array


@dataclass(frozen=True, eq=False)
class Access:
    """One execution of one memory instruction by all threads of a block.

    `instruction` is its number in the kernel, `kind` load, store or atomic, `space` global, shared, local (where
    each thread has addresses of its own), mbarrier (a transaction barrier in shared memory) or cluster (shared memory
    of the programs that run together): the last two are counted as no requests.
    `addresses` and `active` have an element a thread, in the order of `%tid`; `bytes` is what one thread asks for.
    `step` counts executed barriers, `sync` those of warps, so that accesses between two of them can be told apart.
    `written` are the bytes that each active thread stores to shared or global memory, where it gives them itself
    (matrices and copies do not).
    """

    instruction: int
    kind: str
    space: str
    addresses: Array
    active: Array
    bytes: int
    step: int
    written: Array | None = None
    sync: int = 0


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
    """One box that the tensor memory accelerator moved: `bytes` inside of the tensor, in `sectors` of global memory, whose
    numbers are `touched`."""

    instruction: int
    kind: str
    bytes: int
    sectors: int
    step: int
    touched: Array = field(compare=False, repr=False)


@dataclass(frozen=True)
class Release:
    """One barrier that let its threads go on: `instruction` it was, `threads` that waited. Releases are numbered by step.

    `cluster`: the threads of the program's whole cluster waited, of which `threads` counts the program's own.
    """

    instruction: int
    threads: int
    cluster: bool = False


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a program did.

    `issued` and `acted` count, for each instruction and warp, how often the warp issued it, and how often with a lane that
    its predicate let act; `parted` are warps whose lanes some predicate told apart. `lanes` counts lanes that each
    instruction acted for. `accesses` are those of threads; `touches` and `transfers` those of asynchronous copies, matrix
    units and the tensor memory accelerator; `releases` the barriers, in order.
    """

    program: tuple[int, int, int]
    accesses: tuple[Access, ...]
    touches: tuple[Touch, ...]
    transfers: tuple[Transfer, ...]
    releases: tuple[Release, ...]
    issued: Array
    acted: Array
    parted: Array
    lanes: Array

    @property
    def warps(self) -> Array:
        """Warps that issued each instruction."""
        total: Array = self.issued.sum(1)
        return total

    @property
    def instructions(self) -> int:
        """Instructions issued, by warp."""
        return int(self.issued.sum())

    @property
    def barriers(self) -> int:
        """Barriers at which threads waited."""
        return len(self.releases)

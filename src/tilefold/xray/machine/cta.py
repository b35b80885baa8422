"""One program of the grid, executed: blocks in the order of the text, each by all threads that stand before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilefold.errors import ExecutionError
from tilefold.xray.machine.binding import unknown
from tilefold.xray.machine.bulk.barriers import Barriers
from tilefold.xray.machine.bulk.moves import Stores
from tilefold.xray.machine.copies import Copies
from tilefold.xray.machine.kernel import Block, Ending, Kernel
from tilefold.xray.machine.log import Access, Release, Touch, Transfer
from tilefold.xray.machine.matrix.groups import Products
from tilefold.xray.machine.memory import Memory
from tilefold.xray.machine.spaces import Flat, Generic, special_registers, words
from tilefold.xray.machine.types import Array


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a program did.

    `issued` and `acted` count, for each instruction and warp, how often the warp issued it, and how often with a lane that
    its predicate let act; `parted` are warps whose lanes some predicate told apart. `lanes` counts lanes that each
    instruction acted for; lanes that stood before it with a false predicate are in `off`. `accesses` are those of threads;
    `touches` and `transfers` those of asynchronous copies, matrix units and the tensor memory accelerator; `releases` the
    barriers, in order.
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
    off: Array

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
        """Barriers at which threads met."""
        return len(self.releases)


def run(
    kernel: Kernel,
    memory: Memory,
    arguments: Mapping[str, int | bytes],
    *,
    program: tuple[int, int, int] = (0, 0, 0),
    grid: tuple[int, int, int] = (1, 1, 1),
    limit: int = 2_000_000,
) -> Outcome:
    """Execute one program. `arguments` holds the bits of each parameter by its PTX name, a tensor map's 128 bytes as bytes;
    `limit` bounds blocks executed.

    Threads that part at a branch meet again where the text does: of all threads those at the earliest block go first.

    Raises:
        UnknownInstructionError: a thread reached an instruction that has no meaning here.
        ExecutionError: a deadlock, a misaligned access, a shuffle among absent lanes, or the limit.
    """
    cta = Cta(kernel, memory, arguments, program, grid)
    with np.errstate(all="ignore"):
        cta.run(limit)
    return Outcome(
        program,
        tuple(cta.accesses),
        tuple(cta.touches),
        tuple(cta.transfers),
        tuple(cta.releases),
        cta.issued,
        cta.acted,
        cta.parted,
        cta.lanes,
        cta.off,
    )


class Cta:
    """Registers, memories and places in the text of all threads of a block."""

    def __init__(
        self,
        kernel: Kernel,
        memory: Memory,
        arguments: Mapping[str, int | bytes],
        program: tuple[int, int, int],
        grid: tuple[int, int, int],
    ) -> None:
        self.kernel, self.threads = kernel, kernel.threads
        self.everyone = np.ones(self.threads, bool)
        numbers = np.arange(self.threads)
        self.lane = numbers % 32
        self.first_of_warp = numbers - self.lane
        # Undefined registers hold a pattern that shows.
        self.registers: list[Array] = [
            np.zeros(self.threads, d)
            if d.kind == "b"
            else np.full(self.threads, 0xA5A5A5A5A5A5A5A5 & ((1 << 8 * d.itemsize) - 1), d)
            for d in kernel.dtypes
        ]
        self.carry = np.zeros(self.threads, bool)
        self.special = special_registers(numbers, program, grid)
        self.parameters = words(arguments, kernel.parameters)
        self.memory = memory
        self.generic = Generic(memory, self.parameters)
        memory.adopt(kernel.variables)
        self.shared = Flat("shared", max(kernel.shared, 16))
        # Every thread's own bytes one behind the other: aligned as the widest access asks.
        self._stride = -(-max(kernel.local, 1) // 16) * 16
        self.local = Flat("local", self._stride * self.threads)
        self.accesses: list[Access] = []
        self.touches: list[Touch] = []
        self.transfers: list[Transfer] = []
        self.releases: list[Release] = []
        count = len(kernel.entry.instructions)
        self.issued = np.zeros((count, self.threads // 32), np.int32)
        self.acted = np.zeros_like(self.issued)
        self.parted = np.zeros(self.threads // 32, bool)
        self.lanes, self.off = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.copies, self.products = Copies(self), Products(self)
        self.barriers, self.stores = Barriers(self), Stores(self)
        self.stalled = np.zeros(self.threads, bool)

    def space(self, name: str) -> Memory | Flat:
        """The memory of a state space."""
        return {"shared": self.shared, "local": self.local}.get(name, self.memory)

    def private(self, addresses: Array, active: Array) -> Array:
        """Where each active thread's local addresses lie among those of all threads."""
        own = np.flatnonzero(active).astype(np.uint64) * np.uint64(self._stride)
        where: Array = addresses + own
        return where

    def shared_bytes(self, size: int) -> Array:
        """Shared memory as unsigned integers of so many bytes."""
        return self.shared.data.view(f"u{size}")

    @property
    def step(self) -> int:
        """How many barriers have let go."""
        return len(self.releases)

    def note(
        self,
        number: int,
        kind: str,
        space: str,
        addresses: Array,
        active: Array,
        size: int,
        written: Array | None = None,
    ) -> None:
        """Write an access into the log."""
        self.accesses.append(Access(number, kind, space, addresses, active, size, self.step, written))

    def touch(
        self,
        number: int,
        warps: int,
        addresses: Array,
        size: int,
        when: str,
        *,
        write: bool,
        known: bool = False,
    ) -> None:
        """Write bytes of shared memory that are read or written asynchronously into the log."""
        self.touches.append(Touch(number, warps, addresses, size, write, when, self.step, known))

    def run(self, limit: int) -> None:
        """Until every thread has ended."""
        blocks = self.kernel.blocks
        done = len(blocks)
        place = np.zeros(self.threads, np.int64)
        waits = np.full(self.threads, -1)
        last: Ending | None = None
        for _ in range(limit):
            # Nearly always all threads stand before the same block.
            now = int(place[0])
            if now < done and not self.stalled.any() and (place == now).all() and (waits < 0).all():
                mask = self.everyone
            else:
                ready = (place < done) & (waits < 0) & ~self.stalled
                if not ready.any():
                    if (place >= done).all():
                        return
                    self._release(waits, place < done, last)
                    continue
                now = int(place[ready].min())
                mask = ready & (place == now)
            block = blocks[now]
            self._execute(block, mask)
            ending = block.ending
            taken = mask if ending.guard is None else mask & ending.guard(self)
            place[mask] = now + 1
            if ending.number >= 0:
                self._count(ending.number, mask, taken)
            if ending.kind == "jump":
                place[taken] = ending.target
            elif ending.kind == "end":
                place[taken] = done
            elif ending.kind == "trap" and taken.any():
                raise ExecutionError(
                    f"xray: a program must not trap, got it in {self.kernel.place(ending.number)}"
                )
            elif ending.kind == "unknown" and taken.any():
                raise unknown(self.kernel.entry.instructions[ending.number])
            elif ending.kind == "barrier":
                waits[taken], last = ending.barrier, ending
                if ending.expected and (waits == ending.barrier).sum() >= ending.expected:
                    self._let_go(waits, waits == ending.barrier, ending.number)
        raise ExecutionError(
            f"xray: a program must end, got {limit} blocks executed and threads still running"
        )

    def _release(self, waits: Array, alive: Array, last: Ending | None) -> None:
        """All who wait at the one barrier go on; nobody else may be waiting elsewhere."""
        if self.stalled.any() or last is None:
            raise ExecutionError(
                f"xray: a transaction barrier must complete, got {int(self.stalled.sum())} threads waiting for one forever"
            )
        found = np.unique(waits[alive])
        if len(found) != 1 or (last.expected and int(alive.sum()) < last.expected):
            raise ExecutionError(
                f"xray: threads must meet at one barrier, got some waiting at each of {found}"
            )
        self._let_go(waits, alive, last.number)

    def _let_go(self, waits: Array, who: Array, number: int) -> None:
        self.releases.append(Release(number, int(who.sum())))
        waits[who] = -1

    def _execute(self, block: Block, mask: Array) -> None:
        whole = mask is self.everyone or bool(mask.all())
        warps, lanes = mask.reshape(-1, 32).any(1), int(mask.sum())
        self.issued[block.numbers] += warps
        self.acted[block.numbers] += warps
        self.lanes[block.numbers] += lanes
        planned = None
        try:
            for planned in block.steps:
                if planned.guard is None:
                    planned.step(self, None if whole else mask)
                    continue
                active = mask & planned.guard(self)
                count = int(np.count_nonzero(active))
                self.lanes[planned.number] -= lanes - count
                self.off[planned.number] += lanes - count
                if count < lanes:
                    self._part(planned.number, mask, active)
                if count:
                    planned.step(self, None if count == self.threads else active)
        except ExecutionError as error:
            assert planned is not None
            raise ExecutionError(f"{error} in {self.kernel.place(planned.number)}") from None

    def _count(self, number: int, mask: Array, taken: Array) -> None:
        warps = mask.reshape(-1, 32).any(1)
        self.issued[number] += warps
        self.acted[number] += warps
        self.lanes[number] += int(taken.sum())
        self.off[number] += int(mask.sum() - taken.sum())
        self._part(number, mask, taken)

    def _part(self, number: int, mask: Array, active: Array) -> None:
        """Note the warps that a predicate told apart, whole or among their lanes."""
        left, on = (mask & ~active).reshape(-1, 32).any(1), active.reshape(-1, 32).any(1)
        self.acted[number] -= left & ~on
        self.parted |= left & on

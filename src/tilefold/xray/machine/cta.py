"""One program of the grid, executed: blocks in the order of the text, each by all threads that stand before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilefold.errors import ExecutionError
from tilefold.xray.machine.kernel import Block, Kernel
from tilefold.xray.machine.log import Access
from tilefold.xray.machine.memory import Allocation, Memory
from tilefold.xray.machine.types import Array


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a program did: `warps` and `lanes` count, for each instruction, warps that issued it and lanes it acted for."""

    accesses: tuple[Access, ...]
    warps: Array
    lanes: Array
    barriers: int

    @property
    def instructions(self) -> int:
        """Instructions issued, by warp."""
        return int(self.warps.sum())


def run(
    kernel: Kernel,
    memory: Memory,
    arguments: Mapping[str, int],
    *,
    program: tuple[int, int, int] = (0, 0, 0),
    grid: tuple[int, int, int] = (1, 1, 1),
    limit: int = 10_000_000,
) -> Outcome:
    """Execute one program. `arguments` holds the bits of each parameter by its PTX name; `limit` bounds blocks executed.

    Threads that part at a branch meet again where the text does: of all threads those at the earliest block go first.

    Raises:
        ExecutionError: a deadlock, a misaligned access, a shuffle among absent lanes, or the limit.
    """
    cta = Cta(kernel, memory, arguments, program, grid)
    with np.errstate(all="ignore"):
        cta.run(limit)
    return Outcome(tuple(cta.accesses), cta.warps, cta.lanes, cta.barriers)


class Cta:
    """Registers, shared memory and places in the text of all threads of a block."""

    def __init__(
        self,
        kernel: Kernel,
        memory: Memory,
        arguments: Mapping[str, int],
        program: tuple[int, int, int],
        grid: tuple[int, int, int],
    ) -> None:
        self.kernel, self.arguments, self.threads = kernel, arguments, kernel.threads
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
        self.special = _special(numbers, program, grid)
        self._global: Memory = memory
        memory.adopt(kernel.variables)
        self._shared: Memory = _Flat("shared", max(kernel.shared, 16))
        # Every thread's own bytes one behind the other: aligned as the widest access asks.
        self._stride = -(-max(kernel.local, 1) // 16) * 16
        self._local: Memory = _Flat("local", self._stride * self.threads)
        self.accesses: list[Access] = []
        count = len(kernel.entry.instructions)
        self.warps, self.lanes = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.barriers = 0
        self._sent: list[tuple[Array, Array]] = []
        self._groups: list[list[tuple[Array, Array]]] = []

    def space(self, name: str) -> Memory:
        """The memory of a state space."""
        return {"shared": self._shared, "local": self._local}.get(name, self._global)

    def private(self, addresses: Array, active: Array) -> Array:
        """Where each active thread's local addresses lie among those of all threads."""
        own = np.flatnonzero(active).astype(np.uint64) * np.uint64(self._stride)
        where: Array = addresses + own
        return where

    def note(self, number: int, kind: str, space: str, addresses: Array, active: Array, size: int) -> None:
        """Write an access into the log."""
        self.accesses.append(Access(number, kind, space, addresses, active, size, self.barriers))

    def send(self, places: Array, values: Array) -> None:
        """Bytes on their way to shared memory."""
        self._sent.append((places, values))

    def commit(self) -> None:
        """Everything sent since the last commit is one group."""
        self._groups.append(self._sent)
        self._sent = []

    def arrive(self, left: int, *, uncommitted: bool = False) -> None:
        """All groups but the last `left` reach shared memory."""
        keep = len(self._groups) - min(left, len(self._groups))
        landed, self._groups = self._groups[:keep], self._groups[keep:]
        if uncommitted:
            landed, self._sent = [*landed, self._sent], []
        for group in landed:
            for places, values in group:
                for i in range(0, values.shape[1], 4):
                    word = np.ascontiguousarray(values[:, i : i + 4]).view(np.uint32).ravel()
                    self._shared.store(places + np.uint64(i), word, -1)

    def run(self, limit: int) -> None:
        """Until every thread has ended."""
        blocks = self.kernel.blocks
        done = len(blocks)
        place = np.zeros(self.threads, np.int64)
        waits = np.full(self.threads, -1)
        expected = 0
        for _ in range(limit):
            ready = (place < done) & (waits < 0)
            if not ready.any():
                if (place >= done).all():
                    return
                self._release(waits, place < done, expected)
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
            elif ending.kind == "barrier":
                waits[taken], expected = ending.barrier, ending.expected
                if ending.expected and (waits == ending.barrier).sum() >= ending.expected:
                    self._release(waits, waits == ending.barrier, ending.expected)
        raise ExecutionError(
            f"xray: a program must end, got {limit} blocks executed and threads still running"
        )

    def _release(self, waits: Array, alive: Array, expected: int) -> None:
        """All who wait at the one barrier go on; nobody else may be waiting elsewhere."""
        found = np.unique(waits[alive])
        if len(found) != 1 or (expected and int(alive.sum()) < expected):
            raise ExecutionError(
                f"xray: threads must meet at one barrier, got some waiting at each of {found}"
            )
        waits[alive] = -1
        self.barriers += 1

    def _execute(self, block: Block, mask: Array) -> None:
        whole = bool(mask.all())
        warps, lanes = int(mask.reshape(-1, 32).any(1).sum()), int(mask.sum())
        for planned in block.steps:
            self.warps[planned.number] += warps
            if planned.guard is None:
                self.lanes[planned.number] += lanes
                planned.step(self, None if whole else mask)
                continue
            active = mask & planned.guard(self)
            count = int(np.count_nonzero(active))
            self.lanes[planned.number] += count
            if count:
                planned.step(self, None if count == self.threads else active)

    def _count(self, number: int, mask: Array, taken: Array) -> None:
        self.warps[number] += int(mask.reshape(-1, 32).any(1).sum())
        self.lanes[number] += int(taken.sum())


class _Flat(Memory):
    """Shared or local memory: one allocation from address 0, whose first content is no value anybody wrote."""

    def __init__(self, name: str, size: int) -> None:
        super().__init__()
        self.allocations = [Allocation(name, 0, np.full(size, 0xA5, np.uint8))]

    def _parts(self, addresses: Array, size: int, instruction: int) -> list[tuple[Array, Array, Array]]:
        data = self.allocations[0].data
        assert data is not None
        outside = addresses + np.uint64(size) > len(data)
        if outside.any():
            raise ExecutionError(
                f"xray: {self.allocations[0].name} addresses must be below {len(data)}, got {int(addresses[outside][0])}"
            )
        return [(np.arange(len(addresses)), addresses.astype(np.int64), data[: len(data) // size * size])]


def _special(numbers: Array, program: tuple[int, int, int], grid: tuple[int, int, int]) -> dict[str, Array]:
    """The registers that a thread finds filled."""
    threads = len(numbers)
    fixed: dict[str, int] = {"%tid.y": 0, "%tid.z": 0, "%ntid.x": threads, "%ntid.y": 1, "%ntid.z": 1}
    fixed |= {f"%ctaid.{axis}": at for axis, at in zip("xyz", program, strict=True)}
    fixed |= {f"%nctaid.{axis}": size for axis, size in zip("xyz", grid, strict=True)}
    found = {name: np.full(threads, value, np.uint32) for name, value in fixed.items()}
    lane = (numbers % 32).astype(np.uint32)
    return found | {
        "%tid.x": numbers.astype(np.uint32),
        "%laneid": lane,
        "%warpid": (numbers // 32).astype(np.uint32),
        "%lanemask_lt": (np.uint32(1) << lane) - np.uint32(1),
        "%lanemask_eq": np.uint32(1) << lane,
    }

"""The state of a program's threads while they run: registers, memories, and the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from tilefold.xray.machine.cluster import Cluster, Distributed
from tilefold.xray.machine.log import Access, Release, Touch, Transfer
from tilefold.xray.machine.memory import Memory
from tilefold.xray.machine.spaces import Flat, Generic, Special
from tilefold.xray.machine.types import Array

Engine = TypeVar("Engine")


class Cta:
    """Registers, memories and log of all threads of a block.

    `shared` and `local` are in bytes, a block's and a thread's; `parameters` the bytes of all parameters;
    `instructions` how many the kernel has; `cluster` the programs that run together, which a `Cluster` of them makes known
    to each other. `late`: boxes of tensors reach memory as late, and are taken as early, as a chip may do it.
    """

    def __init__(
        self,
        dtypes: Sequence[np.dtype[np.generic]],
        memory: Memory,
        parameters: Array,
        *,
        threads: int,
        shared: int,
        local: int,
        instructions: int,
        program: tuple[int, int, int],
        grid: tuple[int, int, int],
        cluster: int = 1,
        late: bool = False,
    ) -> None:
        self.threads = threads
        self.everyone = np.ones(self.threads, bool)
        numbers = np.arange(self.threads)
        self.lane = numbers % 32
        self.first_of_warp = numbers - self.lane
        # Undefined registers hold a pattern that shows.
        self.registers: list[Array] = [
            np.zeros(self.threads, d)
            if d.kind == "b"
            else np.full(self.threads, 0xA5A5A5A5A5A5A5A5 & ((1 << 8 * d.itemsize) - 1), d)
            for d in dtypes
        ]
        self.carry = np.zeros(self.threads, bool)
        self.special = Special(numbers, program, grid, cluster)
        self.parameters = parameters
        self.memory = memory
        self.generic = Generic(memory, self.parameters)
        self.shared = Flat("shared", max(shared, 16))
        # Every thread's own bytes one behind the other: aligned as the widest access asks.
        self._stride = -(-max(local, 1) // 16) * 16
        self.local = Flat("local", self._stride * self.threads)
        self.accesses: list[Access] = []
        self.touches: list[Touch] = []
        self.transfers: list[Transfer] = []
        self.releases: list[Release] = []
        self.issued = np.zeros((instructions, self.threads // 32), np.int32)
        self.acted = np.zeros_like(self.issued)
        self.parted = np.zeros(self.threads // 32, bool)
        self.lanes = np.zeros(instructions, np.int64)
        self.stalled = np.zeros(self.threads, bool)
        self.events = self.syncs = 0
        self.late: list[Callable[[], None]] | None = [] if late else None  # boxes on their way to memory
        # Of a cluster: how often each thread arrived at its barrier and waited there, and which have ended.
        self.cluster: Cluster[Cta] = Cluster(())
        self.arrived, self.waited = np.zeros(self.threads, np.int64), np.zeros(self.threads, np.int64)
        self.gone, self.begun = np.zeros(self.threads, bool), False
        self._engines: dict[Any, Any] = {}

    def engine(self, kind: Callable[[Cta], Engine]) -> Engine:
        """What works beside the threads, one of each class: made when it is first asked for."""
        if kind not in self._engines:
            self._engines[kind] = kind(self)
        return cast(Engine, self._engines[kind])

    def space(self, name: str) -> Memory | Flat | Distributed:
        """The memory of a state space; "cluster" is the shared memory of all programs that run together."""
        if name == "cluster":
            return Distributed(self)
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

    @property
    def changes(self) -> tuple[int, ...]:
        """Numbers that stay the same as long as nothing but registers may have changed."""
        return (self.memory.changes, self.shared.changes, self.local.changes, self.events)

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
        self.events += space == "mbarrier" and kind != "load"
        self.accesses.append(
            Access(number, kind, space, addresses, active, size, self.step, written, self.syncs)
        )

    def arrive(self) -> None:
        """Boxes that are on their way reach memory: none is promised to come before another."""
        for box in reversed(self.late or ()):
            box()
        if self.late:
            self.late.clear()
            self.memory.remember()

    def sync(self) -> None:
        """Lanes of warps wait for each other, and see what they wrote."""
        self.syncs += 1

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
        self.events += 1
        self.touches.append(Touch(number, warps, addresses, size, write, when, self.step, known))

"""`mbarrier`: barriers in shared memory that count arrivals and bytes; and the election of one lane."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tilefold.errors import ExecutionError
from tilefold.xray.machine.access import address_of
from tilefold.xray.machine.binding import Binder, Mask, Step, unknown
from tilefold.xray.machine.types import TYPES, Array
from tilefold.xray.ptx.syntax import Instruction, Pair, Symbol

if TYPE_CHECKING:
    from tilefold.xray.machine.cta import Cta

U32, PRED = TYPES["u32"], TYPES["pred"]


def bind(binder: Binder, instruction: Instruction, number: int) -> Step | None:
    """The step of an `mbarrier` instruction or `elect.sync`; None if this is none."""
    if instruction.opcode == "elect":
        return _elect(binder, instruction)
    if instruction.opcode != "mbarrier":
        return None
    what = instruction.modifiers[0]
    if what == "init":
        return _initialize(binder, instruction, number)
    if what == "inval":
        place = address_of(binder, instruction.operands[0])
        return lambda cta, mask: cta.engine(Barriers).invalidate(number, place(cta), mask)
    if what == "arrive":
        return _arrive(binder, instruction, number)
    if what in ("try_wait", "test_wait") and instruction.has("parity"):
        return _wait(binder, instruction, number)
    raise unknown(instruction)


def _elect(binder: Binder, instruction: Instruction) -> Step:
    """`elect.sync d|p, members`: p is true for the lowest lane that executes it."""
    (target, _) = instruction.operands
    assert isinstance(target, Pair)
    which, chosen = binder.write(target.first, U32), binder.write(target.second, PRED)

    def elect(cta: Cta, mask: Mask) -> None:
        present = (cta.everyone if mask is None else mask).reshape(-1, 32)
        lowest = np.repeat(present.argmax(1), 32)
        which(cta, lowest.astype(np.uint32), mask)
        chosen(cta, cta.lane == lowest, mask)

    return elect


def _initialize(binder: Binder, instruction: Instruction, number: int) -> Step:
    place, count = address_of(binder, instruction.operands[0]), binder.read(instruction.operands[1], U32)
    return lambda cta, mask: cta.engine(Barriers).initialize(number, place(cta), count(cta), mask)


def _arrive(binder: Binder, instruction: Instruction, number: int) -> Step:
    """`mbarrier.arrive{.expect_tx}.shared.b64 _, [place], n`: n bytes to come, or arrivals (1 if absent)."""
    target, at, *rest = instruction.operands
    if not isinstance(target, Symbol) or instruction.has("noComplete") or instruction.has("shared::cluster"):
        raise unknown(instruction)
    place, expects = address_of(binder, at), instruction.has("expect_tx")
    count = binder.read(rest[0], U32) if rest else None

    def arrive(cta: Cta, mask: Mask) -> None:
        numbers = np.ones(cta.threads, np.uint32) if count is None else count(cta)
        zero = np.zeros_like(numbers)
        arrivals, coming = (zero + np.uint32(1), numbers) if expects else (numbers, zero)
        cta.engine(Barriers).arrive(number, place(cta), arrivals, coming, mask)

    return arrive


def _wait(binder: Binder, instruction: Instruction, number: int) -> Step:
    """`mbarrier.try_wait.parity p, [place], parity`: whether the phase of that parity is over."""
    target, at, parity, *_ = instruction.operands
    write, place, phase = binder.write(target, PRED), address_of(binder, at), binder.read(parity, U32)
    return lambda cta, mask: write(cta, cta.engine(Barriers).wait(number, place(cta), phase(cta), mask), mask)


@dataclass
class Barrier:
    """The state of one barrier. `moved` holds what its bytes were: instruction, addresses and bytes each.

    `thread` initialized it; `known` says whether a fence has made other programs of the cluster see that.
    """

    expected: int
    pending: int
    thread: int = 0
    known: bool = False
    coming: int = 0
    phase: int = 0
    moved: list[tuple[int, Array, int]] = field(default_factory=list)
    ended: list[tuple[int, Array, int]] = field(default_factory=list)

    def settle(self) -> bool:
        """Go on to the next phase if everything has arrived."""
        if self.pending > 0 or self.coming != 0:
            return False
        self.phase, self.pending = self.phase + 1, self.expected
        self.ended, self.moved = self.moved, []
        return True


class Barriers:
    """The transaction barriers of a block, by address."""

    def __init__(self, cta: Cta) -> None:
        self._cta = cta
        self._at: dict[int, Barrier] = {}

    def initialize(self, number: int, places: Array, counts: Array, mask: Mask) -> None:
        """A barrier of the first phase, for so many arrivals."""
        active = self._log(number, "store", places, mask)
        threads = np.flatnonzero(active).tolist()
        for place, count, thread in zip(
            places[active].tolist(), counts[active].tolist(), threads, strict=True
        ):
            self._at[place] = Barrier(count, count, thread)

    def publish(self, threads: Array) -> None:
        """What these threads initialized can be seen by the other programs of a cluster."""
        for barrier in self._at.values():
            barrier.known |= bool(threads[barrier.thread])

    def invalidate(self, number: int, places: Array, mask: Mask) -> None:
        """The bytes are plain memory again."""
        active = self._log(number, "store", places, mask)
        for place in places[active].tolist():
            self._at.pop(place, None)

    def arrive(self, number: int, places: Array, arrivals: Array, coming: Array, mask: Mask) -> None:
        """Threads arrive, and announce bytes."""
        active = self._log(number, "atomic", places, mask)
        triples = zip(
            places[active].tolist(), arrivals[active].tolist(), coming[active].tolist(), strict=True
        )
        for place, count, more in triples:
            barrier = self.find(place)
            barrier.coming += more
            barrier.pending -= count
            self._settle(barrier)

    def complete(self, number: int, place: int, addresses: Array, size: int, *, far: bool = False) -> None:
        """Bytes have come: `size` at each of the addresses; `far`: maybe from another program.

        Raises:
            ExecutionError: nothing was initialized there, or no fence has made others see that.
        """
        barrier = self.find(place)
        if far and not barrier.known:
            raise ExecutionError(
                "xray: a transaction barrier that others count bytes at must be made visible to them, got none of "
                "fence.mbarrier_init and barrier.cluster.arrive.release behind its initialization"
            )
        barrier.coming -= len(addresses) * size
        barrier.moved.append((number, addresses, size))
        self._settle(barrier)

    def wait(self, number: int, places: Array, parity: Array, mask: Mask) -> Array:
        """For each thread whether the phase is over; those for which it is not stall until a barrier moves on."""
        active = self._log(number, "load", places, mask)
        over = np.zeros(self._cta.threads, bool)
        for place in np.unique(places[active]).tolist():
            barrier, here = self.find(place), active & (places == place)
            over[here] = (barrier.phase & 1) != (parity[here] & 1)
            warps = _bits(here & over)
            for moved, addresses, size in barrier.ended if warps else ():
                self._cta.touch(moved, warps, addresses, size, "closes", write=True, known=True)
        self._cta.stalled |= active & ~over
        return over

    def find(self, place: int) -> Barrier:
        """The barrier at an address.

        Raises:
            ExecutionError: nothing was initialized there.
        """
        if place not in self._at:
            raise ExecutionError(
                f"xray: a transaction barrier must be initialized before its use, got {place:#x}"
            )
        return self._at[place]

    def _settle(self, barrier: Barrier) -> None:
        if barrier.settle():
            self._cta.stalled[:] = False

    def _log(self, number: int, kind: str, places: Array, mask: Mask) -> Array:
        active = self._cta.everyone if mask is None else mask
        self._cta.note(number, kind, "mbarrier", places, active, 8)
        return active


def _bits(threads: Array) -> int:
    """The warps that have one of the threads, a bit each."""
    return sum(1 << warp for warp in np.flatnonzero(threads.reshape(-1, 32).any(1)).tolist())

"""`cp.async` from global to shared memory: values are taken at once and arrive when they are waited for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilefold.xray.machine.access import address_of, begin
from tilefold.xray.machine.binding import Binder, Mask, Step
from tilefold.xray.machine.types import TYPES, Array
from tilefold.xray.ptx.syntax import Immediate, Instruction

if TYPE_CHECKING:
    from tilefold.xray.machine.cta import Cta


def bind(binder: Binder, instruction: Instruction, number: int) -> Step | None:
    """The step of `cp.async` that threads do, copies as well as waits; None if this is none."""
    name = instruction.name
    if name == "cp.async.commit_group":
        return lambda cta, mask: cta.engine(Copies).commit(mask)
    if name == "cp.async.wait_all":
        return lambda cta, mask: cta.engine(Copies).arrive(0, mask, uncommitted=True)
    if name == "cp.async.wait_group":
        (count,) = instruction.operands
        assert isinstance(count, Immediate)
        left = count.value
        return lambda cta, mask: cta.engine(Copies).arrive(left, mask)
    if not name.startswith(("cp.async.ca.", "cp.async.cg.")) or not isinstance(
        instruction.operands[2], Immediate
    ):
        return None
    size = instruction.operands[2].value
    to, source = address_of(binder, instruction.operands[0]), address_of(binder, instruction.operands[1])
    sized = len(instruction.operands) > 3 + instruction.has("L2::cache_hint")
    read = binder.read(instruction.operands[3], TYPES["u32"]) if sized else None

    def copy(cta: Cta, mask: Mask) -> None:
        everyone = cta.everyone if mask is None else mask
        count = None if read is None else read(cta)
        taken = everyone if count is None else everyone & (count > 0)
        active, where = begin(cta, number, "load", "global", source(cta), taken, size)
        values = np.zeros((size, cta.threads), np.uint8)
        values[:, active] = cta.memory.load(where, np.dtype("u1"), size, number)
        if count is not None:
            values[np.arange(size)[:, None] >= count] = 0
        written, places = begin(cta, number, "store", "shared", to(cta), everyone, size)
        cta.engine(Copies).send(Copy(number, np.flatnonzero(written), places, values[:, written]))

    return copy


@dataclass(frozen=True, eq=False)
class Copy:
    """Bytes [size, threads] on their way to `places`, sent by `threads`."""

    number: int
    threads: Array
    places: Array
    values: Array

    def part(self, chosen: Array) -> Copy:
        """What some of the threads sent."""
        return Copy(self.number, self.threads[chosen], self.places[chosen], self.values[:, chosen])


class Copies:
    """Copies on their way to shared memory, in groups. Every thread commits and waits for its own."""

    def __init__(self, cta: Cta) -> None:
        self._cta = cta
        self._sent: list[Copy] = []
        self._groups: list[tuple[Array, list[Copy]]] = []  # who committed, and what

    def send(self, copy: Copy) -> None:
        """Bytes set out."""
        self._cta.events += 1
        self._sent.append(copy)

    def commit(self, mask: Mask) -> None:
        """Everything that these threads sent since their last commit is one group."""
        who = self._cta.everyone if mask is None else mask
        group, kept = [], []
        for copy in self._sent:
            mine = who[copy.threads]
            group.append(copy.part(mine))
            if not mine.all():
                kept.append(copy.part(~mine))
        self._sent = kept
        self._groups.append((who.copy(), group))

    def arrive(self, left: int, mask: Mask, *, uncommitted: bool = False) -> None:
        """All groups of these threads but each one's last `left` reach shared memory."""
        who = self._cta.everyone if mask is None else mask
        later = np.zeros(self._cta.threads, np.int64)
        kept, landing = [], []
        for members, group in reversed(self._groups):
            landed = members & who & (later >= left)
            later += members
            landing.append((group, landed))
            rest = members & ~landed
            if rest.any():
                kept.append((rest, [copy.part(rest[copy.threads]) for copy in group]))
        self._groups = kept[::-1]
        for group, landed in reversed(landing):
            self._land(group, landed)
        if uncommitted:
            self._land(self._sent, who)
            self._sent = [copy.part(~who[copy.threads]) for copy in self._sent]

    def _land(self, group: list[Copy], who: Array) -> None:
        for copy in group:
            part = copy.part(who[copy.threads])
            if not len(part.threads):
                continue
            self._cta.shared.store(part.places, part.values, part.number)
            for warp in np.unique(part.threads // 32).tolist():
                mine = part.places[part.threads // 32 == warp].astype(np.int64)
                self._cta.touch(part.number, 1 << warp, mine, len(part.values), "closes", write=True)

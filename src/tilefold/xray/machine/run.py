"""One program of the grid, executed: of all threads that can go on, those at the earliest block go first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tilefold.errors import ExecutionError
from tilefold.xray.machine.binding import unknown
from tilefold.xray.machine.cta import Cta
from tilefold.xray.machine.kernel import Block, Ending, Kernel
from tilefold.xray.machine.log import Outcome, Release
from tilefold.xray.machine.memory import Memory
from tilefold.xray.machine.spaces import words
from tilefold.xray.machine.types import Array

Turns = Literal["together", "first", "last"]
LIMIT = 250_000  # blocks executed; a kernel's loop of 100,000 rounds is one of these


def run(
    kernel: Kernel,
    memory: Memory,
    arguments: Mapping[str, int | bytes],
    *,
    program: tuple[int, int, int] = (0, 0, 0),
    grid: tuple[int, int, int] = (1, 1, 1),
    limit: int = LIMIT,
    turns: Turns = "together",
) -> Outcome:
    """Execute one program. `arguments` holds the bits of each parameter by its PTX name, a tensor map's 128 bytes as bytes;
    `limit` bounds blocks executed. `turns`: all warps together, or each as far as it comes, from the first or from the last.

    Threads that part at a branch go on in the order of `machine.order`; at an instruction of several lanes (a shuffle, a
    vote, a matrix) they wait for the others that it names.

    Raises:
        UnknownInstructionError: a thread reached an instruction that has no meaning here.
        ExecutionError: a deadlock, a loop that changes nothing, a misaligned access, a shuffle among absent lanes, or the
            limit.
    """
    memory.adopt(kernel.variables)
    cta = Cta(
        kernel.dtypes,
        memory,
        words(arguments, kernel.parameters),
        threads=kernel.threads,
        shared=kernel.shared,
        local=kernel.local,
        instructions=len(kernel.entry.instructions),
        program=program,
        grid=grid,
    )
    with np.errstate(all="ignore"):
        _Threads(kernel, cta, turns).run(limit)
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


class _Threads:
    """Where each thread of a block stands, and what it waits for: a barrier (its number), or other lanes (`held`)."""

    def __init__(self, kernel: Kernel, cta: Cta, turns: Turns = "together") -> None:
        self._kernel, self._cta, self._turns = kernel, cta, turns
        self._done = len(kernel.blocks)
        self._ranks = np.array([*kernel.ranks, self._done])
        self._blocks = np.argsort(self._ranks)
        self._place = np.zeros(cta.threads, np.int64)
        self._waits = np.full(cta.threads, -1)
        self._held = np.zeros(cta.threads, bool)
        self._last: Ending | None = None

    def run(self, limit: int) -> None:
        """Until every thread has ended."""
        watch = _Watch(1024)
        for count in range(limit):
            if watch.repeats(count, self._cta, self._place, self._waits):
                raise ExecutionError(
                    f"xray: a program must end, got a loop that changes nothing any more{self._standing()}; it may wait for "
                    "what another program writes, and programs are executed one after the other"
                )
            mask = self._next()
            if mask is None:
                return
            if len(mask):
                self._step(int(self._place[mask.argmax()]), mask)
        raise ExecutionError(
            f"xray: a program must end, got {limit} blocks executed and threads still running{self._standing()}"
        )

    def _next(self) -> Array | None:
        """The threads that go on: an empty array where some barrier had to let go first, None where all have ended."""
        place, cta = self._place, self._cta
        now = int(place[0])
        # Nearly always all threads stand before the same block.
        if (
            self._turns == "together"
            and now < self._done
            and not cta.stalled.any()
            and (place == now).all()
            and (self._waits < 0).all()
        ):
            self._held[:] = False
            return cta.everyone
        ready = (place < self._done) & (self._waits < 0) & ~cta.stalled & ~self._held
        if not ready.any():
            if (place >= self._done).all():
                return None
            self._release()
            return np.zeros(0, bool)
        if self._turns != "together":
            warps = np.arange(cta.threads) // 32
            ready &= warps == warps[ready][0 if self._turns == "first" else -1]
        now = int(self._blocks[self._ranks[place[ready]].min()])
        gather = self._kernel.blocks[now].gather
        if gather is None:
            alone: Array = ready & (place == now)
            return alone
        here = (place == now) & (self._waits < 0) & ~cta.stalled
        together = gather.complete(cta, here, place >= self._done)
        self._held = (self._held & ~here) | (here & ~together)
        return together if together.any() else np.zeros(0, bool)

    def _step(self, now: int, mask: Array) -> None:
        """Execute a block by some threads, and put them where its ending leads."""
        block = self._kernel.blocks[now]
        self._execute(block, mask)
        ending = block.ending
        taken = mask if ending.guard is None else mask & ending.guard(self._cta)
        self._place[mask] = now + 1
        if ending.number >= 0:
            self._count(ending.number, mask, taken)
        if ending.kind == "jump":
            self._place[taken] = ending.target
        elif ending.kind == "switch" and ending.index is not None:
            self._place[mask] = np.array(ending.targets)[ending.index(self._cta)[mask].astype(np.int64)]
        elif ending.kind == "end":
            self._place[taken] = self._done
        elif ending.kind == "trap" and taken.any():
            raise ExecutionError(
                f"xray: a program must not trap, got it in {self._kernel.place(ending.number)}"
            )
        elif ending.kind == "unknown" and taken.any():
            raise unknown(self._kernel.entry.instructions[ending.number])
        elif ending.kind == "barrier":
            self._waits[taken], self._last = ending.barrier, ending
            if ending.expected and (self._waits == ending.barrier).sum() >= ending.expected:
                self._let_go(self._waits == ending.barrier, ending.number)
        if (self._place[mask] >= self._done).any():
            self._held[:] = False  # who has exited is waited for no longer

    def _release(self) -> None:
        """All who wait at the one barrier go on; nobody else may be waiting elsewhere."""
        alive = self._place < self._done
        if self._held.any():
            raise ExecutionError(
                f"xray: all lanes that an instruction names must come to it, got lanes that wait forever{self._standing()}"
            )
        if self._cta.stalled.any() or self._last is None:
            raise ExecutionError(
                "xray: a transaction barrier must complete, got "
                f"{int(self._cta.stalled.sum())} threads waiting for one forever"
            )
        found = np.unique(self._waits[alive])
        if len(found) != 1 or (self._last.expected and int(alive.sum()) < self._last.expected):
            raise ExecutionError(
                f"xray: threads must meet at one barrier, got some waiting at each of {found}"
            )
        self._let_go(alive, self._last.number)

    def _let_go(self, who: Array, number: int) -> None:
        self._cta.releases.append(Release(number, int(who.sum())))
        self._waits[who] = -1

    def _standing(self) -> str:
        """Where the threads that have not ended are, in words: at most four places."""
        found = []
        for place in np.unique(self._place[self._place < self._done]).tolist():
            threads = np.flatnonzero(self._place == place)
            what = "at the barrier before" if self._waits[threads[0]] >= 0 else "at"
            where = self._kernel.place(self._kernel.blocks[place].number)
            found.append(f"threads {_spans(threads)} {what} {where}")
        return ": " + "; ".join(found[:4]) + ("; ..." if len(found) > 4 else "")

    def _execute(self, block: Block, mask: Array) -> None:
        cta = self._cta
        whole = mask is cta.everyone or bool(mask.all())
        warps, lanes = mask.reshape(-1, 32).any(1), int(mask.sum())
        cta.issued[block.numbers] += warps
        cta.acted[block.numbers] += warps
        cta.lanes[block.numbers] += lanes
        planned = None
        try:
            for planned in block.steps:
                if planned.guard is None:
                    planned.step(cta, None if whole else mask)
                    continue
                active = mask & planned.guard(cta)
                count = int(np.count_nonzero(active))
                cta.lanes[planned.number] -= lanes - count
                cta.off[planned.number] += lanes - count
                if count < lanes:
                    self._part(planned.number, mask, active)
                if count:
                    planned.step(cta, None if count == cta.threads else active)
        except ExecutionError as error:
            assert planned is not None
            raise ExecutionError(f"{error} in {self._kernel.place(planned.number)}") from None

    def _count(self, number: int, mask: Array, taken: Array) -> None:
        warps = mask.reshape(-1, 32).any(1)
        self._cta.issued[number] += warps
        self._cta.acted[number] += warps
        self._cta.lanes[number] += int(taken.sum())
        self._cta.off[number] += int(mask.sum() - taken.sum())
        self._part(number, mask, taken)

    def _part(self, number: int, mask: Array, active: Array) -> None:
        """Note the warps that a predicate told apart, whole or among their lanes."""
        left, on = (mask & ~active).reshape(-1, 32).any(1), active.reshape(-1, 32).any(1)
        self._cta.acted[number] -= left & ~on
        self._cta.parted |= left & on


@dataclass
class _Watch:
    """Finds a program that comes back to a state it was in: it will never end. The state is kept at doubling counts (Brent's
    algorithm), first after `due` blocks."""

    due: int
    _seen: tuple[object, ...] | None = None
    _registers: tuple[Array, ...] = ()

    def repeats(self, count: int, cta: Cta, place: Array, waits: Array) -> bool:
        """Whether threads stand where they stood at the last mark, with the same registers and memory."""
        if count < self.due and self._seen is None:
            return False
        state = (cta.changes, place.tobytes(), waits.tobytes(), cta.stalled.tobytes(), cta.carry.tobytes())
        if count >= self.due:
            self.due, self._seen, self._registers = 2 * self.due, state, tuple(cta.registers)
            return False
        return state == self._seen and all(
            a is b or a.tobytes() == b.tobytes() for a, b in zip(self._registers, cta.registers, strict=True)
        )


def _spans(numbers: Array) -> str:
    """0-15, 17 of sorted numbers."""
    ends = np.flatnonzero(np.diff(numbers) != 1)
    firsts, lasts = numbers[np.r_[0, ends + 1]], numbers[np.r_[ends, len(numbers) - 1]]
    parts = [f"{a}-{b}" if a < b else f"{a}" for a, b in zip(firsts.tolist(), lasts.tolist(), strict=True)]
    return ", ".join(parts[:3]) + (", ..." if len(parts) > 3 else "")

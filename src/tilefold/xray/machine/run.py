"""A program of the grid, or a cluster of them, executed: of threads that can go on, those at the earliest block go first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from tilefold.errors import ExecutionError
from tilefold.xray.machine.binding import unknown
from tilefold.xray.machine.cluster import Cluster
from tilefold.xray.machine.cta import Cta
from tilefold.xray.machine.kernel import Block, Ending, Kernel
from tilefold.xray.machine.log import Outcome, Release
from tilefold.xray.machine.memory import Memory
from tilefold.xray.machine.spaces import words
from tilefold.xray.machine.types import Array
from tilefold.xray.machine.watch import Watch

Turns = Literal["together", "first", "last", "late"]
CLUSTER_BARRIER = 1 << 16  # stands for the cluster's barrier where others have a number
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
    `limit` bounds blocks executed. `turns`: all warps together, or each as far as it comes, from the first or from the last;
    "late": together, and boxes of tensors are stored when the program ends, and loaded as if its threads had stored nothing.

    Threads that part at a branch go on in the order of `machine.order`; at an instruction of several lanes (a shuffle, a
    vote, a matrix) they wait for the others that it names.

    Raises:
        UnknownInstructionError: a thread reached an instruction that has no meaning here.
        ExecutionError: a deadlock, a loop that changes nothing, a misaligned access, a shuffle among absent lanes, or the
            limit.
    """
    (found,) = run_together(kernel, memory, arguments, [program], grid=grid, limit=limit, turns=turns)
    return found


def run_together(
    kernel: Kernel,
    memory: Memory,
    arguments: Mapping[str, int | bytes],
    programs: Sequence[tuple[int, int, int]],
    *,
    grid: tuple[int, int, int],
    limit: int = LIMIT,
    turns: Turns = "together",
) -> tuple[Outcome, ...]:
    """Execute the programs of a cluster, as `run` does one: each until it has ended or waits for others, then the next.

    Raises:
        UnknownInstructionError: as `run`.
        ExecutionError: as `run`, or all wait for each other.
    """
    memory.adopt(kernel.variables)
    ctas = [
        Cta(
            kernel.dtypes,
            memory,
            words(arguments, kernel.parameters),
            threads=kernel.threads,
            shared=kernel.shared,
            local=kernel.local,
            instructions=len(kernel.entry.instructions),
            program=program,
            grid=grid,
            cluster=len(programs),
            late=turns == "late",
        )
        for program in programs
    ]
    if turns == "late":
        memory.remember()
    cluster = Cluster(ctas)
    waiting = [_Threads(kernel, cta, turns) for cta in ctas]
    with np.errstate(all="ignore"):
        while waiting:
            moved = [threads.advance(limit) for threads in waiting]
            waiting = [threads for threads in waiting if not threads.ended]
            if waiting and not any(moved):
                raise waiting[0].deadlock()
    for cta in ctas:
        cta.arrive()
    cluster.members = ()  # they know each other: without this, their memory would wait for Python's search for cycles
    return tuple(_outcome(program, cta) for program, cta in zip(programs, ctas, strict=True))


def _outcome(program: tuple[int, int, int], cta: Cta) -> Outcome:
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
        self._watch, self._executed, self._clustered = Watch(1024), 0, False

    @property
    def ended(self) -> bool:
        """Whether every thread has."""
        return bool((self._place >= self._done).all())

    def advance(self, limit: int) -> bool:
        """Until every thread has ended, or none can go on without another program; whether any went on at all."""
        self._cta.begun, moved = True, False
        while (mask := self._next()) is not None:
            moved = True
            if not len(mask):
                continue
            if self._executed >= limit:
                raise ExecutionError(
                    f"xray: a program must end, got {limit} blocks executed and threads still running{self._standing()}"
                )
            if self._watch.repeats(self._executed, self._cta, self._place, self._waits):
                raise ExecutionError(
                    f"xray: a program must end, got a loop that changes nothing any more{self._standing()}; it may wait for "
                    "what another program writes, and programs are executed one after the other"
                )
            self._executed += 1
            self._step(int(self._place[mask.argmax()]), mask)
        return moved

    def _next(self) -> Array | None:
        """The threads that go on: an empty array where some barrier had to let go first, None where none can."""
        place, cta = self._place, self._cta
        now = int(place[0])
        # Nearly always all threads stand before the same block.
        if (
            self._turns in ("together", "late")
            and now < self._done
            and not cta.stalled.any()
            and (place == now).all()
            and (self._waits < 0).all()
        ):
            self._held[:] = False
            return cta.everyone
        ready = (place < self._done) & (self._waits < 0) & ~cta.stalled & ~self._held
        if not ready.any():
            return np.zeros(0, bool) if self._release() else None
        if self._turns in ("first", "last"):
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
        elif ending.kind == "cluster barrier":
            self._wait_for_cluster(ending, taken)
        if (self._place[mask] >= self._done).any():
            self._held[:] = False  # who has exited is waited for no longer
            self._cta.gone = self._place >= self._done

    def _wait_for_cluster(self, ending: Ending, who: Array) -> None:
        """These threads wait for the whole cluster."""
        try:
            self._cta.cluster.wait(self._cta, who)
        except ExecutionError as error:
            raise ExecutionError(f"{error} in {self._kernel.place(ending.number)}") from None
        self._waits[who], self._last, self._clustered = CLUSTER_BARRIER, ending, True

    def _release(self) -> bool:
        """Whether some go on: those at the cluster's barrier, if all others came, or all who wait at one of the program's."""
        alive, waiting = self._place < self._done, self._waits == CLUSTER_BARRIER
        times = int(self._cta.waited[waiting].max()) if self._clustered and waiting.any() else 0
        if times and self._cta.cluster.complete(times):
            self._let_go(waiting, self._number(), cluster=True)
            return True
        found, expected = np.unique(self._waits[alive]), 0 if self._last is None else self._last.expected
        if len(found) != 1 or not 0 <= found[0] < CLUSTER_BARRIER or int(alive.sum()) < expected:
            return False
        self._let_go(alive, self._number())
        return True

    def _number(self) -> int:
        assert self._last is not None
        return self._last.number

    def deadlock(self) -> ExecutionError:
        """The reason why none of the threads can ever go on."""
        alive = self._place < self._done
        if self._held.any():
            return ExecutionError(
                f"xray: all lanes that an instruction names must come to it, got lanes that wait forever{self._standing()}"
            )
        if self._cta.stalled.any():
            return ExecutionError(
                "xray: a transaction barrier must complete, got "
                f"{int(self._cta.stalled.sum())} threads waiting for one forever"
            )
        found = np.unique(self._waits[alive])
        if (found == CLUSTER_BARRIER).all():
            return ExecutionError(
                f"xray: all programs of a cluster must come to its barrier, got some that wait forever{self._standing()}"
            )
        return ExecutionError(f"xray: threads must wait at one barrier, got some waiting at each of {found}")

    def _let_go(self, who: Array, number: int, *, cluster: bool = False) -> None:
        self._cta.releases.append(Release(number, int(who.sum()), cluster))
        if not cluster and self._last is not None and self._last.votes is not None:
            self._last.votes(self._cta, who)
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
        self._part(number, mask, taken)

    def _part(self, number: int, mask: Array, active: Array) -> None:
        """Note the warps that a predicate told apart, whole or among their lanes."""
        left, on = (mask & ~active).reshape(-1, 32).any(1), active.reshape(-1, 32).any(1)
        self._cta.acted[number] -= left & ~on
        self._cta.parted |= left & on


def _spans(numbers: Array) -> str:
    """0-15, 17 of sorted numbers."""
    ends = np.flatnonzero(np.diff(numbers) != 1)
    firsts, lasts = numbers[np.r_[0, ends + 1]], numbers[np.r_[ends, len(numbers) - 1]]
    parts = [f"{a}-{b}" if a < b else f"{a}" for a, b in zip(firsts.tolist(), lasts.tolist(), strict=True)]
    return ", ".join(parts[:3]) + (", ..." if len(parts) > 3 else "")

"""What crosses each barrier: bytes that one warp touched before and another touches after it, one of them writing.

A barrier parts what came since the last needed barrier from what comes before the next one. It is needed if some byte is
touched on both sides by different warps, and written by one. So all barriers that are found needless could go at once,
and of two in a row the second stays. This holds for the programs that were executed: a loop must go round more often than
it has buffers before their second use shows.

The two sides hold what threads do, and what is done on their behalf: an asynchronous copy may write from the moment it is
issued to the moment its thread has waited for it, a `wgmma` read until it is waited for. Shared and global memory count,
and transaction barriers as bytes of shared memory. Atomic operations do not conflict with each other. An atomic operation
in global memory that orders others (a lock, a counter) speaks for all threads of its program: a barrier between it and what
other warps wrote before, or touch behind it, is needed whatever the bytes are.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from tilefold.xray.machine.kernel import Kernel
from tilefold.xray.machine.log import Access, Outcome, Touch
from tilefold.xray.machine.roles import atomic_of
from tilefold.xray.machine.types import Array

ROUNDS = 8  # of a loop, from which on a barrier in it that nothing crossed is called needless


@dataclass(frozen=True)
class Crossing:
    """One barrier as it was executed, by `instruction`.

    `needed` says between whom something crosses it: "warps" (the barrier must stay), "lanes" (of one warp at most:
    `bar.warp.sync` would do) or "nothing". `bytes` counts what crosses between warps; `example` is an instruction before
    and one after that share such a byte.
    """

    instruction: int
    needed: str
    bytes: int
    example: tuple[int, int] | None


def crossings(kernel: Kernel, outcome: Outcome) -> tuple[Crossing, ...]:
    """What crosses each barrier of a program, in order."""
    # A cluster's barrier orders nothing between its threads' arrival and their wait: what is on both sides of it is one span.
    barriers = [(step, release) for step, release in enumerate(outcome.releases) if not release.cluster]
    parted = [Span() for _ in range(len(barriers) + 1)]
    own = np.searchsorted([step for step, _ in barriers], np.arange(len(outcome.releases) + 1))
    spans, ordering = [parted[i] for i in own.tolist()], _ordering(kernel)
    for access in outcome.accesses:
        if access.space not in ("local", "cluster"):
            copied = kernel.entry.instructions[access.instruction].opcode == "cp" and access.kind == "store"
            use = _of_threads(access, access.space == "global" and access.instruction in ordering)
            spans[access.step].after.append(use)
            if not copied:  # a copy's write has ended where its thread waited for it
                spans[access.step].before.append(use)
    for touch in outcome.touches:
        span = spans[touch.step]
        (span.after if touch.when == "opens" else span.before).append(_of_engine(touch))
    size, before = -(-kernel.shared // 128) * 128, parted[0].before
    found = []
    for (_, release), behind in zip(barriers, parted[1:], strict=True):
        if release.threads < kernel.threads:
            crossing = Crossing(release.instruction, "warps", 0, None)
        else:
            crossing = _crossing(release.instruction, before, behind.after, size)
        found.append(crossing)
        before = ([] if crossing.needed == "warps" else before) + behind.before
    return tuple(found)


def needless_barriers(kernel: Kernel, outcomes: Iterable[Outcome]) -> dict[int, str]:
    """The barriers that nothing crossed between warps in any of the programs, with what crossed them at most: "lanes" or
    "nothing".

    One inside a loop is among them only if a program reached it `ROUNDS` times or more: a loop that ended before its buffers
    were used again shows nothing.
    """
    worst: dict[int, str] = {}
    order = ("nothing", "lanes", "warps")
    often: dict[int, int] = {}
    for outcome in outcomes:
        reached: dict[int, int] = {}
        for crossing in crossings(kernel, outcome):
            held = worst.get(crossing.instruction, "nothing")
            worst[crossing.instruction] = max(held, crossing.needed, key=order.index)
            reached[crossing.instruction] = reached.get(crossing.instruction, 0) + 1
        often |= {number: max(count, often.get(number, 0)) for number, count in reached.items()}
    looped = _in_loops(kernel)
    voted = {n for n in worst if kernel.entry.instructions[n].has("red")}  # who waits there learns something
    return {
        n: w
        for n, w in worst.items()
        if w != "warps" and n not in voted and (n not in looped or often[n] >= ROUNDS)
    }


def _ordering(kernel: Kernel) -> set[int]:
    """The atomic operations that order others, by a word of their own or by a fence beside them."""
    instructions = kernel.entry.instructions
    fenced = any(
        i.opcode in ("fence", "membar") and {"acq_rel", "sc", "gl"} & set(i.modifiers) for i in instructions
    )
    return {
        number
        for number, i in enumerate(instructions)
        if i.opcode in ("atom", "red") and (fenced or atomic_of(i).order != "relaxed")
    }


def _in_loops(kernel: Kernel) -> set[int]:
    """The endings of blocks that a jump back in the text passes over."""
    back = [(b.ending.target, i) for i, b in enumerate(kernel.blocks) if 0 <= b.ending.target <= i]
    return {
        block.ending.number
        for i, block in enumerate(kernel.blocks)
        if any(first <= i <= last for first, last in back)
    }


@dataclass(frozen=True, eq=False)
class Use:
    """One instruction's bytes in a span: where each begins, the warps of each (a bit each), and how they are used."""

    instruction: int
    space: str
    addresses: Array
    warps: Array
    bytes: int
    how: str  # read, write, atomic; wait: for a phase of a transaction barrier; known: a write that warps know to have ended
    orders: bool = False

    @property
    def places(self) -> tuple[Array, Array]:
        """Every byte, and the warps of each."""
        places = (self.addresses[:, None] + np.arange(self.bytes)).ravel()
        return places, np.repeat(self.warps, self.bytes)


@dataclass(frozen=True)
class Span:
    """What happens between two barriers, as the barrier behind it (`before`) and the one ahead of it (`after`) see it."""

    before: list[Use] = field(default_factory=list)
    after: list[Use] = field(default_factory=list)


def _of_threads(access: Access, orders: bool) -> Use:
    threads = np.flatnonzero(access.active)
    space = "global" if access.space == "global" else "shared"
    how = {"load": "read", "store": "write", "atomic": "atomic"}[access.kind]
    how = "wait" if access.space == "mbarrier" and how == "read" else how
    warps = np.uint32(1) << (threads // 32).astype(np.uint32)
    return Use(
        access.instruction,
        space,
        access.addresses[threads].astype(np.int64),
        warps,
        access.bytes,
        how,
        orders,
    )


def _of_engine(touch: Touch) -> Use:
    how = "known" if touch.known else "write" if touch.write else "read"
    warps = np.full(len(touch.addresses), touch.warps, np.uint32)
    return Use(touch.instruction, "shared", touch.addresses.astype(np.int64), warps, touch.bytes, how)


def _crossing(number: int, before: list[Use], after: list[Use], size: int) -> Crossing:
    shared = _conflicts(
        [u for u in before if u.space == "shared"], [u for u in after if u.space == "shared"], size
    )
    far = _squeezed([u for u in before if u.space == "global"], [u for u in after if u.space == "global"])
    found = [shared, *far]
    between = sum(int(f.warps.sum()) for f in found)
    if between:
        example = next(f.example() for f in found if f.warps.any())
        return Crossing(number, "warps", between, example)
    if _ordered(before, after):
        return Crossing(number, "warps", 0, None)
    within = any(f.lanes.any() for f in found)
    return Crossing(number, "lanes" if within else "nothing", 0, None)


def _ordered(before: list[Use], after: list[Use]) -> bool:
    """Whether an atomic operation publishes what other warps wrote, or lets other warps see what it acquired."""

    def warps(uses: list[Use]) -> int:
        return functools.reduce(operator.or_, (int(np.bitwise_or.reduce(u.warps)) for u in uses), 0)

    wrote = warps([u for u in before if u.space == "global" and u.how == "write"])
    touched = warps([u for u in after if u.space == "global"])
    publishes, acquired = warps([u for u in after if u.orders]), warps([u for u in before if u.orders])
    return any(a and b and (a | b).bit_count() > 1 for a, b in ((wrote, publishes), (acquired, touched)))


@dataclass(frozen=True, eq=False)
class Conflicts:
    """Which bytes conflict, between warps and at all; and the uses they come from."""

    warps: Array
    lanes: Array
    before: list[Use]
    after: list[Use]

    def example(self) -> tuple[int, int]:
        """An instruction on each side that touches the first byte which crosses between warps."""
        place = int(self.warps.argmax())
        before, after = ([u for u in uses if _has(u, place)] for uses in (self.before, self.after))
        return next(
            (b.instruction, a.instruction)
            for b in before
            for a in after
            if {b.how, a.how} not in ({"read"}, {"atomic"}, {"wait"}) and (b.how, a.how) != ("atomic", "wait")
        )


def _has(use: Use, place: int) -> bool:
    return bool(((use.addresses <= place) & (place < use.addresses + use.bytes)).any())


def _conflicts(before: list[Use], after: list[Use], size: int) -> Conflicts:
    """Conflicts of all bytes below `size`."""
    first, second = _masks(before, size), _masks(after, size)
    anyone = second["read"] | second["write"] | second["atomic"] | second["wait"]
    everyone = first["read"] | first["write"] | first["atomic"] | first["wait"]
    pairs = [
        (
            first["wait"],
            second["atomic"],
        ),  # who still waits for a phase must not miss it; an arrival may come before
        (first["write"], anyone),
        (everyone, second["write"]),
        (first["read"], second["atomic"]),
        (first["atomic"], second["read"]),
    ]
    warps, lanes = np.zeros(size, bool), np.zeros(size, bool)
    for left, right in pairs:
        both = (left != 0) & (right != 0)
        joined = left | right
        lanes |= both
        warps |= both & ((joined & (joined - np.uint32(1))) != 0)
    unknown = (first["known"] != 0) & ((anyone & ~first["known"]) != 0)
    return Conflicts(warps | unknown, lanes | unknown, before, after)


def _masks(uses: list[Use], size: int) -> dict[str, Array]:
    """For each way of use and each byte, the warps that use it so."""
    found = {how: np.zeros(size, np.uint32) for how in ("read", "write", "atomic", "known", "wait")}
    alike: dict[tuple[str, int], list[Use]] = {}
    for use in uses:
        alike.setdefault((use.how, use.bytes), []).append(use)
    for (how, length), group in alike.items():
        addresses, warps = (
            np.concatenate([getattr(u, name) for u in group]) for name in ("addresses", "warps")
        )
        for bits in np.unique(warps):
            places = np.unique(addresses[warps == bits])[:, None] + np.arange(length)
            found[how][places.ravel()] |= bits
    return found


def _squeezed(before: list[Use], after: list[Use]) -> list[Conflicts]:
    """The conflicts in global memory, its bytes numbered; none where no thread writes."""
    if all(u.how == "read" for u in (*before, *after)):
        return []
    places = np.unique(np.concatenate([u.places[0] for u in (*before, *after)]))

    def numbered(use: Use) -> Use:
        held, warps = use.places
        return replace(use, addresses=np.searchsorted(places, held), warps=warps, bytes=1)

    return [_conflicts([numbered(u) for u in before], [numbered(u) for u in after], len(places))]

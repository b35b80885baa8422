"""What each instruction of a kernel did and cost over the programs executed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilefold.xray.machine.counts import GlobalCost, SharedCost, global_cost, shared_cost
from tilefold.xray.machine.kernel import Kernel
from tilefold.xray.machine.log import Access, Outcome, Transfer
from tilefold.xray.ptx.syntax import Instruction

_ORDERS = ("relaxed", "acquire", "release", "acq_rel")
_SCOPES = ("cta", "cluster", "gpu", "sys")


@dataclass(frozen=True)
class Tally:
    """One instruction: its `number` in the kernel, and sums over programs.

    `warps` issued it, for `lanes` that acted; lanes that stood before it with a false predicate are `off`. `global_cost` and
    `shared_cost` are of the accesses of threads: `ldmatrix` and `stmatrix` count as accesses of 16 bytes by the lanes
    that give addresses; what `wgmma` reads through descriptors is no request and has no conflicts counted.
    `transfers` are the boxes of the tensor memory accelerator.
    """

    number: int
    instruction: Instruction
    warps: int
    lanes: int
    off: int
    global_cost: GlobalCost
    shared_cost: SharedCost
    transfers: tuple[Transfer, ...]

    @property
    def role(self) -> str:
        """tensor, barrier, shuffle, atomic, load, store, copy, branch or other."""
        return role_of(self.instruction)


@dataclass(frozen=True)
class Atomic:
    """How an atomic operation is ordered (`relaxed` where it does not say), for whom, and what it does."""

    order: str
    scope: str
    operation: str


def role_of(instruction: Instruction) -> str:
    """The purpose of an instruction, in one word."""
    opcode, words = instruction.opcode, instruction.modifiers
    if opcode == "mma" or (opcode == "wgmma" and words[0] == "mma_async"):
        return "tensor"
    if opcode in ("bar", "barrier"):
        return "other" if instruction.has("warp") or instruction.has("arrive") else "barrier"
    if opcode in ("shfl", "redux"):
        return "shuffle"
    if opcode in ("atom", "red"):
        return "atomic"
    if opcode in ("ld", "ldu", "ldmatrix"):
        return "other" if instruction.has("param") else "load"
    if opcode in ("st", "stmatrix"):
        return "store"
    if opcode == "cp" and not {"commit_group", "wait_group", "wait_all"} & set(words):
        return "copy"
    return "branch" if opcode == "bra" else "other"


def atomic_of(instruction: Instruction) -> Atomic:
    """The semantics of `atom` or `red`; PTX takes `relaxed` and `gpu` where nothing is said."""
    words = instruction.modifiers
    order = next((w for w in words if w in _ORDERS), "relaxed")
    scope = next((w for w in words if w in _SCOPES), "gpu")
    rest = [
        w
        for w in words[:-1]
        if w not in (*_ORDERS, *_SCOPES, "global", "shared", "shared::cta", "shared::cluster", "noftz")
    ]
    return Atomic(order, scope, rest[0])


def tally(kernel: Kernel, outcomes: Iterable[Outcome]) -> tuple[Tally, ...]:
    """A tally of every instruction, executed or not, in the kernel's order."""
    outcomes = tuple(outcomes)
    accesses: dict[int, list[Access]] = {}
    transfers: dict[int, list[Transfer]] = {}
    for outcome in outcomes:
        for access in outcome.accesses:
            accesses.setdefault(access.instruction, []).append(access)
        for transfer in outcome.transfers:
            transfers.setdefault(transfer.instruction, []).append(transfer)
    return tuple(
        Tally(
            number,
            instruction,
            sum(int(o.warps[number]) for o in outcomes),
            sum(int(o.lanes[number]) for o in outcomes),
            sum(int(o.off[number]) for o in outcomes),
            global_cost(accesses.get(number, ())),
            shared_cost(accesses.get(number, ())),
            tuple(transfers.get(number, ())),
        )
        for number, instruction in enumerate(kernel.entry.instructions)
    )

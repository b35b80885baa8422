"""What threads do with other programs of their cluster: addresses in their memory, stores that barriers count, arrivals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilefold.errors import ExecutionError
from tilefold.xray.machine.access import address_of, begin
from tilefold.xray.machine.binding import Binder, Mask, Step, unknown
from tilefold.xray.machine.bulk.barriers import Barriers
from tilefold.xray.machine.matrix.warps import together
from tilefold.xray.machine.spaces import RANK_BIT
from tilefold.xray.machine.types import TYPES, Array
from tilefold.xray.ptx.syntax import Instruction, items_of

if TYPE_CHECKING:
    from tilefold.xray.machine.cta import Cta

U32 = TYPES["u32"]


def bind(binder: Binder, instruction: Instruction, number: int) -> Step | None:
    """The step of an instruction between the programs of a cluster; None if this is none."""
    if instruction.opcode == "mapa":
        return _place_of(binder, instruction)
    if instruction.opcode == "getctarank":
        return _rank_of(binder, instruction)
    if instruction.name.startswith("barrier.cluster.arrive"):
        return _arrive(instruction)
    if instruction.name.startswith("fence.mbarrier_init"):
        return lambda cta, mask: cta.engine(Barriers).publish(cta.everyone if mask is None else mask)
    if instruction.opcode == "st" and instruction.has("async"):
        return _send(binder, instruction, number)
    return None


def _place_of(binder: Binder, instruction: Instruction) -> Step:
    """`mapa d, a, b`: where a place `a` of shared memory lies in the program of rank `b`."""
    target, place, rank = instruction.operands
    kind = TYPES[instruction.modifiers[-1]]
    write, read, ranks = binder.write(target, kind), binder.read(place, kind), binder.read(rank, U32)

    def place_of(cta: Cta, mask: Mask) -> None:
        places, whose = read(cta).astype(np.uint64), ranks(cta).astype(np.uint64)
        active = cta.everyone if mask is None else mask
        if (places[active] >> np.uint64(RANK_BIT)).any():
            raise ExecutionError(
                f"xray: {instruction.name!r} must be given places of a program's own shared memory, got "
                f"{int(places[active].max()):#x}"
            )
        if (whose[active] >= len(cta.cluster.members)).any():
            raise ExecutionError(
                f"xray: a program of the cluster must have a rank below {len(cta.cluster.members)}, got "
                f"{int(whose[active].max())}"
            )
        write(cta, (places | (whose + np.uint64(1)) << np.uint64(RANK_BIT)).astype(kind.dtype), mask)

    return place_of


def _rank_of(binder: Binder, instruction: Instruction) -> Step:
    """`getctarank d, a`: whose place `a` is."""
    target, place = instruction.operands
    write, read = binder.write(target, U32), binder.read(place, TYPES[instruction.modifiers[-1]])

    def rank_of(cta: Cta, mask: Mask) -> None:
        named = (read(cta) >> RANK_BIT).astype(np.uint32)
        write(cta, np.where(named == 0, cta.special["%cluster_ctarank"], named - np.uint32(1)), mask)

    return rank_of


def _arrive(instruction: Instruction) -> Step:
    """`barrier.cluster.arrive{.release, .relaxed}{.aligned}`; a relaxed one publishes no earlier writes."""

    def arrive(cta: Cta, mask: Mask) -> None:
        if instruction.has("aligned"):
            together(cta, mask, 32, instruction)
        active = cta.everyone if mask is None else mask
        if not instruction.has("relaxed"):
            cta.engine(Barriers).publish(active)
        cta.cluster.arrive(cta, active)

    return arrive


def _send(binder: Binder, instruction: Instruction, number: int) -> Step:
    """`st.async [place], value, [barrier]`: the barrier, of the program whose place it is, counts the bytes.

    Bytes move when the instruction is executed: for code that waits for the barrier the values are the same.
    """
    if not instruction.has("mbarrier::complete_tx::bytes") or not instruction.has("shared::cluster"):
        raise unknown(instruction)
    kind = TYPES[instruction.modifiers[-1]]
    to, data, at = instruction.operands
    items = items_of(data)
    place, barrier, reads = (
        address_of(binder, to),
        address_of(binder, at),
        [binder.read(i, kind) for i in items],
    )
    size = kind.bits // 8 * len(items)

    def send(cta: Cta, mask: Mask) -> None:
        active, where = begin(cta, number, "store", "cluster", place(cta), mask, size)
        barriers = barrier(cta)[active]
        if (where >> np.uint64(RANK_BIT) != barriers >> np.uint64(RANK_BIT)).any():
            raise ExecutionError(
                "xray: a store that a barrier counts must go where the barrier is, got another program's"
            )
        values = np.stack([read(cta)[active] for read in reads])
        cta.space("cluster").store(where, values, number)
        for member, chosen, places in cta.cluster.parts(cta, barriers):
            _count(member, number, places, where[chosen], size)

    return send


def _count(member: Cta, number: int, barriers: Array, where: Array, size: int) -> None:
    """Tell a program's barriers of the bytes that came to these places."""
    held = (where & np.uint64((1 << RANK_BIT) - 1)).astype(np.int64)
    for place in np.unique(barriers).tolist():
        member.engine(Barriers).complete(number, place, held[barriers == place], size, far=True)

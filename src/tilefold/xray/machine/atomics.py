"""Atomic operations: one thread after another, in the order of their numbers (a chip promises no order)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tilefold.xray.machine.access import address_of, begin, element, settle, space_of
from tilefold.xray.machine.binding import Binder, Mask, Step, unknown
from tilefold.xray.machine.rounding import narrow, widen
from tilefold.xray.machine.types import Array, Type
from tilefold.xray.ptx.syntax import Instruction, Vector

if TYPE_CHECKING:
    from tilefold.xray.machine.cta import Cta

Function = Callable[..., Array]


def bind(binder: Binder, instruction: Instruction, number: int) -> Step | None:
    """The step of `atom` and `red`; None if this is none."""
    if instruction.opcode not in ("atom", "red"):
        return None
    kind, space = element(instruction), space_of(instruction)
    operation = next((m for m in instruction.modifiers if m in _OPERATIONS), None)
    if operation is None or any(isinstance(o, Vector) for o in instruction.operands):
        raise unknown(instruction)
    function = _OPERATIONS[operation](kind)
    operands = instruction.operands if instruction.opcode == "atom" else (None, *instruction.operands)
    target, place, *rest = operands
    assert place is not None
    address = address_of(binder, place)
    reads = [binder.read(o, kind) for o in rest[: 2 if operation == "cas" else 1] if o is not None]
    write = None if target is None else binder.write(target, kind)

    def apply(cta: Cta, mask: Mask) -> None:
        here, places = space, address(cta)
        if here == "generic":
            here, places = settle(places, mask)
        active, where = begin(cta, number, "atomic", here, places, mask, kind.bits // 8)
        values = [read(cta)[active] for read in reads]
        memory, old = cta.space(here), np.zeros(len(where), kind.dtype)
        for turn in _turns(where):
            old[turn] = memory.load(where[turn], kind.dtype, 1, number)[0]
            memory.store(where[turn], function(old[turn], *[v[turn] for v in values])[None], number)
        if write is not None:
            result = np.zeros(cta.threads, kind.dtype)
            result[active] = old
            write(cta, result, mask)

    return apply


def _turns(addresses: Array) -> Iterator[Array]:
    """Threads that can act at once, by their places: each address once a turn, in the order of the threads."""
    order = np.argsort(addresses, kind="stable")
    first = np.flatnonzero(np.r_[True, np.diff(addresses[order]) != 0])
    rank = np.arange(len(order)) - np.repeat(first, np.diff(np.r_[first, len(order)]))
    for turn in range(int(rank.max()) + 1):
        yield order[rank == turn]


def _add(kind: Type) -> Function:
    if kind.floating and kind.bits < 64:
        return lambda old, new: narrow(widen(old, kind) + widen(new, kind), kind)
    return np.add


def _plain(function: Function) -> Callable[[Type], Function]:
    return lambda kind: function


_OPERATIONS: dict[str, Callable[[Type], Any]] = {
    "add": _add,
    "min": _plain(np.minimum),
    "max": _plain(np.maximum),
    "and": _plain(np.bitwise_and),
    "or": _plain(np.bitwise_or),
    "xor": _plain(np.bitwise_xor),
    "exch": _plain(lambda old, new: new),
    "cas": _plain(lambda old, expected, new: np.where(old == expected, new, old)),
    "inc": _plain(lambda old, limit: np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1))),
    "dec": _plain(lambda old, top: np.where((old == 0) | (old > top), top, old - old.dtype.type(1))),
}

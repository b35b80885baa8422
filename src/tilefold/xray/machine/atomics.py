"""Atomic operations: one thread after another, in the order of their numbers (a chip promises no order)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tilefold.xray.machine.access import address_of, begin, element, settle, space_of
from tilefold.xray.machine.binding import Binder, Mask, Step, unknown
from tilefold.xray.machine.rounding import narrow, widen
from tilefold.xray.machine.types import PACKED, TYPES, Array, Type
from tilefold.xray.ptx.syntax import Instruction, items_of

if TYPE_CHECKING:
    from tilefold.xray.machine.cta import Cta

Function = Callable[..., Array]


def bind(binder: Binder, instruction: Instruction, number: int) -> Step | None:
    """The step of `atom` and `red`; None if this is none."""
    if instruction.opcode not in ("atom", "red"):
        return None
    pair, space = PACKED.get(instruction.modifiers[-1]), space_of(instruction)
    space = "cluster" if instruction.has("shared::cluster") else space
    kind = element(instruction) if pair is None else TYPES["b32"]
    operation = next((m for m in instruction.modifiers if m in _OPERATIONS), None)
    if operation is None:
        raise unknown(instruction)
    function = _OPERATIONS[operation](kind) if pair is None else _halves(_OPERATIONS[operation](pair), pair)
    returning = instruction.opcode == "atom"
    place, *rest = instruction.operands[1:] if returning else instruction.operands
    address = address_of(binder, place)
    # A vector's elements are neighbours; each is an atomic operation of its own.
    reads = [[binder.read(o, kind) for o in items_of(x)] for x in rest[: 2 if operation == "cas" else 1]]
    writes = [binder.write(o, kind) for o in items_of(instruction.operands[0])] if returning else []
    count = len(reads[0])

    def apply(cta: Cta, mask: Mask) -> None:
        here, places = space, address(cta)
        if here == "generic":
            here, places = settle(places, mask)
        active, where = begin(cta, number, "atomic", here, places, mask, kind.bits // 8 * count)
        values = [np.stack([read(cta)[active] for read in row]) for row in reads]
        memory, old = cta.space(here), np.zeros((count, len(where)), kind.dtype)
        for turn in _turns(where):
            old[:, turn] = memory.load(where[turn], kind.dtype, count, number)
            memory.store(where[turn], function(old[:, turn], *[v[:, turn] for v in values]), number)
        for write, before in zip(writes, old, strict=False):
            result = np.zeros(cta.threads, kind.dtype)
            result[active] = before
            write(cta, result, mask)

    return apply


def _turns(addresses: Array) -> Iterator[Array]:
    """Threads that can act at once, by their places: each address once a turn, in the order of the threads."""
    order = np.argsort(addresses, kind="stable")
    first = np.flatnonzero(np.r_[True, np.diff(addresses[order]) != 0])
    rank = np.arange(len(order)) - np.repeat(first, np.diff(np.r_[first, len(order)]))
    for turn in range(int(rank.max()) + 1):
        yield order[rank == turn]


def _halves(function: Function, kind: Type) -> Function:
    """A function of both halves of 32 bits."""

    def apply(*values: Array) -> Array:
        found = function(*[np.ascontiguousarray(v).view(kind.dtype) for v in values])
        return found.astype(kind.dtype, copy=False).view(np.uint32)

    return apply


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

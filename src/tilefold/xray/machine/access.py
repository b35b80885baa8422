"""Loads and stores: what they move, written into the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilefold.errors import ExecutionError
from tilefold.xray.machine.binding import Binder, Mask, Read, Step, unknown
from tilefold.xray.machine.memory import MODULE_BASE
from tilefold.xray.machine.spaces import LOCAL_BASE, PARAMETER_BASE, RANK_BIT
from tilefold.xray.machine.types import TYPES, Array, Type
from tilefold.xray.ptx.syntax import Address, Instruction, Operand, Register, Symbol, items_of

if TYPE_CHECKING:
    from tilefold.xray.machine.cta import Cta

_SPACES = ("global", "shared", "param", "const", "local")
# Where the generic addresses of local memory, of parameters and of global memory begin; before them lies shared memory.
_WINDOWS = np.array([LOCAL_BASE, PARAMETER_BASE, MODULE_BASE // 2], np.uint64)


def bind(binder: Binder, instruction: Instruction, number: int) -> Step | None:
    """The step of a load or store; None if this is none."""
    if instruction.opcode in ("ld", "ldu") and instruction.modifiers[0] == "param":
        return _parameter(binder, instruction)
    if instruction.opcode in ("ld", "ldu", "st"):
        return _move(binder, instruction, number)
    if instruction.opcode in ("createpolicy", "prefetch", "prefetchu", "discard", "applypriority"):
        return lambda cta, mask: None  # hints to caches change no value
    return None


def space_of(instruction: Instruction) -> str:
    """The state space of an access, "generic" where its address says so."""
    named = [m.split("::")[0] for m in instruction.modifiers]
    return next((m for m in named if m in _SPACES), "generic")


def address_of(binder: Binder, operand: Operand) -> Read:
    """The 64-bit addresses an operand means, one a thread."""
    if not isinstance(operand, Address) or operand.coordinates is not None:
        raise ExecutionError(f"xray: an access must have one address, got {operand}")
    base, offset = operand.base, np.uint64(operand.offset & (2**64 - 1))
    if isinstance(base, Register) and binder.dtypes[binder.slot(base.name)].itemsize == 4:
        narrow, small = binder.read(base, TYPES["u32"]), np.uint32(operand.offset & (2**32 - 1))
        return lambda cta: (narrow(cta) + small).astype(np.uint64)
    read = binder.read(base, TYPES["u64"])
    return read if not offset else lambda cta: read(cta) + offset


def _parameter(binder: Binder, instruction: Instruction) -> Step:
    """A kernel's argument: the same for every thread."""
    target, source = instruction.operands
    kind = TYPES[instruction.modifiers[-1]]
    if not isinstance(source, Address) or not isinstance(source.base, Symbol):
        raise unknown(instruction)
    start = binder.symbols[source.base.name] - PARAMETER_BASE + source.offset
    size = kind.bits // 8
    writes = [binder.write(item, kind) for item in items_of(target)]

    def load(cta: Cta, mask: Mask) -> None:
        for i, write in enumerate(writes):
            raw = cta.parameters[start + i * size :][:size]
            write(cta, np.full(cta.threads, raw.view(kind.dtype)[0]), mask)

    return load


def _move(binder: Binder, instruction: Instruction, number: int) -> Step:
    space, kind = space_of(instruction), TYPES[instruction.modifiers[-1]]
    if space not in ("global", "shared", "local", "generic"):
        raise unknown(instruction)
    space = "cluster" if instruction.has("shared::cluster") else space
    loading = instruction.opcode != "st"
    data, place = instruction.operands[:2] if loading else instruction.operands[1::-1]
    items = items_of(data)
    address, dtype = address_of(binder, place), kind.dtype
    total = kind.bits // 8 * len(items)
    if loading:
        writes = [binder.write(item, kind) for item in items]

        def load(cta: Cta, mask: Mask) -> None:
            where, here = address(cta), space
            if here == "generic":
                here, where = settle(where, mask)
            active, where = begin(cta, number, "load", here, where, mask, total)
            where = cta.private(where, active) if here == "local" else where
            found = cta.space(here).load(where, dtype, len(writes), number)
            if mask is not None:
                found, some = np.zeros((len(writes), cta.threads), dtype), found
                found[:, active] = some
            for write, values in zip(writes, found, strict=True):
                write(cta, values, mask)

        return load
    reads = [binder.read(item, kind) for item in items]

    def store(cta: Cta, mask: Mask) -> None:
        where, here = address(cta), space
        if here == "generic":
            here, where = settle(where, mask)
        values = np.stack([read(cta) for read in reads])
        values = values if mask is None else values[:, mask]
        written = bytes_of(values) if here in ("shared", "global") else None
        active, where = begin(cta, number, "store", here, where, mask, total, written)
        where = cta.private(where, active) if here == "local" else where
        cta.space(here).store(where, values, number)

    return store


def settle(addresses: Array, mask: Mask) -> tuple[str, Array]:
    """The space that generic addresses mean, which must be one for all threads, and where in it."""
    asked = addresses if mask is None else addresses[mask]
    found = np.unique(np.searchsorted(_WINDOWS, asked, side="right"))
    if len(found) != 1 or found[0] == 2:
        raise ExecutionError(
            f"xray: generic addresses of one access must all mean shared, local or global memory, got {int(asked.min()):#x}"
            f" to {int(asked.max()):#x}"
        )
    space = ("shared", "local", "", "global")[int(found[0])]
    if space == "shared" and (asked >= np.uint64(1 << RANK_BIT)).any():
        space = "cluster"
    return space, addresses - np.uint64(LOCAL_BASE) if space == "local" else addresses


def bytes_of(values: Array) -> Array:
    """Values [count, threads] as the bytes of each thread, [threads, bytes]."""
    found: Array = np.ascontiguousarray(values.T).view(np.uint8)
    return found


def begin(
    cta: Cta,
    number: int,
    kind: str,
    space: str,
    addresses: Array,
    mask: Mask,
    size: int,
    written: Array | None = None,
) -> tuple[Array, Array]:
    """Log an access; its active threads and their addresses, which must be aligned."""
    active = cta.everyone if mask is None else mask
    cta.note(number, kind, space, addresses, active, size, written)
    where = addresses if mask is None else addresses[active]
    if (where & np.uint64(size - 1)).any():
        raise ExecutionError(
            f"xray: addresses must be multiples of the {size} bytes accessed, got "
            f"{int(where[(where & np.uint64(size - 1)) != 0][0]):#x}"
        )
    return active, where


def element(instruction: Instruction) -> Type:
    """The type an access ends in."""
    kind = TYPES.get(instruction.modifiers[-1])
    if kind is None:
        raise unknown(instruction)
    return kind

"""Loads, stores, asynchronous copies: what they move, written into the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilefold.errors import ExecutionError
from tilefold.xray.machine.binding import Binder, Mask, Read, Step, unknown
from tilefold.xray.machine.types import TYPES, Array, Type
from tilefold.xray.ptx.syntax import Address, Immediate, Instruction, Operand, Register, Symbol, Vector

if TYPE_CHECKING:
    from tilefold.xray.machine.cta import Cta

_SPACES = ("global", "shared", "param", "const", "local")


def bind(binder: Binder, instruction: Instruction, number: int) -> Step | None:
    """The step of a memory instruction; None if this is none."""
    if instruction.opcode in ("ld", "ldu") and instruction.modifiers[0] == "param":
        return _parameter(binder, instruction)
    if instruction.opcode in ("ld", "st"):
        return _move(binder, instruction, number)
    if instruction.name.startswith("cp.async."):
        return _copy(binder, instruction, number)
    if instruction.opcode in ("createpolicy", "prefetch", "discard"):
        return lambda cta, mask: None  # hints to caches change no value
    return None


def space_of(instruction: Instruction) -> str:
    """The state space of an access; generic addresses are global here."""
    named = [m.split("::")[0] for m in instruction.modifiers]
    return next((m for m in named if m in _SPACES), "global")


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
    if not isinstance(source, Address) or not isinstance(source.base, Symbol) or source.offset:
        raise unknown(instruction)
    name, write = source.base.name, binder.write(target, kind)

    def load(cta: Cta, mask: Mask) -> None:
        bits = np.array(cta.arguments[name], np.uint64)
        write(cta, np.full(cta.threads, bits.astype(f"u{kind.bits // 8}").view(kind.dtype)), mask)

    return load


def _move(binder: Binder, instruction: Instruction, number: int) -> Step:
    space, kind = space_of(instruction), TYPES[instruction.modifiers[-1]]
    if space not in ("global", "shared", "local"):
        raise unknown(instruction)
    loading = instruction.opcode == "ld"
    data, place = instruction.operands[:2] if loading else instruction.operands[1::-1]
    items = data.items if isinstance(data, Vector) else (data,)
    size, address = kind.bits // 8, address_of(binder, place)
    total = size * len(items)
    if loading:
        writes = [binder.write(item, kind) for item in items]

        def load(cta: Cta, mask: Mask) -> None:
            active, where = begin(cta, number, "load", space, address(cta), mask, total)
            where = cta.private(where, active) if space == "local" else where
            for i, write in enumerate(writes):
                values = np.zeros(cta.threads, kind.dtype)
                values[active] = cta.space(space).load(where + np.uint64(i * size), kind.dtype, number)
                write(cta, values, mask)

        return load
    reads = [binder.read(item, kind) for item in items]

    def store(cta: Cta, mask: Mask) -> None:
        active, where = begin(cta, number, "store", space, address(cta), mask, total)
        where = cta.private(where, active) if space == "local" else where
        for i, read in enumerate(reads):
            cta.space(space).store(where + np.uint64(i * size), read(cta)[active], number)

    return store


def begin(
    cta: Cta, number: int, kind: str, space: str, addresses: Array, mask: Mask, size: int
) -> tuple[Array, Array]:
    """Log an access; its active threads and their addresses, which must be aligned."""
    active = cta.everyone if mask is None else mask
    cta.note(number, kind, space, addresses, active, size)
    where = addresses[active]
    if (where & np.uint64(size - 1)).any():
        raise ExecutionError(
            f"xray: addresses must be multiples of the {size} bytes accessed, got "
            f"{int(where[(where & np.uint64(size - 1)) != 0][0]):#x} in PTX line {cta.kernel.line(number)}"
        )
    return active, where


def _copy(binder: Binder, instruction: Instruction, number: int) -> Step | None:
    """`cp.async` from global to shared memory: values are taken at once and arrive when they are waited for."""
    name = instruction.name
    if name == "cp.async.commit_group":
        return lambda cta, mask: cta.commit()
    if name == "cp.async.wait_all":
        return lambda cta, mask: cta.arrive(0, uncommitted=True)
    if name == "cp.async.wait_group":
        (count,) = instruction.operands
        assert isinstance(count, Immediate)
        left = count.value
        return lambda cta, mask: cta.arrive(left)
    if name.split(".")[2] not in ("ca", "cg") or not isinstance(instruction.operands[2], Immediate):
        return None
    size = instruction.operands[2].value
    to, source = address_of(binder, instruction.operands[0]), address_of(binder, instruction.operands[1])
    sized = len(instruction.operands) > 3 and not instruction.has("L2::cache_hint")
    read = binder.read(instruction.operands[3], TYPES["u32"]) if sized else None

    def copy(cta: Cta, mask: Mask) -> None:
        everyone = cta.everyone if mask is None else mask
        taken = everyone if read is None else everyone & (read(cta) > 0)
        count = None if read is None else read(cta)
        active, where = begin(cta, number, "load", "global", source(cta), taken, size)
        values = np.zeros((cta.threads, size), np.uint8)
        for i in range(0, size, 4):
            word = cta.space("global").load(where + np.uint64(i), np.dtype("u4"), number)
            values[active, i : i + 4] = word.view(np.uint8).reshape(-1, 4)
        if count is not None:
            values[np.arange(size)[None, :] >= count[:, None]] = 0
        written, places = begin(cta, number, "store", "shared", to(cta), everyone, size)
        cta.send(places, values[written])

    return copy


def element(instruction: Instruction) -> Type:
    """The type an access ends in."""
    kind = TYPES.get(instruction.modifiers[-1])
    if kind is None:
        raise unknown(instruction)
    return kind

"""Instructions of a whole warp: shuffles, votes, reductions, small matrices through shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilefold.errors import ExecutionError
from tilefold.xray.machine.access import address_of, begin
from tilefold.xray.machine.binding import Binder, Mask, Step, unknown
from tilefold.xray.machine.gather import ballot
from tilefold.xray.machine.matrix.warps import together
from tilefold.xray.machine.types import TYPES, Array
from tilefold.xray.ptx.syntax import Instruction, Pair, items_of

if TYPE_CHECKING:
    from tilefold.xray.machine.cta import Cta

U32, PRED = TYPES["u32"], TYPES["pred"]


def bind(binder: Binder, instruction: Instruction, number: int) -> Step | None:
    """The step of a warp-wide instruction; None if this is none."""
    if instruction.name.startswith("shfl.sync.") and instruction.modifiers[-1] == "b32":
        return _shuffle(binder, instruction)
    if instruction.name.startswith("vote.sync."):
        return _vote(binder, instruction)
    if instruction.opcode == "redux":
        return _reduce(binder, instruction)
    if instruction.opcode == "activemask":
        write = binder.write(instruction.operands[0], U32)
        return lambda cta, mask: write(cta, ballot(cta.everyone if mask is None else mask), mask)
    if instruction.opcode in ("ldmatrix", "stmatrix"):
        return _matrices(binder, instruction, number)
    return None


def _shuffle(binder: Binder, instruction: Instruction) -> Step:
    """`shfl.sync.mode d|p, a, b, c, members`: c holds the clamp and, 8 bits up, the mask of segments."""
    target, *sources = instruction.operands
    mode = instruction.modifiers[1]
    value, index, control, _ = [binder.read(s, U32) for s in sources]
    write = binder.write(target.first if isinstance(target, Pair) else target, U32)
    found = binder.write(target.second, PRED) if isinstance(target, Pair) else None

    def shuffle(cta: Cta, mask: Mask) -> None:
        lane, by, word = cta.lane, index(cta).astype(np.int64) & 31, control(cta).astype(np.int64)
        clamp, segment = word & 31, (word >> 8) & 31
        highest, lowest = (lane & segment) | (clamp & ~segment), lane & segment
        if mode == "up":
            source = lane - by
            inside = source >= highest
        else:
            source = {"down": lane + by, "bfly": lane ^ by, "idx": lowest | (by & ~segment)}[mode]
            inside = source <= highest
        source = np.where(inside, source, lane)
        _require(cta, mask, source)
        write(cta, value(cta)[cta.first_of_warp + source], mask)
        if found is not None:
            found(cta, inside, mask)

    return shuffle


def _require(cta: Cta, mask: Mask, source: Array) -> None:
    """A lane read by another has to take part."""
    if mask is not None and not mask[(cta.first_of_warp + source)[mask]].all():
        raise ExecutionError("xray: every lane that a shuffle reads must execute it, got lanes elsewhere")


def _vote(binder: Binder, instruction: Instruction) -> Step:
    target, source, named = instruction.operands
    mode, read, members = instruction.modifiers[1], binder.read(source, PRED), binder.read(named, U32)
    write = binder.write(target, U32 if mode == "ballot" else PRED)

    def vote(cta: Cta, mask: Mask) -> None:
        present = cta.everyone if mask is None else mask
        among = members(cta)
        yes, no = ballot(read(cta) & present) & among, ballot(~read(cta) & present) & among
        result = {"ballot": yes, "any": yes != 0, "all": no == 0, "uni": (yes == 0) | (no == 0)}[mode]
        write(cta, result, mask)

    return vote


_REDUCTIONS: dict[str, np.ufunc] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip


def _reduce(binder: Binder, instruction: Instruction) -> Step:
    """`redux.sync.op.type d, a, members`, over the members that execute it."""
    operation, kind = instruction.modifiers[1], TYPES[instruction.modifiers[-1]]
    if operation not in _REDUCTIONS or kind.floating:
        raise unknown(instruction)
    function = _REDUCTIONS[operation]
    read, write = binder.read(instruction.operands[1], kind), binder.write(instruction.operands[0], kind)
    members = binder.read(instruction.operands[2], U32)

    def reduce(cta: Cta, mask: Mask) -> None:
        values, result = read(cta), np.zeros(cta.threads, kind.dtype)
        # Lanes of a warp may come in groups, each with a mask of its own.
        groups = (members(cta).astype(np.uint64) << np.uint64(32)) | cta.first_of_warp.astype(np.uint64)
        groups = np.where(cta.everyone if mask is None else mask, groups, np.uint64(0))
        for group in np.unique(groups[groups > np.uint64(0xFFFFFFFF)]):
            here = groups == group
            result[here] = function.reduce(values[here], dtype=kind.dtype)
        write(cta, result, mask)

    return reduce


def _matrices(binder: Binder, instruction: Instruction, number: int) -> Step:
    """8x8 matrices of 16-bit elements: lane i gives the address of row i % 8 of matrix i // 8."""
    loading, across = instruction.opcode == "ldmatrix", instruction.has("trans")
    data, place = instruction.operands if loading else instruction.operands[::-1]
    if not instruction.has("m8n8") or instruction.modifiers[-1] != "b16":
        raise unknown(instruction)
    items = items_of(data)
    address = address_of(binder, place)
    writes = [binder.write(i, U32) for i in items] if loading else []
    reads = [] if loading else [binder.read(i, U32) for i in items]

    def move(cta: Cta, mask: Mask) -> None:
        together(cta, mask, 32, instruction)
        active = cta.everyone if mask is None else mask
        addresses = address(cta)
        begin(
            cta,
            number,
            "load" if loading else "store",
            "shared",
            addresses,
            active & (cta.lane < 8 * len(items)),
            16,
        )
        # [matrices, warps, rows]: where each row of 16 bytes lies.
        rows = addresses.reshape(-1, 4, 8).transpose(1, 0, 2)[: len(items), active[::32]]
        if loading:
            held = cta.shared.load(rows.ravel(), np.dtype("u2"), 8, number).T.reshape(*rows.shape, 8)
            words = _swapped(held, across).view(np.uint32)
            found = np.zeros((len(items), cta.threads), np.uint32)
            found[:, active] = words.reshape(len(items), -1)
            for write, word in zip(writes, found, strict=True):
                write(cta, word, mask)
        else:
            words = np.stack([read(cta)[active] for read in reads]).view(np.uint16)
            held = _swapped(words.reshape(*rows.shape, 8), across)
            cta.shared.store(rows.ravel(), held.reshape(-1, 8).T, number)

    return move


def _swapped(matrices: Array, across: bool) -> Array:
    """8x8 matrices, transposed if they lie across."""
    return np.ascontiguousarray(np.swapaxes(matrices, -1, -2)) if across else matrices

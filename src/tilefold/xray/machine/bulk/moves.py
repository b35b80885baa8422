"""`cp.async.bulk.tensor` and `cp.reduce.async.bulk.tensor`: boxes between a tensor and shared memory.

Bytes move when the instruction is executed. A chip moves them some time later, before the barrier or the group that they
belong to is waited for: for code that waits the values are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tilefold.xray.machine.access import address_of
from tilefold.xray.machine.binding import Binder, Mask, Read, Step, unknown
from tilefold.xray.machine.bulk.barriers import Barriers
from tilefold.xray.machine.bulk.tensormap import TensorMap, read_map
from tilefold.xray.machine.log import Transfer
from tilefold.xray.machine.rounding import narrow, widen
from tilefold.xray.machine.types import TYPES, Array, Type
from tilefold.xray.ptx.syntax import Address, Instruction, Operand

if TYPE_CHECKING:
    from tilefold.xray.machine.cta import Cta

# The types of a map's elements, as `tensormap.replace.elemtype` numbers them.
_TYPES = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f32", "f64", "bf16", "f32", "f32")
_WIDTHS = (16, 32, 64, 128)  # bytes that a swizzle mode permutes
_OTHER = {"im2col", "im2col_no_offs", "gather4", "scatter4", "multicast::cluster"}


def bind(binder: Binder, instruction: Instruction, number: int) -> Step | None:
    """The step of a bulk copy of a tensor's box, or of a wait for one; None if this is none."""
    words = instruction.modifiers
    if instruction.opcode != "cp" or "bulk" not in words:
        return None
    if words[1:3] == ("bulk", "commit_group"):
        return lambda cta, mask: None
    if words[1:3] == ("bulk", "wait_group"):
        done = "read" not in words  # else shared memory is free again, and nothing is said of global memory
        return lambda cta, mask: _wait(cta, done=done)
    if "tensor" not in words or _OTHER & set(words):
        raise unknown(instruction)
    if words[0] == "async" and "mbarrier::complete_tx::bytes" in words:
        return _load(binder, instruction, number)
    if "bulk_group" in words:
        return _store(binder, instruction, number)
    raise unknown(instruction)


def _wait(cta: Cta, *, done: bool) -> None:
    cta.engine(Stores).close()
    if done:
        cta.arrive()


def after_stores(cta: Cta, mask: Mask) -> None:
    """A fence behind which boxes are loaded as threads have left them."""
    if cta.late is not None:
        cta.memory.remember()


class Box:
    """One box of a tensor: where its elements lie in shared and in global memory."""

    def __init__(self, described: TensorMap, at: list[int], shared: int) -> None:
        self.kind = TYPES[_TYPES[described.type]]
        self._map, size = described, self.kind.bits // 8
        counts = described.box[::-1]
        linear = np.arange(int(np.prod(counts)), dtype=np.int64) * size + shared
        self.shared = (linear ^ ((linear >> 7 & _WIDTHS[described.swizzle] // 16 - 1) << 4)).astype(np.uint64)
        self.chunks = np.unique(self.shared // np.uint64(16)).astype(np.int64) * 16
        inside, place = np.ones(counts, bool), np.full(counts, described.address, np.int64)
        steps = (size, *described.strides)
        for dim, (first, count, length, step) in enumerate(
            zip(at, described.box, described.dims, steps, strict=True)
        ):
            along = (np.arange(count) + first).reshape(-1, *(1,) * dim)
            inside &= (along >= 0) & (along < length)
            place = place + along * step
        self.inside, self.places = inside.ravel(), place[inside].astype(np.uint64)

    @property
    def outside(self) -> Any:
        """The value of an element outside of the tensor."""
        return self.kind.dtype.type(np.nan if self._map.fill and self.kind.kind == "f" else 0)

    def transfer(self, number: int, kind: str, step: int) -> Transfer:
        """The log's entry."""
        touched = np.unique(self.places // np.uint64(32)).astype(np.int64)
        return Transfer(number, kind, len(self.places) * self.kind.bits // 8, len(touched), step, touched)


def _tensor(binder: Binder, operand: Operand) -> tuple[Read, list[Read]]:
    """Address of the map, and coordinates with the innermost first."""
    assert isinstance(operand, Address)
    assert operand.coordinates is not None
    coordinates = [binder.read(c, TYPES["s32"]) for c in operand.coordinates.items]
    return address_of(binder, Address(operand.base, operand.offset)), coordinates


def _boxes(
    cta: Cta, mask: Mask, number: int, place: Read, coordinates: list[Read], shared: Read
) -> Iterator[tuple[int, Box]]:
    """The box of each thread that asks for one, with the thread's number."""
    active = cta.everyone if mask is None else mask
    for thread in np.flatnonzero(active).tolist():
        described = read_map(cta, int(place(cta)[thread]), number)
        yield thread, Box(described, [int(c(cta)[thread]) for c in coordinates], int(shared(cta)[thread]))


def _load(binder: Binder, instruction: Instruction, number: int) -> Step:
    shared, (place, coordinates) = (
        address_of(binder, instruction.operands[0]),
        _tensor(binder, instruction.operands[1]),
    )
    barrier = address_of(binder, instruction.operands[2])

    def load(cta: Cta, mask: Mask) -> None:
        for thread, box in _boxes(cta, mask, number, place, coordinates, shared):
            values = np.full((1, len(box.inside)), box.outside)
            seen = cta.memory.earlier or cta.memory
            values[:, box.inside] = seen.load(box.places, box.kind.dtype, 1, number)
            cta.shared.store(box.shared, values, number)
            cta.transfers.append(box.transfer(number, "load", cta.step))
            cta.touch(number, 1 << thread // 32, box.chunks, 16, "opens", write=True)
            cta.engine(Barriers).complete(number, int(barrier(cta)[thread]), box.chunks, 16)

    return load


def _store(binder: Binder, instruction: Instruction, number: int) -> Step:
    (place, coordinates), shared = (
        _tensor(binder, instruction.operands[0]),
        address_of(binder, instruction.operands[1]),
    )
    words = instruction.modifiers
    operation = words[words.index("bulk_group") - 1] if words[0] == "reduce" else "store"
    if operation not in _REDUCTIONS:
        raise unknown(instruction)

    def store(cta: Cta, mask: Mask) -> None:
        for thread, box in _boxes(cta, mask, number, place, coordinates, shared):
            values = cta.shared.load(box.shared, box.kind.dtype, 1, number)[:, box.inside]
            arrive = functools.partial(_arrive, cta, box, values, operation, number)
            if cta.late is None:
                arrive()
            else:
                cta.late.append(arrive)
            cta.transfers.append(box.transfer(number, operation, cta.step))
            cta.engine(Stores).begin(number, thread // 32, box.chunks)

    return store


def _arrive(cta: Cta, box: Box, values: Array, operation: str, number: int) -> None:
    if operation != "store":
        before = cta.memory.load(box.places, box.kind.dtype, 1, number)
        values = _REDUCTIONS[operation](before, values, box.kind)
    cta.memory.store(box.places, values, number)


def _add(old: Array, new: Array, kind: Type) -> Array:
    return narrow(widen(old, kind) + widen(new, kind), kind) if kind.floating else old + new


def _extreme(function: np.ufunc) -> Callable[[Array, Array, Type], Array]:
    def pick(old: Array, new: Array, kind: Type) -> Array:
        return (
            narrow(function(widen(old, kind), widen(new, kind)), kind)
            if kind.floating
            else function(old, new)
        )

    return pick


_REDUCTIONS: dict[str, Callable[[Array, Array, Type], Array]] = {
    "store": lambda old, new, kind: new,
    "add": _add,
    "min": _extreme(np.fmin),
    "max": _extreme(np.fmax),
    "and": lambda old, new, kind: old & new,
    "or": lambda old, new, kind: old | new,
    "xor": lambda old, new, kind: old ^ new,
}


class Stores:
    """Boxes on their way out, for the log: they read shared memory until they are waited for."""

    def __init__(self, cta: Cta) -> None:
        self._cta = cta
        self._running: list[tuple[int, int, Array]] = []

    def begin(self, number: int, warp: int, chunks: Array) -> None:
        """A box sets out: 16-byte pieces are read."""
        self._running.append((number, warp, chunks))
        self._cta.touch(number, 1 << warp, chunks, 16, "opens", write=False)

    def close(self) -> None:
        """All have been read."""
        for number, warp, chunks in self._running:
            self._cta.touch(number, 1 << warp, chunks, 16, "closes", write=False)
        self._running = []

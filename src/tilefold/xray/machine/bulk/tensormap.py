"""Tensor maps: what the tensor memory accelerator is told of a tensor, its box and the layout in shared memory.

The chip's 128 bytes are opaque. Here they hold the fields one after the other, as `pack` writes and `unpack` reads them;
`tensormap.replace` changes one, and the caller of the kernel packs a map made on the host.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilefold.errors import ExecutionError
from tilefold.xray.machine.access import address_of
from tilefold.xray.machine.binding import Binder, Mask, Step, unknown
from tilefold.xray.machine.types import TYPES
from tilefold.xray.ptx.syntax import Immediate, Instruction

if TYPE_CHECKING:
    from tilefold.xray.machine.cta import Cta

SIZE = 128  # bytes
_LAYOUT = struct.Struct("<QB5I5I4Q5BBBBB")
_DIMS = 5


@dataclass(frozen=True)
class TensorMap:
    """A tensor of up to five dims, the innermost first.

    `address` in bytes; `dims` and `box` in elements; `strides` in bytes, of all dims but the innermost, whose elements
    are neighbours; `steps` the element strides; `type` as `tensormap.replace` numbers it; `swizzle` 0 none, 1 32, 2 64,
    3 128 bytes; `fill` 1 where elements outside read as NaN, 0 as zero; `interleave` 0, nothing else is known here.
    """

    address: int
    dims: tuple[int, ...]
    box: tuple[int, ...]
    strides: tuple[int, ...]
    type: int
    swizzle: int = 0
    fill: int = 0
    interleave: int = 0
    steps: tuple[int, ...] = (1,) * _DIMS

    @property
    def rank(self) -> int:
        """How many dims."""
        return len(self.dims)

    def pack(self) -> bytes:
        """The 128 bytes of a kernel's argument."""
        raw = _LAYOUT.pack(
            self.address,
            self.rank,
            *_fill(self.dims, 5),
            *_fill(self.box, 5),
            *_fill(self.strides, 4),
            *_fill(self.steps, 5),
            self.type,
            self.swizzle,
            self.fill,
            self.interleave,
        )
        return raw.ljust(SIZE, b"\0")


def _fill(numbers: tuple[int, ...], count: int) -> tuple[int, ...]:
    return (*numbers[:count], *(0 for _ in range(count - len(numbers))))


def unpack(raw: bytes) -> TensorMap:
    """A map from its 128 bytes."""
    address, rank, *rest = _LAYOUT.unpack(raw[: _LAYOUT.size])
    dims, box, strides = rest[:5], rest[5:10], rest[10:14]
    steps, (kind, swizzle, fill, interleave) = rest[14:19], rest[19:]
    if not 1 <= rank <= _DIMS:
        raise ExecutionError(f"xray: a tensor map must have 1 to 5 dims, got {rank}; is its address right?")
    return TensorMap(
        address, tuple(dims[:rank]), tuple(box[:rank]), tuple(strides[: rank - 1]), kind, swizzle, fill, interleave,
        tuple(steps[:rank]),
    )  # fmt: skip


# Where `tensormap.replace` writes: offset in the struct, bytes, and bytes between the numbers of a list.
_FIELDS = {
    "global_address": (0, 8, 0), "rank": (8, 1, 0), "global_dim": (9, 4, 4), "box_dim": (29, 4, 4),
    "global_stride": (49, 8, 8), "element_stride": (81, 1, 1), "elemtype": (86, 1, 0), "swizzle_mode": (87, 1, 0),
    "fill_mode": (88, 1, 0), "interleave_layout": (89, 1, 0),
}  # fmt: skip


def bind(binder: Binder, instruction: Instruction) -> Step | None:
    """The step of a `tensormap` instruction; None if this is none."""
    if instruction.opcode != "tensormap":
        return None
    if instruction.modifiers[0] == "cp_fenceproxy":
        to, source = (address_of(binder, o) for o in instruction.operands[:2])
        return lambda cta, mask: _publish(cta, int(to(cta)[_first(mask)]), int(source(cta)[_first(mask)]))
    if instruction.modifiers[:2] != ("replace", "tile") or not instruction.has("shared::cta"):
        raise unknown(instruction)
    name = instruction.modifiers[2]
    start, size, apart = _FIELDS[name]
    place, *which, value = instruction.operands
    at, read = address_of(binder, place), binder.read(value, TYPES["u64"])
    if which and not isinstance(which[0], Immediate):
        raise unknown(instruction)
    offset = start + (which[0].value * apart if which and isinstance(which[0], Immediate) else 0)

    def change(cta: Cta, mask: Mask) -> None:
        one = _first(mask)
        number = int(read(cta)[one]) + (name == "rank")  # the rank is given less one
        raw = (number & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        where = int(at(cta)[one]) + offset
        cta.shared.data[where : where + size] = np.frombuffer(raw, np.uint8)

    return change


def _first(mask: Mask) -> int:
    return 0 if mask is None else int(mask.argmax())


def _publish(cta: Cta, to: int, source: int) -> None:
    """A map from shared to global memory."""
    raw = cta.shared.data[source : source + SIZE]
    cta.memory.store(np.uint64(to) + np.arange(SIZE, dtype=np.uint64), raw[None, :], -1)


def read_map(cta: Cta, address: int, number: int) -> TensorMap:
    """The map at a generic address, of a parameter or in global memory."""
    found = unpack(cta.generic.bytes_at(address, SIZE, number).tobytes())
    if found.interleave or set(found.steps) != {1}:
        raise ExecutionError(
            f"xray: a tensor map must have no interleaving and element strides of 1, got {found}"
        )
    return found

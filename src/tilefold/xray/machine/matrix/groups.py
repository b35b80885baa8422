"""`wgmma`: four warps multiply what shared memory, or for A their registers, hold.

Results are there at once, and operands are read at once: the same as on a chip for code that keeps the rules (no register or
byte of a running product touched before `wgmma.wait_group`). Until then the log holds the operands as being read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilefold.errors import ExecutionError
from tilefold.xray.machine.binding import Binder, Mask, Step, unknown
from tilefold.xray.machine.matrix.arithmetic import BYTES, SUMS, elements, product, shape_of
from tilefold.xray.machine.matrix.fragments import Factor, Sums
from tilefold.xray.machine.matrix.tiles import tile
from tilefold.xray.machine.matrix.warps import together
from tilefold.xray.machine.types import TYPES, Array
from tilefold.xray.ptx.syntax import Immediate, Instruction, Operand, Vector

if TYPE_CHECKING:
    from tilefold.xray.machine.cta import Cta

GROUP = 128  # threads


def bind(binder: Binder, instruction: Instruction, number: int) -> Step | None:
    """The step of a `wgmma` instruction; None if this is none."""
    if instruction.opcode != "wgmma":
        return None
    what = instruction.modifiers[0]
    if what == "fence":
        return lambda cta, mask: None  # products are done when the next instruction comes
    if what == "commit_group":
        return lambda cta, mask: cta.engine(Products).commit(_groups(cta, mask))
    if what == "wait_group":
        (count,) = instruction.operands
        assert isinstance(count, Immediate)
        left = count.value
        return lambda cta, mask: cta.engine(Products).wait(_groups(cta, mask), left)
    if what != "mma_async" or instruction.has("sp"):
        raise unknown(instruction)
    return _multiply(binder, instruction, number)


def _groups(cta: Cta, mask: Mask) -> list[int]:
    """The groups of four warps that execute."""
    if mask is None:
        return list(range(cta.threads // GROUP))
    found: list[int] = np.flatnonzero(mask.reshape(-1, GROUP).any(1)).tolist()
    return found


def _multiply(binder: Binder, instruction: Instruction, number: int) -> Step:
    size, to, of_a, of_b = [m for m in instruction.modifiers[3:] if m != "satfinite"]
    if to not in SUMS or of_a not in BYTES or of_b not in BYTES:
        raise unknown(instruction)
    shape, saturate = shape_of(size), instruction.has("satfinite")
    target, first, second, keep, *flags = instruction.operands
    sign, across = _flags(flags, isinstance(first, Vector), instruction)
    a: Held | Described
    if isinstance(first, Vector):
        a = Held(binder, first, of_a)
    else:
        a = Described(binder, first, of_a, 64, shape.k, across[0])
    b = Described(binder, second, of_b, shape.n, shape.k, across[1])
    d, kept = Sums(binder, target, to, 2, warps=4), binder.read(keep, TYPES["pred"])

    def multiply(cta: Cta, mask: Mask) -> None:
        together(cta, mask, GROUP, instruction)
        groups = _groups(cta, mask)
        before = np.where(kept(cta)[::GROUP, None, None], d.read(cta), 0.0)
        (left, read_a), (right, read_b) = a.read(cta, groups), b.read(cta, groups)
        d.write(cta, product(sign * left, right, before, to, saturate=saturate), mask)
        for group, *chunks in zip(groups, read_a, read_b, strict=True):
            cta.engine(Products).begin(number, group, np.concatenate(chunks))

    return multiply


class Held:
    """A in registers: each warp of the group holds 16 rows."""

    def __init__(self, binder: Binder, operand: Vector, kind: str) -> None:
        self._factor = Factor(binder, operand, kind, 16)

    def read(self, cta: Cta, groups: list[int]) -> tuple[Array, list[Array]]:
        """The elements [all groups, 64, k], and no bytes of shared memory."""
        return self._factor.read(cta).reshape(-1, 64, self._factor.k), [np.zeros(0, np.int64)] * len(groups)


class Described:
    """An operand in shared memory, given by a descriptor for each group."""

    def __init__(self, binder: Binder, operand: Operand, kind: str, rows: int, k: int, across: bool) -> None:
        self._descriptor, self._kind = binder.read(operand, TYPES["u64"]), kind
        self._rows, self._k, self._across = rows, k, across

    def read(self, cta: Cta, groups: list[int]) -> tuple[Array, list[Array]]:
        """The elements [all groups, rows, k], and for each of `groups` the 16-byte pieces read."""
        size = BYTES[self._kind]
        memory = cta.shared_bytes(size)
        found = np.zeros((cta.threads // GROUP, self._rows, self._k))
        chunks = []
        for group, descriptor in zip(groups, self._descriptor(cta)[::GROUP][groups].tolist(), strict=True):
            where = tile(descriptor, self._rows, self._k, size, self._across)
            if where.chunks[-1] + 16 > memory.nbytes:
                raise ExecutionError(
                    f"xray: a descriptor must mean bytes below {memory.nbytes} of shared memory, got {descriptor:#x}"
                )
            found[group] = elements(memory[where.index], self._kind)
            chunks.append(where.chunks)
        return found, chunks


def _flags(operands: list[Operand], held: bool, instruction: Instruction) -> tuple[float, tuple[bool, bool]]:
    """The product's sign and whether A and B lie across: `scale-a, scale-b`, and for 16 bits `trans-a, trans-b`."""
    numbers = [o.value for o in operands if isinstance(o, Immediate)]
    if len(numbers) != len(operands):
        raise unknown(instruction)
    first, second, *across = numbers or [1, 1]
    across = [0, *across] if held else across
    left, right = across if len(across) == 2 else (0, 0)
    return float(first * second), (bool(left), bool(right))


class Products:
    """Groups of running products, for the log: what they read stays being read until they are waited for."""

    def __init__(self, cta: Cta) -> None:
        self._cta = cta
        self._running: dict[int, list[list[tuple[int, Array]]]] = {}

    def begin(self, number: int, group: int, chunks: Array) -> None:
        """A product of the group starts to read 16-byte pieces."""
        self._running.setdefault(group, [[]])[-1].append((number, chunks))
        self._note(number, group, chunks, "opens")

    def commit(self, groups: list[int]) -> None:
        """The products so far are one lot."""
        for group in groups:
            self._running.setdefault(group, [[]]).append([])

    def wait(self, groups: list[int], left: int) -> None:
        """All lots but the last `left` have ended."""
        for group in groups:
            lots = self._running.setdefault(group, [[]])
            for lot in lots[: max(len(lots) - 1 - left, 0)]:
                for number, chunks in lot:
                    self._note(number, group, chunks, "closes")
            del lots[: max(len(lots) - 1 - left, 0)]

    def _note(self, number: int, group: int, chunks: Array, when: str) -> None:
        if len(chunks):
            for warp in range(4 * group, 4 * group + 4):
                self._cta.touch(number, warp, chunks, 16, when, write=False)

"""How the lanes of a warp hold matrices in registers (PTX ISA, "matrix fragments"), as reshapes.

Lane 4 g + t, with g in 0..7 and t in 0..3, holds in each 32-bit register of A or B the elements E t .. E t + E - 1 (E fit
into a register) of row g of an 8 x 4E block; blocks come column of blocks by column of blocks. In D it holds elements 2 t and
2 t + 1 of row g.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tilefold.xray.machine.binding import Binder, Mask, Read, Write
from tilefold.xray.machine.matrix.arithmetic import BYTES, SUMS, elements
from tilefold.xray.machine.types import TYPES, Array
from tilefold.xray.ptx.syntax import Operand, items_of

if TYPE_CHECKING:
    from tilefold.xray.machine.cta import Cta


class Factor:
    """A fragment of A or B: `rows` x k elements, as [warps, rows, k] in float64."""

    def __init__(self, binder: Binder, operand: Operand, kind: str, rows: int) -> None:
        word = TYPES["b64" if kind == "f64" else "b32"]
        self._reads: Sequence[Read] = [binder.read(item, word) for item in items_of(operand)]
        self._kind, self._rows = kind, rows
        self.k = len(self._reads) * word.bits // 8 // BYTES[kind] * 4 // (rows // 8)

    def read(self, cta: Cta) -> Array:
        """The elements now."""
        words = np.stack([read(cta) for read in self._reads])
        warps, blocks = cta.threads // 32, self._rows // 8
        parts = words.view(f"u{BYTES[self._kind]}").reshape(
            -1, blocks, warps, 8, self.k * blocks // len(words)
        )
        whole = parts.transpose(2, 1, 3, 0, 4).reshape(warps, self._rows, self.k)
        return elements(whole, self._kind)


class Sums:
    """A fragment of C or D: [groups, rows, n] elements of the accumulator's type; `blocks` of 8 rows a warp's own."""

    def __init__(self, binder: Binder, operand: Operand, kind: str, blocks: int, warps: int = 1) -> None:
        self._held = np.dtype(SUMS[kind])
        word = TYPES["b64" if kind == "f64" else "b32"]
        self._word = word.dtype
        self._reads = [binder.read(item, word) for item in items_of(operand)]
        self._writes: list[Write] = [binder.write(item, word) for item in items_of(operand)]
        self._blocks, self._warps = blocks, warps

    def read(self, cta: Cta) -> Array:
        """The elements now, in float64."""
        words = np.stack([read(cta) for read in self._reads])
        pairs = self._pairs(words, cta.threads)
        order = pairs.transpose(2, 3, 1, 4, 0, 5, 6)
        shape = (cta.threads // 32 // self._warps, self._warps * self._blocks * 8, -1)
        return order.reshape(shape).astype(np.float64)

    def _pairs(self, words: Array, threads: int) -> Array:
        """[columns / 8, blocks of rows, groups, warps, g, t, two] from [registers, threads]."""
        groups = threads // 32 // self._warps
        each = 8 // (2 * self._held.itemsize) if self._word.itemsize == 4 else 1
        if each == 2:  # two halves of a word are neighbours
            return words.view(self._held).reshape(-1, self._blocks, groups, self._warps, 8, 4, 2)
        split = words.view(self._held).reshape(-1, self._blocks, 2, groups, self._warps, 8, 4)
        return split.transpose(0, 1, 3, 4, 5, 6, 2)

    def write(self, cta: Cta, sums: Array, mask: Mask) -> None:
        """New elements [groups, rows, n] into the registers."""
        groups = cta.threads // 32 // self._warps
        apart = sums.reshape(groups, self._warps, self._blocks, 8, -1, 4, 2)
        if self._held.itemsize == 2:
            ordered = np.ascontiguousarray(apart.transpose(4, 2, 0, 1, 3, 5, 6))
        else:
            ordered = np.ascontiguousarray(apart.transpose(4, 2, 6, 0, 1, 3, 5))
        words = ordered.reshape(-1).view(self._word).reshape(-1, cta.threads)
        for write, word in zip(self._writes, words, strict=True):
            write(cta, word, mask)

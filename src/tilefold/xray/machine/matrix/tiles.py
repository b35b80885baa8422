"""Operands of `wgmma` in shared memory: what a 64-bit descriptor means (PTX ISA, "matrix descriptor").

Bits 0-13 the address, 16-29 the leading, 32-45 the stride byte offset, each in units of 16 bytes; 49-51 an offset of the
pattern; 62-63 the swizzle: none, 128, 64 or 32 bytes. Where the pattern swizzles W bytes, bits 4.. of an address are
exclusive-ored with bits 7.., as many as W / 16 has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tilefold.errors import ExecutionError
from tilefold.xray.machine.types import Array

_WIDTHS = {0: 16, 1: 128, 2: 64, 3: 32}


@dataclass(frozen=True, eq=False)
class Tile:
    """Where an operand's elements lie: `index` [rows, k] in elements; `chunks` the 16-byte pieces, by address."""

    index: Array
    chunks: Array


@lru_cache(maxsize=512)
def tile(descriptor: int, rows: int, k: int, size: int, across: bool) -> Tile:
    """The place of each element of a [rows, k] operand, of `size` bytes each.

    `across`: neighbours along the rows (m or n), not along k, are neighbours in memory.
    """
    if descriptor >> 49 & 7:
        raise ExecutionError(
            f"xray: a descriptor's pattern must start at its repeat (base offset 0), got {descriptor:#x}"
        )
    start, leading, stride = ((descriptor >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    width = _WIDTHS[descriptor >> 62]
    row, column = np.arange(rows)[:, None], np.arange(k)[None, :]
    if across:
        along = row * size
        if width == 16:  # here the offsets trade places
            leading, stride = stride, leading
        where = column // 8 * stride + column % 8 * width + along % width + along // width * leading
    else:
        along = column * size
        where = row // 8 * stride + row % 8 * width + along % width
        where = where + along // width * leading if width == 16 else where
    where = where + start
    where ^= (where >> 7 & width // 16 - 1) << 4
    return Tile(where // size, np.unique(where // 16) * 16)

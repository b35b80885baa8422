"""Sizes that every choice shares: limits of the hardware, what counts as large or short, powers of two."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Limits of the hardware, and a definition:
VECTOR_BYTES = 16
SECTOR = 32  # bytes that memory delivers at least
LINE_BYTES = 128  # of the caches
WARP = 32
SM_REGISTERS = 65536  # of 32 bits
BLOCKS = 128  # programs of one wave on the chips planned for

# Warps of an SM where programs share results: all of them at work at once, whatever registers they take
# (docs/experiments/folds.md#walks).
ONE_WAVE = 32
LARGE = 100_000_000  # bytes: below, many small programs hide latency better than a few large ones
SHORT_COLUMN = 512  # elements: up to here one program walks whole columns (docs/experiments/tiles.md#columns)
# Bytes read and written: smaller folds leave the L2 to what it holds (docs/experiments/memory.md#evict-first).
EVICT_FIRST_BELOW = 320_000_000

# No record: set by sweeps on an H200, 2026-11-21, that were not kept.
LOADS = 4  # vectors a thread keeps in flight
ONE_LAUNCH_BYTES = 65536  # of one result: below, another launch costs more than it saves
SMALL_AXIS = 64  # elements: up to here a thread or a few own a row
MAX_WARPS = 16


def run_of(size: int, aligned: int, steps: Sequence[int]) -> int:
    """Neighbours of `size` bytes in an access that is aligned whatever the places along the other dims, of these steps."""
    return max(1, math.gcd(VECTOR_BYTES, aligned, *(step * size for step in steps)) // size)


def power_above(n: int) -> int:
    """The least power of two not below n."""
    return 1 << max(0, (max(1, n) - 1).bit_length())


def power_below(n: int) -> int:
    """The greatest power of two not above n."""
    return 1 << (max(1, n).bit_length() - 1)


def whole_splits(tiles: int, splits: int) -> int:
    """At most so many splits of whole tiles, none of them without elements."""
    return math.ceil(tiles / math.ceil(tiles / splits)) if tiles else 1

"""Where a case's elements lie: a view of a larger contiguous tensor, and the 32-byte sectors that it touches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

SECTOR_BYTES = 32  # the least that a GPU moves between memory and its L2
AT_ONCE = (
    1 << 20
)  # runs that are counted at once: of 2^26 short rows the offsets alone would take half a gigabyte


@dataclass(frozen=True)
class Layout:
    """A view of memory: `order` are the view's dims from the slowest to the fastest in memory, `sizes` the memory's
    extents and `first` where the view begins, both along the view's dims; `offset` elements lie before the memory.
    """

    order: tuple[int, ...]
    sizes: tuple[int, ...]
    first: tuple[int, ...]
    offset: int = 0

    @property
    def strides(self) -> tuple[int, ...]:
        """The view's strides, in elements."""
        steps, step = [0] * len(self.order), 1
        for dim in reversed(self.order):
            steps[dim] = step
            step *= self.sizes[dim]
        return tuple(steps)

    @property
    def begin(self) -> int:
        """Elements of storage before the view's first."""
        return self.offset + sum(f * s for f, s in zip(self.first, self.strides, strict=True))

    def view(self, shape: Sequence[int], dtype: torch.dtype, device: str | torch.device) -> torch.Tensor:
        """New memory, seen as the view; nothing is written to it."""
        storage = torch.empty(self.offset + math.prod(self.sizes), dtype=dtype, device=device)
        return storage.as_strided(tuple(shape), self.strides, self.begin)

    def text(self, shape: Sequence[int]) -> str:
        """The layout as part of a case's name, empty if it is contiguous: "permuted 2-0-1", "of 512x1040", "offset 3"."""
        parts = []
        if list(self.order) != sorted(self.order):
            parts.append("permuted " + "-".join(map(str, self.order)))
        if tuple(shape) != self.sizes:
            parts.append(f"of {'x'.join(map(str, self.sizes))} from {'-'.join(map(str, self.first))}")
        if self.offset:
            parts.append(f"offset {self.offset}")
        return ", ".join(parts)


def whole_sectors(size: int) -> int:
    """Bytes of the sectors that hold so many bytes from a sector's beginning on."""
    return -(-size // SECTOR_BYTES) * SECTOR_BYTES


def unique_bytes(shape: Sequence[int], strides: Sequence[int], begin: int, itemsize: int) -> int:
    """Bytes of the distinct 32-byte sectors that hold an element, for strides without overlap."""
    levels = sorted((stride * itemsize, n) for stride, n in zip(strides, shape, strict=True) if n > 1)
    run = itemsize
    while levels and levels[0][0] == run:
        run *= levels.pop(0)[1]
    inner = np.array([begin * itemsize % SECTOR_BYTES])
    for step, n in levels[:-1]:
        inner = (inner[None, :] + step * np.arange(n)[:, None]).reshape(-1)
    step, n = levels[-1] if levels else (0, 1)
    sectors, latest = 0, -1
    for some in range(0, n, max(1, AT_ONCE // len(inner))):
        outer = step * np.arange(some, min(n, some + max(1, AT_ONCE // len(inner))))
        starts = (inner[None, :] + outer[:, None]).reshape(-1)
        first, last = starts // SECTOR_BYTES, (starts + run - 1) // SECTOR_BYTES
        before = np.concatenate([[latest], last[:-1]])
        sectors += int((last - np.maximum(first, before + 1) + 1).sum())
        latest = int(last[-1])
    return sectors * SECTOR_BYTES

"""Memory as a kernel sees it: a few named allocations in a wide address space, with bounds known or not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilefold.xray.machine.types import Array

_PAGE = 1 << 16
_APART = 1 << 40  # between allocations: no reach of 32-bit offsets leads from one into the next
MODULE_BASE = _APART  # the address of a module's own variables


@dataclass(frozen=True)
class Fault:
    """Threads that reached outside every allocation: by which instruction, from where to where."""

    instruction: int
    threads: int
    lowest: int
    highest: int
    nearest: str


@dataclass
class Allocation:
    """Bytes at an address. Without bounds its pages come into being when touched, filled at random."""

    name: str
    base: int
    data: Array | None
    pages: dict[int, Array] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes it holds; without bounds, all up to the next allocation."""
        return _APART // 2 if self.data is None else len(self.data)


class Memory:
    """Global memory. `place` gives an array an address, `place_open` a pointer whose length nobody said."""

    def __init__(self, seed: int = 0) -> None:
        # The first allocation holds the variables of the module that runs; `adopt` fills it.
        self.allocations = [Allocation("module", MODULE_BASE, np.zeros(0, np.uint8))]
        self._seed = seed
        self.faults: list[Fault] = []

    def place(self, name: str, array: Array, *, before: int = 0) -> int:
        """The address of a copy of an array; `before` bytes in front of it are part of the allocation."""
        data = np.concatenate(
            [np.zeros(before, np.uint8), np.ascontiguousarray(array).view(np.uint8).ravel()]
        )
        return self._add(name, data) + before

    def place_open(self, name: str) -> int:
        """The address of memory without bounds; half of it lies before the address."""
        return self._add(name, None) + _APART // 4

    def adopt(self, variables: Array) -> None:
        """Take a module's variables in, unless an earlier program of its grid has brought them."""
        if len(variables) and not self.allocations[0].size:
            self.allocations[0].data = variables.copy()

    def _add(self, name: str, data: Array | None) -> int:
        base = _APART * (len(self.allocations) + 1)
        self.allocations.append(Allocation(name, base, data))
        return base

    def read(self, name: str, dtype: Any, *, before: int = 0) -> Array:
        """What an allocation holds now."""
        data = next(a for a in self.allocations if a.name == name).data
        assert data is not None, "an allocation without bounds is no array"
        held: Array = data[before:].view(dtype).copy()
        return held

    def load(self, addresses: Array, dtype: np.dtype[Any], instruction: int) -> Array:
        """Values at aligned addresses; zero where there is nothing."""
        result = np.zeros(len(addresses), dtype)
        for chosen, where, memory in self._parts(addresses, dtype.itemsize, instruction):
            result[chosen] = memory.view(dtype)[where // dtype.itemsize]
        return result

    def store(self, addresses: Array, values: Array, instruction: int) -> None:
        """Values to aligned addresses; of threads that write to one place the last wins."""
        size = values.dtype.itemsize
        for chosen, where, memory in self._parts(addresses, size, instruction):
            memory.view(values.dtype)[where // size] = values[chosen]

    def _parts(self, addresses: Array, size: int, instruction: int) -> list[tuple[Array, Array, Array]]:
        """Which of the addresses lie in which piece of memory, and where in it."""
        if not len(addresses):
            return []
        signed = addresses.astype(np.int64)
        owners = signed // _APART - 1
        parts = []
        for owner in np.unique(owners):
            chosen = np.flatnonzero(owners == owner)
            if not 0 <= owner < len(self.allocations):
                self._fault(signed[chosen], instruction)
                continue
            allocation = self.allocations[owner]
            offsets = signed[chosen] - allocation.base
            outside = offsets + size > allocation.size
            if outside.any():
                self._fault(signed[chosen[outside]], instruction)
                chosen, offsets = chosen[~outside], offsets[~outside]
            if allocation.data is not None:
                whole = len(allocation.data) // size * size
                parts.append((chosen, offsets, allocation.data[:whole]))
            else:
                parts += self._paged(allocation, chosen, offsets)
        return parts

    def _paged(
        self, allocation: Allocation, chosen: Array, offsets: Array
    ) -> list[tuple[Array, Array, Array]]:
        numbers = offsets // _PAGE
        parts = []
        for number in np.unique(numbers).tolist():
            if number not in allocation.pages:
                random = np.random.default_rng((self._seed, allocation.base // _APART, number))
                allocation.pages[number] = random.integers(0, 256, _PAGE, np.uint8)
            here = numbers == number
            parts.append((chosen[here], offsets[here] % _PAGE, allocation.pages[number]))
        return parts

    def _fault(self, addresses: Array, instruction: int) -> None:
        lowest, highest = int(addresses.min()), int(addresses.max())
        owner = min(max(lowest // _APART - 1, 0), len(self.allocations) - 1)
        nearest = self.allocations[owner].name if self.allocations else ""
        self.faults.append(Fault(instruction, len(addresses), lowest, highest, nearest))

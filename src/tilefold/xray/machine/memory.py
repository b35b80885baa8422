"""Memory as a kernel sees it: a few named allocations in a wide address space, with bounds known or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilefold.xray.machine.types import Array

_PAGE = 1 << 16
_VECTOR = 32  # bytes of the widest access
TURNS = 2  # a sign that every allocation has in turn
_APART = 1 << 40  # between allocations: no reach of 32-bit offsets leads from one into the next
MODULE_BASE = _APART  # the address of a module's own variables


@dataclass(frozen=True)
class Fault:
    """Threads that reached outside every allocation: by which instruction, and the lowest address."""

    instruction: int
    threads: int
    lowest: int
    nearest: str


@dataclass
class Allocation:
    """Bytes at an address. Without bounds its pages come into being when touched, filled at random as `kind` says.

    Otherwise `data` holds `size` bytes and some more: a vector that reaches beyond the end is a fault, but what of it lies
    inside is moved.
    """

    name: str
    base: int
    size: int
    data: Array | None
    kind: str = "bytes"
    pages: dict[int, Array] = field(default_factory=dict)


class Memory:
    """Global memory. `place` gives an array an address, `place_open` a pointer whose length nobody said.

    What nobody gave is random, from `seed`; numbers have both signs, or one: -1 or 1. With `TURNS` those of each allocation
    have one, and those of the next the other.
    """

    middle = _APART // 4  # bytes of memory without bounds that lie before its address

    def __init__(self, seed: int = 0, sign: int = 0) -> None:
        # The first allocation holds the variables of the module that runs; `adopt` fills it.
        self.allocations = [Allocation("module", MODULE_BASE, 0, np.zeros(0, np.uint8))]
        self._seed, self._sign = seed, sign
        self.changes = 0  # stores that changed a byte
        self.earlier: Memory | None = None  # what was held when `remember` was called
        self.faults: list[Fault] = []

    def place(self, name: str, array: Array, *, before: int = 0) -> int:
        """The address of a copy of an array; `before` bytes in front of it are part of the allocation."""
        data = np.concatenate(
            [np.zeros(before, np.uint8), np.ascontiguousarray(array).view(np.uint8).ravel()]
        )
        return self._add(name, data) + before

    def place_open(self, name: str, kind: str = "bytes") -> int:
        """The address of memory without bounds; half of it lies before the address.

        `kind` says what it holds: normal random numbers for "f2", "f4", "f8" and "bf16", numbers in 0..127 for "i1" to
        "i8", random bytes else.
        """
        return self._add(name, None, kind) + self.middle

    def adopt(self, variables: Array) -> None:
        """Take a module's variables in, unless an earlier program of its grid has brought them."""
        if len(variables) and not self.allocations[0].size:
            self.allocations[0] = Allocation("module", MODULE_BASE, len(variables), _padded(variables))

    def _add(self, name: str, data: Array | None, kind: str = "bytes") -> int:
        base = _APART * (len(self.allocations) + 1)
        size = _APART // 2 if data is None else len(data)
        self.allocations.append(Allocation(name, base, size, None if data is None else _padded(data), kind))
        return base

    def read(self, name: str, dtype: Any, *, before: int = 0) -> Array:
        """The current content of an allocation."""
        found = next(a for a in self.allocations if a.name == name)
        assert found.data is not None, "an allocation without bounds is no array"
        held: Array = found.data[before : found.size].view(dtype).copy()
        return held

    def remember(self) -> None:
        """Keep what is held now, for those who do not see what is stored from here on."""
        self.earlier = Memory(self._seed, self._sign)
        self.earlier.allocations = [
            replace(
                a,
                data=None if a.data is None else a.data.copy(),
                pages={number: page.copy() for number, page in a.pages.items()},
            )
            for a in self.allocations
        ]

    def load(self, addresses: Array, dtype: np.dtype[Any], count: int, instruction: int) -> Array:
        """[count, addresses]: neighbours at aligned addresses; zero where there is nothing."""
        row = np.dtype((np.void, count * dtype.itemsize))
        result = np.zeros((len(addresses), count), dtype)
        for chosen, where, memory in self._parts(addresses, row.itemsize, instruction):
            rows = memory.view(row)[where // row.itemsize]
            result[chosen] = rows.view(dtype).reshape(-1, count)
        return result.T

    def store(self, addresses: Array, values: Array, instruction: int) -> None:
        """Values [count, addresses] to neighbours at aligned addresses; of threads that write to one place the last wins."""
        rows = np.ascontiguousarray(values.T)
        row = np.dtype((np.void, rows.shape[1] * rows.itemsize))
        held = rows.view(row)[:, 0]
        for chosen, where, memory in self._parts(addresses, row.itemsize, instruction):
            rows, index = memory.view(row), where // row.itemsize
            self.changes += rows[index].tobytes() != held[chosen].tobytes()
            rows[index] = held[chosen]

    def _parts(
        self, addresses: Array, size: int, instruction: int
    ) -> Iterator[tuple[Array | slice, Array, Array]]:
        """Which of the addresses lie in which piece of memory, and where in it; what lies nowhere is a fault."""
        if not len(addresses):
            return
        signed = addresses.astype(np.int64)
        owners = self.owners(signed)
        first = int(owners[0])
        found = [first] if (owners == first).all() else np.unique(owners).tolist()
        for owner in found:
            chosen = slice(None) if len(found) == 1 else np.flatnonzero(owners == owner)
            if not 0 <= owner < len(self.allocations):
                self._fault(signed[chosen], instruction)
                continue
            allocation = self.allocations[owner]
            offsets = signed[chosen] - allocation.base
            outside = (offsets < 0) | (offsets + size > allocation.size)
            if outside.any():
                self._fault(signed[chosen][outside], instruction)
                inside = (offsets >= 0) & (offsets < allocation.size)
                chosen, offsets = np.arange(len(signed))[chosen][inside], offsets[inside]
            if allocation.data is not None:
                yield chosen, offsets, allocation.data
            else:
                yield from self._paged(allocation, np.arange(len(signed))[chosen], offsets)

    def _paged(
        self, allocation: Allocation, chosen: Array, offsets: Array
    ) -> Iterator[tuple[Array, Array, Array]]:
        numbers = offsets // _PAGE
        for number in np.unique(numbers).tolist():
            here = numbers == number
            yield chosen[here], offsets[here] % _PAGE, self.page(allocation, number)

    def page(self, allocation: Allocation, number: int) -> Array:
        """Bytes of memory without bounds: what was stored there, or random ones."""
        if number not in allocation.pages:
            random = np.random.default_rng((self._seed, allocation.base // _APART, number))
            turn = 1 if allocation.base // _APART % 2 else -1
            allocation.pages[number] = fill(
                random, allocation.kind, turn if self._sign == TURNS else self._sign
            )
        return allocation.pages[number]

    def owners(self, addresses: Array) -> Array:
        """The allocation, by its number, that each address is meant for; -1 where there is none."""
        found = (addresses.astype(np.int64) + _APART // 2) // _APART - 1
        near: Array = np.where((found >= 0) & (found < len(self.allocations)), found, -1)
        return near

    def _fault(self, addresses: Array, instruction: int) -> None:
        lowest = int(addresses.min())
        owner = min(max((lowest + _APART // 2) // _APART - 1, 0), len(self.allocations) - 1)
        nearest = self.allocations[owner].name
        self.faults.append(Fault(instruction, len(addresses), lowest, nearest))


def _padded(data: Array) -> Array:
    """A copy with at least a vector's bytes behind it, in all a multiple of a vector."""
    held = np.zeros((len(data) // _VECTOR + 2) * _VECTOR, np.uint8)
    held[: len(data)] = data
    return held


def fill(random: np.random.Generator, kind: str, sign: int = 0) -> Array:
    """A page of random values; of one sign all numbers are 1 or more away from 0."""
    if kind in ("f2", "f4", "f8"):
        return _normal(random, _PAGE // int(kind[1]), sign).astype(kind).view(np.uint8)
    if kind == "bf16":
        words = _normal(random, _PAGE // 2, sign).astype(np.float32).view(np.uint32)
        return (words >> np.uint32(16)).astype(np.uint16).view(np.uint8)
    if kind[0] == "i":
        whole = random.integers(1 if sign else 0, 128, _PAGE // int(kind[1]), np.dtype(kind))
        return (-whole if sign < 0 else whole).view(np.uint8)
    return random.integers(0, 256, _PAGE, np.uint8)


def _normal(random: np.random.Generator, count: int, sign: int) -> Array:
    drawn = random.standard_normal(count)
    return sign * (1 + np.abs(drawn)) if sign else drawn

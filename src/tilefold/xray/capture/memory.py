"""The host's memory as a kernel's: storages lie where they are, nothing is copied, and addresses in arrays lead to them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tilefold.xray.machine import Allocation, Fault, Memory
from tilefold.xray.machine.types import Array

_VECTOR = 32  # bytes of the widest access; no page of the host ends within one


class HostMemory(Memory):
    """Storages as allocations. What lies in none is asked of `find`, by its address; `written` and `read_from` are the
    numbers of those that were. Accesses outside are faults: nothing of them is moved."""

    def __init__(self, find: Callable[[int], Any]) -> None:
        super().__init__()
        self._find, self._held = find, dict[int, Any]()
        self._order = np.array([0])
        self._bounds()
        self.written: set[int] = set()
        self.read_from: set[int] = set()

    def hold(self, storage: Any) -> None:
        """Take a storage in, once."""
        first, size = int(storage.data_ptr()), int(storage.nbytes())
        if first in self._held or not size:
            return
        base = first // _VECTOR * _VECTOR
        length = -(-(first + size - base) // _VECTOR) * _VECTOR
        data = np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(base))
        self._held[first] = storage
        self.allocations.append(
            Allocation(f"storage {len(self.allocations)}", base, first + size - base, data)
        )
        self._bounds()

    def storages(self, numbers: set[int]) -> tuple[Any, ...]:
        """The storages of allocations."""
        held = list(self._held.values())
        return tuple(held[number - 1] for number in sorted(numbers) if number > 0)

    def _bounds(self) -> None:
        bases = np.array([a.base for a in self.allocations], np.int64)
        self._order = np.argsort(bases, kind="stable")
        self._starts = bases[self._order]
        self._ends = self._starts + np.array([a.size for a in self.allocations])[self._order]

    def adopt(self, variables: Array) -> None:
        """A module's variables, at the place of their own."""
        super().adopt(variables)
        self._bounds()

    def owners(self, addresses: Array) -> Array:
        """The allocation that each address lies in; -1 where there is none."""
        signed = addresses.astype(np.int64)
        found = self._inside(signed)
        while (missed := found < 0).any():
            storage = self._find(int(signed[missed][0]))
            if storage is None or int(storage.data_ptr()) in self._held:
                break
            self.hold(storage)
            found = self._inside(signed)
        return found

    def _inside(self, addresses: Array) -> Array:
        place = np.maximum(np.searchsorted(self._starts, addresses, "right") - 1, 0)
        within = (addresses >= self._starts[place]) & (addresses < self._ends[place])
        found: Array = np.where(within, self._order[place], -1)
        return found

    def load(self, addresses: Array, dtype: np.dtype[Any], count: int, instruction: int) -> Array:
        """As of any memory, and which allocations it reaches."""
        self._reached = self.read_from
        return super().load(addresses, dtype, count, instruction)

    def store(self, addresses: Array, values: Array, instruction: int) -> None:
        """As of any memory, and which allocations it reaches."""
        self._reached = self.written
        super().store(addresses, values, instruction)

    def _parts(
        self, addresses: Array, size: int, instruction: int
    ) -> Iterator[tuple[Array | slice, Array, Array]]:
        signed = addresses.astype(np.int64)
        owners = self.owners(signed) if len(signed) else np.zeros(0, np.int64)
        for owner in np.unique(owners).tolist():
            chosen = np.flatnonzero(owners == owner)
            if owner < 0:
                self._fault(signed[chosen], instruction)
                continue
            self._reached.add(owner)
            held = self.allocations[owner]
            offsets = signed[chosen] - held.base
            inside = offsets + size <= held.size
            if not inside.all():
                self._fault(signed[chosen][~inside], instruction)
            assert held.data is not None, "every storage has data"
            yield chosen[inside], offsets[inside], held.data

    def _fault(self, addresses: Array, instruction: int) -> None:
        lowest = int(addresses.min())
        self.faults.append(Fault(instruction, len(addresses), lowest, hex(lowest)))

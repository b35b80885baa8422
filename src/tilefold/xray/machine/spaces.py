"""The memories of one block: shared, local and parameters; and its special registers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilefold.errors import ExecutionError
from tilefold.xray.machine.memory import Memory
from tilefold.xray.machine.types import Array

# Generic addresses: shared memory begins at 0, then come local memory and parameters, all below global memory. They fit 32
# bits: code may take the address of a parameter in a narrow register before it makes it generic.
LOCAL_BASE = 1 << 30
PARAMETER_BASE = 1 << 31
RANK_BIT = 24  # of an address in shared memory: from here on whose it is (`machine.cluster`)


class Flat:
    """Bytes from address 0, whose first content is no value anybody wrote. Speaks as `Memory` does."""

    def __init__(self, name: str, size: int) -> None:
        self._name, self.size, self.changes = name, size, 0
        self.data = np.full(-(-max(size, 1) // 128) * 128, 0xA5, np.uint8)

    def load(self, addresses: Array, dtype: np.dtype[Any], count: int, instruction: int) -> Array:
        """[count, addresses]: neighbours at aligned addresses."""
        row = np.dtype((np.void, count * dtype.itemsize))
        rows = self.data.view(row)[self._index(addresses, row.itemsize)]
        found: Array = rows.view(dtype).reshape(-1, count).T
        return found

    def store(self, addresses: Array, values: Array, instruction: int) -> None:
        """Values [count, addresses] to neighbours at aligned addresses; of threads that write to one place the last wins."""
        rows = np.ascontiguousarray(values.T)
        row = np.dtype((np.void, rows.shape[1] * rows.itemsize))
        held, index = self.data.view(row), self._index(addresses, row.itemsize)
        self.changes += held[index].tobytes() != rows.tobytes()
        held[index] = rows.view(row)[:, 0]

    def _index(self, addresses: Array, size: int) -> Array:
        if len(addresses) and int(addresses.max()) + size > self.size:
            raise ExecutionError(
                f"xray: {self._name} addresses must be below {self.size}, got {int(addresses.max())} for {size} bytes"
            )
        index: Array = (addresses // np.uint64(size)).astype(np.int64)
        return index


class Generic:
    """Global memory and, below it, the parameters: what a generic address may mean where it is not shared."""

    def __init__(self, memory: Memory, parameters: Array) -> None:
        self._memory, self._parameters = memory, parameters

    def bytes_at(self, address: int, count: int, instruction: int) -> Array:
        """`count` bytes from one address."""
        if PARAMETER_BASE <= address < PARAMETER_BASE + len(self._parameters):
            return self._parameters[address - PARAMETER_BASE :][:count]
        where = np.uint64(address) + np.arange(count, dtype=np.uint64)
        found: Array = self._memory.load(where, np.dtype("u1"), 1, instruction)[0]
        return found


class Special(dict[str, Array]):
    """The registers that a thread finds filled: those that are the same for all threads of a program when they are read."""

    def __init__(
        self, numbers: Array, program: tuple[int, int, int], grid: tuple[int, int, int], cluster: int = 1
    ) -> None:
        """`cluster` programs that are neighbours along x run together."""
        self._threads, rank = len(numbers), program[0] % cluster
        self.fixed = {"%cluster_ctarank": rank, "%cluster_nctarank": cluster}
        threes = {
            "ctaid": program, "nctaid": grid, "cluster_ctaid": (rank, 0, 0), "cluster_nctaid": (cluster, 1, 1),
            "clusterid": (program[0] // cluster, *program[1:]), "nclusterid": (grid[0] // cluster, *grid[1:]),
            "tid": (0, 0, 0), "ntid": (self._threads, 1, 1),
        }  # fmt: skip
        for name, values in threes.items():
            self.fixed |= {f"%{name}.{axis}": value for axis, value in zip("xyz", values, strict=True)}
        lane = (numbers % 32).astype(np.uint32)
        super().__init__({
            "%tid.x": numbers.astype(np.uint32),
            "%laneid": lane,
            "%warpid": (numbers // 32).astype(np.uint32),
            "%lanemask_lt": (np.uint32(1) << lane) - np.uint32(1),
            "%lanemask_eq": np.uint32(1) << lane,
        })  # fmt: skip

    def __missing__(self, name: str) -> Array:
        found = self[name] = np.full(self._threads, self.fixed[name], np.uint32)
        return found


_ANY = Special(np.arange(32), (0, 0, 0), (1, 1, 1))
SPECIAL = frozenset((*_ANY, *_ANY.fixed))


def words(numbers: Mapping[str, int | bytes], layout: Mapping[str, tuple[int, int]]) -> Array:
    """The bytes of all parameters: of each its offset and size are given, and its bits or bytes."""
    end = max((offset + size for offset, size in layout.values()), default=0)
    held = np.zeros(-(-max(end, 1) // 128) * 128, np.uint8)
    for name, (offset, size) in layout.items():
        value = numbers[name]
        raw = value if isinstance(value, bytes) else (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        held[offset : offset + len(raw)] = np.frombuffer(raw, np.uint8)
    return held

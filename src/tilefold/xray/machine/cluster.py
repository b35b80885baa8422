"""Programs that run together: a barrier at which all their threads wait, and the shared memory of each, open to all.

An address in another program's shared memory (PTX: `shared::cluster`) says whose it is from bit `RANK_BIT` on; one that says
nothing there means the thread's own program. On a chip such addresses look otherwise: no kernel may depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from tilefold.errors import ExecutionError
from tilefold.xray.machine.spaces import RANK_BIT, Flat
from tilefold.xray.machine.types import Array


class Member(Protocol):
    """A program of a cluster: its shared memory, and for each thread how far it is."""

    begun: bool
    gone: Array
    arrived: Array
    waited: Array
    events: int
    shared: Flat
    cluster: Any


Program = TypeVar("Program", bound=Member)


class Cluster(Generic[Program]):
    """The programs of a cluster, in the order of their ranks."""

    def __init__(self, members: Sequence[Program]) -> None:
        self.members = tuple(members)
        for member in members:
            member.cluster = self

    def parts(self, cta: Program, addresses: Array) -> Iterator[tuple[Program, Array, Array]]:
        """Whose memory the addresses of one of the programs mean: the program, which of them, and where in it."""
        ranks = (addresses >> np.uint64(RANK_BIT)).astype(np.int64)
        places = addresses & np.uint64((1 << RANK_BIT) - 1)
        for rank in np.unique(ranks).tolist():
            chosen = np.flatnonzero(ranks == rank)
            yield self._member(cta, rank - 1), chosen, places[chosen]

    def _member(self, cta: Program, rank: int) -> Program:
        """The program of a rank, which must be running.

        Raises:
            ExecutionError: there is none, it has not begun, or it has ended.
        """
        if rank < 0:
            return cta
        if rank >= len(self.members):
            raise ExecutionError(
                f"xray: a program of the cluster must have a rank below {len(self.members)}, got {rank}"
            )
        found = self.members[rank]
        if not found.begun or found.gone.all():
            raise ExecutionError(
                "xray: a program must run while others reach into its shared memory, got one that has "
                f"{'ended' if found.begun else 'not begun'}: the program of rank {rank}"
            )
        return found

    def arrive(self, cta: Program, threads: Array) -> None:
        """Threads of a program come to the barrier, and go on until they wait there."""
        if (cta.arrived[threads] != cta.waited[threads]).any():
            raise ExecutionError(
                "xray: a thread must wait at its cluster's barrier before it arrives again, got two arrivals"
            )
        cta.events += 1
        cta.arrived[threads] += 1

    def wait(self, cta: Program, threads: Array) -> None:
        """Threads of a program wait for all others; they have arrived."""
        if (cta.arrived[threads] == cta.waited[threads]).any():
            raise ExecutionError(
                "xray: a thread must arrive at its cluster's barrier before it waits there, got none"
            )
        cta.waited[threads] += 1

    def complete(self, time: int) -> bool:
        """Whether all threads that have not ended have come to the barrier for the `time`-th time."""
        return all((m.gone | (m.arrived >= time)).all() for m in self.members)


class Distributed:
    """The shared memory of a whole cluster, as one of its programs sees it. Speaks as `Memory` does."""

    def __init__(self, cta: Member) -> None:
        self._cta = cta

    def load(self, addresses: Array, dtype: np.dtype[Any], count: int, instruction: int) -> Array:
        """[count, addresses]: neighbours at aligned addresses."""
        result = np.zeros((count, len(addresses)), dtype)
        for member, chosen, places in self._cta.cluster.parts(self._cta, addresses):
            result[:, chosen] = member.shared.load(places, dtype, count, instruction)
        return result

    def store(self, addresses: Array, values: Array, instruction: int) -> None:
        """Values [count, addresses] to neighbours at aligned addresses."""
        for member, chosen, places in self._cta.cluster.parts(self._cta, addresses):
            member.shared.store(places, values[:, chosen], instruction)

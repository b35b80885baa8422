"""Whether a program goes round in a loop that it can never leave."""

from __future__ import annotations

from dataclasses import dataclass

from tilefold.xray.machine.cta import Cta
from tilefold.xray.machine.types import Array


@dataclass
class Watch:
    """Finds a program that comes back to a state it was in: it will never end. The state is kept at doubling counts (Brent's
    algorithm), first after `due` blocks."""

    due: int
    _seen: tuple[object, ...] | None = None
    _registers: tuple[Array, ...] = ()

    def repeats(self, count: int, cta: Cta, place: Array, waits: Array) -> bool:
        """Whether threads stand where they stood at the last mark, with the same registers and memory."""
        if count < self.due and self._seen is None:
            return False
        state = (cta.changes, place.tobytes(), waits.tobytes(), cta.stalled.tobytes(), cta.carry.tobytes())
        if count >= self.due:
            self.due, self._seen, self._registers = 2 * self.due, state, tuple(cta.registers)
            return False
        return state == self._seen and all(
            a is b or a.tobytes() == b.tobytes() for a, b in zip(self._registers, cta.registers, strict=True)
        )

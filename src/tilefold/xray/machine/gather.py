"""Instructions that lanes of a warp execute together: who has to be there before any of them goes on.

PTX: an executing thread waits until all threads of the member mask that have not exited have executed the instruction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilefold.xray.machine.binding import Binder, Read
from tilefold.xray.machine.types import TYPES, Array
from tilefold.xray.ptx.syntax import Instruction, Register

if TYPE_CHECKING:
    from tilefold.xray.machine.cta import Cta

WARP, GROUP = 32, 128
_MASKED = ("shfl", "vote", "redux", "match", "elect")  # their last operand is the member mask
_ALIGNED = ("ldmatrix", "stmatrix", "mma")


@dataclass(frozen=True)
class Gather:
    """Lanes that execute the instruction `number` together: `members` reads the mask of each lane, None where all have to
    come.

    `width` neighbouring threads, 32 or (a warp group) 128. Lanes whose `guard` is false are not asked for.
    """

    number: int
    guard: Read | None
    members: Read | None
    width: int

    def complete(self, cta: Cta, here: Array, gone: Array) -> Array:
        """Those of the threads `here` for which all others have come or have exited."""
        asked = here if self.guard is None else here & self.guard(cta)
        present = asked | gone
        if self.members is None:
            complete = np.repeat(present.reshape(-1, self.width).all(1), self.width)
        else:
            complete = (self.members(cta) & ~ballot(present)) == 0
        ready: Array = here & (complete | ~asked)
        return ready


def gather_of(binder: Binder, instruction: Instruction, number: int) -> Gather | None:
    """The lanes that an instruction asks for; None if each lane is on its own."""
    place = -1 if instruction.opcode in _MASKED else 0 if instruction.name.startswith("bar.warp") else None
    aligned = instruction.opcode in _ALIGNED or instruction.name.startswith("wgmma.mma")
    aligned |= instruction.name.startswith("barrier.cluster.arrive") and instruction.has("aligned")
    if place is None and not aligned:
        return None
    guard = instruction.guard
    read = None if guard is None else binder.read(Register(guard.register, guard.negated), TYPES["pred"])
    members = None if place is None else binder.read(instruction.operands[place], TYPES["u32"])
    return Gather(number, read, members, GROUP if instruction.opcode == "wgmma" else WARP)


def ballot(votes: Array) -> Array:
    """The votes of each warp as a word, for each of its lanes."""
    words = (votes.reshape(-1, WARP).astype(np.uint32) << np.arange(WARP, dtype=np.uint32)).sum(
        1, dtype=np.uint32
    )
    return np.repeat(words, WARP)

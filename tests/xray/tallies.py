"""What each instruction of a kernel did and cost over the programs executed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilefold.xray.machine.counts import GlobalCost, SharedCost, global_cost, shared_cost
from tilefold.xray.machine.kernel import Kernel
from tilefold.xray.machine.log import Outcome
from tilefold.xray.ptx.syntax import Instruction


@dataclass(frozen=True)
class Tally:
    """One instruction, and sums over programs: `warps` issued it, for `lanes` that acted."""

    instruction: Instruction
    warps: int
    lanes: int
    global_cost: GlobalCost
    shared_cost: SharedCost

    @property
    def opcode(self) -> str:
        return self.instruction.opcode


def tally(kernel: Kernel, outcomes: Iterable[Outcome]) -> tuple[Tally, ...]:
    """A tally of every instruction, executed or not, in the kernel's order."""
    outcomes = tuple(outcomes)

    def tallied(number: int, instruction: Instruction) -> Tally:
        accesses = [a for o in outcomes for a in o.accesses if a.instruction == number]
        warps, lanes = (sum(int(getattr(o, n)[number]) for o in outcomes) for n in ("warps", "lanes"))
        return Tally(instruction, warps, lanes, global_cost(accesses), shared_cost(accesses))

    return tuple(tallied(n, i) for n, i in enumerate(kernel.entry.instructions))

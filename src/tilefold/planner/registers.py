"""How many elements a thread takes, so that registers hold the values computed of them."""

from __future__ import annotations

import math

from tilefold.algebra.program import Program
from tilefold.planner.plan import Stage
from tilefold.planner.sizes import WARP, power_above

# From here on, a second launch takes fewer states at a time (docs/experiments/folds.md#launches).
HEAVY_FIELDS = 3
# From here on, states fill a thread's registers: it takes few elements and partial states at a time (not measured: so nothing
# spills).
MANY_FIELDS = 5
# 32-bit words of states from which on a thread takes no more elements than registers surely hold: so many of a block and of
# all blocks that an SM's threads absorb, and of others as many as are so many words of states (not measured: so nothing
# spills).
LARGE_STATE, LARGE_ABSORBING = 4, 5
ABSORBED, SM_ABSORBED, LIFTED_WORDS = 32, 4096, 96


def fields_of(program: Program) -> int:
    """A state's fields, as rules count them: without the magnitude beside sums in units of it, which a block finds once."""
    quick = program.algebra.quick
    return len(program.state if quick is None else quick.algebra.fields)


def state_words(program: Program, fields: int = 0) -> int:
    """32-bit words of one state, or of so many fields at its end (0: of all)."""
    return sum(2 if dtype.itemsize == 8 else 1 for dtype in program.state[-fields:])


def within_registers(stage: Stage, program: Program) -> Stage:
    """The stage with fewer elements a thread where states are so large that registers might not hold what is made of them."""
    # A unit is a state's first field.
    words = state_words(program, fields_of(program) if stage.absorb else 0)
    if stage.ordered or stage.gathered or words < (LARGE_ABSORBING if stage.absorb else LARGE_STATE):
        return stage
    threads = stage.num_warps * WARP
    elements = stage.block_outputs * stage.step // threads
    most = min(ABSORBED, SM_ABSORBED // threads) if stage.absorb else max(1, LIFTED_WORDS // words)
    if stage.prefetch and 2 * elements > most:
        stage = stage.but(prefetch=False)
    fewer = power_above(math.ceil(elements / most))
    return stage if fewer == 1 else stage.but(unroll=max(1, stage.unroll // fewer))

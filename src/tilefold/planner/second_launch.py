"""Which tile folds partial states in a second launch: a program's results, lanes and warps."""

from __future__ import annotations

import torch

from tilefold.algebra.program import Program
from tilefold.planner.in_order import partials_in_order
from tilefold.planner.plan import Stage
from tilefold.planner.registers import HEAVY_FIELDS, MANY_FIELDS, fields_of
from tilefold.planner.sizes import SMALL_AXIS, WARP, power_above


def _words_beside(dtype: torch.dtype) -> int:
    """Registers for a field of a state, and beside it as many again where pairs of them are computed with."""
    return 4 if dtype.itemsize == 8 else 1


def second_launch(outputs: int, splits: int, program: Program) -> Stage:
    """All splits of some results in one tile where they fit: the stage is a matter of latency."""
    if not program.algebra.commutative:
        return partials_in_order(outputs, splits, sum(_words_beside(dtype) for dtype in program.state))
    heavy = fields_of(program) >= HEAVY_FIELDS
    lanes = max(1, min(1024, power_above(splits) // (2 if heavy else 1)))
    few = 1 if outputs <= SMALL_AXIS else 4
    together = (
        32 if splits <= 8 else 16 if splits <= 64 else 8 if splits <= 128 else few if splits > 256 else 4
    )
    together = min(
        together if fields_of(program) < MANY_FIELDS else max(1, together // 4), power_above(outputs)
    )
    warps = max(2, min(8, together * lanes // (WARP * (1 if heavy else 8))))
    if together * lanes >= 4 * WARP:  # a state for each thread (docs/experiments/folds.md#launches)
        warps = max(4, warps)
    return Stage("partials", together, lanes, 1, 1, 1, warps, evict_first=False)

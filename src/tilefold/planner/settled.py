"""What follows from a tile once its sizes are chosen: whether a lane's elements stay in one thread, and in what order."""

from __future__ import annotations

import math

import torch

from tilefold.algebra.program import Program
from tilefold.planner.in_order import partials_in_order
from tilefold.planner.plan import Stage
from tilefold.planner.view import EVICT_FIRST_BELOW, SMALL_AXIS, WARP, View, power_above
from tilefold.problem.canonical import Problem

# Bytes of a line: where a warp's load takes less of it, the rest is read by later ones
# (docs/experiments/folds.md#ordered).
REREAD_BELOW = 64
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


def settled(stage: Stage, view: View, program: Program) -> Stage:
    """The stage with `absorb`, `in_order` and `prefetch` as its tile allows them. Ordered stages are complete as they are."""
    if stage.ordered:
        return stage
    if stage.gathered:  # a thread has whole rows
        return stage.but(absorb=program.absorb is not None, in_order=True)
    together = stage.block_outputs * stage.lanes
    # Triton gives a thread neighbours along the contiguous axis: the run, or else lanes or results.
    neighbours = 1 if view.by_rows and (stage.run >= view.vector or stage.align > 1) else view.vector
    in_order = together >= stage.num_warps * WARP * neighbours
    in_order = in_order and (not view.by_rows or stage.run * stage.lanes > 1 or stage.unroll == 1)
    prefetch = stage.prefetch and view.length >= 3 * stage.step
    # A block must stay in one thread to be absorbed.
    absorb = program.absorb is not None and in_order
    if (absorb, in_order, prefetch) == (stage.absorb, stage.in_order, stage.prefetch):
        return stage
    return stage.but(absorb=absorb, in_order=in_order, prefetch=prefetch)


def first_stage(stage: Stage, problem: Problem, program: Program) -> Stage:
    """A settled stage as the first launch of this problem: positions in order only where they surely are, and its policy."""
    stage = stage if stage.gathered else in_threads(stage, problem, program)
    in_order = not program.algebra.index or stage.gathered or keeps_positions(problem, stage)
    written = problem.outputs * sum(dtype.itemsize for dtype in program.outputs)
    evict_first = stage.evict_first and problem.bytes_read + written <= EVICT_FIRST_BELOW
    evict_first = evict_first and not (
        stage.ordered and not stage.gathered and _rereads_lines(stage, problem)
    )
    in_order = stage.in_order and in_order
    if (in_order, evict_first) == (stage.in_order, stage.evict_first):
        return stage
    return stage.but(in_order=in_order, evict_first=evict_first)


def _rereads_lines(stage: Stage, problem: Problem) -> bool:
    """Whether an ordered tile's lines must stay in an SM's cache: where a load of a warp takes little of each, the rest is
    read by later ones, and several inputs are more lines.

    Of one input in larger pieces the policy of the L2 is worth more (docs/experiments/folds.md#ordered).
    """
    dtypes = problem.dtypes
    rows = not problem.reduced_dims or max(problem.reduced_dims[-1].strides[: len(dtypes)]) <= 1
    piece = stage.run * stage.lanes if rows else stage.block_outputs
    return (rows and len(dtypes) > 1) or any(piece * dtype.itemsize < REREAD_BELOW for dtype in dtypes)


def in_threads(stage: Stage, problem: Problem, program: Program) -> Stage:
    """The stage without absorbed blocks where a block may be several threads' and its first element is asked for.

    Each thread would take its own for the first one. A block's sum and extremes are the same to all.
    """
    if not stage.absorb or not asks_for_first(program) or keeps_runs(problem, stage):
        return stage
    return stage.but(absorb=False)


def asks_for_first(program: Program) -> bool:
    """Whether a block's first element is asked for where it is absorbed."""
    return program.absorb is not None and any(n.op == "block_first" for n in program.absorb.graph.nodes)


def keeps_positions(problem: Problem, stage: Stage) -> bool:
    """Whether a lane's elements surely stay in one thread, in the order of their positions."""
    return problem.positions_ascend and keeps_runs(problem, stage)


def keeps_runs(problem: Problem, stage: Stage) -> bool:
    """Whether a lane's elements surely stay in one thread.

    Triton shares elements among threads along what it knows to be contiguous: a run that crosses rows is not, and inputs
    that are contiguous in different ways are shared in different ways.
    """
    reduced, inputs = problem.reduced_dims, range(len(problem.dtypes))
    alike = {
        (problem.dtypes[i].itemsize, problem.aligned[i], *(d.strides[i] for d in problem.dims))
        for i in inputs
    }
    whole = len(reduced) < 2 or reduced[-1].size % stage.run == 0
    runs = problem.length == 1 or (whole and any(reduced[-1].strides))
    return len(alike) == 1 and runs


def whole_splits(tiles: int, splits: int) -> int:
    """At most so many splits of whole tiles, none of them without elements."""
    return math.ceil(tiles / math.ceil(tiles / splits)) if tiles else 1


def state_words(program: Program, fields: int = 0) -> int:
    """32-bit words of one state, or of so many fields at its end (0: of all)."""
    return sum(2 if dtype.itemsize == 8 else 1 for dtype in program.state[-fields:])


def _words_beside(dtype: torch.dtype) -> int:
    """Registers for a field of a state, and beside it as many again where pairs of them are computed with."""
    return 4 if dtype.itemsize == 8 else 1


def leaner(stage: Stage, program: Program) -> Stage:
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


def second_stage(outputs: int, splits: int, program: Program) -> Stage:
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

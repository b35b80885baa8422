"""Which tile reads short rows that no vector divides as one run of memory: together such rows are whole vectors.

    x[2563920, 27] bf16, dim 1      rows of 54 bytes: 128 of them are 6912 bytes, 432 vectors
    x[238328, 21, 8] bf16, dim 1    groups of 8 results, a vector each row: a warp's vectors would lie in 32 lines

A program reads the vectors that its rows lie in, and each thread takes its own rows from shared memory. Nothing is read
twice, no load is narrow, and no thread holds places that are masked (docs/experiments/tiles.md#gathered).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilefold.planner.plan import Stage
from tilefold.planner.problem.canonical import Dim, Problem
from tilefold.planner.reading import Reading
from tilefold.planner.rows import has_few_halves
from tilefold.planner.sizes import VECTOR_BYTES, WARP, power_above
from tilefold.planner.stages.gathered import are_one_run, groups_of

# docs/experiments/tiles.md#gathered:
ITEMSIZES = (2, 4)  # of elements that shared memory hands out one by one
GATHERED = (3, 128)  # elements of a result
WIDE_ROW = 128  # bytes: of longer results fewer warps hold enough
GROUP_BYTES = 64  # of results side by side: columns read two sectors of them at once
PROGRAM_BYTES = (2560, 32768)  # of elements that a program reads, at least and at most
MOST_TURNS = 4  # of the banks in which a warp takes its elements
LIGHT_ROW = 16  # words: sums and extremes of such rows on are as fast by vectors from anywhere

NARROW_GROUP = 16  # bytes: a warp's vectors of such groups lie in 32 lines (docs/experiments/folds.md#drawn)
GAP_BYTES = 32  # between rows: less than a sector, by definition, is read with them anyway


def are_turned(outputs: Sequence[Dim]) -> bool:
    """Whether the same result of neighbouring groups lies side by side: of an input whose output dims are permuted."""
    return outputs[0].output == 1 and outputs[1].output == outputs[0].size


def gathers(problem: Problem, reading: Reading, words: int) -> bool:
    """Whether elements are read so: where no vector divides how they lie, or where groups of several results are one vector.

    Groups of several results are walked as one dim. `words` are those of a state: what is folded into one word is light.
    """
    outputs, reduced, places = problem.output_dims, problem.reduced_dims, problem.places[0]
    if (
        len(problem.dtypes) != 1
        or len(reduced) != 1
        or len(outputs) not in (1, 2)
        or problem.ragged
        or places
    ):
        return False
    if any(d.position for d in outputs):
        return False
    if len(outputs) == 2 and (reading.outer > 1 or not (are_one_run(outputs) or are_turned(outputs))):
        return False
    size, groups = problem.dtypes[0].itemsize, groups_of(problem)
    if not GATHERED[0] <= problem.length <= GATHERED[1] or size not in ITEMSIZES:
        return False
    narrow = groups.inner > 1 and groups.inner * size <= NARROW_GROUP
    if (reading.vector >= reading.full_vector or has_few_halves(reading)) and not narrow:
        return False
    if size == 4 and words == 1 and groups.inner == 1 and problem.length >= LIGHT_ROW:
        return False
    beside = groups.folded == groups.inner and (groups.inner == 1 or outputs[-1].strides[0] == 1)
    gap = groups.between - groups.extent(1)
    if not beside or not 0 <= gap * size < GAP_BYTES or groups.inner * size > GROUP_BYTES:
        return False
    few = gathered_stage(problem, False).block_outputs * problem.length * size <= PROGRAM_BYTES[1]
    return few and groups.bank_turns(size) <= MOST_TURNS


def gathered_stage(problem: Problem, ordered: bool, warps: int = 0) -> Stage:
    """A program of a result a thread, or of several where they are very short. Never of one warp: Triton would have its lanes
    exchange elements by shuffles, hundreds of them."""
    groups, size = groups_of(problem), problem.dtypes[0].itemsize
    warps = warps or (2 if groups.length * size > WIDE_ROW else 4)
    each = power_above(math.ceil(PROGRAM_BYTES[0] / (warps * WARP * groups.length * size)))
    whole = VECTOR_BYTES // math.gcd(VECTOR_BYTES, groups.between * size)
    unit = whole * groups.inner
    while each * warps * WARP % unit > each * warps * WARP // 4 or each * warps * WARP < unit:
        each *= 2  # else more than a quarter of the threads would own nothing
    owned = each * warps * WARP // unit * unit
    run = power_above(groups.length)
    return Stage(
        "gathered", owned, 1, run, 1, 1, warps, ordered=ordered, in_order=not ordered, gathered=True,
        flat=groups.inner > 1,
    )  # fmt: skip

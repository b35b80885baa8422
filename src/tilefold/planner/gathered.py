"""Short rows that no vector divides, read as one run of memory: rows side by side are whole vectors together.

    x[2563920, 27] bf16, dim 1   rows of 54 bytes: 128 of them are 6912 bytes, 432 vectors

A program reads the vectors that its rows lie in, and each thread takes its own rows from shared memory. Nothing is read
twice, no load is narrow, and no thread holds places that are masked (docs/experiments/gathered-rows.md).
"""

from __future__ import annotations

import math
from collections import Counter

from tilefold.planner.plan import Stage
from tilefold.planner.view import VECTOR_BYTES, WARP, View, power_above
from tilefold.problem import Problem

ITEMSIZES = (2, 4)  # of elements that shared memory hands out one by one
GATHERED = (3, 128)  # elements of a row
ROW_BYTES = 256  # of a row at most
PROGRAM_BYTES = 2560  # of rows that a program reads at least
MOST_TURNS = (
    2  # of the banks in which a warp takes its elements: with four, threads that share rows were faster
)
GAP_BYTES = 32  # between rows: less than a sector is read with them anyway


def between(problem: Problem) -> int:
    """Elements from the begin of a row to that of the next."""
    return problem.output_dims[-1].strides[0]


def span_of(step: int, residue: int, itemsize: int, length: int, rows: int) -> int:
    """Elements that so many rows lie in, from the vector in which the first begins: the power of two above."""
    return power_above(residue % VECTOR_BYTES // itemsize + (rows - 1) * step + length)


def bank_turns(step: int, itemsize: int) -> int:
    """Turns of 32 banks of words in which a warp loads an element each, `step` elements apart."""
    words = {lane * step * itemsize // 4 for lane in range(WARP)}
    return max(Counter(word % 32 for word in words).values())


def gathers(problem: Problem, view: View) -> bool:
    """Whether rows may be read so, and no vector divides them."""
    outputs, reduced = problem.output_dims, problem.reduced_dims
    if (
        len(problem.dtypes) != 1
        or len(outputs) != 1
        or len(reduced) != 1
        or problem.ragged
        or problem.places[0]
    ):
        return False
    size, step = problem.dtypes[0].itemsize, outputs[0].strides[0]
    short = GATHERED[0] <= problem.length <= GATHERED[1] and problem.length * size <= ROW_BYTES
    beside = reduced[0].strides[0] == 1 and 0 <= (step - problem.length) * size < GAP_BYTES
    narrow = size in ITEMSIZES and view.vector < view.full_vector
    return short and beside and narrow and outputs[0].position == 0 and bank_turns(step, size) <= MOST_TURNS


def gathered_stage(view: View, ordered: bool, warps: int = 4) -> Stage:
    """A program of a row a thread, or of several where rows are very short. Never of one warp: Triton would have its lanes
    exchange elements by shuffles, hundreds of them."""
    run = power_above(view.length)
    rows = power_above(math.ceil(PROGRAM_BYTES / (warps * WARP * view.length * view.element)))
    return Stage(
        "gathered",
        rows * warps * WARP,
        1,
        run,
        1,
        1,
        warps,
        ordered=ordered,
        in_order=not ordered,
        gathered=True,
    )

"""Short rows that no vector divides, read as one run of memory: rows side by side are whole vectors together.

    x[2563920, 27] bf16, dim 1   rows of 54 bytes: 128 of them are 6912 bytes, 432 vectors

A program reads the vectors that its rows lie in, and each thread takes its own rows from shared memory. Nothing is read
twice, no load is narrow, and no thread holds places that are masked (docs/experiments/gathered-rows.md).
"""

from __future__ import annotations

from tilefold.planner.plan import Stage
from tilefold.planner.view import VECTOR_BYTES, WARP, View, power_above
from tilefold.problem import Problem

ITEMSIZES = (2, 4)  # of elements that shared memory hands out one by one
GATHERED = (3, 128)  # elements of a row
ROW_BYTES = 256  # of a row at most
GAP_BYTES = 32  # between rows: less than a sector is read with them anyway


def between(problem: Problem) -> int:
    """Elements from the begin of a row to that of the next."""
    return problem.output_dims[-1].strides[0]


def span_of(step: int, residue: int, itemsize: int, length: int, rows: int) -> int:
    """Elements that so many rows lie in, from the vector in which the first begins: the power of two above."""
    return power_above(residue % VECTOR_BYTES // itemsize + (rows - 1) * step + length)


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
    return (
        short and beside and size in ITEMSIZES and view.vector < view.full_vector and outputs[0].position == 0
    )


def gathered_stage(view: View, ordered: bool, warps: int = 4, rows: int = 1) -> Stage:
    """A program of `rows` rows a thread."""
    run = power_above(view.length)
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

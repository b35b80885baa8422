"""Which reduced dims a fold's first launch may keep apart: choices that leave few states and change how memory is read.

`form_choice` takes one of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from tilefold.algebra.program import Program
from tilefold.planner.folds import partial_dtypes
from tilefold.planner.kept_dims import first_problem
from tilefold.planner.plan import KeptDims
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.reading import reading_of
from tilefold.planner.sizes import VECTOR_BYTES, power_above

# docs/experiments/folds.md#apart:
INPUT_BYTES = 4  # of input for each byte of states, at least: they are written and read once more
WIDE_ROW = 2048  # bytes of columns side by side: as many as several warps read at once

# Not measured: how many choices there are.
MOST_DIMS = 3  # reduced dims of which every choice is one


def dims_to_keep(problem: Problem, program: Program) -> Iterator[KeptDims]:
    """The choices of reduced dims, and of neighbours of one, that a first launch may keep apart."""
    inputs = len(problem.dtypes)
    if not problem.reduced_dims or any(s <= 0 for d in problem.dims for s in d.strides[:inputs]):
        return
    seen = {problem.dims}
    for kept_dims in _tried(problem, program):
        first = first_problem(problem, kept_dims, program.algebra.index)
        if first.dims not in seen and _leaves_few(problem, first, program) and _helps(problem, first):
            seen.add(first.dims)
            yield kept_dims


def _tried(problem: Problem, program: Program) -> Iterator[KeptDims]:
    """All choices: in the elements' order only the outermost dims may be folded last."""
    reduced = len(problem.reduced_dims)
    if len(problem.output_dims) > 1:
        yield KeptDims()
    if not program.algebra.commutative:
        # Beyond the results in memory, so that the second launch reads results side by side: of others nothing was timed.
        farthest = max((d.strides[0] for d in problem.output_dims), default=0)
        beyond = [d.strides[0] >= farthest for d in problem.reduced_dims]
        yield from (KeptDims(tuple(range(n))) for n in range(1, reduced) if all(beyond[:n]))
        return
    most = reduced if reduced <= MOST_DIMS else 1
    for n in range(most):
        for dims in itertools.combinations(range(reduced), n):
            yield from [KeptDims(dims)] * (n > 0)
            yield from (KeptDims(dims, together) for together in _together(problem, dims))


def _together(problem: Problem, dims: tuple[int, ...]) -> Iterator[int]:
    """How many neighbours of the innermost dim left make vectors whole, or rows wide; or loads of two elements, which leave
    fewer states."""
    if len(problem.dtypes) > 1:
        return
    dim = [d for n, d in enumerate(problem.reduced_dims) if n not in dims][-1]
    if dim.strides[0] == 1:
        return
    row = dim.strides[0] * problem.dtypes[0].itemsize
    whole = VECTOR_BYTES // math.gcd(VECTOR_BYTES, row)
    for n in dict.fromkeys((whole, max(whole, power_above(-(-WIDE_ROW // row))), 2)):
        if 1 < n <= dim.size:
            yield n


def _leaves_few(problem: Problem, first: Problem, program: Program) -> bool:
    """Whether there are few states, and a last row is cut where results are."""
    if not first.reduced_dims or not first.output_dims:
        return False
    last, rows = first.output_dims[-1], first.reduced_dims[-1]
    one_run = len(first.reduced_dims) == 1 and last.strides[0] == 1 and last.size == rows.strides[0]
    if first.ragged and not one_run:
        return False
    state = sum(dtype.itemsize for dtype in partial_dtypes(program))
    return first.outputs * state * INPUT_BYTES <= problem.bytes_read


def _helps(problem: Problem, first: Problem) -> bool:
    """Whether the first launch has wider vectors, fewer dims to take apart, or wider rows of results."""
    old, new = reading_of(problem), reading_of(first)
    if new.vector < old.vector:
        return False
    narrow = old.by_rows or old.inner * old.element < WIDE_ROW
    return (
        new.vector > old.vector
        or len(first.reduced_dims) < len(problem.reduced_dims)
        or (new.aligns and not old.aligns)
        or (narrow and not new.by_rows and new.inner > old.inner)
    )

"""Along which axis a problem is read, and in what vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from tilefold.planner.problem.canonical import Dim, Problem
from tilefold.planner.sizes import BLOCKS, LARGE, LINE_BYTES, LOADS, ONE_LAUNCH_BYTES, VECTOR_BYTES, run_of


@dataclass(frozen=True)
class Reading:
    """A problem as the choice sees it: row-wise or column-wise, how much it reads and in what vectors.

    `piece`: elements of a result side by side, where it has several pieces.
    """

    by_rows: bool
    inner: int
    outer: int
    length: int
    bytes: int
    vector: int
    full_vector: int
    aligns: bool = False
    lines: bool = True
    operands: int = 1
    piece: int = 0

    @property
    def loads(self) -> int:
        """Loads a thread keeps in flight: more where strides or addresses make them narrow."""
        return LOADS * min(4, self.full_vector // self.vector)

    @property
    def few(self) -> bool:
        """Whether results are too few to fill the chip one program each."""
        return self.inner * self.outer < 4 * BLOCKS and self.length * self.element > ONE_LAUNCH_BYTES

    @property
    def element(self) -> int:
        """Bytes of the widest element."""
        return VECTOR_BYTES // self.full_vector


def reading_of(problem: Problem) -> Reading:
    """Which axis is read along, after the input that is most of the bytes, and in what vectors."""
    main = max(range(len(problem.dtypes)), key=lambda i: _weight(problem, i))
    reduced_step = problem.reduced_dims[-1].strides[main] if problem.reduced_dims else 0
    last = problem.output_dims[-1] if problem.output_dims else None
    output_step = last.strides[main] if last else 0
    by_rows = last is None or reduced_step == 1 or (output_step != 1 and reduced_step <= output_step)
    return Reading(
        by_rows=by_rows,
        inner=last.size if last else 1,
        outer=math.prod(d.size for d in problem.output_dims[:-1]),
        length=problem.length,
        bytes=problem.bytes_read,
        vector=_common_vector(problem, by_rows),
        full_vector=_full_vector(problem),
        aligns=by_rows and _starts_together(problem),
        operands=len(problem.dtypes),
        piece=problem.reduced_dims[-1].size if len(problem.reduced_dims) > 1 else 0,
        lines=all(reduced_step * dtype.itemsize % LINE_BYTES == 0 for dtype in problem.dtypes),
    )


def _starts_together(problem: Problem) -> bool:
    """Whether every input's rows begin at the same place between two multiples of a vector, and rows are one run."""
    layouts = {
        (dtype.itemsize, residue, *(d.strides[i] for d in problem.output_dims))
        for i, (dtype, residue) in enumerate(zip(problem.dtypes, problem.residues, strict=False))
    }
    return (
        len(layouts) == 1 and len(problem.reduced_dims) == 1 and set(problem.reduced_dims[0].strides) == {1}
    )


def alone(reading: Reading, problem: Problem) -> Reading:
    """The reading of one result among unknown others: nothing in it depends on how many there are.

    Where results would be neighbours, one of them alone is a column too, though its elements are neighbours then.
    """
    steps = {s for d in problem.output_dims for s in d.strides} - {0}
    by_rows = steps != {1} and (
        not problem.reduced_dims or all(s in (0, 1) for s in problem.reduced_dims[-1].strides)
    )
    vector = _common_vector(problem, by_rows) if by_rows else reading.full_vector
    return replace(
        reading,
        by_rows=by_rows,
        inner=1 << 20,
        outer=1,
        bytes=LARGE,
        vector=vector,
        aligns=False,
        lines=True,
        piece=0,
    )


def _weight(problem: Problem, operand: int) -> int:
    """How many bytes an input is: the largest decides the layout."""
    dims = problem.dims
    return problem.dtypes[operand].itemsize * math.prod(d.size for d in dims if d.strides[operand])


def _full_vector(problem: Problem) -> int:
    """How many of the widest elements are a whole vector."""
    return max(1, VECTOR_BYTES // max(dtype.itemsize for dtype in problem.dtypes))


def _common_vector(problem: Problem, by_rows: bool) -> int:
    """How many neighbours a thread may load at once of every input that is read along the run."""
    vectors = [_vector(problem, i, by_rows) for i in range(len(problem.dtypes))]
    return min(_full_vector(problem), min((v for v in vectors if v), default=1))


def _vector(problem: Problem, operand: int, by_rows: bool) -> int:
    """How many neighbours of one input a thread may load at once; 0 for one that is not read along the run."""
    steps = [(d, d.strides[operand]) for d in problem.dims]
    return _vector_along(problem, steps, by_rows, problem.dtypes[operand].itemsize, problem.aligned[operand])


def widest_vector(problem: Problem, results: Sequence[torch.dtype], by_rows: bool) -> int:
    """How many neighbours a thread may have at most of any operand or result, along the axis that is read along."""
    vectors = [_vector(problem, i, by_rows) for i in range(len(problem.dtypes))]
    steps = [(d, d.output) for d in problem.dims]
    vectors += [_vector_along(problem, steps, by_rows, d.itemsize, VECTOR_BYTES) for d in results]
    return max(1, *vectors)


def _vector_along(
    problem: Problem, steps: Sequence[tuple[Dim, int]], by_rows: bool, size: int, aligned: int
) -> int:
    """The same of elements of `size` bytes with these steps and an address that is a multiple of `aligned`."""
    run_dims = problem.reduced_dims if by_rows else problem.output_dims
    own = next((step for d, step in steps if run_dims and d is run_dims[-1]), 0)
    if own != 1:
        return min(own, 1)
    return run_of(size, aligned, [step for d, step in steps if d is not run_dims[-1]])

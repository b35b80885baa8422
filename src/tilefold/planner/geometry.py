"""A problem's memory as a launch sees it: sizes and steps by the part that each dim has, and the sectors that it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from tilefold.planner.problem.canonical import Problem, merged
from tilefold.planner.sizes import SECTOR

Steps = tuple[int, ...]


@dataclass(frozen=True)
class Operand:
    """How one input lies in memory. Steps are in elements, `residue` and `aligned` in bytes.

    `outer` are the steps of the output dims but the last, `along` that of the last one; `deep` those of the reduced dims but
    the innermost, `inner` that of the innermost. `aligned` is the largest power of two up to 16 that divides the address,
    `residue` the address modulo 16 (modulo 32 where it is known: whether a vector lies in the first or the second half of a
    sector).
    """

    itemsize: int
    aligned: int
    residue: int
    outer: Steps
    along: int
    deep: Steps
    inner: int

    @cached_property
    def divides(self) -> int:
        """Bytes that divide the address and the steps along all dims but the last output dim and the innermost one."""
        return math.gcd(self.aligned, *(s * self.itemsize for s in (*self.outer, *self.deep)))


@dataclass(frozen=True)
class Geometry:
    """Sizes of a problem, by the part each dim has in a launch, and its operands.

    A program's results are neighbours along the last output dim, of `width` results; `outer` are the other output dims.
    A result's `length` elements are walked along `inner`, of the reduced dims, after `deep`; `ragged` is the problem's. Where
    a program's results are neighbours along all output dims as one (`Stage.flat`), `flat` has these dims' sizes, `width` is
    their product and `outer` is empty; operands keep a step for each.
    """

    outer: Steps
    width: int
    deep: Steps
    inner: int
    operands: tuple[Operand, ...]
    ragged: int = 0
    flat: Steps = ()

    @cached_property
    def length(self) -> int:
        """How many elements are combined into one result."""
        return math.prod(self.deep) * self.inner

    @cached_property
    def rows(self) -> int:
        """How many times the last output dim is walked."""
        return math.prod(self.outer)

    @cached_property
    def outputs(self) -> int:
        """How many results there are."""
        return self.rows * self.width

    @cached_property
    def close_groups(self) -> bool:
        """Whether results are walked over groups of columns of less than a sector, each row of a group at most a sector
        behind the one before it, and one group behind another."""
        if len(self.flat) < 2 or self.deep or len(self.operands) != 1:
            return False
        (one,), group = self.operands, self.flat[-1]
        behind = all(step >= self.inner * one.inner for step in one.outer)
        narrow = group * one.itemsize < SECTOR and group <= one.inner and one.inner * one.itemsize <= SECTOR
        return one.along == 1 and narrow and behind


def geometry_of(problem: Problem) -> Geometry:
    """The geometry of a canonical problem."""
    inputs = range(len(problem.dtypes))
    outer, last = problem.output_dims[:-1], problem.output_dims[-1:]
    deep, inner = problem.reduced_dims[:-1], problem.reduced_dims[-1:]
    residues = problem.residues or (0,) * len(inputs)
    return Geometry(
        outer=tuple(d.size for d in outer),
        width=math.prod(d.size for d in last),
        deep=tuple(d.size for d in deep),
        inner=math.prod(d.size for d in inner),
        operands=tuple(
            Operand(
                itemsize=problem.dtypes[i].itemsize,
                aligned=problem.aligned[i],
                residue=residues[i],
                outer=tuple(d.strides[i] for d in outer),
                along=sum(d.strides[i] for d in last),
                deep=tuple(d.strides[i] for d in deep),
                inner=sum(d.strides[i] for d in inner),
            )
            for i in inputs
        ),
        ragged=problem.ragged,
    )


def without_positions(problem: Problem) -> Problem:
    """The problem for a monoid that sees no positions: reduced dims that only these kept apart are one.

    Where dims merge, positions are row-major in the order in which the dims are walked.
    """
    dims = problem.reduced_dims
    whole = merged([replace(d, position=0) for d in dims])
    if len(whole) == len(dims):
        return problem
    walked, step = [], 1
    for dim in reversed(whole):
        walked.append(replace(dim, position=step))
        step *= dim.size
    return replace(problem, dims=(*problem.output_dims, *reversed(walked)))


def flattened(geometry: Geometry) -> Geometry:
    """The same problem with results that are neighbours along all output dims as one."""
    sizes = (*geometry.outer, geometry.width)
    return replace(geometry, outer=(), width=geometry.outputs, flat=sizes)


def unique_sectors(geometry: Geometry) -> int:
    """32-byte sectors that hold an element of some input, each counted once: what memory must deliver at least.

    Exact where no two of the strides overlap and only the innermost gap is less than a sector; else an upper bound.
    """
    return sum(_sectors_of(geometry, operand) for operand in geometry.operands)


def _sectors_of(geometry: Geometry, operand: Operand) -> int:
    """Runs end to end are joined to extents; these are counted by where in a sector they begin."""
    sizes = (*(geometry.flat or (*geometry.outer, geometry.width)), *geometry.deep, geometry.inner)
    steps = (*operand.outer, operand.along, *operand.deep, operand.inner)
    dims = sorted((abs(s) * operand.itemsize, n) for s, n in zip(steps, sizes, strict=True) if s and n > 1)
    extent = operand.itemsize
    while dims and dims[0][0] <= extent:
        step, size = dims.pop(0)
        extent += (size - 1) * step
    dims = _joined(dims)
    begins = {operand.residue % SECTOR: 1}
    for step, size in dims[1:]:
        begins = _moved(begins, step, size)
    step, size = dims[0] if dims else (0, 1)
    touched = sum(n * ((place + extent - 1) // SECTOR + 1) for place, n in _moved(begins, step, size).items())
    shared = sum(
        n
        for place, n in _moved(begins, step, size - 1).items()
        if (place + step) // SECTOR == (place + extent - 1) // SECTOR
    )
    return touched - shared


def _joined(dims: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Steps and sizes, from the nearest on, where one step walks on behind the last of another one's."""
    found: list[tuple[int, int]] = []
    for step, size in dims:
        if found and step == found[-1][0] * found[-1][1]:
            size *= found[-1][1]
            step = found.pop()[0]
        found.append((step, size))
    return found


def _moved(begins: dict[int, int], step: int, size: int) -> dict[int, int]:
    """How many extents begin at each place of a sector, once each has `size` copies `step` bytes apart."""
    period = SECTOR // math.gcd(step, SECTOR)
    found: dict[int, int] = {}
    for k in range(min(period, size)):
        times = (size - 1 - k) // period + 1
        for place, n in begins.items():
            at = (place + k * step) % SECTOR
            found[at] = found.get(at, 0) + n * times
    return found

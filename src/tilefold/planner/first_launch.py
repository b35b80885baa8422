"""Which problem a fold's first launch works on, and in which orders it may take its results.

A first launch takes its results along the last output dim. Or along all output dims as one (`flat`), where the last is so
short that a program would own few elements. Or from the vector before the first result (`shift`), where rows of results begin
alike between two vectors: columns behind a few elements, or of a slice.

    x[4824, 168, 24, 5], dim 3, sliced   810,432 times 24 rows of 10 bytes: a program owns rows across the output dims
    x[7, 23, 93, 192], dim 1, offset 2   columns that begin 2 elements after a vector: 6 results more, whole vectors

`form_choice` says which of them is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from tilefold.algebra.program import Program
from tilefold.planner.folds import NARROW, narrowed, partial_dtypes
from tilefold.planner.geometry import Geometry, flattened, geometry_of
from tilefold.planner.kept_dims import first_problem, states_count
from tilefold.planner.plan import KeptDims, Stage
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.reading import Reading, reading_of
from tilefold.planner.second_launch import second_launch
from tilefold.planner.sizes import VECTOR_BYTES

# Not measured: where other orders are looked for.
ROWS_BYTES = 16384  # of rows along the last output dim: from here on they are work for programs of their own
COLUMNS_BYTES = 512  # of columns side by side: from here on a warp reads them in whole lines
LONG_ROW = 256  # vectors: from here on a program owns one row


@dataclass(frozen=True)
class FirstLaunch:
    """The work of a fold's first launch: `problem`, made of the `whole` one where `kept_dims` are kept apart.

    `flat`: results are taken along all output dims as one. `shift`: from so many elements before the first.
    """

    whole: Problem
    problem: Problem
    program: Program
    kept_dims: KeptDims | None
    flat: bool = False
    shift: int = 0

    @classmethod
    def keeping(cls, whole: Problem, program: Program, kept_dims: KeptDims | None) -> FirstLaunch:
        """The first launch that keeps these dims apart."""
        problem = whole if kept_dims is None else first_problem(whole, kept_dims, program.algebra.index)
        return cls(whole, problem, program, kept_dims)

    @classmethod
    def of(cls, whole: Problem, program: Program, stage: Stage) -> FirstLaunch:
        """What this first launch works on."""
        found = cls.keeping(whole, program, stage.kept_dims)
        if stage.shift:
            return found.shifted(stage.shift)
        return replace(found, flat=stage.flat)

    def shifted(self, shift: int) -> FirstLaunch:
        """The same from so many elements before the first result: with more results."""
        return replace(self, problem=_from_before(self.problem, shift), shift=shift)

    def orders(self) -> Iterator[FirstLaunch]:
        """The same with its results in other orders."""
        if can_be_flat(self.problem):
            yield replace(self, flat=True)
        shift = shift_of(self.problem)
        if shift:
            yield self.shifted(shift)

    @cached_property
    def reading(self) -> Reading:
        """Along which axis it is read, and in what vectors."""
        reading = reading_of(self.problem)
        if not self.flat:
            return reading
        vector = reading.vector if reading.by_rows else math.gcd(reading.inner, reading.vector)
        return replace(reading, inner=reading.inner * reading.outer, outer=1, vector=vector)

    @cached_property
    def geometry(self) -> Geometry:
        """Its memory."""
        geometry = geometry_of(self.problem)
        return flattened(geometry) if self.flat else geometry

    def stage(self, stage: Stage) -> Stage:
        """A tile as this first launch."""
        return stage.but(kept_dims=self.kept_dims, flat=self.flat, shift=self.shift)

    @cached_property
    def _seconds(self) -> dict[int, Stage]:
        return {}

    def second(self, splits: int) -> Stage:
        """The second launch."""
        found = self._seconds.get(splits)
        if found is None:
            states = splits * states_count(self.whole, self.kept_dims) // self.whole.outputs
            found = self._seconds[splits] = second_launch(self.whole.outputs, states, self.program)
        return found

    @cached_property
    def sizes(self) -> tuple[int, int]:
        """Bytes of one state between two launches, and of one result."""
        dtypes = partial_dtypes(narrowed(self.program, self.whole.length))
        return sum(d.itemsize for d in dtypes), sum(d.itemsize for d in self.program.outputs)

    def stages(self, first: Stage) -> tuple[Stage, ...]:
        """The launches of a plan with this first one: with splits, or dims kept apart, a second one combines states."""
        if first.splits == 1 and self.kept_dims is None:
            return (first,)
        return first, self.second(first.splits)


def can_be_flat(problem: Problem) -> bool:
    """Whether results may be taken along all output dims as one, and little lies along the last."""
    if len(problem.output_dims) < 2 or problem.ragged or 2 * problem.outputs > NARROW:
        return False
    reading = reading_of(problem)
    if not reading.by_rows:
        return reading.inner * reading.element < COLUMNS_BYTES
    return (
        reading.length < LONG_ROW * reading.vector
        and reading.inner * reading.length * reading.element < ROWS_BYTES
    )


def shift_of(problem: Problem) -> int:
    """How many elements before the first result the vector begins in which it lies, where all rows of results begin alike.

    0 where they do not, where they begin at vectors, or where results' places are told by more than one dim.
    """
    size = problem.dtypes[0].itemsize
    layouts = set(zip(problem.dtypes, problem.residues, strict=False))
    if len(layouts) != 1 or not problem.output_dims or problem.ragged or any(problem.places):
        return 0
    last, residue = problem.output_dims[-1], problem.residues[0]
    others = [s * size for d in problem.dims if d is not last for s in d.strides]
    alike = set(last.strides) == {1} and math.gcd(VECTOR_BYTES, *others) == VECTOR_BYTES
    return residue // size if alike and not reading_of(problem).by_rows else 0


def _from_before(problem: Problem, shift: int) -> Problem:
    """The problem with whole vectors of results, the first of them `shift` elements before the first result."""
    size = problem.dtypes[0].itemsize
    last, unit = problem.output_dims[-1], VECTOR_BYTES // size
    wider = replace(last, size=math.ceil((last.size + shift) / unit) * unit)
    dims = tuple(wider if d is last else d for d in problem.dims)
    inputs = len(problem.dtypes)
    return replace(problem, dims=dims, aligned=(VECTOR_BYTES,) * inputs, residues=(0,) * inputs)

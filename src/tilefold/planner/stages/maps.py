"""The decisions of maps that fold rows in a first launch, and the problems of a row's fold and of its elements."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from tilefold.algebra.program import Program
from tilefold.planner.geometry import without_positions
from tilefold.planner.plan import Stage, count
from tilefold.planner.problem.canonical import Dim, Problem, by_stride, merged
from tilefold.planner.sizes import VECTOR_BYTES

Dtypes = tuple[torch.dtype, ...]


@dataclass(frozen=True)
class Elements:
    """The decisions of a launch of `map_elements`: a program takes a tile of `rows` x `columns` elements.

    `run`: neighbours that a thread has of every operand, where those of some are no whole vectors; 0: what each allows.
    """

    rows: int
    columns: int
    num_warps: int
    evict_first: bool = True
    run: int = 0

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        run = f",r{self.run}" if self.run else ""
        return f"elements:{self.rows}x{self.columns}{run},w{self.num_warps}"

    def __str__(self) -> str:
        run = f", {count(self.run, 'neighbour')} a thread" if self.run else ""
        return f"elements: {self.rows} x {self.columns} a program{run}, {count(self.num_warps, 'warp')}"


@dataclass(frozen=True)
class Windows:
    """The decisions of a launch of `map_windows`: the tiles of its parts, and how many blocks of rows a window has."""

    stage: Stage
    groups: int

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        return f"{self.stage.note},g{self.groups}"

    def __str__(self) -> str:
        return f"{self.stage}; {count(self.groups, 'block')} of rows a window"


@dataclass(frozen=True)
class Clear:
    """The decision of a launch of `clear`: how many zeros a program writes."""

    block: int = 1024

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        return "clear"

    def __str__(self) -> str:
        return f"clear: {self.block} counters a program"


def row_steps(problem: Problem) -> dict[Dim, int]:
    """The step from one row's results to the next row's, along each output dim."""
    sizes = [d.size for d in problem.output_dims]
    return {d: math.prod(sizes[i + 1 :]) for i, d in enumerate(problem.output_dims)}


def extras_of_rows(problem: Problem, inputs: int) -> tuple[int, ...]:
    """Which extra tensors, behind so many inputs, have one value a row."""
    extras = range(inputs, len(problem.dtypes))
    return tuple(i - inputs for i in extras if not any(d.strides[i] for d in problem.reduced_dims))


def extras_beside(problem: Problem, inputs: int) -> tuple[int, ...]:
    """Which extra tensors, behind so many inputs, have more than one value a row."""
    of_rows = extras_of_rows(problem, inputs)
    return tuple(i for i in range(len(problem.dtypes) - inputs) if i not in of_rows)


def row_step(problem: Problem, dim: Dim) -> int:
    """An output dim's step in results that have one value a row."""
    return math.prod(d.size for d in problem.output_dims if d.output < dim.output)


def folding(problem: Problem, program: Program, guarantee: str) -> Problem:
    """The fold of the first inputs of a problem, with results as `row_steps` has them."""
    n, steps = program.algebra.inputs, row_steps(problem)
    outer = [replace(d, strides=d.strides[:n], output=steps[d]) for d in problem.output_dims]
    inner = [replace(d, strides=d.strides[:n], output=0) for d in problem.reduced_dims]
    commutative = program.algebra.commutative
    alone = Problem(
        dims=merged(by_stride(outer)) + merged(by_stride(inner) if commutative else inner),
        dtypes=problem.dtypes[:n],
        aligned=problem.aligned[:n],
        residues=problem.residues[:n],
    )
    if commutative and not program.algebra.index:
        alone = without_positions(alone)
    return alone.alone() if guarantee == "batch_invariant" else alone


def elements_of(problem: Problem, inputs: int, folded: Dtypes) -> Problem:
    """Every element by itself: operands are the inputs, what their rows fold to, and the extras.

    Addresses are aligned as they are, with any guarantee: no element depends on others here.
    """
    steps, n = row_steps(problem), len(folded)

    def spread(d: Dim) -> Dim:
        strides = (*d.strides[:inputs], *(steps.get(d, 0),) * n, *d.strides[inputs:])
        return replace(d, role="map", strides=strides, position=0)

    def among(own: tuple[int, ...], other: int) -> tuple[int, ...]:
        return (*own[:inputs], *(other,) * n, *own[inputs:])

    return Problem(
        dims=merged(_by_results(map(spread, problem.dims))),
        dtypes=(*problem.dtypes[:inputs], *folded, *problem.dtypes[inputs:]),
        aligned=among(tuple(math.gcd(VECTOR_BYTES, r) for r in problem.residues), VECTOR_BYTES),
        residues=among(problem.residues, 0),
    )


def _by_results(dims: object) -> list[Dim]:
    """Dims in the order in which results lie in memory, far strides first."""
    return sorted(dims, key=lambda d: d.output, reverse=True)  # type: ignore[call-overload, no-any-return]  # of Dims


def row_blocks(problem: Problem, block_outputs: int) -> int:
    """How many blocks of so many neighbouring rows there are."""
    last = problem.output_dims[-1].size if problem.output_dims else 1
    return problem.outputs // last * math.ceil(last / block_outputs)

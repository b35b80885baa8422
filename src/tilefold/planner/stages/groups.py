"""The decisions of a launch of `map_groups`, and the fold behind it of what groups of rows sum up."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from tilefold.algebra.algebra import Algebra
from tilefold.algebra.expression import trace
from tilefold.algebra.program import Program, specialize
from tilefold.planner.plan import count
from tilefold.planner.problem.canonical import Dim, Problem
from tilefold.planner.products.row import Row


@dataclass(frozen=True)
class Groups:
    """The decisions of a launch of `map_groups`: tiles of `rows` x `columns`, `parts` of a row, `groups` of rows.

    `folds`: rows are folded, by `cluster` programs each; else they were. Of a program's tiles `stages` - 1 are on their way
    through shared memory at a time, or none.
    """

    rows: int
    columns: int
    parts: int
    groups: int
    cluster: int
    folds: bool
    num_warps: int
    stages: int = 1

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        tile = f"{self.rows}x{self.columns}x{self.parts},g{self.groups},c{self.cluster}"
        return f"groups:{tile},w{self.num_warps},n{self.stages}"

    def __str__(self) -> str:
        tile = f"{self.rows} x {self.columns} elements, {count(self.parts, 'part')} of a row"
        words = f"{tile}, {count(self.num_warps, 'warp')}, {count(self.stages, 'stage')}"
        return f"groups: {count(self.groups, 'group')} of rows, {words}"


def problem_of_groups(problem: Problem, row: Row, groups: int) -> Problem:
    """The fold of the groups' sums: [groups, columns], with results in the order of the reduced dims' results."""
    n, length = len(row.sums), problem.length
    inner = problem.reduced_dims
    dims = [Dim("reduce", groups, (length,) * n, position=1)] if groups > 1 else []
    outer = []
    for i, d in enumerate(inner):
        step = math.prod(e.size for e in inner[i + 1 :])
        output = math.prod(e.size for e in inner if e.output < d.output)
        outer.append(Dim("map", d.size, (step,) * n, output=output))
    return Problem((*outer, *dims), row.sums, (16,) * n, (0,) * n)


def summing(dtypes: tuple[torch.dtype, ...]) -> Program:
    """The fold of several sums at once."""
    n = len(dtypes)
    same = trace(lambda *v: v, n)
    algebra = Algebra(
        fields=tuple(f"s{i}" for i in range(n)), identity=("float 0.0",) * n, dtypes=dtypes, inputs=n, index=False,
        commutative=True, lift=same, combine=trace(lambda *v: tuple(v[i] + v[n + i] for i in range(n)), 2 * n),
        project=None, absorb=None,
    )  # fmt: skip
    return specialize(algebra, dtypes)

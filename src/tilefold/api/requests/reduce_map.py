"""The request of `tilefold.reduce_map`: fold dims, and make something of every element and its row's results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tilefold.api.requests.base import Request, Result, Tensor
from tilefold.planner.choose_map import planned_map, rows_in_order
from tilefold.planner.device import Device
from tilefold.planner.library import LibraryMap
from tilefold.planner.plan import Plan
from tilefold.planner.problem.canonical import Problem, canonical
from tilefold.planner.products.row import Row


@dataclass(frozen=True)
class RowMap(Request):
    """Fold `dims` of the first tensors, of one shape with the rest, and map each element.

    Results have that `shape`, with 1 along `dims` of one value a row, and along all others of sums over rows.

    `library` names the function of torch's that gives the same answers, where there is one.
    """

    backends = ("auto", "torch", "cpu", "reference", "interpret", "triton")
    on_cpu = "cpu"

    row: Row
    dims: tuple[int, ...]
    guarantee: str
    shape: tuple[int, ...]
    library: LibraryMap | None = None
    call: str = field(default="reduce_map", compare=False, kw_only=True)

    @property
    def computation(self) -> Row:
        """The monoid's graphs, and the graph of the map."""
        return self.row

    @property
    def results(self) -> tuple[Result, ...]:
        """One tensor an output of the function's: of elements, then of rows, then of sums over rows."""
        sizes = list(enumerate(self.shape))
        row = tuple(1 if d in self.dims else n for d, n in sizes)
        column = tuple(n if d in self.dims else 1 for d, n in sizes)
        kinds = (self.shape, self.row.results), (row, self.row.of_rows), (column, self.row.sums)
        return tuple((shape, dtype) for shape, dtypes in kinds for dtype in dtypes)

    def dtypes(self, tensors: Sequence[Tensor]) -> tuple[torch.dtype, ...]:
        """Inputs, elements as they are read, the folds of rows, results."""
        return (*(t.dtype for t in tensors), *self.row.taken, *(dtype for _, dtype in self.results))

    def problem(self, tensors: Sequence[Tensor]) -> Problem:
        """The dims of all tensors together, and of results of their shape."""
        invariant = self.guarantee == "batch_invariant"
        ordered = not self.row.program.algebra.commutative
        problem = canonical(tensors, self.dims, ordered=ordered, batches=invariant, whole=True)
        problem = rows_in_order(problem, self.row.program, self.row.results)
        return problem.alone() if invariant else problem

    def plan(self, tensors: Sequence[Tensor], device: Device, *, library: bool) -> tuple[Problem, Plan]:
        """As `planner.choose_map` has it. No library maps on a GPU."""
        problem = self.problem(tensors)
        return planned_map(problem, self.row, device, self.guarantee)

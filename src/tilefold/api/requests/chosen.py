"""The request of a function of rows and of the element of each that its index chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilefold.algebra.program import Program
from tilefold.api.requests.base import OfMonoid, Result, Tensor
from tilefold.planner.chosen import chosen_problem, plan_chosen
from tilefold.planner.device import Device
from tilefold.planner.plan import Plan
from tilefold.planner.problem.canonical import Problem


@dataclass(frozen=True)
class Chosen(OfMonoid):
    """A function, `program`, of rows' values, of the tensor `index`, and of the later ones' elements there, along `dim`.

    `shape` is the rows', with 1 along `dim`. An index that is no class counts as 0. Where the one result is `stored`, it
    becomes an element of the last tensor, which the function does not take.
    """

    backends = ("auto", "torch", "cpu", "reference", "interpret", "triton")
    on_cpu = "cpu"

    program: Program
    index: int
    dim: int
    guarantee: str
    shape: tuple[int, ...]
    stored: bool = False
    call: str = field(default="reduce", compare=False, kw_only=True)

    @property
    def results(self) -> tuple[Result, ...]:
        """One value a row of each of the function's; none where it is stored."""
        return () if self.stored else tuple((self.shape, dtype) for dtype in self.program.outputs)

    def plan(self, tensors: Sequence[Tensor], device: Device, *, library: bool) -> tuple[Problem, Plan]:
        """As `planner.chosen` has it. No library takes part."""
        problem = chosen_problem(tensors, self.dim, self.shape)
        steps = tuple(t.stride(self.dim) for t in tensors[self.index + 1 :])
        dtypes, classes = [dtype for _, dtype in self.results], tensors[-1].shape[self.dim]
        return problem, plan_chosen(problem, self.index, classes, steps, self.stored, dtypes, self.guarantee)

"""The request of `tilefold.scan`: every prefix along one dim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilefold.algebra.program import Program
from tilefold.api.requests.base import OfMonoid, Result, Tensor
from tilefold.planner import scans
from tilefold.planner.device import Device
from tilefold.planner.plan import Plan
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.stages.scans import Work


@dataclass(frozen=True)
class Scan(OfMonoid):
    """Scan `dim` of tensors of one shape, `shape`; the tensors after them, `inits` of them, are the state before each row.

    With `state` the last state of each row is a result too, one tensor a field, after the prefixes.
    """

    backends = ("auto", "torch", "cpu", "reference", "interpret", "triton")
    on_cpu = "cpu"

    program: Program
    dim: int
    exclusive: bool
    reverse: bool
    inits: int
    state: bool
    guarantee: str
    shape: tuple[int, ...]
    call: str = field(default="scan", compare=False, kw_only=True)

    @property
    def rows(self) -> tuple[int, ...]:
        """The shape of the rows: of one state of each."""
        return (*self.shape[: self.dim], *self.shape[self.dim + 1 :])

    @property
    def results(self) -> tuple[Result, ...]:
        """The prefixes, one tensor an output of the monoid's, then the state's fields."""
        prefixes = tuple((self.shape, dtype) for dtype in self.program.outputs)
        return prefixes + tuple((self.rows, dtype) for dtype in self.program.state) * self.state

    def plan(self, tensors: Sequence[Tensor], device: Device, *, library: bool) -> tuple[Problem, Plan]:
        """As `planner.scans` has it. No library scans on a GPU."""
        problem = scans.scan_problem(tensors[: len(tensors) - self.inits], self.dim, self.guarantee)
        work = Work(self.exclusive, self.reverse, self.inits > 0, self.state)
        return scans.planned_scan(problem, self.program, work, device, self.guarantee)

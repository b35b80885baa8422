"""The request of `tilefold.reduce_many`: fold each of many tensors whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tilefold.algebra.program import Program
from tilefold.api.requests.base import OfMonoid, Result, Tensor
from tilefold.planner.device import Device
from tilefold.planner.plan import Plan
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.tables import Group, many, plan_many


@dataclass(frozen=True)
class Many(OfMonoid):
    """Fold each of so many tensors, and all `together`; the request's own tensors are tables of their addresses."""

    call = "reduce_many"
    backends = ("auto", "interpret", "triton")
    on_cpu = "cpu"

    program: Program
    groups: tuple[Group, ...]
    tensors: int
    together: bool

    @property
    def results(self) -> tuple[Result, ...]:
        """One tensor an output of the monoid's, of each tensor's results; then those of all."""
        shapes = ((self.tensors,), ()) if self.together else ((self.tensors,),)
        return tuple((shape, dtype) for shape in shapes for dtype in self.program.outputs)

    def dtypes(self, tensors: Sequence[Tensor]) -> tuple[torch.dtype, ...]:
        """Those of the tensors that the tables name, elements as they are read, results."""
        return (*(g.dtype for g in self.groups), *self.program.elements, *self.program.outputs)

    def plan(self, tensors: Sequence[Tensor], device: Device, *, library: bool) -> tuple[Problem, Plan]:
        """As `planner.tables` has it. No library folds many tensors with any monoid."""
        return many(self.program, self.groups), plan_many(
            self.program, self.groups, self.tensors, self.together
        )

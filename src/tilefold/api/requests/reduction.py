"""The request of `tilefold.reduce`: fold dims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilefold.algebra.program import Program
from tilefold.api.requests.base import OfMonoid, Result, Tensor
from tilefold.planner import choose
from tilefold.planner.device import Device
from tilefold.planner.plan import Plan
from tilefold.planner.problem.canonical import Problem


@dataclass(frozen=True)
class Reduction(OfMonoid):
    """Fold `dims` of tensors of one shape; `shape` is the results', with reduced dims of length 1 or without."""

    backends = ("auto", "torch", "cpu", "reference", "interpret", "triton")
    on_cpu = "cpu"

    program: Program
    dims: tuple[int, ...]
    guarantee: str
    shape: tuple[int, ...]
    call: str = field(default="reduce", compare=False, kw_only=True)

    @property
    def results(self) -> tuple[Result, ...]:
        """One tensor an output of the monoid's."""
        return tuple((self.shape, dtype) for dtype in self.program.outputs)

    def plan(self, tensors: Sequence[Tensor], device: Device, *, library: bool) -> tuple[Problem, Plan]:
        """As `planner.choose` has it. No library folds on a GPU."""
        return choose.plan_tensors(tensors, self.program, self.dims, device, self.guarantee)

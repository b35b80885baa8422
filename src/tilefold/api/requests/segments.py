"""The request of `tilefold.segment_reduce`: fold the segments of one dim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilefold.algebra.program import Program
from tilefold.api.requests.base import OfMonoid, Result, Tensor
from tilefold.planner.device import Device
from tilefold.planner.plan import Plan
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.segments import plan_segments, segmented


@dataclass(frozen=True)
class Segments(OfMonoid):
    """Fold the segments of `dim` of tensors of one shape; the last tensor holds their offsets. `shape` is the results'."""

    call = "segment_reduce"
    backends = ("auto", "cpu", "reference", "interpret", "triton")
    on_cpu = "cpu"

    program: Program
    dim: int
    guarantee: str
    shape: tuple[int, ...]

    @property
    def results(self) -> tuple[Result, ...]:
        """One tensor an output of the monoid's."""
        return tuple((self.shape, dtype) for dtype in self.program.outputs)

    def plan(self, tensors: Sequence[Tensor], device: Device, *, library: bool) -> tuple[Problem, Plan]:
        """As `planner.segments` has it. No library folds segments of any monoid."""
        *inputs, offsets = tensors
        problem = segmented(inputs, self.dim, offsets.shape[0] - 1)
        return problem, plan_segments(problem, self.program, offsets, device, self.guarantee)

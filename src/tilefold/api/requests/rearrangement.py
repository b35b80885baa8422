"""The request of `tilefold.transpose`: a view of a tensor as a contiguous tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tilefold.api.requests.base import Request, Result, Tensor
from tilefold.planner.device import Device
from tilefold.planner.moves import plan_move
from tilefold.planner.plan import Plan
from tilefold.planner.problem.canonical import Problem, canonical


@dataclass(frozen=True)
class Rearrangement(Request):
    """Copy a view of `shape` into a contiguous tensor; every element keeps its bits."""

    call = "transpose"
    backends = ("auto", "torch", "cpu", "reference", "interpret", "triton")
    on_cpu = "cpu"

    shape: tuple[int, ...]
    dtype: torch.dtype
    guarantee: str

    @property
    def computation(self) -> None:
        """There is none."""

    @property
    def results(self) -> tuple[Result, ...]:
        """One tensor."""
        return ((self.shape, self.dtype),)

    def dtypes(self, tensors: Sequence[Tensor]) -> tuple[torch.dtype, ...]:
        """The elements'."""
        return (self.dtype,)

    def plan(self, tensors: Sequence[Tensor], device: Device, *, library: bool) -> tuple[Problem, Plan]:
        """The plan of `planner.moves`, or torch's copy where no element changes its place."""
        problem = canonical(tensors, (), ordered=False)
        return problem, plan_move(problem, device, self.guarantee, library=library)

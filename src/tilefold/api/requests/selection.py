"""The request of `tilefold.topk`: the k best elements along a dim, and their places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tilefold.api.requests.base import Request, Result, Tensor
from tilefold.planner.device import Device
from tilefold.planner.plan import Plan
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.selections import plan_selection, selection_problem


@dataclass(frozen=True)
class Selected(Request):
    """The `k` largest (or least) elements along `dim`; `shape` is the results'."""

    call = "topk"
    backends = ("auto", "torch", "cpu", "reference", "interpret", "triton")
    on_cpu = "cpu"

    k: int
    dim: int
    largest: bool
    dtype: torch.dtype
    guarantee: str
    shape: tuple[int, ...]

    @property
    def computation(self) -> None:
        """There is none."""

    @property
    def results(self) -> tuple[Result, ...]:
        """Values and places."""
        return ((self.shape, self.dtype), (self.shape, torch.int64))

    def dtypes(self, tensors: Sequence[Tensor]) -> tuple[torch.dtype, ...]:
        """The elements' and the places'."""
        return (self.dtype, torch.int64)

    def plan(self, tensors: Sequence[Tensor], device: Device, *, library: bool) -> tuple[Problem, Plan]:
        """As `planner.selections` has it. No library selects on a GPU."""
        problem = selection_problem(tensors[0], self.dim, self.k)
        return problem, plan_selection(problem, self.k, self.largest, device, self.guarantee)

"""The request of `tilefold.matmul`: a product and its epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tilefold.api.requests.base import Request, Result, Tensor
from tilefold.planner.device import Device
from tilefold.planner.plan import Plan
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.products import choose
from tilefold.planner.products.epilogue import Epilogue
from tilefold.planner.products.operands import check_on_gpu


@dataclass(frozen=True)
class Product(Request):
    """Multiply a and b and finish each result with the extra tensors' elements there; `shape` is the result's."""

    call = "matmul"
    backends = ("auto", "torch", "cpu", "reference", "interpret", "triton")
    on_cpu = "cpu"

    ending: Epilogue
    precision: str
    guarantee: str
    shape: tuple[int, ...]

    @property
    def computation(self) -> Epilogue:
        """The epilogue's graph, and the row's fold."""
        return self.ending

    @property
    def results(self) -> tuple[Result, ...]:
        """The result, and the folds of its rows."""
        folded = () if self.ending.row is None else self.ending.row.program.outputs
        return ((self.shape, self.ending.result), *((self.shape[:-1], dtype) for dtype in folded))

    def dtypes(self, tensors: Sequence[Tensor]) -> tuple[torch.dtype, ...]:
        """Operands, extra tensors, results."""
        check_on_gpu(tensors[0])
        return (tensors[0].dtype, *self.ending.elements, *(dtype for _, dtype in self.results))

    def plan(self, tensors: Sequence[Tensor], device: Device, *, library: bool) -> tuple[Problem, Plan]:
        """As `contract.choose` has it."""
        return choose.plan_tensors(
            tensors, self.ending, self.precision, self.guarantee, device, library=library
        )

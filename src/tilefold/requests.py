"""What a validated call asks for: its computation, dims and results. One class an operation; `dispatch` runs any."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from tilefold.algebra.program import Program
from tilefold.contract import choose as products
from tilefold.contract.epilogue import Epilogue
from tilefold.contract.operands import check_on_gpu
from tilefold.planner import choose as folds
from tilefold.planner.device import Device
from tilefold.planner.plan import Plan
from tilefold.problem import Problem

Tensor = torch.Tensor
Result = tuple[tuple[int, ...], torch.dtype]  # shape and dtype


class Request(ABC):
    """What `dispatch` asks of an operation's request; frozen, and all but the tensors that a plan depends on.

    `call` names the operation in messages, `backends` those that have it, `on_cpu` the one that serves any CPU tensor.
    """

    call: ClassVar[str]
    backends: ClassVar[tuple[str, ...]]
    on_cpu: ClassVar[str]

    @property
    @abstractmethod
    def computation(self) -> Program | Epilogue:
        """The graphs that kernels are made of."""

    @property
    @abstractmethod
    def results(self) -> tuple[Result, ...]:
        """Shape and dtype of each result."""

    @abstractmethod
    def dtypes(self, tensors: Sequence[Tensor]) -> tuple[torch.dtype, ...]:
        """What a chip must load and store.

        Raises:
            DtypeError, ShapeError: no GPU computes this.
        """

    @abstractmethod
    def plan(self, tensors: Sequence[Tensor], device: Device, *, library: bool) -> tuple[Problem, Plan]:
        """The problem of these tensors and how it runs on a chip; `library`: torch's own kernels may take part."""


@dataclass(frozen=True)
class Reduction(Request):
    """Fold `dims` of tensors of one shape; `shape` is the results', with reduced dims of length 1 or without."""

    call = "reduce"
    backends = ("auto", "torch", "cpu", "reference", "interpret", "triton")
    on_cpu = "cpu"

    program: Program
    dims: tuple[int, ...]
    guarantee: str
    shape: tuple[int, ...]

    @property
    def computation(self) -> Program:
        """The monoid's graphs with dtypes."""
        return self.program

    @property
    def results(self) -> tuple[Result, ...]:
        """One tensor an output of the monoid's."""
        return tuple((self.shape, dtype) for dtype in self.program.outputs)

    def dtypes(self, tensors: Sequence[Tensor]) -> tuple[torch.dtype, ...]:
        """Inputs, elements as they are read, results."""
        return (*(t.dtype for t in tensors), *self.program.elements, *self.program.outputs)

    def plan(self, tensors: Sequence[Tensor], device: Device, *, library: bool) -> tuple[Problem, Plan]:
        """As `planner.choose` has it. No library folds on a GPU."""
        return folds.plan_tensors(tensors, self.program, self.dims, device, self.guarantee)


@dataclass(frozen=True)
class Product(Request):
    """Multiply a and b and finish each result with what the extra tensors hold there; `shape` is the result's."""

    call = "matmul"
    backends = ("auto", "torch", "triton", "interpret")
    on_cpu = "torch"

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
        """The result, and what rows fold to."""
        folded = () if self.ending.row is None else self.ending.row.program.outputs
        return ((self.shape, self.ending.result), *((self.shape[:-1], dtype) for dtype in folded))

    def dtypes(self, tensors: Sequence[Tensor]) -> tuple[torch.dtype, ...]:
        """Operands, extra tensors, results."""
        check_on_gpu(tensors[0])
        return (tensors[0].dtype, *self.ending.elements, *(dtype for _, dtype in self.results))

    def plan(self, tensors: Sequence[Tensor], device: Device, *, library: bool) -> tuple[Problem, Plan]:
        """As `contract.choose` has it."""
        return products.plan_tensors(
            tensors, self.ending, self.precision, self.guarantee, device, library=library
        )

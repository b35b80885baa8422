"""What any request is: the questions that `dispatch` asks of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch

from tilefold.algebra.program import Program
from tilefold.contract.epilogue import Epilogue
from tilefold.contract.row import Row
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
    def computation(self) -> Program | Epilogue | Row:
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

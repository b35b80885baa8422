"""What any request is: the questions that `dispatch` asks of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from tilefold.algebra.program import Program
from tilefold.planner.device import Device
from tilefold.planner.plan import Plan
from tilefold.planner.problem.canonical import Problem

Tensor = torch.Tensor
Result = tuple[tuple[int, ...], torch.dtype]  # shape and dtype


class Request(ABC):
    """What `dispatch` asks of an operation's request; frozen, and all but the tensors that a plan depends on.

    `call` names in messages the function that was called, `backends` are those that have it, `on_cpu` the one that serves
    any CPU tensor.
    """

    call: str
    backends: ClassVar[tuple[str, ...]]
    on_cpu: ClassVar[str]

    @property
    @abstractmethod
    def computation(self) -> Any:
        """The graphs of the operation's kernels, as its kernel calls take them; None without graphs."""

    @property
    @abstractmethod
    def results(self) -> tuple[Result, ...]:
        """Shape and dtype of each result."""

    @abstractmethod
    def dtypes(self, tensors: Sequence[Tensor]) -> tuple[torch.dtype, ...]:
        """The bytes that a chip must load and store.

        Raises:
            DtypeError, ShapeError: no GPU computes this.
        """

    @abstractmethod
    def plan(self, tensors: Sequence[Tensor], device: Device, *, library: bool) -> tuple[Problem, Plan]:
        """The problem of these tensors and how it runs on a chip; `library`: torch's own kernels may take part."""


class OfMonoid(Request):
    """A request whose kernels are made of one monoid's `program`."""

    program: Program

    @property
    def computation(self) -> Program:
        """The monoid's graphs with dtypes."""
        return self.program

    def dtypes(self, tensors: Sequence[Tensor]) -> tuple[torch.dtype, ...]:
        """Inputs, elements as they are read, results."""
        return (*(t.dtype for t in tensors), *self.program.elements, *(dtype for _, dtype in self.results))

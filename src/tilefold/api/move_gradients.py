"""The backward of `topk` and `transpose`: elements go back where they came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tilefold.api import transpose as transposes
from tilefold.api.differentiated import Call


@dataclass(frozen=True)
class Selection(Call):
    """A selection as its backward needs it: the dim, and the shape it was taken of. Saved are the indices."""

    dim: int
    shape: tuple[int, ...]

    def saved(
        self, tensors: Sequence[Tensor], made: Sequence[Tensor], wrt: Sequence[int]
    ) -> Sequence[Tensor]:
        """The indices."""
        return made[1:]

    def moves(self, result: int, tensors: Sequence[Tensor]) -> bool:
        """Whether a result changes with an element."""
        return result == 0

    def backward(self, saved: Sequence[Tensor], grads: Sequence[Tensor], wrt: Sequence[int]) -> list[Any]:
        """The input's cotangent: each selected element's own, and zeros."""
        (indices,), of_values = saved, grads[0]
        return [of_values.new_zeros(self.shape).scatter(self.dim, indices, of_values)]


@dataclass(frozen=True)
class Swap(Call):
    """A transpose as its backward needs it. Nothing is saved."""

    dim0: int
    dim1: int
    guarantee: str

    def saved(
        self, tensors: Sequence[Tensor], made: Sequence[Tensor], wrt: Sequence[int]
    ) -> Sequence[Tensor]:
        """Nothing."""
        return ()

    def backward(self, saved: Sequence[Tensor], grads: Sequence[Tensor], wrt: Sequence[int]) -> list[Any]:
        """The input's cotangent: the result's, transposed."""
        if not grads[0].is_floating_point():  # torch's own, of complex numbers
            return [grads[0].transpose(self.dim0, self.dim1)]
        return [transposes.transpose(grads[0], self.dim0, self.dim1, guarantee=self.guarantee)]

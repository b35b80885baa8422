"""The backward of `topk` and `transpose`: elements go back where they came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tilefold.api import transpose as transposes


@dataclass(frozen=True)
class Selection:
    """A selection as its backward needs it: the dim, and the shape it was taken of. Saved are the indices."""

    dim: int
    shape: tuple[int, ...]

    def check(self, tensors: Sequence[Tensor]) -> None:
        """Every selection has a derivative."""

    def saved(self, tensors: Sequence[Tensor], made: Sequence[Tensor]) -> Sequence[Tensor]:
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
class Swap:
    """A transpose as its backward needs it. Nothing is saved."""

    dim0: int
    dim1: int
    guarantee: str

    def check(self, tensors: Sequence[Tensor]) -> None:
        """Every transpose has a derivative."""

    def saved(self, tensors: Sequence[Tensor], made: Sequence[Tensor]) -> Sequence[Tensor]:
        """Nothing."""
        return ()

    def moves(self, result: int, tensors: Sequence[Tensor]) -> bool:
        """Whether a result changes with an element."""
        return True

    def backward(self, saved: Sequence[Tensor], grads: Sequence[Tensor], wrt: Sequence[int]) -> list[Any]:
        """The input's cotangent: the result's, transposed."""
        if not grads[0].is_floating_point():  # torch's own, of complex numbers
            return [grads[0].transpose(self.dim0, self.dim1)]
        return [transposes.transpose(grads[0], self.dim0, self.dim1, guarantee=self.guarantee)]

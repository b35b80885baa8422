"""The module that the OpInfo adapter tests for products: torch's functions, each by `tilefold.matmul`."""

from __future__ import annotations

import torch

import tilefold

Tensor = torch.Tensor


def mm(input: Tensor, mat2: Tensor) -> Tensor:
    return tilefold.matmul(_of(2, input), _of(2, mat2))


def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    if input.shape[:1] != mat2.shape[:1]:
        raise RuntimeError("bmm: both must have as many matrices")
    return tilefold.matmul(_of(3, input), _of(3, mat2))


def mv(input: Tensor, vec: Tensor) -> Tensor:
    return tilefold.matmul(_of(2, input), _of(1, vec))


def matmul(input: Tensor, other: Tensor) -> Tensor:
    return tilefold.matmul(input, other)


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta = 0 leaves the input out, NaN and all."""
    if beta == 0:
        return tilefold.matmul(_of(2, mat1), _of(2, mat2), epilogue=lambda x: alpha * x)
    return tilefold.matmul(
        _of(2, mat1), _of(2, mat2), epilogue=lambda x, c: alpha * x + beta * c, epilogue_args=(input,)
    )


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return tilefold.matmul(input, weight.mT if weight.ndim > 1 else weight, bias=bias)


def _of(dims: int, t: Tensor) -> Tensor:
    """A tensor of so many dims, as torch wants it."""
    if t.ndim != dims:
        raise RuntimeError(f"a tensor of {dims} dims was wanted, got {t.ndim}")
    return t

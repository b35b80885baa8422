"""What a case is: a package's wrapper called on tensors, and what torch computes from the same in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

# A result's distance from torch's float64 result, in multiples of the largest magnitude there: a few hundred roundings of
# float32, a few of the narrow types. Integers and truth values are equal.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}

Pairs = Iterable[tuple[Any, Any]]


@dataclass(frozen=True)
class Case:
    """`run` yields pairs of what a kernel computed and what is right."""

    package: str
    name: str
    run: Callable[[], Pairs]


def difference(got: torch.Tensor, want: torch.Tensor) -> str:
    """How a result differs from what is right, or nothing."""
    if got.shape != want.shape:
        return f"shape {tuple(got.shape)} for {tuple(want.shape)}"
    if not got.dtype.is_floating_point:
        wrong = int((got != want.to(got.dtype)).sum())
        return f"{wrong} of {got.numel()} elements differ" if wrong else ""
    got64, want64 = got.detach().double(), want.detach().double()
    if not torch.equal(got64.isfinite(), want64.isfinite()):
        return "infinities or NaN elsewhere"
    finite = want64.isfinite()
    scale = float(want64[finite].abs().max()) if finite.any() else 0.0
    error = float((got64 - want64)[finite].abs().max()) if finite.any() else 0.0
    bound = TOLERANCE[got.dtype] * max(scale, 1e-30)
    return f"off by {error:.2g} where {bound:.2g} is allowed" if error > bound else ""


def gradients(
    call: Callable[..., torch.Tensor], reference: Callable[..., torch.Tensor], *inputs: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """A differentiable function's result and gradients beside torch's in float64."""
    ours = [x.clone().requires_grad_() for x in inputs]
    right = [x.double().requires_grad_() for x in inputs]
    # A wrapper may work in place, which a leaf forbids.
    got, want = call(*[x * 1 for x in ours]), reference(*right)
    yield got.detach().clone(), want
    upstream = normal(*want.shape, dtype=got.dtype)
    got.backward(upstream.clone())
    want.backward(upstream.double())
    for mine, other in zip(ours, right, strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        yield mine.grad, other.grad


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal random numbers, the same in every run of a case."""
    return torch.randn(shape).to(dtype)

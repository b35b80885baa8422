"""How the tests of gradients draw tensors and compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from tilefold import Monoid
from tilefold.api import dispatch, gradients, on_cpu, operations
from tilefold.runtime.overrides import listed

Tensor = torch.Tensor
F64 = torch.float64
PAIR = Monoid(
    lambda a, b: (a.weight + b.weight, a.total + b.total), (0, 0), fields=("weight", "total"),
    lift=lambda x, w: (w * w, w * w * x), project=lambda weight, total: total / weight, commutative=True,
)  # fmt: skip


@pytest.fixture
def by_our_rules(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd does not look into torch's own functions: what is derived here is tested."""
    monkeypatch.setattr(dispatch, "_executables", {})
    if "torchs_own" not in request.node.name:
        for module in (on_cpu, operations):
            monkeypatch.setattr(module, "has_own_derivative", lambda function, dtype: False)
        monkeypatch.setattr(gradients, "backward_of_fold", lambda *asked: None)


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=F64).to(dtype).requires_grad_()


def with_gradients(function: Callable[..., Any], given: Sequence[Tensor]) -> list[Tensor]:
    """The results that have a gradient, and the inputs' gradients of a weighted sum of them."""
    results = [r for r in listed(function(*given)) if r.requires_grad]
    weights = [
        torch.linspace(-1, 2, max(r.numel(), 1))[: r.numel()].reshape(r.shape).to(r.dtype) for r in results
    ]
    return [*results, *torch.autograd.grad(results, given, weights)]


def assert_alike(function: Callable[..., Any], like: Callable[..., Any], *given: Tensor) -> None:
    for got, want in zip(with_gradients(function, given), with_gradients(like, given), strict=True):
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def assert_differentiated(function: Callable[..., Any], *given: Tensor) -> None:
    """By finite differences, twice."""
    assert gradcheck(function, given)
    assert gradgradcheck(function, given)

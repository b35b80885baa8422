"""Rows by their norm, whatever their magnitude, and gradients of norms, beside the definition in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilefold

ROWS = torch.tensor(
    [[3.0, -4.0, 12.0], [1.0, 1.0, 1.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64
)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, float("inf")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_rows_by_their_norm(order: float, dtype: torch.dtype, backend: str) -> None:
    """A root's order is rounded, by which a number of so many powers of two is off by as many units."""
    for exponent in (-130, -60, -45, -20, 0, 20, 60, 120):
        for eps in (1e-12, 0.5, 0.0):
            x = (ROWS * 2.0**exponent).to(dtype)
            wide = x.double()
            norm = torch.linalg.vector_norm(wide, order, 1, keepdim=True)
            want = wide / norm.clamp(min=eps)
            rows = slice(0, 3) if eps == 0 else slice(0, 4)  # 0 / 0
            with tilefold.backend(backend):
                got = tilefold.normalize(x, order, 1, eps)
            torch.testing.assert_close(
                got[rows].double(),
                want[rows],
                rtol=(16 + abs(exponent)) * torch.finfo(dtype).eps,
                atol=0,
                msg=f"{exponent} {eps}",
            )


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize(("name", "count"), [("layer_norm", 2), ("rms_norm", 1)])
def test_gradients_of_parameters_are_sums_over_rows(name: str, count: int, backend: str) -> None:
    given = [
        torch.randn(size, dtype=torch.float64, requires_grad=True) for size in ((3, 2, 10), *[(10,)] * count)
    ]

    def gradients(library: Any) -> tuple[torch.Tensor, ...]:
        made = getattr(library, name)(given[0], (10,), *given[1:])
        return torch.autograd.grad(made.cos().sum(), given)

    with tilefold.backend(backend):
        got = gradients(tilefold)
    for mine, theirs in zip(got, gradients(torch.nn.functional), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=256 * 2.0**-52)

"""Rows by their norm, whatever their magnitude, beside the definition in float64."""

from __future__ import annotations

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

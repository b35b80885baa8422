"""What tests of maps have in common: inputs, the bounds of results, and a map executed from PTX."""

from __future__ import annotations

from typing import Any

import torch

from answers import floor
from tilefold.api.requests import RowMap
from tilefold.planner.device import H200
from tilefold.planner.products.row import make_row_map
from xray.running import run_plan

# Some roundings of float32 in a row's results, of which an element is made, then one of its dtype.
BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def check(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    """Within the rounding of the result's dtype."""
    assert got.dtype == dtype
    bound, atol = BOUNDS[dtype], floor(want, dtype, BOUNDS[dtype])
    torch.testing.assert_close(got.double(), want.double(), rtol=bound, atol=atol, equal_nan=True)


def cut(*shape: int, dtype: torch.dtype = torch.float32, offset: int = 0) -> torch.Tensor:
    flat = torch.randn(torch.Size(shape).numel() + offset, dtype=torch.float64).to(dtype)
    return flat[offset:].view(shape)


def executed(
    monoid: Any,
    apply: Any,
    tensors: list[torch.Tensor],
    dims: tuple[int, ...],
    guarantee: str = "run_to_run",
) -> Any:
    """A map as an H200 would be given it, every launch executed from its PTX: results and the plan."""
    inputs = monoid.algebra.inputs
    shape = tensors[0].shape
    expanded = [t.expand(shape) for t in tensors]
    dtypes = tuple(t.dtype for t in tensors)
    row = make_row_map(monoid.total, apply, dtypes[:inputs], dtypes[inputs:])
    request = RowMap(row, dims, guarantee, tuple(shape))
    problem, plan = request.plan(expanded, H200, library=False)
    results = [torch.empty(s, dtype=d) for s, d in request.results]
    run_plan(plan, problem, row, expanded, results, 90)
    return results, plan

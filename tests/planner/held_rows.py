"""What tests of maps whose rows are held in shared memory have in common."""

from __future__ import annotations

import torch

from answers import floor

BOUNDS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def check(got: torch.Tensor, want: torch.Tensor) -> None:
    """Within the rounding of the result's dtype of a float64 answer."""
    bound = BOUNDS[got.dtype]
    atol = floor(want, got.dtype, bound)
    torch.testing.assert_close(got.double(), want, rtol=bound, atol=atol, equal_nan=True)

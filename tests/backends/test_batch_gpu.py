"""The bits of a row do not depend on how many others a call has, for 1 to 512 rows, on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import batches
from scanned import leaves

pytestmark = pytest.mark.gpu
ROWS = 512

Operation = Callable[[torch.Tensor], Any]


def drawn(columns: int, dtype: torch.dtype) -> torch.Tensor:
    """[512, columns]"""
    generator = torch.Generator("cuda").manual_seed(columns)
    return torch.randn(ROWS, columns, device="cuda", generator=generator).to(dtype)


def counts_that_differ(operation: Operation, x: torch.Tensor, dim: int) -> list[int]:
    """How many rows (dim 0) or columns (dim 1) of `x` get other bits than beside all 512."""
    every = leaves(operation(x))
    return [
        count
        for count in range(1, ROWS)
        if not all(
            torch.equal(part, whole.narrow(dim, 0, count))
            for part, whole in zip(leaves(operation(x.narrow(dim, 0, count))), every, strict=True)
        )
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("columns", [96, 1000, 4099, 8192, 65536, 151936])
@pytest.mark.parametrize("operation", batches.ROWS, ids=lambda f: f.__name__)
def test_a_row_among_any_number(operation: Operation, columns: int, dtype: torch.dtype) -> None:
    differ = counts_that_differ(operation, drawn(columns, dtype), 0)
    assert not differ, f"other bits beside {differ[:8]} rows, of {len(differ)} counts"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("length", [96, 1000, 4099, 65536])
@pytest.mark.parametrize("operation", batches.COLUMNS, ids=lambda f: f.__name__)
def test_a_column_among_any_number(operation: Operation, length: int, dtype: torch.dtype) -> None:
    differ = counts_that_differ(operation, drawn(length, dtype).t().contiguous(), 1)
    assert not differ, f"other bits beside {differ[:8]} columns, of {len(differ)} counts"

"""Maps whose rows no program holds: rows are folded first, then every element is taken with its row's results."""

from __future__ import annotations

import pytest
import torch

import tilefold
from tilefold import monoids
from tilefold.api.dispatch import lowered
from tilefold.planner.device import H200
from tilefold.runtime.switch import ExplainedError, explaining


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8], ids=str)
@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((9_000_000, 20), (0,)),
        ((3_000_001, 4, 5), (0,)),
        ((1 << 22, 8), (0,)),
        ((4, 3_000_001, 3), (1,)),
    ],
)
def test_tiles_of_elements(shape: tuple[int, ...], dims: tuple[int, ...], dtype: torch.dtype) -> None:
    """Powers of two, a few vectors a thread; together they cover each element, and no more than one tile too many a dim."""
    x = torch.empty(shape, dtype=dtype, device="meta")
    with explaining(), pytest.raises(ExplainedError) as found:
        tilefold.reduce_map(x, monoids.SUM, lambda x, total: x - total, dim=dims)
    _, calls = lowered(found.value.request, found.value.tensors, H200)
    call = calls[-1]
    assert call.kernel == "map_elements"
    constants = dict(call.constants)
    rows, columns = constants["ROWS"], constants["COLUMNS"]
    assert rows & (rows - 1) == columns & (columns - 1) == 0
    threads = 32 * call.num_warps
    assert threads <= rows * columns <= 4 * threads * 16 // min(dtype.itemsize, 4)
    assert call.grid * rows * columns >= x.numel()

"""The best elements of rows with ties: the first of equal ones, wherever in the row they lie."""

from __future__ import annotations

import pytest
import torch

from tilefold.backends.cpu.selecting import FIRST_LOOK, select

Tensor = torch.Tensor


def wanted(x: Tensor, dim: int, k: int, largest: bool) -> list[Tensor]:
    """A stable sort's first ones."""
    values, places = x.sort(dim=dim, descending=largest, stable=True)
    return [values.narrow(dim, 0, k), places.narrow(dim, 0, k)]


@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
@pytest.mark.parametrize("length", [1, 2, 7, FIRST_LOOK - 1, FIRST_LOOK + 3, 20 * FIRST_LOOK])
def test_ties_go_to_the_first_elements(length: int, largest: bool) -> None:
    generator = torch.Generator().manual_seed(length)
    for most in (1, 2, 5, 1000):
        x = torch.randint(0, most, (6, length), generator=generator)
        x[0] = 3  # all equal
        x[1, : length // 2] = -1 if largest else 2000  # equal ones are late
        x[2] = torch.arange(length)  # none are
        for k in {1, min(2, length), min(9, length)}:
            for dtype in (torch.int64, torch.float32):
                rows = x.to(dtype)
                assert all(map(torch.equal, select(rows, 1, k, largest), wanted(rows, 1, k, largest)))
                assert all(map(torch.equal, select(rows.T, 0, k, largest), wanted(rows.T, 0, k, largest)))


def test_nan_is_above_all_numbers_and_the_first_of_them_is_the_best() -> None:
    x = torch.tensor([[1.0, float("nan"), float("inf"), float("nan"), float("nan")]])
    values, places = select(x, 1, 2, True)
    assert places.tolist() == [[1, 3]]
    assert values.isnan().all()
    assert select(x, 1, 3, False)[1].tolist() == [[0, 2, 1]]

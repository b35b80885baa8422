"""Calls of matmul by its three steps: what is beside a product lies in the result's shape, not in the operands'."""

from __future__ import annotations

import pytest
import torch

import tilefold
from tilefold.errors import ArgumentError, ShapeError

SHAPES = (((5, 3), (3, 7)), ((5, 3), (3,)), ((3,), (3, 7)), ((2, 1, 5, 3), (4, 3, 7)), ((3,), (3,)))


@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
def test_bias_and_extras_broadcast_to_the_result(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = (torch.arange(torch.Size(s).numel()).view(s).double() for s in (left, right))
    want = torch.matmul(a, b)
    bias = torch.arange(want.shape[-1] if want.ndim else 1).double()
    extra = torch.full(want.shape, 2.0, dtype=torch.float64)
    bias = bias if want.ndim else bias[0]
    got = tilefold.matmul(a, b, bias=bias, epilogue=lambda x, e: x * e, epilogue_args=(extra,))
    assert torch.equal(got, (want + bias) * 2)
    assert got.shape == want.shape
    with pytest.raises(ShapeError, match="must broadcast"):
        tilefold.matmul(a, b, bias=torch.zeros(9, *want.shape, 11).double())


def test_extra_tensors_without_an_epilogue_are_refused() -> None:
    x = torch.ones(2, 2)
    with pytest.raises(ArgumentError, match="must come with an epilogue"):
        tilefold.matmul(x, x, epilogue_args=(x,))

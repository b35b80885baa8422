"""Float results asked for as whole numbers: the same on every backend, whichever of torch's functions made them."""

from __future__ import annotations

import pytest
import torch

import tilefold as tf
from tilefold import monoids

INF, NAN = float("inf"), float("nan")
WHOLE = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.uint64)


@pytest.mark.parametrize("dtype", WHOLE, ids=str)
@pytest.mark.parametrize("value", [INF, -INF, NAN, 1e30, -300.0, 2.75])
@pytest.mark.parametrize("name", ["SUM", "MAX", "FIRST", "LOGSUMEXP"])
def test_backends_agree(name: str, value: float, dtype: torch.dtype) -> None:
    """Short folds are torch's, long ones loops over tiles; a repeated call is answered by what the first one planned."""
    short, long = torch.full((2, 3), value), torch.zeros(1, 40_000)
    long[0, 0] = value
    for x in (short, long):
        with tf.backend("cpu"):
            want = tf.reduce(x, getattr(monoids, name), 1, dtype=dtype)
        for _ in range(2):
            assert torch.equal(
                tf.reduce(x, getattr(monoids, name), 1, dtype=dtype).view(torch.uint8), want.view(torch.uint8)
            )
        out = torch.empty_like(want)
        tf.reduce(x, getattr(monoids, name), 1, dtype=dtype, out=out)
        assert torch.equal(out.view(torch.uint8), want.view(torch.uint8))
    with tf.backend("reference"):
        first = tf.reduce(short, getattr(monoids, name), 1, dtype=dtype)
    assert torch.equal(
        tf.reduce(short, getattr(monoids, name), 1, dtype=dtype).view(torch.uint8), first.view(torch.uint8)
    )


def test_a_products_values_too() -> None:
    a, b = torch.ones(2, 3), torch.ones(3, 2)
    for scale, want in (
        (NAN, 0),
        (1e25, torch.iinfo(torch.int64).max),
        (-1e25, torch.iinfo(torch.int64).min),
    ):
        got = tf.matmul(a * scale, b, out_dtype=torch.int64)
        assert got.tolist() == [[want, want], [want, want]]

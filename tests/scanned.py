"""Monoids and comparisons that tests of scans share."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

import tilefold
from tilefold import monoids

FLAGS = [dict(zip(("exclusive", "reverse", "return_state"), flags, strict=True)) for flags in
         itertools.product((False, True), repeat=3)]  # fmt: skip
P = 97
MATRICES = tilefold.Monoid(
    lambda p, q: (
        (p.a * q.a + p.b * q.c) % P,
        (p.a * q.b + p.b * q.d) % P,
        (p.c * q.a + p.d * q.c) % P,
        (p.c * q.b + p.d * q.d) % P,
    ),
    (1, 0, 0, 1),
    fields=("a", "b", "c", "d"),
    commutative=False,
    check=False,
    name="matrices",
)
"""Products of 2 x 2 matrices modulo a prime, exact: any other order of the elements gives another answer."""

POSITIONS = tilefold.Monoid(
    lambda a, b: (tilefold.math.where(b.there > 0, b.where, a.where), a.there + b.there),
    (-1, 0),
    fields=("where", "there"),
    lift=lambda x, i: (tilefold.math.where(x > 0, i, -1), tilefold.math.where(x > 0, 1, 0)),
    index=True,
    commutative=False,
    check=False,
    name="positions",
)
"""The position of the last positive element, and how many there were."""

ORDERED = {"matrices": MATRICES, "affine": monoids.AFFINE, "last": monoids.LAST, "positions": POSITIONS}


def drawn(monoid: Any, shape: Sequence[int], seed: int = 0) -> list[torch.Tensor]:
    """Whole numbers, so that every order of combination is exact."""
    generator = torch.Generator().manual_seed(seed)
    inputs = monoid.algebra.inputs
    low, high = (0, P) if monoid is MATRICES else (-2, 3)
    return [torch.randint(low, high, tuple(shape), generator=generator) for _ in range(inputs)]


def leaves(results: Any) -> list[torch.Tensor]:
    """Tensors of nested tuples, in order."""
    return [results] if isinstance(results, torch.Tensor) else [t for r in results for t in leaves(r)]


def scanned(backend: str, *arguments: Any, **options: Any) -> list[torch.Tensor]:
    with tilefold.backend(backend):
        return leaves(tilefold.scan(*arguments, **options))


def same(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> None:
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
        assert g.shape == w.shape
        assert torch.equal(g, w), (g, w)


def from_behind_a_vector(
    shape: tuple[int, int], shift: int, dtype: torch.dtype, beside: int = 0
) -> torch.Tensor:
    """Rows whose first element is `shift` behind a vector, `beside` elements of others after each; NaN all around."""
    n = shape[0] * (shape[1] + beside)
    storage = torch.full((n + 32,), float("nan") if dtype.is_floating_point else 99, dtype=dtype)
    x = storage[shift : shift + n].view(shape[0], -1)[:, : shape[1]]
    assert x.data_ptr() % 16 == shift * x.element_size()
    return x.copy_(torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(0)))

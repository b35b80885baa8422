"""Positions are narrowed to 32 bits, and taken to be in order, only where nothing else can show in their fields."""

from __future__ import annotations

import math

import pytest
import torch

import tilefold
from tilefold import Monoid, monoids
from tilefold import math as tm

# numpy, under Triton's interpreter, warns of whole numbers that wrap and of arrays as scalars.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
BACKENDS = pytest.mark.parametrize("backend", ["cpu", "reference", "interpret"])
FAR = 1 << 40


def positioned(combine, identity, lift, **options) -> Monoid:
    return Monoid(combine, identity, lift=lift, **{"index": True, "dtypes": "index", **options})


@BACKENDS
@pytest.mark.parametrize(
    ("monoid", "want"),
    [
        pytest.param(positioned(tm.maximum, -math.inf, lambda x, i: tm.where(x > 5, x, i)), FAR, id="an-element"),
        pytest.param(positioned(tm.maximum, -math.inf, lambda x, i: tm.where(x > 5, FAR, i)), FAR, id="a-constant"),
        pytest.param(positioned(tm.maximum, -math.inf, lambda x, i: tm.where(i < FAR, i, 0)), 2, id="compared"),
        pytest.param(
            positioned(tm.maximum, -math.inf, lambda x, i: i, project=lambda p: p * 3_000_000_000),
            6_000_000_000,
            id="computed-with-in-the-end",
        ),
        pytest.param(
            positioned(tm.maximum, -math.inf, lambda x, i: i, project=lambda p: tm.where(p > 1, FAR, p)),
            FAR,
            id="chosen-in-the-end",
        ),
    ],
)  # fmt: skip
def test_what_32_bits_cannot_hold_is_kept(monoid: Monoid, want: int, backend: str) -> None:
    with tilefold.backend(backend):
        assert tilefold.reduce(torch.tensor([1, FAR, 3]), monoid).item() == want


@BACKENDS
def test_a_constant_in_place_of_a_position_is_compared(backend: str) -> None:
    """Elements that come later have later positions, but a constant has none."""
    least = positioned(
        lambda a, b: tm.where(b < a, b, a), math.inf, lambda x, i: tm.where(x > 0, i, 700), commutative=True
    )
    x = torch.zeros(600)
    x[300] = 1
    with tilefold.backend(backend):
        assert tilefold.reduce(x, least).item() == 300


@pytest.mark.parametrize("name", ["ARGMAX", "ARGMIN", "MAX_WITH_INDEX", "MIN_WITH_INDEX"])
def test_the_catalogues_positions_are_labels(name: str) -> None:
    assert getattr(monoids, name).total.index_is_label


def test_a_block_form_must_hold_for_earlier_elements_too() -> None:
    """Blocks come in any order where elements do: a strict comparison would keep the later of equals."""

    def combine(a, b):
        better = (b.v > a.v) | ((b.v == a.v) & (b.i < a.i))
        return tm.where(better, b.v, a.v), tm.where(better, b.i, a.i)

    def absorb(strict):
        def absorbed(state, x, i):
            best = tm.block_max(x)
            place = tm.block_min(tm.where(x == best, i, math.inf))
            better = best > state.v
            better = better if strict else better | ((best == state.v) & (place < state.i))
            return tm.where(better, best, state.v), tm.where(better, place, state.i)

        return absorbed

    options = {
        "fields": ("v", "i"),
        "lift": lambda x, i: (x, i),
        "index": True,
        "dtypes": ("input", "index"),
        "project": lambda v, i: i,
    }
    with pytest.raises(tilefold.errors.LawError, match=r"absorb must equal combining"):
        Monoid(combine, (-math.inf, math.inf), absorb=absorb(strict=True), **options)
    argmax = Monoid(combine, (-math.inf, math.inf), absorb=absorb(strict=False), **options)
    x = torch.randint(-2, 3, (8, 37, 4, 3)).float()
    with tilefold.backend("cpu"):
        for order in ((3, 0, 2, 1), (2, 3, 1, 0), (1, 3, 0, 2)):
            moved = x.permute(order).contiguous().permute([order.index(d) for d in range(4)])
            assert tilefold.reduce(moved, argmax) == x.argmax()

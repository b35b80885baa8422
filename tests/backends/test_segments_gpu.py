"""Ragged folds and folds by atomics on a GPU, beside the CPU's."""

from __future__ import annotations

import warnings

import pytest
import torch

import tilefold
from api.test_segment_reduce import AFFINE, WEIGHTED, drawn, offsets_of
from tilefold import monoids

pytestmark = pytest.mark.gpu
LENGTHS = {
    "equal": [64] * 3000,
    "short": [0, 1, 2, 3, 5, 31, 33] * 3000,
    "one long among empty ones": [0] * 50_000 + [1_000_003] + [0] * 50_000,
    "by a power law": [int(16 * 1.0009**i) for i in range(8000)],
}


@pytest.mark.parametrize("lengths", list(LENGTHS))
@pytest.mark.parametrize("monoid", [monoids.SUM, AFFINE, WEIGHTED], ids=lambda m: m.name)
@pytest.mark.parametrize("columns", [(), (3,), (130,)], ids=str)
@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant", "none"])
def test_beside_the_cpu(
    lengths: str, monoid: tilefold.Monoid, columns: tuple[int, ...], guarantee: str
) -> None:
    given = LENGTHS[lengths] if not columns else LENGTHS[lengths][:4000]
    offsets = offsets_of(given, 5)
    x = drawn(int(offsets[-1]) + 77, *columns)
    want = tilefold.segment_reduce(x, monoid, offsets, partial=True)
    for borders in (offsets, offsets.int()):
        got = tilefold.segment_reduce(
            x.cuda(), monoid, borders.cuda(), guarantee=guarantee
        )  # nobody looks at them
        for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, want)), strict=True):
            assert torch.equal(a.cpu(), b)


def test_bits_repeat_and_nobody_waits() -> None:
    x, offsets = torch.randn(1 << 22, device="cuda"), offsets_of([64] * (1 << 16)).cuda()
    lengths = offsets.diff()
    tilefold.segment_reduce(x, monoids.SUM, offsets)
    tilefold.segment_reduce(x, monoids.SUM, lengths=lengths)
    torch.cuda.synchronize()
    try:
        with warnings.catch_warnings(action="ignore"):  # of a prototype
            torch.cuda.set_sync_debug_mode("error")
        first, again = (tilefold.segment_reduce(x, monoids.SUM, offsets) for _ in range(2))
        counted = tilefold.segment_reduce(x, monoids.SUM, lengths=lengths)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(first, again)
    assert torch.equal(first, counted)
    with pytest.raises(ValueError, match="`offsets` must ascend"):
        tilefold.segment_reduce(x, monoids.SUM, offsets.flip(0), validate=True)
    with pytest.raises(ValueError, match="`offsets` must begin at 0 and end"):
        tilefold.segment_reduce(x, monoids.SUM, offsets[:-1], validate=True)
    with pytest.raises(ValueError, match="`lengths` must sum to"):
        tilefold.segment_reduce(x, monoids.SUM, lengths=lengths[1:], validate=True)
    tilefold.segment_reduce(x, monoids.SUM, offsets.flip(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_atomics(dtype: torch.dtype) -> None:
    x = drawn(2, 1 << 20).to(dtype).cuda()
    got = tilefold.reduce(x, monoids.SUM, dim=1, guarantee="none")
    plan = tilefold.last_plan()
    assert plan is not None
    assert plan.strategy == "atomics"
    assert torch.equal(got, tilefold.reduce(x, monoids.SUM, dim=1))  # whole numbers: exact in any order

"""Scans whose results are neighbours along another dim than elements are: tiles of both dims, executed from their PTX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import tilefold
from asked import asked, by_ptx, run
from scanned import POSITIONS, drawn, leaves
from tilefold import monoids
from tilefold.planner.device import H200
from tilefold.planner.stages.scans import ScanTile
from tilefold.xray.machine.counts import global_cost

FEW = replace(H200, sms=1)  # so that small tensors have lines enough
BF16 = torch.bfloat16
WORKS: dict[str, dict[str, Any]] = {
    "forward": {},
    "backward": {"reverse": True, "return_state": True},
    "exclusive": {"exclusive": True},
    "exclusive backward": {"exclusive": True, "reverse": True, "return_state": True},
}


def lying(x: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """The same elements, which lie in memory in this order of the dims."""
    return x.permute(*order).contiguous().permute([order.index(d) for d in range(x.ndim)])


def tile_of(call: Callable[[], Any]) -> ScanTile:
    tile = asked(call, FEW)[2].launched[-1].settings
    assert isinstance(tile, ScanTile)
    return tile


def check(call: Callable[[], Any]) -> list[torch.Tensor]:
    """The results of a tile of two dims, beside the definition's."""
    assert tile_of(call).near
    request, tensors, _ = asked(call, FEW)
    ran = run(request, tensors, FEW)
    with tilefold.backend("reference"):
        want = leaves(call())
    for got, wanted in zip(ran.results, want, strict=True):
        torch.testing.assert_close(got.view_as(wanted), wanted, rtol=0, atol=0)
    return ran.results


@pytest.mark.parametrize("work", list(WORKS))
def test_orders_directions_and_states(work: str) -> None:
    """Whole tiles and tiles in part of each dim, a chunk or several, of an outer dim or none."""
    shape, order, dim = (
        ((13, 11, 40), (2, 1, 0), 1) if "exclusive" in work else ((2, 5, 37, 33), (0, 3, 2, 1), 2)
    )
    xs = [lying(x, order) for x in drawn(monoids.AFFINE, shape)]
    check(lambda: tilefold.scan(tuple(xs), monoids.AFFINE, dim, **WORKS[work]))


def test_positions_two_inputs_and_a_state_before() -> None:
    x = lying(drawn(POSITIONS, (9, 50, 64))[0], (2, 1, 0))
    check(lambda: tilefold.scan(x, POSITIONS, 1))
    a, b = (lying(t.float(), (2, 0, 1)) for t in drawn(monoids.AFFINE, (21, 16, 64)))
    before = (torch.ones(16, 64), torch.full((16, 64), 2.0))
    check(lambda: tilefold.scan((a, b), monoids.AFFINE, 0, init=before, return_state=True))


def test_sums_of_exponentials() -> None:
    for x in (torch.randn(13, 11, 130).to(BF16), torch.randn(5, 40, 200) * 100):
        lies = lying(x, (2, 1, 0))
        assert tile_of(lambda lies=lies: tilefold.logcumsumexp(lies, 1)).sums
        request, tensors, _ = asked(lambda lies=lies: tilefold.logcumsumexp(lies, 1), FEW)
        (got,) = run(request, tensors, FEW).results
        want = torch.logcumsumexp(x.double(), 1)
        assert ((got - want).abs() <= torch.finfo(x.dtype).eps * want.abs().clamp(min=1)).all()


def test_sectors_are_read_and_written_whole() -> None:
    x = lying(torch.randint(-3, 3, (16, 11, 256)).float(), (2, 1, 0))
    request, tensors, _ = asked(lambda: tilefold.cumsum(x, 1), FEW)
    ran = run(request, tensors, FEW)
    ((_, outcomes),) = ran.launches
    accesses = [a for o in outcomes for a in o.accesses]
    assert global_cost(accesses).sectors == 2 * x.numel() * 4 // 32


def test_which_scans_have_such_tiles() -> None:
    x = torch.empty(200, 11, 3000, device="meta")
    lies = lying(x, (2, 1, 0))
    tile = tile_of(lambda: tilefold.cumsum(lies, 1))
    assert (tile.lines, tile.near, tile.length, tile.num_warps) == (512, 32, 11, 4)
    assert not tile_of(lambda: tilefold.cumsum(x, 1)).near
    assert not tile_of(lambda: tilefold.cumsum(lies, 1, guarantee="batch_invariant")).near
    assert not tile_of(lambda: tilefold.cumsum(lies[:1, :, :50], 1)).near  # too few lines


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_chunk_of_more_bytes_than_one_store_joins(dtype: torch.dtype, reverse: bool) -> None:
    """Results lie across elements of a byte, whose chunks are of 64."""
    x = lying((torch.arange(5 * 130) % 3).reshape(5, 130).to(dtype), (1, 0))

    def call() -> torch.Tensor:
        return tilefold.scan(x, monoids.SUM, 1, reverse=reverse)

    tile = asked(call)[2].launched[-1].settings
    assert isinstance(tile, ScanTile)
    assert tile.chunk == 64
    want = x.long().flip(1).cumsum(1).flip(1) if reverse else x.long().cumsum(1)
    assert torch.equal(by_ptx(call)[0].long(), want)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_lines_of_four_bytes_are_stored_in_order(dtype: torch.dtype) -> None:
    x = lying((torch.arange(4 * 1000) * 37 % 101).reshape(1000, 4).to(dtype), (1, 0))

    def call() -> tuple[torch.Tensor, torch.Tensor]:
        return tilefold.cummax(x, 1)

    assert "4 elements a step" in str(asked(call)[2])
    assert torch.equal(by_ptx(call)[0], x.cummax(1).values)

"""How maps on a CPU are cut: tiles that threads take whole, or share."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilefold
from asked import asked
from tilefold import monoids
from tilefold.backends.cpu import row_tiles
from tilefold.planner.stages.cpu import FEW


@pytest.mark.parametrize("threads", [1, 2, FEW, FEW + 1, 16])
@pytest.mark.parametrize("placeless", [False, True])
def test_a_few_threads_take_tiles_and_more_share_them(
    threads: int, placeless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one thread's cache each, or of all threads' together; values are the same."""
    made, cut = list[int](), row_tiles.tiles_of

    def tiles_of(shape: Any, most: int) -> Any:
        made.append(most)
        return cut(shape, most)

    monkeypatch.setattr(row_tiles, "tiles_of", tiles_of)
    monkeypatch.setattr(row_tiles, "SHARE", 40)
    x = torch.randn(7, 33)
    request, _, _ = asked(lambda: tilefold.reduce_map(x, monoids.MAX, lambda x, largest: x - largest, dim=1))
    largest = x.amax(1, True)
    ((found,), _) = row_tiles.map_tiles(
        request.row, [x, largest.expand(x.shape)], threads, placeless=placeless
    )
    assert torch.equal(found, x - largest)
    assert made == [40 if 1 <= threads <= FEW else 40 * threads]

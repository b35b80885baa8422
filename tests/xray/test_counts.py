"""Sectors and bank conflicts of patterns whose cost can be counted by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tilefold.xray.machine import Access
from tilefold.xray.machine.counts import GlobalCost, SharedCost, global_cost, shared_cost
from xray import kernels
from xray.running import launch


def access(
    addresses: np.ndarray, size: int, space: str = "global", active: np.ndarray | None = None
) -> list[Access]:
    everyone = np.ones(len(addresses), bool)
    return [Access(0, "load", space, addresses.astype("u8"), everyone if active is None else active, size, 0)]


@pytest.mark.parametrize(
    ("stride", "sectors"), [(0, 1), (1, 4), (2, 8), (8, 32), (32, 32)], ids=lambda n: str(n)
)
def test_sectors_of_single_words(stride: int, sectors: int) -> None:
    cost = global_cost(access(np.arange(32) * 4 * stride + 4096, 4))
    ideal = 1 if stride == 0 else 4
    assert (cost.requests, cost.sectors, cost.ideal, cost.asked) == (1, sectors, ideal, 128)


def test_sectors_of_vectors_and_of_a_row_from_an_odd_place() -> None:
    assert global_cost(access(np.arange(32) * 16, 16)).sectors == 16
    assert global_cost(access(np.arange(32) * 4 + 4, 4)).sectors == 5


def test_lanes_that_are_off_ask_for_nothing() -> None:
    active = np.arange(64) < 3
    assert global_cost(access(np.arange(64) * 4, 4, active=active)) == GlobalCost(1, 1, 1, 12, 12)


LANES = np.arange(32)


@pytest.mark.parametrize(
    ("places", "size", "sectors"),
    [
        (LANES * 0, 4, 32), (LANES % 2, 4, 16), (LANES // 16, 4, 16), (LANES % 8, 4, 4), (LANES // 4, 4, 4),
        (LANES // 2, 4, 4), (LANES // 4 * 8, 4, 32), (LANES % 16, 4, 4), (LANES, 4, 4), (LANES + 3, 4, 5), (4 * LANES, 4, 16),
        (64 * LANES, 4, 32), (LANES * LANES % 61, 4, 9), (LANES * 0, 8, 32), (LANES % 8, 8, 8), (LANES, 8, 8),
        (LANES, 16, 16),
    ],
)  # fmt: skip
def test_lanes_of_an_atomic_that_meet_send_their_sector_again(
    places: np.ndarray, size: int, sectors: int
) -> None:
    """Numbers of an H200's counter for one request."""
    (one,) = access(places * size, size)
    cost = global_cost([replace(one, kind="atomic")])
    assert (cost.requests, cost.sectors) == (1, sectors)
    assert cost.sectors - cost.again == global_cost([one]).sectors


def test_an_atomic_of_16_bits_is_a_request_for_each_turn_in_a_word() -> None:
    (one,) = access(8 + 2 * LANES, 2)
    cost = global_cost([replace(one, kind="atomic")])
    assert (cost.requests, cost.sectors, cost.asked) == (2, 6 + 3, 64)


@pytest.mark.parametrize(("stride", "passes"), [(0, 1), (1, 1), (2, 2), (3, 1), (16, 16), (32, 32), (33, 1)])
def test_bank_conflicts_of_single_words(stride: int, passes: int) -> None:
    assert shared_cost(access(np.arange(32) * 4 * stride, 4, "shared")) == SharedCost(1, passes, 1)


def test_bank_conflicts_of_vectors() -> None:
    assert shared_cost(access(np.arange(32) * 16, 16, "shared")) == SharedCost(1, 4, 4)
    assert shared_cost(access(np.arange(32) * 8, 8, "shared")) == SharedCost(1, 2, 2)
    assert shared_cost(access(np.arange(32) * 128, 16, "shared")) == SharedCost(1, 32, 4)


@pytest.mark.parametrize(
    ("size", "apart", "passes"), [(8, 1, 1), (8, 2, 1), (8, 4, 2), (16, 1, 2), (16, 2, 2), (16, 4, 4)]
)
def test_a_load_of_lanes_in_pairs_goes_in_half_the_parts(size: int, apart: int, passes: int) -> None:
    """Lanes l and l ^ apart ask for the same: neighbours, or each the next but one. A store goes in all its parts."""
    lanes = np.arange(32)
    places = (lanes // (2 * apart) * apart + lanes % apart) * size
    assert shared_cost(access(places, size, "shared")).passes == passes
    stored = [replace(a, kind="store") for a in access(places, size, "shared")]
    assert shared_cost(stored).passes == size // 4


@pytest.mark.parametrize(("aligned", "sectors"), [(False, 375), (True, 750)], ids=["unhinted", "aligned"])
def test_a_whole_kernel(aligned: bool, sectors: int) -> None:
    """1000 floats in, in and out are 125 sectors each. Aligned pointers promise pairs, so each thread is given two
    neighbours; the mask forbids the vector, and every sector is then touched twice.
    """
    x = torch.randn(1000)
    outcomes = launch(
        kernels.add, {"x_ptr": x, "y_ptr": x.clone(), "z_ptr": torch.empty(1000), "n": 1000},
        grid=(4, 1, 1), aligned=aligned, BLOCK=256,
    )  # fmt: skip
    cost = global_cost([a for o in outcomes for a in o.accesses])
    assert (cost.sectors, cost.asked) == (sectors, 12000)

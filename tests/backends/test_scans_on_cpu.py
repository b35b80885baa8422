"""Scans on a CPU: torch's own functions where they are exact, threads, bits that follow neither these nor other rows."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import tilefold
from in_modes import threads
from scanned import FLAGS, leaves, scanned
from tilefold import monoids
from tilefold.errors import GradientError, KindError


def test_a_repeated_scan_is_planned_for_its_threads() -> None:
    x, plans = torch.randn(300, 400), []
    mine = tilefold.Monoid(lambda a, b: a + b, 0.0, check=False, name="mine")
    for number in (1, 2, 1):
        with threads(number):
            for _ in range(2):
                torch.testing.assert_close(tilefold.scan(x, mine, 1), x.cumsum(1), atol=1e-4, rtol=1e-5)
            plans.append(tilefold.last_plan())
    assert plans[0] == plans[2] != plans[1]


def test_a_repeated_scan_is_checked_where_something_else_is_asked() -> None:
    x = torch.randn(8, 8)
    for _ in range(3):
        assert torch.equal(tilefold.cumsum(x, 1), x.cumsum(1))
    assert tilefold.cumsum(x.clone().requires_grad_(), 1).requires_grad
    with pytest.raises(GradientError, match="grad"):
        tilefold.cumsum(x.clone().requires_grad_(), 1, out=torch.empty(8, 8))
    with tilefold.backend("reference"):
        tilefold.cumsum(x, 1)
        plan = tilefold.last_plan()
        assert plan is not None
        assert plan.backend == "reference"
    with pytest.raises(KindError, match="`dim` must be one int"):
        tilefold.scan(x, monoids.SUM, (1,))  # type: ignore[arg-type]  # what is refused


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.float16, torch.bool], ids=str)
@pytest.mark.parametrize("name", ["SUM", "PROD", "MAX", "MIN"])
def test_torchs_own_scans_go_either_way(name: str, dtype: torch.dtype, dim: int) -> None:
    x = (torch.arange(35.0).view(5, 7) % 4 - 1.5).to(dtype)
    monoid = getattr(monoids, name)
    for exclusive, reverse in itertools.product((False, True), repeat=2):
        for _ in range(2):  # the second is answered by what the first planned
            got = tilefold.scan(x, monoid, dim, exclusive=exclusive, reverse=reverse)
            plan = tilefold.last_plan()
            assert plan is not None
            assert plan.strategy.startswith("torch.cum")
            want = scanned("reference", (x,), monoid, dim, exclusive=exclusive, reverse=reverse)
            assert got.is_contiguous()
            torch.testing.assert_close(
                got, leaves(want)[0], rtol=1e-2 if dtype == torch.float16 else 1e-6, atol=0
            )


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("wide", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16], ids=str)
def test_prefixes_of_halves_are_not_rounded_before_they_are_wide(
    narrow: torch.dtype, wide: torch.dtype, flags: dict[str, bool]
) -> None:
    x, factors = torch.full((2, 3000), 100.0, dtype=narrow), torch.full((2, 900), 1.0078125, dtype=narrow)
    prefixes, *_ = leaves(tilefold.scan(x, monoids.SUM, 1, dtype=wide, **flags))
    want, *_ = leaves(tilefold.scan(x.double(), monoids.SUM, 1, **flags))
    assert prefixes.dtype == wide
    assert torch.equal(prefixes.double(), want), "whole numbers below 2^24"
    products, *_ = leaves(tilefold.scan(factors, monoids.PROD, 1, dtype=wide, **flags))
    want, *_ = leaves(tilefold.scan(factors.double(), monoids.PROD, 1, **flags))
    torch.testing.assert_close(products.double(), want, rtol=900 * 2**-24, atol=0)


def test_positions_and_several_fields_are_not_turned_around() -> None:
    x = torch.tensor([1.0, 3.0, 3.0, 2.0])
    assert tilefold.scan(x, monoids.CUMMAX, 0, reverse=True)[1].tolist() == [2, 2, 2, 3]
    assert str(tilefold.last_plan()).startswith("cpu")
    tilefold.scan(x, monoids.LOGSUMEXP, 0, exclusive=True)
    assert str(tilefold.last_plan()).startswith("cpu")


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("shape", [(2003, 3), (2003, 70), (2100, 131), (9, 1001), (1, 130001)], ids=str)
def test_many_rows_are_a_lane_each_and_long_ones_go_on(
    shape: tuple[int, int], flags: dict[str, bool]
) -> None:
    """Whole numbers and factors of two are exact, so that every association gives the same."""
    b = torch.arange(shape[0] * shape[1], dtype=torch.float64).view(shape) % 7 - 3
    a = torch.where(b > 0, 1.0, -1.0).double()
    got = leaves(tilefold.scan((a, b), monoids.AFFINE, 1, **flags))
    with tilefold.backend("cpu"):
        again = leaves(tilefold.scan((a.t().contiguous(), b.t().contiguous()), monoids.AFFINE, 0, **flags))
    for field, other in zip(got, again, strict=True):
        assert torch.equal(field, other.t() if other.ndim == 2 else other)


@pytest.mark.parametrize("length", [5, 100, 1001, 40000])
def test_invariant_bits_follow_neither_the_number_of_rows_nor_where_they_lie(length: int) -> None:
    a, b = torch.rand(2, length, 3).unbind(0)
    invariant = {"guarantee": "batch_invariant"}
    whole = leaves(tilefold.scan((a, b), monoids.AFFINE, 0, **invariant))
    rows = leaves(tilefold.scan((a.t().contiguous(), b.t().contiguous()), monoids.AFFINE, 1, **invariant))
    alone = leaves(
        tilefold.scan((a[:, 1].contiguous(), b[:, 1].contiguous()), monoids.AFFINE, 0, **invariant)
    )
    for field, turned, one in zip(whole, rows, alone, strict=True):
        assert torch.equal(field, turned.t())
        assert torch.equal(field[:, 1], one)


def test_bits_do_not_follow_the_number_of_threads() -> None:
    a, b = torch.rand(300, 257), torch.randn(300, 257)
    found = []
    for number in (1, 2, 3):
        with threads(number):
            found.append(leaves(tilefold.scan((a, b), monoids.AFFINE, 1)))
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_threads_of_a_caller_may_scan_alike_at_once() -> None:
    inputs = [(torch.rand(16, 65), torch.randn(16, 65)) for _ in range(4)]
    want = [leaves(tilefold.scan(pair, monoids.AFFINE, 1)) for pair in inputs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            for fields, made in zip(
                want, pool.map(lambda p: tilefold.scan(p, monoids.AFFINE, 1), inputs), strict=True
            ):
                assert all(map(torch.equal, fields, leaves(made)))

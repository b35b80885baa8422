"""Statistics of parts, of copies and of views in which elements stand at several places, against the elements written out."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tilefold.checkpoints import summary
from tilefold.checkpoints.summary import Summary, summarize, summarize_chunks
from tilefold.errors import DtypeError

NAN, INF = float("nan"), float("inf")


def base() -> torch.Tensor:
    x = torch.randn(64, generator=torch.Generator().manual_seed(5))
    x[3], x[7], x[11], x[12] = NAN, 0.0, INF, -0.0
    return x


def same(a: Summary, b: Summary, rel: float = 1e-6) -> None:
    counts = ("count", "nans", "infs", "zeros", "finite", "least", "most")
    assert [getattr(a, c) for c in counts] == [getattr(b, c) for c in counts]
    assert a.mean == pytest.approx(b.mean, rel=rel, abs=1e-7)
    assert a.std == pytest.approx(b.std, rel=rel)


@pytest.mark.parametrize(
    ("shape", "stride"),
    [
        pytest.param((5, 7), (1, 1), id="a-window"),
        pytest.param((5, 7, 3), (2, 1, 3), id="three-overlapping-dims"),
        pytest.param((4, 1, 9), (0, 0, 2), id="copies-of-every-other"),
        pytest.param((6, 6), (3, 3), id="gaps"),
        pytest.param((3, 4, 5, 2), (0, 2, 1, 5), id="copies-of-overlaps"),
        pytest.param((2,) * 12, (1, 2, 4, 1, 2, 4, 0, 1, 2, 4, 8, 0), id="twelve-dims"),
        pytest.param((7, 8), (8, 1), id="dense"),
        pytest.param((0, 5), (0, 1), id="empty"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_views_that_name_elements_twice(
    shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
) -> None:
    view = base().to(dtype).as_strided(shape, stride, 1)
    same(summarize(view), summarize(view.contiguous()))


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda: torch.ones(1).expand(1 << 46), id="one-number"),
        pytest.param(lambda: torch.ones(3, 1, 2).expand(3, 1 << 40, 2), id="a-dim-among-others"),
        pytest.param(
            lambda: torch.ones(1 << 10).as_strided((512, 512, 1 << 30), (1, 1, 0)), id="and-overlaps"
        ),
    ],
)
def test_expanded_elements_are_counted_by_arithmetic(view: Callable[[], torch.Tensor]) -> None:
    found = summarize(view())
    assert found.count == view().numel()
    assert (found.least, found.most, found.mean, found.std) == (1.0, 1.0, 1.0, 0.0)


def test_copies_change_the_divisor_only() -> None:
    x = torch.tensor([1.0, 3.0])
    assert summarize(x.view(2, 1).expand(2, 1000)).std == pytest.approx(math.sqrt(2000 / 1999))


def test_overlaps_that_reach_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "OVERLAPPING", 10)
    with pytest.raises(DtypeError, match=r"must reach at most 10 elements of memory, got 64; save a copy"):
        summarize(base().as_strided((32, 33), (1, 1)))


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1.0, 1e200, 1e300])
def test_chunks_add_up(scale: float) -> None:
    x = base().double() * scale
    x[20:40] = scale
    whole = summarize(x)
    same(summarize_chunks(x.split(7)), whole)
    same(whole + Summary(), whole)
    same(Summary() + whole, whole)


def test_chunks_of_far_means() -> None:
    a, b = torch.full((5,), 1.7e308, dtype=torch.float64), torch.full((5,), -1.7e308, dtype=torch.float64)
    found = summarize(a) + summarize(b)
    assert found.mean == 0.0
    assert found.std == INF


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e-22, 1e-19, 1e19, 1e30])
def test_squares_outside_of_a_float(scale: float, dtype: torch.dtype) -> None:
    x = torch.tensor([1.0, 2.0, 3.0, NAN]).to(dtype) * scale
    for factor in (1.0,) if dtype == torch.float32 else (1e-270 if scale < 1 else 1e270,):
        y = x * factor
        exact = [v / scale / factor for v in y[:3].double().tolist()]
        std = torch.tensor(exact, dtype=torch.float64).std().item() * scale * factor
        assert summarize(y).std == pytest.approx(std, rel=1e-6)


def test_negative_views() -> None:
    x = torch._neg_view(torch.tensor([1.0, 2.0]))
    assert (summarize(x).least, summarize(x).most) == (-2.0, -1.0)

"""Scans whose results go into given tensors, their own inputs among them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilefold
from scanned import drawn, leaves, same
from tilefold import monoids
from tilefold.api import dispatch
from tilefold.errors import ShapeError


def test_results_go_where_they_are_wanted() -> None:
    x = torch.randint(0, 9, (4, 33))
    out, strided = torch.empty(4, 33, dtype=torch.int64), torch.empty(33, 4, dtype=torch.int64).t()
    for target in (out, strided):
        assert tilefold.scan(x, monoids.SUM, 1, out=target) is target
        assert torch.equal(target, x.cumsum(1))
        result, state = tilefold.scan(x, monoids.SUM, 1, out=target, return_state=True, reverse=True)
        assert result is target
        assert torch.equal(state, x.sum(1))
    pair = torch.empty(4, 33), torch.empty(4, 33, dtype=torch.int64)
    got = tilefold.cummax(x.float(), 1, out=pair)
    assert got.values is pair[0]
    assert torch.equal(pair[1], x.cummax(1).indices)


IN_PLACE = {
    "rows": ((5, 33), 1), "columns": ((33, 5), 0), "long rows": ((2, 9000), 1), "long columns": ((9000, 2), 0),
    "a middle dim": ((3, 40, 7), 1), "one line": ((70,), 0), "short rows": ((300, 3), 1), "no dims": ((), 0),
}  # fmt: skip
CALLS: dict[str, Callable[..., Any]] = {
    "sum": functools.partial(tilefold.scan, monoid=monoids.SUM),
    "sum backwards": functools.partial(tilefold.scan, monoid=monoids.SUM, reverse=True),
    "sum before": functools.partial(tilefold.scan, monoid=monoids.SUM, exclusive=True),
    "sum behind": functools.partial(tilefold.scan, monoid=monoids.SUM, exclusive=True, reverse=True),
    "first": functools.partial(tilefold.scan, monoid=monoids.FIRST),
    "cumsum": tilefold.cumsum,
    "cumprod": tilefold.cumprod,
}


@pytest.mark.parametrize("name", list(CALLS))
@pytest.mark.parametrize(
    ("backend", "layout"),
    [
        *itertools.product(("auto", "cpu", "reference"), IN_PLACE),
        ("interpret", "rows"),
        ("interpret", "columns"),
    ],
)
def test_in_place(backend: str, layout: str, name: str) -> None:
    """Into the input itself, whatever its strides: what is written is what another tensor would hold."""
    (shape, dim), call = IN_PLACE[layout], CALLS[name]
    if backend == "reference":  # an element after another
        shape = tuple(min(n, 300) for n in shape)
    x = torch.randint(1, 3, shape, generator=torch.Generator().manual_seed(1))
    buffer = torch.full((*shape, 2), -7)
    with tilefold.backend(backend):
        for own in (
            x.clone(),
            buffer.select(-1, 1).copy_(x),
            x.clone().t().contiguous().t() if x.ndim == 2 else x.clone(),
        ):
            want = call(own, dim=dim)
            assert call(own, dim=dim, out=own) is own
            assert torch.equal(own, want)
    assert (buffer.select(-1, 0) == -7).all()


@pytest.mark.parametrize("backend", ["auto", "cpu", "reference", "interpret"])
def test_several_results_in_place(backend: str) -> None:
    """Each result into one input, in either order, or into none; one tensor may be both inputs."""
    drawn_pairs = [drawn(monoids.AFFINE, (4, 50), seed) for seed in range(4)]
    with tilefold.backend(backend):
        for order, (a, b) in zip(((0, 1), (1, 0), (0, None), (None, 1)), drawn_pairs, strict=True):
            want = tilefold.scan((a, b), monoids.AFFINE, 1, reverse=True)
            out = [torch.empty_like(a) if n is None else (a, b)[n] for n in order]
            slope, h = tilefold.scan((a, b), monoids.AFFINE, 1, reverse=True, out=out)
            assert (slope is out[0], h is out[1]) == (True, True)
            same([slope, h], list(want))
        (a, _) = drawn(monoids.AFFINE, (4, 50), 9)
        want = tilefold.scan((a, a), monoids.AFFINE, 1)
        other = torch.empty_like(a)
        same(leaves(tilefold.scan((a, a), monoids.AFFINE, 1, out=(other, a))), list(want))
        x = torch.tensor([[3, 9, 2, 9]])
        values, places = tilefold.cummax(x, 1, out=(torch.empty_like(x), x))
        assert (values.tolist(), places.tolist()) == ([[3, 9, 9, 9]], [[0, 1, 1, 3]])
        z = torch.arange(12.0).view(3, 4)
        result, state = tilefold.scan(z, monoids.SUM, 1, init=1.0, out=z, return_state=True)
        assert (result is z, z[0].tolist(), state.tolist()) == (True, [1, 2, 4, 7], [7, 23, 39])


def test_in_place_is_by_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel is given the input's memory to write into; one beside it in a buffer is written at once."""
    given, run = [], dispatch.run

    def noted(request: Any, tensors: Any, key: Any = None, targets: Any = None) -> Any:
        given.append(targets)
        return run(request, tensors, key, targets)

    monkeypatch.setattr(dispatch, "run", noted)
    buffer = torch.ones(4, 8)
    tilefold.cumsum(buffer[:2], 1, out=buffer[:2])
    tilefold.cumsum(buffer[:2], 1, out=buffer[2:])
    assert given[0] is None
    assert given[1][0].data_ptr() == buffer[2:].data_ptr()
    assert buffer[0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert buffer[3].tolist() == [1, 3, 6, 10, 15, 21, 28, 36]


def test_a_refused_scan_leaves_its_input() -> None:
    x = torch.arange(8.0)
    with pytest.raises(ShapeError, match="overlap an input other than exactly"):
        tilefold.cumsum(x[:7], 0, out=x[1:])
    with pytest.raises(ShapeError, match="overlap an input other than exactly"):
        tilefold.cumsum(x[::2], 0, out=x[:4])
    assert x.tolist() == list(range(8))

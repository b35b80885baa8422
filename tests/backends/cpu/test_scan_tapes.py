"""Scans of a CPU on tiles of any size: lanes, levels, folds first, states before them, places that no element fills."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import pytest
import torch

import tilefold
from scanned import MATRICES, POSITIONS, drawn, leaves, same
from tilefold import monoids
from tilefold.algebra import program as programs
from tilefold.backends.cpu import scan_tapes, scans
from tilefold.planner.stages.cpu import CpuTile

PEAK = tilefold.Monoid(
    lambda a, b: (tilefold.math.maximum(a.most, b.most), a.total + b.total),
    (-float("inf"), 0),
    fields=("most", "total"),
    lift=lambda x: (x * 2, x),
    project=lambda most, total: total - tilefold.math.maximum(most, -1000),
    name="peak",
)
"""A monoid whose block form folds each field by itself."""


def _softmax(a: Any, b: Any) -> Any:
    largest = tilefold.math.maximum(a.m, b.m)
    safe = tilefold.math.where(largest == -float("inf"), 0.0, largest)
    return largest, a.l * tilefold.math.exp(a.m - safe) + b.l * tilefold.math.exp(b.m - safe)


PAIR = tilefold.Monoid(
    _softmax,
    (-float("inf"), 0),
    fields=("m", "l"),
    lift=lambda x: (x, 1.0),
    project=lambda m, l: m + tilefold.math.log(l),
)
MONOIDS = {
    "matrices": MATRICES, "positions": POSITIONS, "affine": monoids.AFFINE, "peak": PEAK,
    "largest, and where": monoids.CUMMAX,
}  # fmt: skip
TILES = [
    CpuTile(23, 1, 100), CpuTile(23, 1, 2, 1, True), CpuTile(9, 1, 100, 1, True), CpuTile(4, 1, 3), CpuTile(4, 6, 100),
    CpuTile(4, 2, 2), CpuTile(3, 5, 1), CpuTile(7, 3, 100), CpuTile(4, 3, 100, 2),
]  # fmt: skip
FLAGS = [
    dict(zip(("exclusive", "reverse"), f, strict=True)) for f in itertools.product((False, True), repeat=2)
]


def on_tile(inputs: Any, monoid: Any, dim: int, tile: CpuTile, init: Any = (), **flags: bool) -> Any:
    program = programs.specialize(monoid.total, tuple(x.dtype for x in inputs))
    settled = scans.Settled(
        program, tuple(inputs[0].shape), [x.dtype for x in inputs], dim, tile, alone=False, **flags
    )
    return settled(inputs, init)


@functools.cache
def defined(
    name: str, shape: tuple[int, ...], dim: int, exclusive: bool, reverse: bool
) -> list[torch.Tensor]:
    monoid = MONOIDS[name]
    with tilefold.backend("reference"):
        return leaves(
            tilefold.scan(
                drawn(monoid, shape), monoid, dim, return_state=True, exclusive=exclusive, reverse=reverse
            )
        )


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("name", list(MONOIDS))
def test_any_tile_gives_every_prefix(name: str, tile: CpuTile) -> None:
    monoid = MONOIDS[name]
    for (shape, dim), flags in itertools.product([((5, 23), 1), ((23, 5), 0), ((3, 23, 2), 1)], FLAGS):
        inputs, want = drawn(monoid, shape), defined(name, shape, dim, *flags.values())
        for _ in range(2):  # the second in the buffers of the first
            same(on_tile(inputs, monoid, dim, tile, state=True, **flags), want)
            same(
                on_tile(inputs, monoid, dim, tile, state=False, **flags),
                want[: len(want) - len(monoid.algebra.fields)],
            )


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("name", ["matrices", "peak"])
def test_any_tile_goes_on_from_a_state(name: str, tile: CpuTile) -> None:
    monoid = MONOIDS[name]
    for flags in FLAGS:
        inputs, before = drawn(monoid, (4, 23)), drawn(monoid, (4, len(monoid.algebra.fields)), 1)[0]
        init = list(before.unbind(1))
        with tilefold.backend("reference"):
            want = leaves(tilefold.scan(inputs, monoid, 1, init=init, return_state=True, **flags))
        same(on_tile(inputs, monoid, 1, tile, init, state=True, **flags), want)


@pytest.mark.parametrize("monoid", [monoids.MAX, monoids.BITWISE_XOR], ids=["largest", "exclusive or"])
def test_a_state_of_unsigned_numbers_goes_on(monoid: Any) -> None:
    """Into the next tile of long columns, and from a state that is given."""
    x = drawn(monoid, (9001, 5))[0].view(torch.uint64)  # negative ones are beyond 2^63
    with tilefold.backend("reference"):
        want = leaves(tilefold.scan(x, monoid, 0, return_state=True))
    flags = {"exclusive": False, "reverse": False, "state": True}
    same(on_tile([x], monoid, 0, CpuTile(4, 1500, 5), **flags), want)
    same(leaves(tilefold.scan(x, monoid, 0, return_state=True)), want)
    _, state = tilefold.scan(x[:7], monoid, 0, return_state=True)
    later = tilefold.scan(x[7:], monoid, 0, init=state, return_state=True)
    same(leaves(later), [want[0][7:], *want[1:]])


def test_a_tile_of_no_places_too_many_is_one_operation_a_level() -> None:
    for steps in range(1, 200):
        made, reach = scan_tapes.in_whole_levels(steps), 1
        assert steps <= made <= max(steps + 1, 4 / 3 * steps)
        while reach < made:
            blocks, left = divmod(made, 2 * reach)
            assert not (blocks and left > reach)
            reach *= 2


def test_large_scans_keep_the_buffers_of_the_latest_kind() -> None:
    scans._walks.clear()
    for length in (70_000, 70_001, 70_002):
        tilefold.scan(torch.arange(float(length)), PEAK, 0)
    assert [kind.length for kind in scans._walks] == [70_002]
    assert all(walk.memory.bytes <= scans.MOST_BYTES for walk in scans._walks[next(iter(scans._walks))])


@pytest.mark.parametrize("length", [1 << 17, 100_003])
@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_a_long_row_is_folded_first(length: int, flags: dict[str, bool]) -> None:
    """The online softmax of float32 beside its definition in float64, with the bits of the first call in the second."""
    x = torch.randn(length, generator=torch.Generator().manual_seed(length))
    x[5:9] = -float("inf")
    got = tilefold.scan(x, PAIR, 0, **flags)
    assert torch.equal(got, tilefold.scan(x, PAIR, 0, **flags))
    wide = x.double().flip(0) if flags["reverse"] else x.double()
    want = torch.logcumsumexp(wide, 0)
    if flags["exclusive"]:
        want = torch.cat((torch.tensor([-float("inf")]), want[:-1]))
    want = want.flip(0) if flags["reverse"] else want
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_scans_of_as_many_rows_in_other_shapes_have_results_of_their_own_shape() -> None:
    shapes = [(6, 4), (2, 3, 4), (3, 2, 4), (1, 6, 4), (6, 1, 4), (6, 4, 1)]
    for shape in [*shapes, (1, 1, 1), (1, 1), (1,), *shapes]:
        x = torch.arange(math.prod(shape), dtype=torch.float32).view(shape)
        dim = shape.index(4) if 4 in shape else len(shape) - 1
        got = tilefold.scan(x, PEAK, dim)
        with tilefold.backend("reference"):
            want = tilefold.scan(x, PEAK, dim)
        assert got.shape == want.shape == x.shape
        assert torch.equal(got, want)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_sum_that_is_declared_in_order_is_added_in_order(
    reverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Differences of small numbers: sums of neighbours are exact in any grouping, those of every other element are not."""
    monkeypatch.setattr(scan_tapes, "TOGETHER", 64)  # a lane's fold is then one of torch's of a single column
    in_order = tilefold.Monoid(lambda a, b: a + b, 0, commutative=False, name="sum in order")
    steps = torch.randint(2**22, 2**23, (257,), generator=torch.Generator().manual_seed(0))
    steps[::2] *= -1
    x = steps.diff()[None].float()
    want = steps[-1] - steps[:-1] if reverse else steps[1:] - steps[0]
    (got,) = on_tile([x], in_order, 1, CpuTile(64, 4, 1), exclusive=False, reverse=reverse, state=False)
    assert torch.equal(got[0].double(), want.double())

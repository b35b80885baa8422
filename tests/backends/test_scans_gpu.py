"""Scans on a device: many more programs than fit on the chip wait for each other, and bits stay the same."""

from __future__ import annotations

import pytest
import torch

import tilefold
from scanned import MATRICES, drawn, leaves, same, scanned
from tilefold import monoids

pytestmark = pytest.mark.gpu
SHAPES = [
    ((3, 1000), 1),
    ((1, 1 << 22), 1),
    ((64, 100_003), 1),
    ((4097, 513), 0),
    ((70_001, 24), 0),
    ((75, 150_001), 1),
    ((3, 1_000_004), 1),
    ((42, 1 << 16), 1),
    ((5000, 4096), 1),
]


@pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
@pytest.mark.parametrize("reverse", [False, True])
def test_every_order_is_kept(shape: tuple[int, int], dim: int, reverse: bool) -> None:
    inputs = drawn(MATRICES, shape)
    want = scanned("cpu", inputs, MATRICES, dim, reverse=reverse, return_state=True)
    got = tilefold.scan([x.cuda() for x in inputs], MATRICES, dim, reverse=reverse, return_state=True)
    same([t.cpu() for t in leaves(got)], want)


@pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bits_repeat_and_torch_agrees(shape: tuple[int, int], dim: int, dtype: torch.dtype) -> None:
    x = torch.randn(shape, device="cuda", dtype=dtype)
    first = tilefold.cumsum(x, dim)
    for _ in range(5):
        assert torch.equal(tilefold.cumsum(x, dim), first)
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(first.double(), x.double().cumsum(dim), rtol=rounding, atol=0.05)
    want, got = x.cpu().cummax(dim), tilefold.cummax(x, dim)
    assert torch.equal(got.values.cpu(), want.values)
    assert torch.equal(got.indices.cpu(), want.indices)


ODD = [
    ((64, 3001, 129), 1, (0, 1, 2)),
    ((100, 2000, 333), 1, (0, 1, 2)),
    ((600, 2003, 3), 1, (0, 1, 2)),
    ((1, 3333, 9001), 1, (0, 1, 2)),
    ((2003, 70, 120), 2, (1, 2, 0)),
    ((60, 128, 2001), 1, (0, 2, 1)),
    ((2, 20, 1 << 18), 1, (0, 2, 1)),
    ((1, 345_000, 56), 1, (0, 1, 2)),
    ((1, 2200, 1 << 16), 2, (0, 1, 2)),
    ((1, 301, 200_003), 2, (0, 1, 2)),
    ((1, 7, 800_377), 1, (0, 1, 2)),
    ((300, 24, 1000), 1, (0, 1, 2)),
    ((50_001, 8, 9), 1, (0, 1, 2)),
]


@pytest.mark.parametrize(("shape", "dim", "dims"), ODD, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_odd_widths_and_permuted_inputs(
    shape: tuple[int, ...], dim: int, dims: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Whole numbers, so that every order of combination is exact."""
    x = torch.randint(-2, 3, shape, device="cuda").to(dtype).permute(dims)
    want = x.double().cumsum(dim).to(dtype)
    for _ in range(2):
        assert torch.equal(tilefold.cumsum(x, dim), want)
    flipped = x.flip(dim).double().cumsum(dim).flip(dim).to(dtype)
    (got,) = leaves(tilefold.scan(x, monoids.SUM, dim, reverse=True))
    assert torch.equal(got, flipped)


ACROSS = [((13, 11, 13_375), 1), ((2, 131, 37, 1033), 2), ((40, 65, 3001), 1), ((300, 16, 129), 0)]


@pytest.mark.parametrize(("shape", "dim"), ACROSS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("flags", [{}, {"reverse": True}, {"exclusive": True, "reverse": True}], ids=str)
def test_results_that_lie_the_other_way_round(
    shape: tuple[int, ...], dim: int, dtype: torch.dtype, flags: dict[str, bool]
) -> None:
    """Results are neighbours along another dim than elements: stored the other way round by the launch that scans."""
    x = torch.randint(-2, 3, shape[::-1], device="cuda").to(dtype).permute(*reversed(range(len(shape))))
    (want,) = leaves(tilefold.scan(x.contiguous(), monoids.SUM, dim, **flags))
    a = (x > 0).to(dtype)
    pairs = scanned("cpu", [a.cpu(), x.cpu()], monoids.AFFINE, dim, return_state=True, **flags)
    for _ in range(2):
        assert torch.equal(tilefold.scan(x, monoids.SUM, dim, **flags), want)
        same(
            [t.cpu() for t in leaves(tilefold.scan((a, x), monoids.AFFINE, dim, return_state=True, **flags))],
            pairs,
        )
    highest = x.contiguous().cummax(dim)
    got = tilefold.cummax(x, dim)
    assert torch.equal(got.values, highest.values)
    assert torch.equal(got.indices.cpu(), x.cpu().cummax(dim).indices)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(
        tilefold.logcumsumexp(x, dim).double(), x.double().logcumsumexp(dim), rtol=4 * eps, atol=4 * eps
    )


@pytest.mark.parametrize("length", [3, 16, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_slices_of_short_rows(length: int, dtype: torch.dtype) -> None:
    """Groups of a few rows, and rows that begin at other places between vectors than their results."""
    x = torch.randint(-2, 3, (5003, 32, length + 1), device="cuda").to(dtype)
    for part in (x[:, 6:25, :length], x[:, :, 1:], x[1:, 3:, :length].transpose(0, 1)):
        assert torch.equal(tilefold.cumsum(part, 2), part.double().cumsum(2).to(dtype))
        want = part.cpu().cummax(2)
        got = tilefold.cummax(part, 2)
        assert torch.equal(got.values.cpu(), want.values)
        assert torch.equal(got.indices.cpu(), want.indices)


@pytest.mark.parametrize("shape", [(2, 45, 4173), (3, 360_689), (2, 15, 445)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_inputs_that_begin_elsewhere(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Two parts of one tensor of odd count; factors are 0 and 1, so that every order of combination is exact."""
    count = torch.Size(shape).numel()
    for shift in (1, 2, 3):
        whole = torch.randint(0, 2, (2 * count + shift,), device="cuda").to(dtype)
        a, b = whole[:count].view(shape), whole[count + shift :].view(shape)
        want = scanned("cpu", [a.cpu(), b.cpu()], monoids.AFFINE, -1)
        for _ in range(2):
            same([t.cpu() for t in leaves(tilefold.scan((a, b), monoids.AFFINE, -1))], want)


@pytest.mark.parametrize(("shape", "dim"), [((1, 1 << 27), 1), ((1 << 24, 9), 0)], ids=str)
def test_ten_times_more_programs_than_fit(shape: tuple[int, int], dim: int) -> None:
    """Some 1.3 GB, freed at its end; whole numbers, so that every order of combination is exact."""
    x = torch.ones(shape, device="cuda", dtype=torch.int8)
    first = tilefold.cumsum(x, dim)
    steps = torch.arange(1, shape[dim] + 1, device="cuda")
    assert bool((first == (steps[None, :] if dim else steps[:, None])).all())
    assert torch.equal(tilefold.cumsum(x, dim, out=torch.full_like(first, -1)), first)
    del first, steps
    torch.cuda.empty_cache()


@pytest.mark.parametrize(("shape", "dim"), [((300, 1000), 1), ((1000, 300), 0), ((2, 1 << 20), 1)], ids=str)
@pytest.mark.parametrize("flags", [{}, {"reverse": True}, {"exclusive": True}], ids=str)
def test_in_place(shape: tuple[int, int], dim: int, flags: dict[str, bool]) -> None:
    x = torch.randint(-2, 3, shape, device="cuda")
    want = tilefold.scan(x, monoids.SUM, dim, **flags)
    assert tilefold.scan(x, monoids.SUM, dim, out=x, **flags) is x
    assert torch.equal(x, want)


@pytest.mark.parametrize("length", [100, 9000, 300_001])
def test_a_rows_bits_are_its_own(length: int) -> None:
    x = torch.randn(512, length, device="cuda")
    whole = tilefold.scan(x, monoids.LOGSUMEXP, 1, guarantee="batch_invariant")
    for rows in (slice(0, 1), slice(5, 6), slice(3, 131)):
        assert torch.equal(
            tilefold.scan(x[rows], monoids.LOGSUMEXP, 1, guarantee="batch_invariant"), whole[rows]
        )


def test_a_graph_holds_the_counters() -> None:
    x = torch.ones(2, 1 << 20, device="cuda")
    out = torch.empty(2, 1 << 20, device="cuda")
    tilefold.cumsum(x, 1, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tilefold.cumsum(x, 1, out=out)
    for _ in range(3):
        out.zero_()
        graph.replay()
        assert out[1, -1] == 1 << 20

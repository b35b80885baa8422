"""transpose and topk on a GPU: every layout and dtype against torch's answers, calls repeated, into `out`, in a graph."""

from __future__ import annotations

import pytest
import torch

import tilefold

pytestmark = pytest.mark.gpu
INF, NAN = float("inf"), float("nan")
Tensor = torch.Tensor
WIDTHS = [
    torch.bool,
    torch.uint8,
    torch.bfloat16,
    torch.float32,
    torch.int64,
    torch.complex64,
    torch.complex128,
]
SHAPES = [
    ((1000, 1000), (0, 1)), ((4099, 777), (0, 1)), ((1 << 16, 8), (0, 1)), ((3, 1 << 16), (0, 1)), ((33, 129, 64), (1, 2)),
    ((500, 8, 8), (1, 2)), ((4, 100, 8, 64), (1, 2)), ((7, 6, 5, 4, 3), (0, 4)),
    ((300, 36, 49), (1, 2)), ((100, 129, 128), (1, 2)), ((100001, 65), (0, 1)),
    ((16, 29, 100, 105), (1, 2)), ((37, 50, 2600), (0, 1)), ((300, 1, 701), (0, 1)), ((3, 747, 744), (1, 2)),
    ((3, 3, 66_045), (1, 2)), ((155, 7, 2837), (1, 2)), ((8, 8, 1133, 9), (0, 3)), ((152, 16, 739), (1, 2)),
    ((8, 129, 85, 3), (1, 2)), ((640, 401, 2), (0, 1)), ((50, 9, 300, 5), (0, 2)), ((70, 9, 77, 13), (1, 2)),
]  # fmt: skip


def bits(t: Tensor) -> Tensor:
    t = torch.view_as_real(t) if t.is_complex() else t
    return t.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()])


@pytest.mark.parametrize("dtype", WIDTHS, ids=str)
@pytest.mark.parametrize(("shape", "dims"), SHAPES, ids=str)
def test_transposes(shape: tuple[int, ...], dims: tuple[int, int], dtype: torch.dtype) -> None:
    count = torch.Size(shape).numel()
    x = (torch.arange(count + 1, device="cuda") % 113).to(torch.float32).to(dtype)
    for view in (x[:-1].view(shape), x[1:].view(shape)):
        want = view.transpose(*dims).contiguous()
        for _ in range(2):
            assert torch.equal(bits(tilefold.transpose(view, *dims)), bits(want))
        out = torch.empty_like(want)
        assert tilefold.transpose(view, *dims, out=out) is out
        assert torch.equal(bits(out), bits(want))


def test_a_transpose_beyond_32_bits() -> None:
    """4.5 GB in and out."""
    x = torch.arange(2**32 + 2**17, device="cuda", dtype=torch.int32).to(torch.uint8).view(-1, 1 << 16)
    assert torch.equal(tilefold.transpose(x, 0, 1), x.T)


def hostile(*shape: int) -> Tensor:
    kinds = torch.tensor([0.0, -0.0, 1.0, 1.0, -1.0, INF, -INF, NAN, 1e-45, 3.5], device="cuda")
    return kinds[torch.randint(len(kinds), shape, device="cuda")]


def definition(x: Tensor, k: int, dim: int, largest: bool) -> tuple[Tensor, Tensor]:
    """By a stable sort: equal elements stay in their order, NaN is greatest."""
    kept = (x + 0.0 if x.is_floating_point() else x).sort(dim=dim, descending=largest, stable=True).indices
    places = kept.narrow(dim, 0, k)
    return x.gather(dim, places), places


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int32], ids=str
)
@pytest.mark.parametrize(
    ("shape", "dim", "k"),
    [((3000, 1024), 1, 8), ((600, 8192), 1, 8), ((300, 50257), 1, 8), ((40, 151936), 1, 32), ((2, 1 << 20), 1, 8),
     ((10000, 64), 1, 8), ((50000, 17), 1, 3), ((5000, 300), 0, 8), ((20, 3000, 7), 1, 16), ((1, 1 << 24), 1, 1),
     ((3, 1_911_431), 0, 1), ((8, 284_931), 0, 5), ((64, 40, 1131), 0, 16), ((16, 48, 8, 465), 1, 16), ((32, 9001), 0, 32)],
    ids=str,
)  # fmt: skip
def test_topk(shape: tuple[int, ...], dim: int, k: int, dtype: torch.dtype, largest: bool) -> None:
    drawn = torch.randn(shape, device="cuda")
    rising = drawn.sort(dim).values
    for made in (drawn, rising, -rising if dtype.is_floating_point else rising, hostile(*shape)):
        x = made.to(dtype) if dtype.is_floating_point else (1000 * made.nan_to_num(0, 9, -9)).to(dtype)
        values, places = definition(x, k, dim, largest)
        got = tilefold.topk(x, k, dim, largest)
        assert torch.equal(got.indices, places)
        assert torch.equal(bits(got.values), bits(values))
        again = tilefold.topk(x, k, dim, largest)
        assert torch.equal(again.indices, got.indices)


def test_topk_in_a_graph_and_of_misaligned_rows() -> None:
    x = torch.randn(501 * 999 + 1, device="cuda")[1:].view(501, 999)
    tilefold.topk(x, 8)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = tilefold.topk(x, 8)
    x.copy_(torch.randn(501, 999, device="cuda"))
    graph.replay()
    assert torch.equal(got.indices, definition(x, 8, 1, True)[1])

"""Norms in eight bits on a device: beside their definition, in graphs, with the same bits each time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilefold
from eight_bits import E4M3, E5M2, INT8, LARGEST, check, parted

pytestmark = pytest.mark.gpu
quantized = tilefold.rms_norm_quantized
SHAPES = [
    (3, 7), (777, 501), (4096, 1024), (2048, 8192), (500, 7168), (300, 4099), (40, 50257), (64, 65536), (8, 262144),
    (4, 600000), (1, 1 << 20),
]  # fmt: skip


@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows(shape: tuple[int, int], dtype: torch.dtype, guarantee: str) -> None:
    x, r = (torch.randn(shape, device="cuda").to(dtype) for _ in range(2))
    w = torch.randn(shape[1], device="cuda").to(dtype)
    for weight, residual in ((None, None), (w, None), (w, r)):
        made = quantized(x, shape[1:], weight, 1e-6, residual=residual, guarantee=guarantee)
        check(made, x, 1, weight, 1e-6, residual, E4M3, None, exact=False)
        again = quantized(x, shape[1:], weight, 1e-6, residual=residual, guarantee=guarantee)
        for first, second in zip(made, again, strict=True):
            assert torch.equal(first.view(torch.uint8), second.view(torch.uint8)), (
                "other bits the second time"
            )


@pytest.mark.parametrize("into", list(LARGEST), ids=str)
@pytest.mark.parametrize(
    ("shape", "group"), [((2048, 8192), 128), ((500, 7168), 128), ((64, 65536), 256), ((333, 96), 3)], ids=str
)
def test_groups(shape: tuple[int, int], group: int, into: torch.dtype) -> None:
    x, r = (torch.randn(shape, device="cuda").bfloat16() for _ in range(2))
    w = torch.randn(shape[1], device="cuda")
    for weight, residual in ((None, None), (w, None), (w, r)):
        made = quantized(x, shape[1:], weight, 1e-6, residual=residual, dtype=into, group=group)
        check(made, x, 1, weight, 1e-6, residual, into, group, exact=False)


@pytest.mark.parametrize("into", [E4M3, E5M2, INT8], ids=str)
def test_the_largest_becomes_the_dtypes_largest(into: torch.dtype) -> None:
    x = torch.randn(1 << 16, 64, device="cuda")
    q, _ = quantized(x, (64,), dtype=into)
    assert (q.float().abs().amax(1) == LARGEST[into]).all()


@pytest.mark.parametrize("group", [None, 2], ids=str)
def test_zeros_any_magnitude_nan_and_infinity(group: int | None) -> None:
    nan, infinity = float("nan"), float("inf")
    x = torch.tensor(
        [[0, 0, 0, 0], [1e38, -3e38, 1e37, 2e38], [1e-38, -3e-38, 1e-38, 2e-38], [1, 2, nan, 4], [1, 2, infinity, 4]],
        device="cuda",
    )  # fmt: skip
    weight = torch.tensor([1.0, 100.0, -0.5, 2.0], device="cuda")
    q, scale = quantized(x, (4,), weight, 1e-20, group=group)
    assert (q[0].float() == 0).all()
    assert (scale[0] == 1).all()
    y = tilefold.rms_norm(x.double(), (4,), weight.double(), 1e-20)
    largest = parted(y, group, 1).abs().amax(-1)
    torch.testing.assert_close(scale[1:3].double(), largest[1:3] / 448, rtol=1e-6, atol=0)
    assert (parted(q[1:3], group, 1).float().abs().amax(-1) == 448).all()
    assert scale[3].isnan().all()
    assert scale[4, -1].isnan()
    assert q[3:, 2].float().isnan().all()


@pytest.mark.parametrize("group", [None, 128], ids=str)
def test_graphs(group: int | None) -> None:
    """One of CUDA's, and one of torch.compile's."""
    x, w = torch.randn(300, 4096, device="cuda").bfloat16(), torch.randn(4096, device="cuda")

    def call() -> Any:
        return quantized(x, (4096,), w, 1e-6, residual=x, group=group)

    want = call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    for _ in range(3):
        for t in captured:
            t.view(torch.uint8).zero_()
        graph.replay()
        compiled = torch.compile(call, fullgraph=True)()
        for got, other, each in zip(captured, compiled, want, strict=True):
            assert torch.equal(got.view(torch.uint8), each.view(torch.uint8))
            assert torch.equal(other.view(torch.uint8), each.view(torch.uint8))

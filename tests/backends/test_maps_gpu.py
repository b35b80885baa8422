"""Maps on a device: beside torch in float64, in place, in a graph, and with the same bits whatever else runs."""

from __future__ import annotations

import pytest
import torch

import tilefold as tf

pytestmark = pytest.mark.gpu
F = torch.nn.functional
SHAPES = [
    ((3, 7), 1), ((1000, 24), 1), ((512, 256), 1), ((300, 4099), 1), ((64, 32768), 1), ((40, 50257), 1), ((8, 262144), 1),
    ((1, 1 << 22), 1), ((128, 300, 72), 1), ((20000, 96), 0), ((5000, 1031), 0), ((65536, 8), 0),
    ((300, 51200), 0), ((1000, 25672), 0), ((8, 2000, 1024), 1), ((4096, 4096), 0), ((16384, 2048), 0),
]  # fmt: skip


def near(got: torch.Tensor, want: torch.Tensor) -> None:
    bound = 1e-4 if got.dtype == torch.float32 else 1.6e-2
    torch.testing.assert_close(got.double(), want, rtol=bound, atol=bound / 100)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
def test_softmax(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    x = torch.randn(shape, device="cuda").to(dtype)
    want = torch.softmax(x.double(), dim)
    got = tf.softmax(x, dim)
    near(got, want)
    assert torch.equal(tf.softmax(x, dim), got), "other bits the second time"
    near(tf.softmax(x, dim, guarantee="batch_invariant"), want)
    tf.softmax(x, dim, out=x)
    assert torch.equal(x, got)


@pytest.mark.parametrize(("shape", "dim"), [s for s in SHAPES if s[1] == 1 and len(s[0]) == 2], ids=str)
def test_norms_with_a_residual(shape: tuple[int, ...], dim: int) -> None:
    x, r = torch.randn(shape, device="cuda"), torch.randn(shape, device="cuda")
    w = torch.randn(shape[1], device="cuda")
    total = x.double() + r.double()
    got, added = tf.layer_norm(x, shape[1:], w, w, residual=r)
    torch.testing.assert_close(added.double(), total, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        got.double(), F.layer_norm(total, shape[1:], w.double(), w.double()), rtol=1e-4, atol=1e-4
    )
    got, _ = tf.rms_norm(x, shape[1:], w, 1e-6, residual=r)
    torch.testing.assert_close(
        got.double(), F.rms_norm(total, shape[1:], w.double(), 1e-6), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("columns", [256, 8192, 65536])
def test_bits_of_a_row_beside_others(columns: int) -> None:
    x = torch.randn(512, columns, device="cuda", dtype=torch.bfloat16)
    every = tf.softmax(x, 1, guarantee="batch_invariant")
    for rows in (1, 2, 3, 17, 64, 255, 511):
        assert torch.equal(tf.softmax(x[:rows], 1, guarantee="batch_invariant"), every[:rows])


def test_windows_in_a_graph_and_on_two_streams() -> None:
    x = torch.randn(64, 131072, device="cuda")
    want = tf.softmax(x, 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = tf.softmax(x, 1)
    for _ in range(3):
        got.zero_()
        graph.replay()
        assert torch.equal(got, want)
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    made = []
    for turn in range(8):
        with torch.cuda.stream(streams[turn % 2]):
            made.append(tf.softmax(x, 1))
    torch.cuda.synchronize()
    assert all(torch.equal(m, want) for m in made)

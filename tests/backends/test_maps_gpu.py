"""Maps on a device: beside torch in float64, in place, in a graph, and with the same bits whatever else runs."""

from __future__ import annotations

import pytest
import torch

import tilefold as tf
from answers import floor

pytestmark = pytest.mark.gpu
F = torch.nn.functional
SHAPES = [
    ((3, 7), 1), ((100_003, 3), 1), ((70_001, 11), 1), ((5000, 101), 1), ((777, 501), 1), ((333, 2049), 1),
    ((1000, 24), 1), ((512, 256), 1), ((300, 4099), 1), ((64, 32768), 1), ((40, 50257), 1), ((8, 262144), 1),
    ((700, 3001), 1), ((700, 9001), 1), ((200, 33333), 1),
    ((300, 40000), 1), ((150, 151936), 1), ((120, 100003), 1), ((64, 262144), 1), ((40, 600000), 1), ((32, 1 << 20), 1),
    ((1, 1 << 22), 1), ((128, 300, 72), 1), ((20000, 96), 0), ((5000, 1031), 0), ((65536, 8), 0),
    ((300, 51200), 0), ((1000, 25672), 0), ((8, 2000, 1024), 1), ((4096, 4096), 0), ((16384, 2048), 0),
]  # fmt: skip


def near(got: torch.Tensor, want: torch.Tensor) -> None:
    bound = 1e-4 if got.dtype == torch.float32 else 1.6e-2
    torch.testing.assert_close(got.double(), want, rtol=bound, atol=floor(want, got.dtype, bound))


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "shape", [(700, 3001), (700, 9001), (200, 33333), (300, 204077), (120, 100003)], ids=str
)
def test_layer_norms_of_odd_rows(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = torch.randn(shape, device="cuda").to(dtype)
    w, b = torch.randn(2, shape[1], device="cuda").to(dtype)
    want = F.layer_norm(x.double(), shape[1:], w.double(), b.double())
    bound = 1e-4 if dtype == torch.float32 else 1.6e-2
    torch.testing.assert_close(tf.layer_norm(x, shape[1:], w, b).double(), want, rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [520, 1024])
def test_one_row_that_begins_between_vectors(n: int, dtype: torch.dtype) -> None:
    """Its results do not: threads have as many neighbours as a store writes (tests/planner/test_offset_rows.py)."""
    x = torch.randn(n + 1, device="cuda").to(dtype)[1:].view(1, n)
    near(tf.layer_norm(x, (n,)), F.layer_norm(x.double(), (n,)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "shape", [(900, 8232), (94, 1680), (2000, 2624), (369, 13648), (700, 12776)], ids=str
)
def test_rows_whose_last_turn_is_short(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, r = (torch.randn(shape, device="cuda").to(dtype) for _ in range(2))
    weight, bias = (torch.randn(shape[1], device="cuda").to(dtype) for _ in range(2))
    want = F.layer_norm(x.double(), shape[1:], weight.double(), bias.double())
    torch.testing.assert_close(tf.layer_norm(x, shape[1:], weight, bias).double(), want, rtol=2e-2, atol=2e-2)
    total = x.double() + r.double()
    got, added = tf.rms_norm(x, shape[1:], weight, 1e-6, residual=r)
    near(added, total)
    torch.testing.assert_close(
        got.double(), F.rms_norm(total, shape[1:], weight.double(), 1e-6), rtol=2e-2, atol=2e-2
    )


def test_a_residual_of_more_bits_keeps_them() -> None:
    x, r = torch.randn(40, 777, device="cuda").bfloat16(), torch.randn(40, 777, device="cuda")
    got, added = tf.rms_norm(x, (777,), None, 1e-6, residual=r)
    assert torch.equal(added, x + r)
    want = F.rms_norm((x + r).double(), (777,), None, 1e-6)
    torch.testing.assert_close(got, want.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_float8_in_more_bits(dtype: torch.dtype) -> None:
    x = torch.randn(30, 300, device="cuda").to(dtype)
    torch.testing.assert_close(tf.softmax(x, 1, dtype=torch.float64), torch.softmax(x.double(), 1))
    torch.testing.assert_close(tf.cumsum(x, 1, dtype=torch.float64), x.double().cumsum(1))
    assert torch.equal(tf.cumsum(x, 1, dtype=torch.bool), x.double().bool().cumsum(1).bool())


@pytest.mark.parametrize("columns", [3, 11, 101, 256, 501, 2049, 8192, 65536])
def test_bits_of_a_row_beside_others(columns: int) -> None:
    x = torch.randn(512, columns, device="cuda", dtype=torch.bfloat16)
    every = tf.softmax(x, 1, guarantee="batch_invariant")
    for rows in (1, 2, 3, 17, 64, 255, 511):
        assert torch.equal(tf.softmax(x[:rows], 1, guarantee="batch_invariant"), every[:rows])


@pytest.mark.parametrize("columns", [3, 11, 101, 501])
@pytest.mark.parametrize("after", [1, 2, 4])
def test_short_rows_that_begin_anywhere(columns: int, after: int) -> None:
    held = torch.randn(10_007 * columns + after, device="cuda", dtype=torch.bfloat16)
    x = held[after:].view(10_007, columns)
    w = torch.randn(columns, device="cuda", dtype=torch.bfloat16)
    near(tf.softmax(x, 1), torch.softmax(x.double(), 1))
    got, total = tf.rms_norm(x, (columns,), w, 1e-6, residual=x)
    near(got, F.rms_norm(2 * x.double(), (columns,), w.double(), 1e-6))
    assert torch.equal(total, 2 * x)


@pytest.mark.parametrize("columns", [3, 11, 101, 501])
def test_short_rows_where_numbers_are_none(columns: int) -> None:
    x = torch.randn(1000, columns, device="cuda")
    x[0], x[1, 0], x[2, -1], x[3, : columns // 2] = -torch.inf, torch.inf, torch.nan, -torch.inf
    want = torch.softmax(x.double(), 1)
    torch.testing.assert_close(tf.softmax(x, 1).double(), want, rtol=1e-5, atol=0, equal_nan=True)


def test_short_rows_beyond_32_bits() -> None:
    rows = (1 << 31) // 11 + 1000  # 4 GB, and as much for the result
    x = torch.randn(rows, 11, device="cuda", dtype=torch.bfloat16)
    got = tf.softmax(x, 1)
    for first in (0, rows // 2, rows - 5000):
        near(got[first : first + 5000], torch.softmax(x[first : first + 5000].double(), 1))
    tf.softmax(x, 1, out=x)
    assert torch.equal(x, got)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("shape", "order", "dim"),
    [((300, 48, 600), (0, 2, 1), 0), ((2048, 2048), (1, 0), 0), ((2048, 2050), (1, 0), 1), ((87, 371, 80), (2, 1, 0), 1),
     ((33, 17, 3, 2239), (3, 2, 1, 0), 3), ((1850, 931, 3), (2, 1, 0), 0)],
    ids=str,
)  # fmt: skip
def test_permuted_inputs(
    shape: tuple[int, ...], order: tuple[int, ...], dim: int, dtype: torch.dtype
) -> None:
    x = torch.randn(shape, device="cuda", dtype=dtype).permute(order)
    got = tf.softmax(x, dim)
    assert got.is_contiguous()
    near(got, torch.softmax(x.double(), dim))
    other = torch.randn(x.shape, device="cuda", dtype=dtype)
    _, added = tf.rms_norm(other, x.shape[-1:], residual=x)
    assert torch.equal(added, other + x)

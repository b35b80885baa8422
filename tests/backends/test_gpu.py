"""The kernels on a GPU against the definition: families, monoids, dtypes, layouts, corners, guarantees."""

from __future__ import annotations

import pytest
import torch

import tilefold
from backends.triton_cases import LARGE, MONOIDS, PIPED, SMALL, Case, compare
from magnitudes import CASES, DIMS, FUNCTIONS, check, elements
from tilefold import monoids
from tilefold.api import dispatch
from tilefold.planner import columns

pytestmark = pytest.mark.gpu
INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("name", list(MONOIDS))
@pytest.mark.parametrize("case", SMALL + LARGE, ids=lambda c: c.name)
def test_cases(case: Case, name: str) -> None:
    monoid = MONOIDS[name]
    inputs = case.make(monoid, torch.float32, "cuda")
    compare(monoid, tilefold.reduce(inputs, monoid, case.dims), inputs, case.dims)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", ["sum", "argmax", "logsumexp", "welford", "describe"])
@pytest.mark.parametrize("case", LARGE, ids=lambda c: c.name)
def test_float_dtypes(case: Case, name: str, dtype: torch.dtype) -> None:
    monoid = MONOIDS[name]
    inputs = case.make(monoid, dtype, "cuda")
    wide = (
        torch.float32 if name in ("welford", "describe") and dtype != torch.float64 else None
    )  # M2 overflows float16
    compare(monoid, tilefold.reduce(inputs, monoid, case.dims, dtype=wide), inputs, case.dims)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["sum", "argmax", "logsumexp", "welford", "minmax", "any"])
@pytest.mark.parametrize("case", PIPED, ids=lambda c: c.name)
def test_tiles_on_their_way(
    case: Case, name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "LARGE", 1000)
    monkeypatch.setattr(dispatch, "_executables", {})
    monoid = MONOIDS[name]
    inputs = case.make(monoid, dtype, "cuda")
    wide = torch.float32 if name == "welford" and dtype != torch.float64 else None
    compare(monoid, tilefold.reduce(inputs, monoid, case.dims, dtype=wide), inputs, case.dims)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.int8,
        torch.uint8,
        torch.int16,
        torch.uint16,
        torch.int32,
        torch.uint32,
        torch.int64,
        torch.uint64,
        torch.bool,
    ],
)
@pytest.mark.parametrize("name", ["sum", "max", "argmax", "any"])
@pytest.mark.parametrize(
    "case", [SMALL[1], SMALL[2], SMALL[6], LARGE[0], LARGE[3], LARGE[8], LARGE[11]], ids=lambda c: c.name
)
def test_integers(case: Case, name: str, dtype: torch.dtype) -> None:
    monoid = MONOIDS[name]
    inputs = case.make(monoid, dtype, "cuda")
    compare(monoid, tilefold.reduce(inputs, monoid, case.dims), inputs, case.dims)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu])
def test_float8(dtype: torch.dtype) -> None:
    inputs = LARGE[1].make(monoids.SUM, dtype, "cuda")
    compare(monoids.SUM, tilefold.reduce(inputs, monoids.SUM, 1, dtype=torch.float32), inputs, (1,))


@pytest.mark.parametrize(
    ("shape", "dim"),
    [((3, 8), 1), ((3, 300), 1), ((3, 5000), 1), ((3, 70000), 1), ((70000, 3), 0), ((1, 1 << 20), 1)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_corners_of_values(shape: tuple[int, int], dim: int, dtype: torch.dtype) -> None:
    for fill in (
        [NAN, 1.0],
        [1.0, NAN],
        [INF, 1.0],
        [-INF, -INF],
        [INF, -INF],
        [0.0, -0.0],
        [1.0, 1.0],
        [NAN, NAN],
    ):
        x = torch.full(shape, fill[1], device="cuda").to(dtype)
        x.select(dim, shape[dim] // 2).fill_(fill[0])
        if fill[0] != fill[0]:
            x.select(dim, shape[dim] - 1).fill_(NAN)
        same = lambda got, want: torch.testing.assert_close(got, want, equal_nan=True, rtol=2e-2, atol=1e-2)  # noqa: E731  # one word
        same(tilefold.reduce(x, monoids.MAX, dim), x.amax(dim))
        same(tilefold.reduce(x, monoids.LOGSUMEXP, dim), torch.logsumexp(x.double(), dim).to(dtype))
        assert torch.equal(tilefold.reduce(x, monoids.ARGMAX, dim), x.argmax(dim)), fill
        assert torch.equal(tilefold.reduce(x, monoids.ARGMIN, dim), x.argmin(dim)), fill
        assert torch.equal(tilefold.reduce(x, monoids.ANY, dim), x.any(dim))


@pytest.mark.parametrize("case", SMALL + LARGE, ids=lambda c: c.name)
def test_ties_go_to_the_first(case: Case) -> None:
    x = case.make(monoids.ARGMAX, torch.int8, "cuda")[0] // 40
    got = tilefold.reduce(x, monoids.ARGMAX, case.dims)
    with tilefold.backend("cpu"):
        want = tilefold.reduce(x.cpu(), monoids.ARGMAX, case.dims)
    assert torch.equal(got.cpu(), want)


@pytest.mark.parametrize("case", SMALL + LARGE, ids=lambda c: c.name)
@pytest.mark.parametrize("name", ["sum", "logsumexp", "welford"])
def test_run_to_run(case: Case, name: str) -> None:
    """The same bits every time, while another stream keeps the chip busy."""
    inputs = case.make(MONOIDS[name], torch.bfloat16, "cuda")
    first = results(tilefold.reduce(inputs, MONOIDS[name], case.dims))
    noise, stream = torch.randn(1 << 20, device="cuda"), torch.cuda.Stream()
    differs = torch.zeros((), dtype=torch.bool, device="cuda")
    for _ in range(100):
        with torch.cuda.stream(stream):
            noise.mul_(0.999)
        for got, want in zip(results(tilefold.reduce(inputs, MONOIDS[name], case.dims)), first, strict=True):
            differs |= (got.view(torch.uint8) != want.view(torch.uint8)).any()
    stream.synchronize()
    assert not differs


def results(folded: object) -> list[torch.Tensor]:
    """A fold's results as contiguous tensors of one dim or more, whatever their number."""
    return [r.reshape(-1) for r in (folded if isinstance(folded, tuple) else (folded,))]


@pytest.mark.parametrize("length", [8, 100, 1024, 5000, 100_000, 3_000_001])
@pytest.mark.parametrize("name", ["sum", "logsumexp"])
def test_batch_invariant(length: int, name: str) -> None:
    x = torch.randn(33, length, device="cuda")
    whole = tilefold.reduce(x, MONOIDS[name], 1, guarantee="batch_invariant")
    for rows in (1, 2, 7):
        part = tilefold.reduce(x[:rows], MONOIDS[name], 1, guarantee="batch_invariant")
        assert torch.equal(part, whole[:rows])


@pytest.mark.parametrize("length", [8, 1000, 100_000])
def test_batch_invariant_columns(length: int) -> None:
    x = torch.randn(length, 70, device="cuda")
    whole = tilefold.reduce(x, monoids.SUM, 0, guarantee="batch_invariant")
    for width in (1, 3, 64):
        part = tilefold.reduce(x[:, :width], monoids.SUM, 0, guarantee="batch_invariant")
        assert torch.equal(part, whole[:width])


@pytest.mark.parametrize("name", ["sum", "logsumexp"])
def test_batch_invariant_padded_rows_and_one_column(name: str) -> None:
    def fold_alone(x: torch.Tensor, dim: int) -> torch.Tensor:
        return tilefold.reduce(x, MONOIDS[name], dim, guarantee="batch_invariant")

    rows = torch.randn(33, 100_001, device="cuda")[:, :100_000]
    whole = fold_alone(rows, 1)
    assert all(torch.equal(fold_alone(rows[i : i + 1], 1), whole[i : i + 1]) for i in (0, 7, 32))
    columns = torch.randn(10_000, 64, device="cuda")
    whole = fold_alone(columns, 0)
    assert all(
        torch.equal(fold_alone(columns[:, i : i + 1].contiguous(), 0), whole[i : i + 1]) for i in (0, 7, 63)
    )


@pytest.mark.parametrize("value", [7.3, -7.3, 12345.6])
@pytest.mark.parametrize("shape", [(100_000, 64), (4096, 65536), (64, 100_000), (3, 1_000_001)])
def test_a_maximum_that_stays_rescales_by_one(shape: tuple[int, int], value: float) -> None:
    x = torch.full(shape, value, device="cuda")
    for dim in (0, 1):
        want = torch.logsumexp(x.double(), dim)
        got = tilefold.reduce(x, monoids.LOGSUMEXP, dim).double()
        # The sum of n ones has an error of n eps / 2 at most, and of its square root in practice; the output rounds once.
        bound = torch.finfo(torch.float32).eps * (want.abs() + shape[dim] ** 0.5)
        assert ((got - want).abs() <= bound).all()


def test_beyond_32_bits() -> None:
    x = torch.ones(2**31 + 7, dtype=torch.int8, device="cuda")
    x[-1] = 5
    assert tilefold.reduce(x, monoids.SUM).item() == 2**31 + 11
    assert tilefold.reduce(x, monoids.ARGMAX).item() == 2**31 + 6
    rows = x[:-7].view(2**16, 2**15)
    assert torch.equal(tilefold.reduce(rows, monoids.SUM, 1), torch.full((2**16,), 2**15, device="cuda"))
    assert torch.equal(tilefold.reduce(rows, monoids.SUM, 0), torch.full((2**15,), 2**16, device="cuda"))


def test_empty_and_scalar() -> None:
    assert tilefold.reduce(torch.empty(0, 3, device="cuda"), monoids.SUM, 0).tolist() == [0, 0, 0]
    assert tilefold.reduce(torch.empty(3, 0, device="cuda"), monoids.LOGSUMEXP, 1).tolist() == [-INF] * 3
    assert tilefold.reduce(torch.empty(0, 3, device="cuda"), monoids.SUM, 1).shape == (0,)
    assert tilefold.reduce(torch.tensor(3.0, device="cuda"), monoids.SUM).item() == 3


def test_other_stream_and_graph() -> None:
    x = torch.randn(8, 100_000, device="cuda")
    want = tilefold.reduce(x, monoids.LOGSUMEXP, 1)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        got = tilefold.reduce(x, monoids.LOGSUMEXP, 1)
    stream.synchronize()
    assert torch.equal(got, want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = tilefold.reduce(x, monoids.LOGSUMEXP, 1)
    x.mul_(2)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, tilefold.reduce(x, monoids.LOGSUMEXP, 1))


def test_a_fold_of_nothing_in_a_graph() -> None:
    nothing = torch.empty(3, 0, device="cuda")
    tilefold.reduce(nothing, monoids.DESCRIBE, 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total, described = (
            tilefold.reduce(nothing, monoids.SUM, 1),
            tilefold.reduce(nothing, monoids.DESCRIBE, 1),
        )
    graph.replay()
    assert total.tolist() == [0, 0, 0]
    assert described.count.tolist() == [0, 0, 0]


def test_every_repeated_call_finds_its_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, compiled = [], dispatch.compiled
    monkeypatch.setattr(dispatch, "compiled", lambda *args: prepared.append(args) or compiled(*args))
    monkeypatch.setattr(dispatch, "_executables", {})
    x, y, out = (torch.randn(n, 300, device="cuda") for n in (50, 50, 1))
    for _ in range(3):
        for device_order in ((x, y), (y, x)):
            got = tilefold.reduce(device_order, MONOIDS["dot"], 1)
        tilefold.reduce(x, monoids.SUM, 0, out=out[0])
        tilefold.reduce(x, monoids.SUM, 0)
        with tilefold.backend("triton"):
            tilefold.reduce((x, y[:1]), MONOIDS["dot"], 1)
    torch.testing.assert_close(got, (x * y).sum(1), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(out[0], x.sum(0), rtol=1e-4, atol=1e-3)
    assert len(prepared) == 4


def test_inputs_are_not_changed_and_alignment_is_part_of_the_key() -> None:
    flat = torch.randn(4097, device="cuda")
    for offset in (0, 1, 0, 1):
        x = flat[offset : offset + 4096].view(4, 1024)
        before = x.clone()
        torch.testing.assert_close(
            tilefold.reduce(x, monoids.SUM, 1), x.double().sum(1).float(), rtol=1e-5, atol=1e-4
        )
        assert torch.equal(x, before)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("shape", [(300, 1000), (4, 1 << 20)])
def test_a_device_that_is_not_current(shape: tuple[int, int]) -> None:
    inputs = [torch.randn(shape, device=f"cuda:{d}") for d in range(torch.cuda.device_count())]
    for x in [*inputs, *reversed(inputs)]:
        got = tilefold.reduce(x, monoids.LOGSUMEXP, 1)
        assert got.device == x.device
        torch.testing.assert_close(got, torch.logsumexp(x, 1))
        assert torch.cuda.current_device() == 0
    with torch.cuda.device(1):
        torch.testing.assert_close(
            tilefold.reduce(inputs[0], monoids.SUM, 1), inputs[0].sum(1), rtol=1e-4, atol=1e-2
        )
    with pytest.raises(RuntimeError, match="device"):
        tilefold.reduce((inputs[0], inputs[1]), MONOIDS["dot"], 1)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(("dtype", "magnitude"), CASES, ids=str)
def test_as_exact_as_torch_at_every_magnitude(dtype: torch.dtype, magnitude: str, function: str) -> None:
    """Torch's on the same device, where both carry squares in float32."""
    if float(magnitude) > 1e36 and function.startswith(("var", "std")) and dtype != torch.float16:
        pytest.skip("sums of deviations overflow: NaN, where torch's squares alone are infinite")
    x = elements(dtype, magnitude, "cuda")
    for name, dims in DIMS.items():
        if name != "all" or function != "logsumexp":
            check(function, x, dims)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int32], ids=str)
@pytest.mark.parametrize("name", ["sum", "argmax", "welford", "pair", "last"])
@pytest.mark.parametrize(
    ("shape", "offset"), [((3001, 27), 0), ((777, 7), 3), ((501, 101), 1), ((400, 23, 5), 0)], ids=str
)
def test_short_rows_from_one_run_of_memory(
    shape: tuple[int, ...], offset: int, name: str, dtype: torch.dtype
) -> None:
    memory = torch.randint(-8, 9, (torch.Size(shape).numel() + offset,), device="cuda").to(dtype)
    x, monoid = memory[offset:].view(shape), MONOIDS[name]
    compare(monoid, tilefold.reduce([x], monoid, 1), [x], (1,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dims_in_memory_from_the_last_to_the_first(dtype: torch.dtype) -> None:
    """Results and positions have steps of 1 in a tuple beside other steps."""
    x = torch.randn(400, 70, 300, device="cuda").to(dtype).permute(2, 1, 0)
    place = tilefold.reduce(x, monoids.ARGMAX, (0, 1, 2), guarantee="batch_invariant")
    assert place.item() == x.flatten().argmax().item() or x.flatten()[place] == x.max()
    x = torch.randn(3, 5, 700, 30, 9, device="cuda").to(dtype).permute(4, 3, 2, 1, 0)
    assert torch.equal(tilefold.reduce(x, monoids.FIRST, (0, 3)), x[0, :, :, 0])
    y = torch.randn(4469, 2, 320, device="cuda", dtype=torch.float64).permute(0, 2, 1)
    got = tilefold.layer_norm(y, y.shape, guarantee="batch_invariant")
    torch.testing.assert_close(got, torch.nn.functional.layer_norm(y, y.shape), rtol=1e-9, atol=1e-9)
    for dim, shape in ((0, (83953, 3, 8, 5)), (3, (8, 608, 7, 2281))):
        z = torch.randn(*shape[1:], shape[0], device="cuda").to(dtype).permute(3, 2, 1, 0)
        assert torch.equal(tilefold.reduce(z, monoids.LAST, dim), z.select(dim, -1))

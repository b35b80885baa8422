"""Products on a GPU: every strategy against float64, the guarantees, streams and graphs."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import tilefold
from backends.test_products import LAYOUTS, filled
from plans import compiled
from tilefold.api import dispatch
from tilefold.backends.triton.cublas import wide_product
from tilefold.errors import BackendError
from tilefold.math import exp
from tilefold.monoids import LOGSUMEXP, MAX_WITH_INDEX
from tilefold.planner.products.epilogue import make_epilogue
from tilefold.planner.products.plan import Candidate, Sizes, Tile
from tilefold.planner.products.tiles import finish_of

pytestmark = pytest.mark.gpu

SHIFTED = lambda x, total: exp(x - total)  # noqa: E731  # one function: repeated calls are known by it
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2]
ROUNDING = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}


def near(got: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """Within the stated bound: K roundings of the accumulator, one of the result."""
    want, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    bound = 2 * a.shape[-1] * 2.0**-23 * size + ROUNDING[got.dtype] * want.abs()
    assert bool(((got.double() - want).abs() <= bound + 1e-7).all())


@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant"])
@pytest.mark.parametrize(
    "layouts", [("contiguous", "contiguous"), ("transposed", "cut"), ("cut", "transposed")], ids=str
)
@pytest.mark.parametrize("dtype", list(ROUNDING), ids=str)
@pytest.mark.parametrize(
    "sizes",
    [(1, 1, 1), (1, 7168, 256), (16, 32768, 16), (63, 8191, 65), (768, 7168, 256), (2048, 1024, 2048)],
    ids=str,
)
def test_products(
    sizes: tuple[int, int, int], dtype: torch.dtype, layouts: tuple[str, str], guarantee: str
) -> None:
    rows, depth, columns = sizes
    a = LAYOUTS[layouts[0]](filled((rows, depth), dtype)).cuda()
    b = LAYOUTS[layouts[1]](filled((depth, columns), dtype, 1)).cuda()
    for _ in range(2):  # the second call is the one that is known
        near(tilefold.matmul(a, b, guarantee=guarantee), a, b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_copied_operands(dtype: torch.dtype, transposed: bool) -> None:
    """Odd rows that are copied first: the same bits each time, and from a graph."""
    a, b = filled((1201, 5001), dtype).cuda(), filled((5001, 1341), dtype, 1).cuda()
    a = a.mT.contiguous().mT if transposed else a
    kernels = [step.kernel for step in tilefold.explain_plan((a, b), tilefold.matmul).launched]
    assert kernels[0] == "pack_operands"
    first = tilefold.matmul(a, b)
    near(first, a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        again = tilefold.matmul(a, b)
    for _ in range(3):
        graph.replay()
        assert torch.equal(again, first)
        assert torch.equal(tilefold.matmul(a, b), first)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_bytes(dtype: torch.dtype) -> None:
    a, b = filled((17, 4096), dtype).cuda(), filled((4096, 40), dtype, 1).cuda()
    wide = torch.int32 if dtype == torch.int8 else torch.float32
    got = tilefold.matmul(a, b, out_dtype=wide)
    want, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    bound = 0 if dtype == torch.int8 else 2.0**-13 * size + 2 * 4096 * 2.0**-23 * size
    assert bool(((got.double() - want).abs() <= bound).all())


@pytest.mark.parametrize("name", ["relu", "gelu", "silu", "sigmoid", "tanh"])
@pytest.mark.parametrize("sizes", [(5, 64, 40), (16, 8192, 48), (2048, 512, 2048)], ids=str)
def test_epilogues(name: str, sizes: tuple[int, int, int]) -> None:
    rows, depth, columns = sizes
    a, b = filled((rows, depth)).cuda() / depth**0.5, filled((depth, columns), seed=1).cuda()
    bias = filled((columns,), seed=2).cuda()
    want = tilefold.matmul(a.cpu(), b.cpu(), bias=bias.cpu(), epilogue=name)
    torch.testing.assert_close(
        tilefold.matmul(a, b, bias=bias, epilogue=name).cpu(), want, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("columns", [256, 33])  # 33: what divides the results' number changes with M
def test_a_row_does_not_know_its_batch(columns: int, dtype: torch.dtype) -> None:
    a, b = filled((512, 7168), dtype).cuda(), filled((7168, columns), dtype, 1).cuda()
    whole = tilefold.matmul(a, b, epilogue="silu", guarantee="batch_invariant")
    for rows in range(1, 512):
        part = tilefold.matmul(a[:rows], b, epilogue="silu", guarantee="batch_invariant")
        assert torch.equal(part, whole[:rows]), rows


def test_graphs_and_streams_share_nothing() -> None:
    a, b = filled((16, 32768), torch.bfloat16).cuda(), filled((32768, 16), torch.bfloat16, 1).cuda()
    want = tilefold.matmul(a, b, epilogue="relu")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = tilefold.matmul(a, b, epilogue="relu")
    others = [torch.cuda.Stream() for _ in range(4)]
    made = []
    for _ in range(50):
        captured.zero_()
        graph.replay()
        for stream in others:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                made.append(tilefold.matmul(a, b, epilogue="relu"))
        torch.cuda.synchronize()
        assert torch.equal(captured, want)
    assert all(torch.equal(m, want) for m in made)


def test_repeated_calls_are_known_by_all_that_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_executables", {})
    a, b = filled((16, 8192)).cuda(), filled((8192, 16), seed=1).cuda()
    bias = filled((16,), seed=2).cuda()
    near(tilefold.matmul(a, b), a, b)
    near(tilefold.matmul(a.mT.contiguous().mT, b), a, b)
    torch.testing.assert_close(tilefold.matmul(a, b, bias=bias), tilefold.matmul(a, b) + bias)
    assert tilefold.matmul(a, b, out_dtype=torch.float16).dtype == torch.float16
    assert len(dispatch._executables) == 4
    with (
        pytest.raises(BackendError, match='"triton" runs on CUDA tensors, got cpu'),
        tilefold.backend("triton"),
    ):
        tilefold.matmul(a.cpu(), b.cpu())


@pytest.mark.parametrize("splits", [1, 4], ids=["one launch", "two launches"])
@pytest.mark.parametrize("reserved", [0, 114 * 1024], ids=["sharing SMs", "an SM each"])
def test_a_chain_of_early_launches_reads_what_was_written(splits: int, reserved: int) -> None:
    """Each product's result is the next one's operand and extra tensor, all launches begun early."""
    b, a = (
        filled((8192, 8192), torch.bfloat16).cuda() / 8192**0.5,
        filled((16, 8192), torch.bfloat16, 1).cuda(),
    )
    ending = make_epilogue(lambda x, r: x + r, None, (torch.bfloat16,), torch.bfloat16, None)
    chosen = Candidate("whole", Tile(16, 64, 64, 4, 4), reserved_bytes=reserved)
    if splits > 1:
        finish = finish_of(Sizes(16, 8192, 8192, 1, 2), splits)
        chosen = replace(chosen, strategy="split", splits=splits, finish=finish)
    plain, chained = (
        compiled(replace(chosen, overlap=early and splits > 1, chained=early), [a, b, a], ending, a.shape)
        for early in (False, True)
    )
    want = got = a
    for _ in range(100):
        (want,) = plain.call(want, b, want)
        torch.cuda.synchronize()
    for _ in range(100):
        (got,) = chained.call(got, b, got)
    assert torch.equal(got, want)


@pytest.mark.parametrize("rows", [2, 300])
def test_a_step_of_k_beyond_32_bits(rows: int) -> None:
    """Rows of b lie 8.5 million elements apart, so that a step of 256 of them reaches over 2^31."""
    b = torch.empty(300, 8_500_000, dtype=torch.int8, device="cuda")[:, :3].copy_(
        filled((300, 3), torch.int8, 1)
    )
    a = filled((rows, 300), torch.int8).cuda()
    assert torch.equal(tilefold.matmul(a, b), (a.double() @ b.double()).int())


@pytest.mark.parametrize("dtype", list(ROUNDING), ids=str)
def test_what_torch_finishes_itself(dtype: torch.dtype) -> None:
    """Large products, plain and with a bias of columns, first and known: one launch, and sums in float32 all the same."""
    a, b = filled((4096, 2048), dtype).cuda(), filled((2048, 4096), dtype, 1).cuda()
    bias = filled((4096,), dtype, 2).cuda()
    for _ in range(2):
        near(tilefold.matmul(a, b), a, b)
        plan = tilefold.last_plan()
        assert (plan.strategy, plan.launches) == ("cublas", 1)
        got = tilefold.matmul(a, b, bias=bias)
        want = a.double() @ b.double() + bias
        size = a.double().abs() @ b.double().abs() + bias.abs()
        bound = 2 * 2048 * 2.0**-23 * size + ROUNDING[dtype] * want.abs()
        assert bool(((got.double() - want).abs() <= bound).all())
    assert torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction


@pytest.mark.parametrize("strategy", ["cublas", "split", "whole"])
def test_out_is_written_in_place(strategy: str) -> None:
    rows, depth, columns = {"cublas": (4096, 2048, 4096), "split": (16, 8192, 16), "whole": (64, 64, 64)}[
        strategy
    ]
    a, b = filled((rows, depth), torch.bfloat16).cuda(), filled((depth, columns), torch.bfloat16, 1).cuda()
    out = torch.full((rows, columns), float("nan"), dtype=torch.bfloat16, device="cuda")
    assert tilefold.matmul(a, b, out=out) is out
    assert tilefold.last_plan().strategy == strategy
    near(out, a, b)
    strided = torch.full((columns, rows), float("nan"), dtype=torch.bfloat16, device="cuda").mT
    near(tilefold.matmul(a, b, out=strided), a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("sizes", "guarantee"),
    [
        (sizes, guarantee)
        for sizes in ((1, 7168, 256), (64, 7168, 256), (768, 7168, 256), (33, 100, 20), (2048, 1024, 128))
        for guarantee in ("run_to_run", "batch_invariant")
    ]
    + [((5, 4096, 5000), "run_to_run")],  # longer than a row in order may be: "batch_invariant" refuses it
    ids=str,
)
def test_rows_are_folded(sizes: tuple[int, int, int], dtype: torch.dtype, guarantee: str) -> None:
    rows, depth, columns = sizes
    a = (filled((rows, depth)) / depth**0.5).to(dtype).cuda()
    b = filled((depth, columns), dtype, 1).cuda()
    want = a.double() @ b.double()
    for _ in range(2):
        soft, total = tilefold.matmul(
            a, b, row=(LOGSUMEXP, SHIFTED), guarantee=guarantee, out_dtype=torch.float32
        )
        torch.testing.assert_close(soft.double(), want.softmax(1), rtol=1e-3, atol=0)
        torch.testing.assert_close(total.double(), want.logsumexp(1), rtol=1e-4, atol=1e-4)
        logits, top = tilefold.matmul(a, b, row=(MAX_WITH_INDEX, None), guarantee=guarantee)
        near(logits, a, b)
        torch.testing.assert_close(top.values.double(), want.amax(1), rtol=1e-4, atol=1e-4)
        chosen = want.gather(1, top.indices[:, None])[:, 0]
        torch.testing.assert_close(chosen, want.amax(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns", [256, 33])
def test_a_folded_row_does_not_know_its_batch(columns: int) -> None:
    a, b = filled((512, 7168), torch.bfloat16).cuda(), filled((7168, columns), torch.bfloat16, 1).cuda()
    whole, total = tilefold.matmul(a, b, row=(LOGSUMEXP, SHIFTED), guarantee="batch_invariant")
    for rows in (*range(1, 40), 63, 64, 65, 128, 200, 511):
        part, few = tilefold.matmul(a[:rows], b, row=(LOGSUMEXP, SHIFTED), guarantee="batch_invariant")
        assert torch.equal(part, whole[:rows]), rows
        assert torch.equal(few, total[:rows]), rows


def furthest(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    return (got.view_as(want) - want).abs().max()


@pytest.mark.parametrize("dtype", list(ROUNDING), ids=str)
def test_errors_are_within_twice_cublass(dtype: torch.dtype) -> None:
    """Against float64, at every shape of the grid, in float32 both; a floor where cuBLAS happens to be exact."""
    for side in (16, 32, 48, 64):
        for depth in range(8192, 32769, 4096):
            a, b = filled((side, depth), dtype).cuda(), filled((depth, side), dtype, 1).cuda()
            want = a.double() @ b.double()
            theirs = furthest(wide_product(a, b), want)
            ours = furthest(tilefold.matmul(a, b, out_dtype=torch.float32), want)
            assert ours <= 2 * theirs + 2.0**-23 * want.abs().max(), (side, depth)


@pytest.mark.parametrize("dtype", list(ROUNDING), ids=str)
@pytest.mark.parametrize("sizes", [(16, 32768, 16), (64, 8192, 64)], ids=str)
def test_every_split_is_within_twice_cublass(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Plus what the chains' roundings come to (Higham and Mary, 2019); a split that is lost would be much further."""
    rows, depth, columns = sizes
    a, b = filled((rows, depth), dtype).cuda(), filled((depth, columns), dtype, 1).cuda()
    want = a.double() @ b.double()
    theirs, size = (
        furthest(wide_product(a, b), want),
        (a.double().abs() @ b.double().abs()).max(),
    )
    ending = make_epilogue(None, None, (), dtype, torch.float32)
    for splits in (2, 3, 8, 32, 64, 128):
        whole = Sizes(rows, columns, depth, 1, dtype.itemsize)
        plan = Candidate("split", Tile(16, 16, 64, 2, 3), splits, finish_of(whole, splits), overlap=True)
        (made,) = compiled(plan, [a, b], ending, (rows, columns)).call(a, b)
        near(made, a, b)
        chained = 2.0**-24 * (depth / splits + splits) ** 0.5 * size
        assert furthest(made, want) <= 2 * theirs + chained, splits
        assert chained < (depth / splits) ** 0.5 / 4


@pytest.mark.parametrize("epilogue", [None, "relu", "gelu", "silu", "sigmoid", "tanh"])
@pytest.mark.parametrize("sizes", [(5, 64, 40), (16, 8192, 48), (64, 7168, 256), (2048, 512, 2048)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_nan_and_infinity_come_through(
    dtype: torch.dtype, sizes: tuple[int, int, int], epilogue: str | None
) -> None:
    """One element makes its row NaN, or infinities of either sign, by every strategy; the other rows are as before."""
    rows, depth, columns = sizes
    a, b = filled((rows, depth), dtype).cuda(), filled((depth, columns), dtype, 1).cuda()
    clean = tilefold.matmul(a, b, epilogue=epilogue)
    a[1, 3], a[2, depth - 1], a[3, depth // 2] = float("nan"), float("inf"), float("-inf")
    got = tilefold.matmul(a, b, epilogue=epilogue)
    want = tilefold.matmul(a.cpu(), b.cpu(), epilogue=epilogue)
    assert torch.equal(got.isnan().cpu(), want.isnan())
    assert torch.equal(got.isinf().cpu(), want.isinf())
    torch.testing.assert_close(got[1:4].cpu(), want[1:4], equal_nan=True)
    assert torch.equal(got[0], clean[0])
    assert torch.equal(got[4:], clean[4:])


@pytest.mark.parametrize("sizes", [(16, 8192, 48), (2048, 1024, 2048), (4096, 2048, 4096)], ids=str)
def test_autocast_converts_and_changes_nothing_else(sizes: tuple[int, int, int]) -> None:
    """Inside and outside by turns, so that what is known of one is not taken for the other; into `out` nothing converts."""
    rows, depth, columns = sizes
    a, b = filled((rows, depth)).cuda(), filled((depth, columns), seed=1).cuda()
    for epilogue in ("relu", None):
        wide = tilefold.matmul(a, b, epilogue=epilogue)
        narrow = tilefold.matmul(a.bfloat16(), b.bfloat16(), epilogue=epilogue)
        dispatch._executables.clear()
        for _ in range(2):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                assert torch.equal(tilefold.matmul(a, b, epilogue=epilogue), narrow)
                assert torch.equal(tilefold.matmul(a, b, epilogue=epilogue, out=torch.empty_like(wide)), wide)
            assert torch.equal(tilefold.matmul(a, b, epilogue=epilogue), wide)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_of_all_dtypes_is_torchs(half: torch.dtype) -> None:
    for left, right in itertools.product([*FLOATS, torch.float64], repeat=2):
        a, b = filled((16, 256)).to(left).cuda(), filled((256, 32), seed=1).to(right).cuda()
        with torch.autocast("cuda", dtype=half):
            if (left == torch.float64) != (right == torch.float64):
                for function in (tilefold.matmul, torch.matmul):
                    with pytest.raises(RuntimeError, match="dtype"):
                        function(a, b)
                continue
            for _ in range(2):
                got, want = tilefold.matmul(a, b), torch.matmul(a, b)
                assert got.dtype == want.dtype, (left, right)
                torch.testing.assert_close(got, want, rtol=2**-7, atol=2**-3)
            bias = filled((32,), seed=2).to(right).cuda()
            got, want = tilefold.matmul(a, b, bias=bias), torch.nn.functional.linear(a, b.mT, bias)
            assert got.dtype == want.dtype, (left, right)
            torch.testing.assert_close(got, want, rtol=2**-7, atol=2**-3)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (16, 8192, 48), (63, 1000, 65), (300, 500, 700)], ids=str)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16], ids=str)
def test_whole_numbers_are_exact(dtype: torch.dtype, sizes: tuple[int, int, int]) -> None:
    rows, depth, columns = sizes
    limits = torch.iinfo(dtype)
    a = torch.randint(limits.min, limits.max + 1, (rows, depth), dtype=dtype)
    b = torch.randint(limits.min, limits.max + 1, (depth, columns), dtype=dtype).mT.contiguous().mT
    exact, bias = a.long() @ b.long(), torch.arange(columns)
    for _ in range(2):
        assert torch.equal(tilefold.matmul(a.cuda(), b.cuda()).cpu(), exact.to(dtype))
        assert torch.equal(tilefold.matmul(a.cuda(), b.cuda(), out_dtype=torch.int64).cpu(), exact)
        finished = tilefold.matmul(
            a.cuda(), b.cuda(), bias=bias.cuda(), epilogue="relu", guarantee="batch_invariant"
        )
        assert torch.equal(finished.cpu(), (exact + bias).clamp(min=0).to(dtype))
        _, top = tilefold.matmul(a.cuda(), b.cuda(), row=(MAX_WITH_INDEX, None))
        assert torch.equal(top.values.cpu(), exact.amax(1))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_whole_numbers_that_no_kernel_multiplies(dtype: torch.dtype) -> None:
    a = torch.ones(4, 4, dtype=dtype, device="cuda")
    with pytest.raises(RuntimeError, match=r"on a GPU must be of int8, uint8 or int16, got .*; convert"):
        tilefold.matmul(a, a)


class Scale:
    """Equal and hashed alike where its factors are equal."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, x: Any, *others: Any) -> Any:
        return x * self.by

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scale) and self.by == other.by

    def __hash__(self) -> int:
        return hash(self.by)


def scaled(scale: Scale) -> list[Callable[..., Any]]:
    """Functions that read one object, each in its own way."""
    return [scale, scale.__call__, lambda x, *_: x * scale.by]


@pytest.mark.parametrize("where", ["epilogue", "row"])
def test_a_repeated_call_reads_what_its_function_reads_now(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "_executables", {})
    a, b = filled((16, 512)).round().cuda(), filled((512, 16), seed=1).round().cuda()  # exact in any order
    plain, scale = tilefold.matmul(a, b), Scale(2.0)
    for by in (2.0, 4.0, 2.0, 8.0):
        scale.by = by
        for function in 2 * scaled(scale):
            if where == "epilogue":
                got = tilefold.matmul(a, b, epilogue=function)
            else:
                got, top = tilefold.matmul(a, b, row=(MAX_WITH_INDEX, function))
                assert torch.equal(top.values, plain.amax(1))
            assert torch.equal(got, plain * by)
    assert len(dispatch._executables) == 4, "the plain product, and one for each factor"
    watched = weakref.ref(scale)
    del scale, function
    gc.collect()
    assert watched() is None

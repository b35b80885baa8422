"""Products of one row or column as folds: which are, their results against float64, and their kernels executed from PTX."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import tilefold
from tilefold.backends.triton.call import compile_for
from tilefold.backends.triton.lower import calls_of
from tilefold.planner.device import H200
from tilefold.planner.plan import Plan
from tilefold.planner.products import choose
from tilefold.planner.products.choose import plan_tensors
from tilefold.planner.products.epilogue import make_epilogue
from tilefold.planner.products.folded import fold_of
from tilefold.planner.products.operands import canonical_product
from xray.running import run_plan

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Triton's interpreter on numpy 2
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
ROUNDING = {FP16: 2.0**-11, BF16: 2.0**-8, FP32: 2.0**-24}
NAN, INF = float("nan"), float("inf")
# (M, N, K): rows of whole vectors, of odd lengths and short ones; columns of one vector's width, of odd numbers; one result.
SHAPES = [(8, 1, 4253), (21, 1, 1192), (37, 1, 31), (300, 1, 8), (1, 203, 92), (1, 64, 501), (1, 1, 5001)]
LAYOUTS = [
    ("plain", "plain"),
    ("transposed", "plain"),
    ("plain", "transposed"),
    ("offset", "offset"),
    ("sliced", "sliced"),
]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fold is taken wherever one is weighed, however long it is expected to take."""
    monkeypatch.setattr(choose, "FOLD_DOUBT", -INF)
    monkeypatch.setattr(choose, "COLUMNS_DOUBT", -INF)


def filled(shape: tuple[int, ...], dtype: torch.dtype, layout: str = "plain", seed: int = 0) -> torch.Tensor:
    """A tensor in its rows' order, in its columns', beginning an odd number of elements behind a vector, or in NaN."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    if layout == "transposed":
        return x.mT.contiguous().mT
    if layout == "offset":
        return torch.full((x.numel() + 3,), NAN, dtype=dtype)[3:].view(shape).copy_(x)
    if layout == "sliced":
        return torch.full((shape[0] + 1, shape[1] + 3), NAN, dtype=dtype)[1:, 3:].copy_(x)
    return x


def operands(
    shape: tuple[int, int, int], dtype: torch.dtype, layouts: tuple[str, str] = ("plain", "plain")
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns, depth = shape
    return filled((rows, depth), dtype, layouts[0]), filled((depth, columns), dtype, layouts[1], 1)


def assert_near(got: torch.Tensor, a: torch.Tensor, b: torch.Tensor, want: torch.Tensor) -> None:
    """Within the stated bound, and one rounding of the result."""
    gamma = a.shape[-1] * 2.0**-23 / (1 - a.shape[-1] * 2.0**-23)
    bound = gamma * (a.double().abs() @ b.double().abs())
    assert got.shape == want.shape
    assert bool(((got.double() - want).abs() <= bound + ROUNDING[got.dtype] * want.abs() + 1e-7).all())


def planned(a: torch.Tensor, b: torch.Tensor, **options: Any) -> Plan:
    return tilefold.explain_plan((a, b), tilefold.matmul, device=H200, **options)


def meta(rows: int, columns: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(rows, columns, dtype=dtype, device="meta")


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("layouts", LAYOUTS, ids="-".join)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_folds_are_near_float64(shape: tuple[int, int, int], layouts: tuple[str, str]) -> None:
    a, b = operands(shape, FP32 if sum(shape) % 3 == 0 else FP16 if shape[2] % 2 else BF16, layouts)
    want = a.double() @ b.double()
    with tilefold.backend("interpret"):
        got = tilefold.matmul(a, b, out_dtype=FP32)
    plan = tilefold.last_plan()
    assert plan is not None
    assert (plan.strategy == "fold") == (planned(a, b).strategy == "fold")
    assert_near(got, a, b, want)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("shape", [(21, 1, 119), (1, 33, 77)], ids=str)
def test_epilogues_dtypes_and_out(shape: tuple[int, int, int]) -> None:
    a, b = operands(shape, BF16)
    want = a.double() @ b.double()
    with tilefold.backend("interpret"):
        assert_near(tilefold.matmul(a, b), a, b, want)
        assert_near(tilefold.matmul(a, b, epilogue="relu", guarantee="none"), a, b, want.relu())
        assert torch.equal(tilefold.matmul(a, b, epilogue=lambda x: x > 100), want > 100)
        whole = tilefold.matmul(a, b, out_dtype=torch.int32)
        out = torch.empty(shape[0], shape[1], dtype=BF16)
        assert tilefold.matmul(a, b, out=out) is out
    assert bool(((whole - want).abs() < 1 + 1e-4).all())
    assert_near(out, a, b, want)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("sizes", [(9, 1), (1, 9), (1, 1)], ids=str)
def test_short_depths(depth: int, sizes: tuple[int, int]) -> None:
    a, b = operands((*sizes, depth), BF16)
    with tilefold.backend("interpret"):
        assert_near(tilefold.matmul(a, b), a, b, a.double() @ b.double())


@pytest.mark.usefixtures("always")
def test_vectors_batches_and_expanded_operands() -> None:
    a, b = filled((119,), FP16), filled((119,), FP16, seed=1)
    many, columns = (filled((3 * n, 119), FP16, seed=n).view(3, n, 119) for n in (5, 1))
    with tilefold.backend("interpret"):
        assert_near(
            tilefold.matmul(a, b)[None, None], a[None], b[:, None], a[None].double() @ b[:, None].double()
        )
        assert_near(tilefold.matmul(many, columns.mT), many, columns.mT, many.double() @ columns.mT.double())
        assert_near(
            tilefold.matmul(many, b)[..., None], many, b[:, None], many.double() @ b[:, None].double()
        )
        for left, right in [
            (many[0, :1].expand(4, 119), b[:, None]),
            (many[0], b[:1].expand(119)[:, None]),
            (many[0][:, :1].expand(5, 119), b[:, None]),
        ]:
            assert_near(tilefold.matmul(left, right), left, right, left.double() @ right.double())


@pytest.mark.parametrize(
    "shape",
    [(21, 1, 1192), (1632, 1, 4952), (8, 1, 8219), (8, 1, 84253), (1, 9, 408), (4096, 1, 14336)],
    ids=str,
)
def test_the_fold_is_planned(shape: tuple[int, int, int]) -> None:
    rows, columns, depth = shape
    a, b = meta(rows, depth), meta(depth, columns)
    plan = planned(a, b, epilogue="relu")
    assert plan.strategy == "fold"
    assert 1 <= plan.launches <= 2
    assert plan.moved_bytes >= 2 * (a.numel() + b.numel())
    assert planned(a, b, guarantee="none").guarantee == "none"


def test_short_folds_of_one_column() -> None:
    """A launch that is nearly empty takes an empty one's time; tiles of float32 2.9 times what their model expects."""
    for rows, depth, dtype in ((72, 104, FP16), (3, 96, BF16), (120, 72, FP32), (1321, 440, FP32)):
        plan = planned(meta(rows, depth, dtype), meta(depth, 1, dtype), epilogue="relu")
        assert (plan.strategy, plan.launches) == ("fold", 1)
        assert choose.EMPTY_US < float(re.search(r"about (\S+) us", plan.reason)[1]) < 7


@pytest.mark.parametrize(("dtype", "odd"), [(FP16, (2029, 1913)), (FP32, (6029, 11913))], ids=str)
def test_a_row_by_columns_that_are_contiguous(dtype: torch.dtype, odd: tuple[int, int]) -> None:
    """As of a Linear layer: both operands have vectors along K, or neither has."""
    for columns, depth in ((4096, 14336), odd):
        assert planned(meta(1, depth, dtype), meta(columns, depth, dtype).T).strategy == "fold"


def test_what_is_no_fold() -> None:
    """Rows and columns of other dtypes or guarantees, with extra tensors or a row's fold, of batches; and what tiles take as
    soon: few bytes, columns whose neighbours they copy as vectors, large matrices of odd columns, and long odd rows."""
    a, b = meta(21, 1192), meta(1192, 1)
    assert planned(a, b, guarantee="batch_invariant").strategy != "fold"
    assert planned(a, b, bias=meta(21, 1)).strategy != "fold"
    assert planned(a, b, row=(tilefold.monoids.SUM, None)).strategy != "fold"
    assert planned(a.double(), b.double()).strategy != "fold"
    assert planned(a.expand(4, 21, 1192), b.expand(4, 1192, 1)).strategy != "fold"
    for rows, columns, depth in [
        (192, 1, 48),
        (1, 1000, 8192),
        (2, 64, 1192),
        (1632, 2, 4952),
        (1, 3001, 50001),
        (8, 1, 19311),
        (2000, 1, 3003),
    ]:
        assert planned(meta(rows, depth), meta(depth, columns)).strategy != "fold"
    assert planned(meta(320, 30565, FP32), meta(30565, 1, FP32)).strategy == "fold"  # elements are words


def test_nan_and_infinity_reach_their_results_alone() -> None:
    a, b = operands((21, 1, 1193), BF16, ("sliced", "plain"))
    a[4, 0], a[7, -1], a[9, 5] = NAN, INF, -INF
    b[:] = b.abs() + 1
    assert planned(a, b).strategy == "fold"
    with tilefold.backend("interpret"):
        got = tilefold.matmul(a, b)[:, 0]
    assert got[4].isnan()
    assert got[7] == INF
    assert got[9] == -INF
    assert int(got.isfinite().sum()) == 18


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    ("shape", "layout"),
    [((21, 1, 1192), "plain"), ((5, 1, 1193), "offset"), ((2, 1, 16001), "plain"), ((1, 199, 65), "plain"),
     ((1, 72, 301), "plain"), ((19, 1, 300), "transposed")],
    ids=str,
)  # fmt: skip
def test_kernels_executed_from_ptx(shape: tuple[int, int, int], layout: str) -> None:
    a, b = operands(shape, BF16, (layout, "plain"))
    ending = make_epilogue("relu", None, (), BF16, None)
    problem, plan = plan_tensors((a, b), ending, "ieee", "run_to_run", H200)
    got = torch.empty(shape[0], shape[1], dtype=BF16)
    assert plan.strategy == "fold"
    run_plan(plan, problem, ending, [a, b], [got], 90)
    assert_near(got, a, b, (a.double() @ b.double()).relu())


SPECIAL = [INF, -INF, NAN, 1e6, -1e6, 460.0, 0.0, -0.0, 1e-9, 3e9, 300.0, 0.5, 65519.0]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int32, torch.uint8, torch.bool], ids=str)
def test_results_are_rounded_as_by_tiles(dtype: torch.dtype) -> None:
    """Also what the result's dtype does not hold."""
    a, b = torch.zeros(len(SPECIAL), 40, dtype=BF16), torch.ones(40, 1, dtype=BF16)
    a[:, 0] = torch.tensor(SPECIAL)
    ending = make_epilogue(None, None, (), BF16, dtype)
    found = []
    for guarantee, is_fold in (("run_to_run", True), ("batch_invariant", False)):
        problem, plan = plan_tensors((a, b), ending, "ieee", guarantee, H200)
        assert (plan.strategy == "fold") == is_fold
        found.append(torch.empty(len(SPECIAL), 1, dtype=dtype))
        run_plan(plan, problem, ending, [a, b], [found[-1]], 90)
    assert torch.equal(found[0].view(torch.uint8), found[1].view(torch.uint8))


@pytest.mark.parametrize(
    ("shape", "width"),
    [((1632, 1, 4952), "v4.b32"), ((8, 1, 84253), "b16"), ((600, 1, 4953), "b16")],
    ids=str,
)
def test_both_operands_of_a_row_are_loaded_alike(shape: tuple[int, int, int], width: str) -> None:
    """In vectors of one length, so that no tile changes threads through shared memory; and nothing spills."""
    a, b = meta(shape[0], shape[2]), meta(shape[2], shape[1])
    ending = make_epilogue(None, None, (), BF16, None)
    problem, plan = plan_tensors((a, b), ending, "ieee", "run_to_run", H200)
    first, *_ = calls_of(plan, problem, ending)
    made = compile_for(first, 90)
    assert {load.rpartition("hint.")[2] for load in re.findall(r"ld\.global\S+", made.asm["ptx"])} == {width}
    assert not re.search(r"convert_layout .*tensor<\d+x\d+x\d+x\d+x", made.asm["ttgir"])
    assert ".local" not in made.asm["ptx"]


def test_an_address_says_no_more_than_the_other_operands_rows() -> None:
    rows = fold_of(
        canonical_product(*operands((8, 1, 4253), BF16), ()), make_epilogue(None, None, (), BF16, None)
    )[0]
    assert rows.aligned == (2, 2)
    assert [d.size for d in rows.dims] == [8, 4253]
    even = fold_of(
        canonical_product(*operands((8, 1, 4252), BF16), ()), make_epilogue(None, None, (), BF16, None)
    )[0]
    assert even.aligned == (8, 8)

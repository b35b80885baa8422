"""Products of one row or one column as folds: which are, their results against float64, and their kernels executed from PTX."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilefold
from tilefold.backends.triton.call import compile_for
from tilefold.backends.triton.lower import calls_of
from tilefold.contract.choose import plan_tensors
from tilefold.contract.epilogue import make_epilogue
from tilefold.planner.device import H200
from tilefold.planner.plan import Plan
from xray.running import run_plan

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
ROUNDING = {FP16: 2.0**-11, BF16: 2.0**-8, FP32: 2.0**-24}
NAN, INF = float("nan"), float("inf")
SHAPES = [(8, 1, 4253), (21, 1, 1192), (37, 1, 31), (300, 1, 8), (1, 203, 925), (1, 64, 1000), (1, 1, 5001)]


def filled(shape: tuple[int, ...], dtype: torch.dtype, layout: str, seed: int = 0) -> torch.Tensor:
    """A tensor in its rows' order, in its columns', or beginning an odd number of elements behind a vector."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    if layout == "transposed":
        return x.mT.contiguous().mT
    if layout == "offset":
        return torch.empty(x.numel() + 3, dtype=dtype)[3:].view(shape).copy_(x)
    if layout == "sliced":
        wide = torch.full((shape[0] + 1, shape[1] + 3), NAN, dtype=dtype)
        return wide[1:, 3:].copy_(x)
    return x


def assert_near(got: torch.Tensor, a: torch.Tensor, b: torch.Tensor, want: torch.Tensor) -> None:
    """Within the stated bound, and one rounding of the result."""
    bound = 2 * a.shape[-1] * 2.0**-23 * (a.double().abs() @ b.double().abs())
    assert got.shape == want.shape
    assert bool(((got.double() - want).abs() <= bound + ROUNDING[got.dtype] * want.abs() + 1e-7).all())


def planned(a: torch.Tensor, b: torch.Tensor, **options: Any) -> Plan:
    return tilefold.explain_plan((a, b), tilefold.matmul, device=H200, **options)


@pytest.mark.parametrize("layouts", [("plain", "plain"), ("transposed", "plain"), ("plain", "transposed"),
                                     ("offset", "offset"), ("sliced", "sliced")], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", [FP16, BF16, FP32], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_folds_are_near_float64(
    shape: tuple[int, int, int], dtype: torch.dtype, layouts: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the model would take tiles: every fold is as expected faster here."""
    monkeypatch.setattr("tilefold.contract.choose._is_faster", lambda time_us, product: True)
    rows, columns, depth = shape
    a = filled((rows, depth), dtype, layouts[0])
    b = filled((depth, columns), dtype, layouts[1], 1)
    want = a.double() @ b.double()
    with tilefold.backend("interpret"):
        assert_near(tilefold.matmul(a, b), a, b, want)
        assert_near(tilefold.matmul(a, b, epilogue="relu", out_dtype=FP32), a, b, want.relu())
        out = torch.empty(rows, columns, dtype=dtype)
        assert tilefold.matmul(a, b, out=out) is out
    assert_near(out, a, b, want)


@pytest.mark.parametrize("shape", [(21, 1, 1192), (1632, 1, 4952), (8, 1, 84253), (1, 3175, 925)], ids=str)
def test_the_fold_is_planned(shape: tuple[int, int, int]) -> None:
    rows, columns, depth = shape
    a, b = torch.empty(rows, depth, dtype=BF16), torch.empty(depth, columns, dtype=BF16)
    plan = planned(a, b, epilogue="relu")
    assert plan.strategy == "fold"
    assert plan.launches <= 2
    assert 0 < plan.time_us
    bias = torch.empty(columns, dtype=BF16)
    for options in ({"guarantee": "batch_invariant"}, {"bias": bias}):
        assert planned(a, b, **options).strategy != "fold"
    assert planned(a.float(), b.float()).strategy != "fold"
    assert planned(a.expand(1, *a.shape) if rows == 1 else a, b, guarantee="none").guarantee == "none"


@pytest.mark.parametrize("shape", [(2, 64, 1192), (1632, 2, 4952)], ids=str)
def test_no_other_product_is_a_fold(shape: tuple[int, int, int]) -> None:
    rows, columns, depth = shape
    a, b = torch.empty(rows, depth, dtype=BF16), torch.empty(depth, columns, dtype=BF16)
    assert planned(a, b).strategy != "fold"


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("sizes", [(9, 1), (1, 9), (1, 1)], ids=str)
def test_short_depths(depth: int, sizes: tuple[int, int]) -> None:
    a, b = filled((sizes[0], depth), BF16, "plain"), filled((depth, sizes[1]), BF16, "plain", 1)
    with tilefold.backend("interpret"):
        assert_near(tilefold.matmul(a, b), a, b, a.double() @ b.double())


def test_vectors_and_batches() -> None:
    a, b = filled((1192,), FP16, "plain"), filled((1192,), FP16, "plain", 1)
    many = filled((3 * 5, 1191), FP16, "plain", 2).view(3, 5, 1191)
    columns = filled((3 * 1191, 1), FP16, "plain", 3).view(3, 1191, 1)
    with tilefold.backend("interpret"):
        assert_near(tilefold.matmul(a, b), a[None], b[:, None], (a.double() @ b.double()))
        assert_near(tilefold.matmul(many, columns), many, columns, many.double() @ columns.double())


def test_nan_and_infinity_reach_their_results_alone() -> None:
    """Rows that begin between vectors read their neighbours' elements, which must add nothing."""
    a, b = filled((21, 1193), BF16, "plain"), filled((1193, 1), BF16, "plain", 1)
    a[4, 0], a[7, -1], a[9, 5] = NAN, INF, -INF
    b[:] = b.abs() + 1
    assert planned(a, b).strategy == "fold"
    with tilefold.backend("interpret"):
        got = tilefold.matmul(a, b)[:, 0]
    assert got[4].isnan()
    assert got[7] == INF
    assert got[9] == -INF
    assert int(got.isfinite().sum()) == 18


@pytest.mark.parametrize(("shape", "layout"), [((21, 1, 1192), "plain"), ((21, 1, 1193), "offset"),
                                               ((4, 1, 40001), "plain"), ((1, 3175, 65), "plain")], ids=str)  # fmt: skip
def test_kernels_executed_from_ptx(shape: tuple[int, int, int], layout: str) -> None:
    rows, columns, depth = shape
    a, b = filled((rows, depth), BF16, layout), filled((depth, columns), BF16, layout, 1)
    ending = make_epilogue("relu", None, (), BF16, None)
    problem, plan = plan_tensors((a, b), ending, "ieee", "run_to_run", H200)
    got = torch.empty(rows, columns, dtype=BF16)
    assert plan.strategy == "fold"
    run_plan(plan, problem, ending, [a, b], [got], 90)
    assert_near(got, a, b, (a.double() @ b.double()).relu())


def test_kernels_spill_nothing() -> None:
    ending = make_epilogue(None, None, (), BF16, None)
    for rows, columns, depth in [(1632, 1, 4952), (8, 1, 84253), (1, 3175, 925)]:
        a, b = torch.empty(rows, depth, dtype=BF16), torch.empty(depth, columns, dtype=BF16)
        problem, plan = plan_tensors((a, b), ending, "ieee", "run_to_run", H200)
        for call in calls_of(plan, problem, ending):
            assert ".local" not in compile_for(call, 90).asm["ptx"]

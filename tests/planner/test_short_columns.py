"""Maps of short columns: threads hold whole columns or share them by two or four, a warp's loads are whole lines."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import tilefold as tf
from planner.held_rows import check
from tilefold import monoids
from tilefold.api.reduce_map import graph_of, kept
from tilefold.api.requests import RowMap
from tilefold.functional.normalized import _shares
from tilefold.planner.device import H200
from tilefold.planner.plan import Plan
from tilefold.planner.products.row import make_row_map
from tilefold.xray.machine.counts import global_cost
from tilefold.xray.machine.races import races
from xray.running import run_plan

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
NAN, INF = float("nan"), float("inf")


def executed(
    monoid: Any, apply: Any, tensors: list[torch.Tensor], inputs: int, dims: tuple[int, ...]
) -> tuple[torch.Tensor, Plan, list[Any]]:
    dtypes, shape = [t.dtype for t in tensors], tuple(tensors[0].shape)
    row = make_row_map(monoid.total, apply, tuple(dtypes[:inputs]), tuple(dtypes[inputs:]))
    problem, plan = RowMap(row, dims, "run_to_run", shape).plan(tensors, H200, library=False)
    got = torch.empty(shape, dtype=row.results[0])
    return got, plan, run_plan(plan, problem, row, tensors, [got], 90)


def apart(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Columns of a wider tensor: those that are one piece of memory are read as spans, by another kernel."""
    return torch.randn(*shape[:-1], shape[-1] + 16).to(dtype)[..., : shape[-1]]


def softmax(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, Plan, list[Any]]:
    return executed(*kept(_shares, False), [x], 1, (dim,))


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
@pytest.mark.parametrize(
    "shape", [(3, 256), (2, 6, 128), (13, 130), (2, 47, 49), (48, 70), (37, 40), (2, 13, 7)], ids=str
)
def test_any_length_and_width(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = apart(shape, dtype)
    dim = len(shape) - 2
    got, plan, outcomes = softmax(x, dim)
    stage = plan.stages[0]
    assert stage.family == "block_columns"
    assert shape[-1] < 16 or stage.lanes <= 4
    check(got, torch.softmax(x.double(), dim))
    assert not any(race.differing for o in outcomes for race in races(o))


@pytest.mark.parametrize(
    ("shape", "dtype"), [((13, 256), BF16), ((24, 128), FP32), ((100, 64), BF16)], ids=str
)
def test_each_sector_is_touched_once(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = apart(shape, dtype)
    _, _, outcomes = softmax(x, 0)
    for store in (False, True):
        cost = global_cost(a for o in outcomes for a in o.accesses if (a.kind == "store") == store)
        assert cost.sectors == math.ceil(x.numel() * x.itemsize / 32)


@pytest.mark.parametrize("dense", [False, True])
def test_several_inputs_and_weights_along_a_column(dense: bool) -> None:
    x, y = (torch.randn(2, 9, 80) if dense else apart((2, 9, 80), FP32) for _ in range(2))
    w = torch.randn(9).view(1, 9, 1).expand(2, 9, 80)
    dot = tf.Monoid(lambda a, b: a + b, 0.0, lift=lambda p, q: p * q)
    apply = graph_of(lambda p, q, total, weight: p * weight + q * total, 4)
    got, _, _ = executed(dot, apply, [x, y, w], 2, (1,))
    total = (x.double() * y.double()).sum(1, keepdim=True)
    torch.testing.assert_close(
        got.double(), x.double() * w.double() + y.double() * total, rtol=1e-5, atol=1e-5
    )


def test_columns_of_two_dims_that_do_not_merge() -> None:
    z = torch.randn(5, 3, 7, 64)[:, :, :6]
    with tf.backend("interpret"):
        check(
            tf.reduce_map(z, monoids.SUM, lambda v, s: v - s, (1, 2)),
            z.double() - z.double().sum((1, 2), keepdim=True),
        )


def test_infinities_and_nan_stay_in_their_columns() -> None:
    x = apart((13, 96), FP32)
    x[:, 0], x[1, 1], x[0, 2], x[:, 3] = -INF, NAN, INF, 0.0
    got, plan, _ = softmax(x, 0)
    assert plan.stages[0].family == "block_columns"
    check(got, torch.softmax(x.double(), 0))

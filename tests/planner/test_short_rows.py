"""Maps of short rows that registers hold: loads of whole lines, several rows a thread, rows that lie along any dim."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilefold as tf
from planner.held_rows import check
from tilefold.api.reduce_map import kept
from tilefold.api.requests import RowMap
from tilefold.functional.normalized import _norms, _shares
from tilefold.planner.device import H200
from tilefold.planner.plan import Plan
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.products.row import make_row_map
from tilefold.xray.machine.counts import global_cost
from tilefold.xray.machine.races import races
from xray.running import run_plan

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
F = torch.nn.functional
BF16, FP32 = torch.bfloat16, torch.float32
NAN, INF = float("nan"), float("inf")


def planned(
    monoid: Any, apply: Any, tensors: list[torch.Tensor], inputs: int, guarantee: str = "run_to_run"
) -> tuple[RowMap, Problem, Plan]:
    dtypes = [t.dtype for t in tensors]
    row = make_row_map(monoid.total, apply, tuple(dtypes[:inputs]), tuple(dtypes[inputs:]))
    shape = tuple(tensors[0].shape)
    request = RowMap(row, (len(shape) - 1,), guarantee, shape)
    return request, *request.plan(tensors, H200, library=False)


def softmax_plan(x: torch.Tensor, guarantee: str = "run_to_run") -> tuple[RowMap, Problem, Plan]:
    return planned(*kept(_shares, False), [x], 1, guarantee)


# The rows' last dim is short, or steps over others': programs count rows along the longest one.
LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "few of a slice": lambda: torch.randn(150, 5, 32)[:, :3],
    "odd rows of a slice": lambda: torch.randn(150, 5, 11)[:, :3],
    "far apart": lambda: torch.randn(3, 150, 16).transpose(0, 1),
    "two long dims": lambda: torch.randn(5, 2, 70, 9)[:, :1, :, :8],
    "one row": lambda: torch.randn(1, 64),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_of_any_layout(name: str) -> None:
    x = LAYOUTS[name]()
    want = torch.softmax(x.double(), -1)
    for guarantee in ("run_to_run", "batch_invariant"):
        with tf.backend("interpret"):
            check(tf.softmax(x, -1, guarantee=guarantee), want)
    request, problem, plan = softmax_plan(x)
    got = torch.empty(x.shape)
    run_plan(plan, problem, request.computation, [x], [got], 90)
    check(got, want)


@pytest.mark.parametrize("name", ["few of a slice", "odd rows of a slice", "far apart"])
def test_programs_have_rows_of_the_longest_dim(name: str) -> None:
    _, problem, plan = softmax_plan(LAYOUTS[name]())
    assert problem.output_dims[-1].size == 150
    assert plan.stages[0].block_outputs <= 256


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((100, 32), FP32), ((300, 8), FP32), ((100, 64), BF16), ((600, 8), BF16), ((60, 128), BF16)],
    ids=str,
)
def test_each_sector_is_touched_once(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Four lines a warp's load of vectors, as few as can be: with a thread a row of 128 bytes it was 32."""
    x = torch.randn(shape).to(dtype)
    request, problem, plan = softmax_plan(x)
    stage, got = plan.stages[0], torch.empty_like(x)
    vectors = x[0].nbytes // 16
    assert stage.lanes == min(8, vectors)
    outcomes = run_plan(plan, problem, request.computation, [x], [got], 90)
    check(got, torch.softmax(x.double(), 1))
    for store in (False, True):
        cost = global_cost(a for o in outcomes for a in o.accesses if (a.kind == "store") == store)
        assert cost.sectors == math.ceil(x.nbytes / 32)
    assert not any(race.differing for o in outcomes for race in races(o))


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize("length", [8, 32, 64])
def test_norms_with_weights_and_a_residual(name: str, dtype: torch.dtype, length: int) -> None:
    x, r = torch.randn(70, length).to(dtype), torch.randn(70, length).to(dtype)
    w, b = (torch.rand(length) + 0.5).to(dtype), torch.randn(length).to(dtype)
    extras = [w.expand(70, length), b.expand(70, length)][: 1 + (name == "layer_norm")]
    arguments = [w, b][: len(extras)]
    for residual in (False, True):
        tensors = [x, r][: 1 + residual]
        norm = kept(_norms, name, length, 1e-5, (True, len(extras) > 1), residual)
        request, problem, plan = planned(*norm, [*tensors, *extras], len(tensors))
        results = [torch.empty_like(x) for _ in tensors]
        run_plan(plan, problem, request.computation, [*tensors, *extras], results, 90)
        total = sum(t.double() for t in tensors)
        wide = [t.double() for t in arguments]
        check(results[0], getattr(F, name)(total, (length,), *wide, eps=1e-5))


@pytest.mark.parametrize("length", [4, 16, 64])
def test_infinities_and_nan_stay_in_their_rows(length: int) -> None:
    x = torch.randn(40, length)
    x[0], x[1, 1], x[2, 0], x[3] = -INF, NAN, INF, 0.0
    request, problem, plan = softmax_plan(x)
    got = torch.empty_like(x)
    run_plan(plan, problem, request.computation, [x], [got], 90)
    check(got, torch.softmax(x.double(), 1))


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_bits_do_not_depend_on_how_many_rows_there_are(dtype: torch.dtype) -> None:
    x = torch.randn(300, 32).to(dtype)
    every = None
    for rows in (300, 512 // 4, 7, 1):
        request, problem, plan = softmax_plan(x[:rows], "batch_invariant")
        got = torch.empty_like(x[:rows])
        run_plan(plan, problem, request.computation, [x[:rows]], [got], 90)
        every = got if every is None else every
        assert torch.equal(got, every[:rows])

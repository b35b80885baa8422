"""Inputs that all results of a launch of columns share: under Triton's interpreter, from their PTX, and as counted."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tilefold
from planner.executed import executed, launches_of
from tilefold import Monoid
from tilefold.algebra.program import Program, specialize
from tilefold.backends.triton import call as calls
from tilefold.math import maximum
from tilefold.planner.choose import plan_of
from tilefold.planner.device import H200
from tilefold.planner.geometry import geometry_of
from tilefold.planner.plan import Stage
from tilefold.planner.problem.canonical import Problem, canonical
from tilefold.planner.programs import shared_inputs
from xray.running import fold

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
WEIGHTED = Monoid(
    lambda a, b: a + b, 0, lift=lambda x, w: x * w, commutative=True, check=False, name="weighted"
)
# The least and the greatest product, and how many weights there were: no element of the shared input alone is the result.
SPREAD = Monoid(
    lambda a, b: (-maximum(-a.low, -b.low), maximum(a.high, b.high), a.total + b.total),
    (float("inf"), -float("inf"), 0),
    fields=("low", "high", "total"),
    lift=lambda w, x: (x * w, x * w, w),
    commutative=True,
    check=False,
    name="spread",
)
NAN = float("nan")


def inputs(
    length: int, width: int, dtype: torch.dtype, step: int = 1, batch: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """[(batch,) length, width] elements, and weights [length] that are the same for all columns; NaN lies around both."""
    generator = torch.Generator().manual_seed(length)
    shape = (batch, length) if batch else (length,)
    x = torch.full((*shape, width + 8), NAN, dtype=dtype)[..., :width]
    x.copy_(torch.randn((*shape, width), generator=generator))
    w = torch.full(((batch or 1) * length * step + 32,), NAN, dtype=dtype)[16:][
        : (batch or 1) * length * step
    ]
    w = w.view(*shape, step)[..., 0]
    w.copy_(torch.randn(shape, generator=generator))
    return x, w[..., None].expand(*shape, width)


SIZES = [(333, 40, 1), (225, 37, 1), (30, 130, 3), (17, 64, 1), (1000, 8, 1), (1, 33, 1)]


@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant", "none"])
@pytest.mark.parametrize(("length", "width", "step"), SIZES)
def test_sums_are_near_float64(length: int, width: int, step: int, guarantee: str) -> None:
    x, w = inputs(length, width, torch.bfloat16, step)
    with tilefold.backend("interpret"):
        got = tilefold.reduce((x, w), WEIGHTED, dim=0, guarantee=guarantee)
    products = x.double() * w.double()
    bound = length * 2.0**-23 * products.abs().sum(0) + 2.0**-8 * products.sum(0).abs()
    assert bool(((got.double() - products.sum(0)).abs() <= bound).all())


@pytest.mark.parametrize("batch", [0, 3])
def test_states_of_several_fields(batch: int) -> None:
    """The shared input stands first, and is a field of the state by itself."""
    x, w = inputs(301, 40, torch.float32, 1, batch)
    with tilefold.backend("interpret"):
        low, high, total = tilefold.reduce((w, x), SPREAD, dim=-2)
    products = x * w
    assert torch.equal(low, products.amin(-2))
    assert torch.equal(high, products.amax(-2))
    torch.testing.assert_close(total, w.double().sum(-2).float(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("length", "width"), [(203, 72), (65, 33), (1001, 16)])
def test_kernels_executed_from_ptx(length: int, width: int, dtype: torch.dtype) -> None:
    x, w = inputs(length, width, dtype)
    program = specialize(WEIGHTED.total, (dtype, dtype))
    (got,), _ = fold([x, w], program, (0,), 90, ordered=False)
    products = x.double() * w.double()
    rounding = 2.0**-11 if dtype == torch.float16 else 2.0**-24
    bound = length * 2.0**-23 * products.abs().sum(0) + rounding * products.sum(0).abs()
    assert bool(((got.double() - products.sum(0)).abs() <= bound).all())


def problem_of(length: int, width: int, dtype: torch.dtype) -> tuple[Problem, Program]:
    x = torch.empty(length, width, dtype=dtype)
    w = torch.empty(length, 1, dtype=dtype).expand(length, width)
    return canonical([x, w], (0,), ordered=False), specialize(WEIGHTED.total, (dtype, dtype))


def columns(outputs: int, lanes: int, unroll: int, splits: int, warps: int) -> Stage:
    return Stage("columns", outputs, lanes, 1, unroll, splits, warps)


@pytest.mark.parametrize(
    ("sizes", "dtype", "stage"),
    [
        (
            (925, 317),
            torch.float16,
            columns(64, 2, 16, 28, 4),
        ),  # fewer elements than threads, a column a thread
        ((1000, 64), torch.bfloat16, columns(64, 4, 8, 31, 1)),  # as many elements as threads
        ((8192, 1000), torch.bfloat16, columns(64, 4, 8, 128, 1)),
        ((512, 96), torch.float32, columns(32, 8, 8, 1, 2)),
    ],
    ids=str,
)
def test_requests_are_foreseen(sizes: tuple[int, int], dtype: torch.dtype, stage: Stage) -> None:
    """Of whole tiles: the matrix's, and a few of the shared input's."""
    problem, program = problem_of(*sizes, dtype)
    drawn: Any = SimpleNamespace(problem=problem, program=program, geometry=geometry_of(problem))
    one = launches_of(drawn, plan_of(stage, problem, program, H200))[0]
    made = calls.compile_for(one.call, 90)
    counted = executed(one, made.asm["ptx"], made.metadata.shared)
    loads, _ = counted[0]
    modelled, _ = one.modelled(one.programs()[0])
    assert (loads.requests, loads.sectors, loads.asked) == (
        modelled.requests,
        modelled.sectors,
        modelled.asked,
    )


def test_which_inputs_are_shared() -> None:
    stage = columns(64, 4, 8, 1, 2)
    assert shared_inputs(stage, (1, 0)) == (1,)
    assert shared_inputs(stage, (0, 1, 0)) == (0, 2)
    assert shared_inputs(stage, (1, 1)) == ()
    assert shared_inputs(stage, (0, 5)) == ()
    assert shared_inputs(stage, (1, 0), ragged=3) == ()
    changes: list[dict[str, Any]] = [
        {"run": 8}, {"block_outputs": 1}, {"flat": True}, {"shift": 2}, {"ordered": True}, {"gathered": True},
    ]  # fmt: skip
    for change in changes:
        assert shared_inputs(replace(stage, **change), (1, 0)) == ()

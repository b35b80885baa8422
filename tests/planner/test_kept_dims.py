"""Folds whose first launch keeps reduced dims apart: the same answers, every element once, few states."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import problems
import pytest
import torch

import tilefold
from planner.executed import executed, launches_of, planned_as
from tilefold import monoids
from tilefold.backends.triton import call as calls
from tilefold.bench.operations import fold_case
from tilefold.planner.choose import plan_of
from tilefold.planner.device import H200
from tilefold.planner.plan import KeptDims, Stage

COLUMNS = Stage("columns", 64, 2, 1, 2, 1, 1)
ROWS = Stage("long_rows", 1, 32, 1, 2, 1, 1)
ORDERED = Stage("ordered", 1, 32, 1, 2, 1, 1, ordered=True)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
Answer = Callable[[torch.Tensor], torch.Tensor]


def kept(stage: Stage, *dims: int, together: int = 1) -> Stage:
    return replace(stage, kept_dims=KeptDims(dims, together))


def folded(x: torch.Tensor, monoid: tilefold.Monoid, dim: tuple[int, ...], stage: Stage) -> Any:
    """What a first launch of this kind and the second one make of x, under the interpreter, NaN around its elements."""
    amid = torch.full((x.numel() + 64,), math.nan)
    amid[32:-32] = x.flatten()
    inside = amid[32:-32].view(x.shape)
    with planned_as(stage), tilefold.backend("interpret"):
        return tilefold.reduce(inside, monoid, dim)


@pytest.mark.parametrize(
    ("shape", "dim", "stage"),
    [
        ((40, 33), (0,), kept(COLUMNS, together=8)),
        ((43, 33), (0,), kept(COLUMNS, together=8)),
        ((47, 3), (0,), kept(replace(COLUMNS, prefetch=True), together=8)),
        ((3, 77, 5), (1,), kept(replace(COLUMNS, splits=2), together=4)),
        ((2, 9, 3, 7), (1, 3), kept(ROWS, 0)),
        ((9, 3, 64), (0, 2), kept(COLUMNS, 1)),
        ((3, 2, 96), (0, 2), kept(replace(ROWS, splits=2, lanes=16), 0)),
        ((2, 63, 5, 3), (1, 3), kept(COLUMNS, 1, together=4)),
    ],
)
@pytest.mark.parametrize(
    ("monoid", "answer"),
    [(monoids.SUM, torch.Tensor.sum), (monoids.LOGSUMEXP, torch.Tensor.logsumexp)],
    ids=["sum", "logsumexp"],
)  # fmt: skip
def test_answers(
    shape: tuple[int, ...], dim: tuple[int, ...], stage: Stage, monoid: tilefold.Monoid, answer: Answer
) -> None:
    x = torch.randn(shape)
    want = answer(x.double(), dim)  # type: ignore[call-arg]  # each takes dims
    torch.testing.assert_close(folded(x, monoid, dim, stage).double(), want, rtol=1e-5, atol=1e-5)


def test_results_in_another_order_than_memory() -> None:
    x = torch.randn(70, 6, 5).permute(2, 1, 0)  # results are [5, 6], memory has [6, 5] of them side by side
    with planned_as(kept(COLUMNS)), tilefold.backend("interpret"):
        found = tilefold.reduce(x, monoids.SUM, 2)
    torch.testing.assert_close(found, x.sum(2))


@pytest.mark.parametrize(
    "stage",
    [kept(ROWS, 0), kept(COLUMNS, 1), kept(COLUMNS, together=4)],
    ids=["rows", "columns", "neighbours"],
)
def test_positions(stage: Stage) -> None:
    """Of dims that programs walk, and of those merged with results that lie side by side."""
    together = stage.kept_dims is not None and stage.kept_dims.together > 1
    shape, dim = ((2, 43, 5), (1,)) if together else ((2, 6, 3, 35), (1, 3))
    x = torch.randint(0, 9, shape, dtype=torch.float32)
    flat = x.permute(0, 2, 1) if together else x.permute(0, 2, 1, 3).flatten(2)
    first = (flat == flat.amax(2, keepdim=True)).int().argmax(2)
    assert torch.equal(folded(x, monoids.ARGMAX, dim, stage), first)


@pytest.mark.parametrize("splits", [1, 2])
def test_order_is_kept(splits: int) -> None:
    x = torch.arange(2 * 3 * 2 * 70, dtype=torch.float32).view(2, 3, 2, 70)
    found = folded(x, monoids.LAST, (1, 3), kept(replace(ORDERED, splits=splits, unroll=1), 0))
    assert torch.equal(found, x[:, -1, :, -1])


def test_order_is_kept_where_memory_has_another() -> None:
    """Both dims kept apart lie in memory the other way round."""
    x = torch.arange(5 * 2 * 3 * 4, dtype=torch.float32).view(5, 2, 3, 4).permute(3, 2, 1, 0)
    stage = kept(replace(ORDERED, lanes=4, unroll=1), 0, 1)
    with planned_as(stage), tilefold.backend("interpret"):
        found = tilefold.reduce(x, monoids.LAST, (1, 2, 3))
    assert torch.equal(found, x[:, -1, -1, -1])


@pytest.mark.parametrize(("rows", "splits"), [(512, 1), (523, 4)])
def test_a_cut_last_row_is_read_in_whole_vectors(rows: int, splits: int) -> None:
    """Machine code executed beside the model, at the program of the last columns too."""
    drawn = problems.problem_of(fold_case("sum", 0, (rows, 33), "bf16", ""))
    stage = kept(Stage("columns", 128, 2, 1, 4, splits, 1), together=8)
    first, _ = launches_of(drawn, plan_of(stage, drawn.problem, drawn.program, H200))
    made: Any = calls.compile_for(first.call, 90)
    assert ".v4.b32" in made.asm["ptx"]
    found = executed(first, made.asm["ptx"], made.metadata.shared)
    for program, (loads, stores) in zip(first.programs(), found, strict=True):
        modelled, stored = first.modelled(program)
        assert loads.sectors <= modelled.sectors + 2
        assert stores.sectors <= stored.sectors

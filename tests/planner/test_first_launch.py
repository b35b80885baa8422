"""First launches that take results along all output dims as one, or from the vector before the first: the same answers."""

from __future__ import annotations

import math
import re
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
from tilefold.bench.layout import Layout
from tilefold.bench.operations import fold_case
from tilefold.planner.choose import plan_fold, plan_of
from tilefold.planner.device import H200
from tilefold.planner.first_launch import FirstLaunch, shift_of
from tilefold.planner.plan import KeptDims, Stage

ROWS = Stage("small_axis", 64, 1, 1, 8, 1, 1, flat=True)
ORDERED = Stage("ordered", 32, 1, 2, 2, 1, 1, ordered=True, flat=True)
COLUMNS = Stage("columns", 64, 2, 1, 2, 1, 1)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
Answer = Callable[[torch.Tensor], torch.Tensor]


def inside(shape: tuple[int, ...], begin: int = 0) -> torch.Tensor:
    """Elements `begin` behind a vector, NaN around them."""
    amid = torch.full((math.prod(shape) + 64,), math.nan)
    first = 32 + begin - amid.data_ptr() % 16 // 4
    amid[first : first + math.prod(shape)] = torch.randn(math.prod(shape))
    return amid[first : first + math.prod(shape)].view(shape)


def folded(x: torch.Tensor, monoid: tilefold.Monoid, dim: tuple[int, ...], stage: Stage) -> Any:
    """What this first launch makes of x, under the interpreter."""
    with planned_as(stage), tilefold.backend("interpret"):
        return tilefold.reduce(x, monoid, dim)


FOLDS = pytest.mark.parametrize(
    ("monoid", "answer"),
    [(monoids.SUM, torch.Tensor.sum), (monoids.LOGSUMEXP, torch.Tensor.logsumexp)],
    ids=["sum", "logsumexp"],
)  # fmt: skip


@FOLDS
@pytest.mark.parametrize(
    ("shape", "part", "dim", "stage"),
    [
        ((9, 5, 7), (9, 3, 5), (2,), ROWS),
        ((6, 4, 5, 7), (5, 3, 4, 7), (3,), replace(ROWS, block_outputs=16)),
        ((3, 20, 6), (3, 17, 5), (1,), replace(COLUMNS, block_outputs=8, lanes=4, flat=True)),
        ((3, 20, 6), (3, 20, 5), (1,), replace(COLUMNS, block_outputs=8, splits=2, flat=True)),
        ((7, 3, 5, 4), (7, 3, 4, 3), (1, 3), replace(ROWS, kept_dims=KeptDims((0,)))),
    ],
)
def test_results_along_all_dims(
    shape: tuple[int, ...],
    part: tuple[int, ...],
    dim: tuple[int, ...],
    stage: Stage,
    monoid: tilefold.Monoid,
    answer: Answer,
) -> None:
    x = inside(shape)[tuple(slice(n) for n in part)]
    want = answer(x.double(), dim)  # type: ignore[call-arg]  # each takes dims
    torch.testing.assert_close(folded(x, monoid, dim, stage).double(), want, rtol=1e-5, atol=1e-5)


@FOLDS
@pytest.mark.parametrize("begin", [1, 2, 3])
@pytest.mark.parametrize(
    ("shape", "stage"),
    [
        ((3, 17, 36), COLUMNS),
        ((1, 40, 64), replace(COLUMNS, splits=2)),
        ((2, 9, 124), replace(COLUMNS, lanes=1, unroll=4)),
        ((2, 30, 8), replace(COLUMNS, block_outputs=8, prefetch=True)),
    ],
)
def test_results_from_a_vector_before_the_first(
    shape: tuple[int, ...], begin: int, stage: Stage, monoid: tilefold.Monoid, answer: Answer
) -> None:
    x = inside(shape, begin)
    found = folded(x, monoid, (1,), replace(stage, shift=begin))
    want = answer(x.double(), (1,))  # type: ignore[call-arg]  # each takes dims
    torch.testing.assert_close(found.double(), want, rtol=1e-5, atol=1e-5)


def test_positions() -> None:
    x = torch.randint(0, 5, (7, 6, 9), dtype=torch.float32)[:, :5, :7]
    assert torch.equal(folded(x, monoids.ARGMAX, (2,), ROWS), x.argmax(2))
    y = torch.randint(0, 5, (66 + 17 * 36,), dtype=torch.float32)[66:].view(17, 36)
    begin = y.data_ptr() % 16 // 4
    assert torch.equal(folded(y, monoids.ARGMAX, (0,), replace(COLUMNS, shift=begin)), y.argmax(0))


@pytest.mark.parametrize(
    ("part", "dim", "stage"),
    [
        ((9, 3, 5), 2, ORDERED),
        ((9, 4, 3), 1, replace(ORDERED, lanes=2)),
        ((9, 4, 3), 1, replace(ORDERED, run=1)),
    ],
)
def test_order_is_kept_along_all_dims(part: tuple[int, ...], dim: int, stage: Stage) -> None:
    x = inside((9, 5, 7))[tuple(slice(n) for n in part)]
    assert torch.equal(folded(x, monoids.LAST, (dim,), stage), x.select(dim, -1))


@pytest.mark.parametrize("splits", [1, 3])
def test_order_is_kept_from_a_vector_before_the_first(splits: int) -> None:
    x = inside((2, 40, 36), 3)
    stage = Stage("ordered", 32, 1, 1, 2, splits, 1, ordered=True, shift=3)
    assert torch.equal(folded(x, monoids.LAST, (1,), stage), x[:, -1])


SLICED = Layout((0, 1, 2), (50, 26, 5), (0, 1, 0))
ORDERED_COLUMNS = Stage("ordered", 256, 1, 1, 2, 1, 1, ordered=True, shift=2)
MISALIGNED = Layout((0, 1, 2), (3, 70, 192), (0, 0, 0), 2)


@pytest.mark.parametrize(
    ("operation", "dim", "shape", "layout", "stage"),
    [
        ("sum", 2, (50, 24, 5), SLICED, replace(ROWS, block_outputs=128)),
        ("argmax", 2, (50, 24, 5), SLICED, replace(ROWS, lanes=2, unroll=4)),
        ("sum", 1, (3, 70, 192), MISALIGNED, replace(COLUMNS, block_outputs=128, unroll=4, shift=2)),
        ("sum", 1, (3, 70, 192), MISALIGNED, replace(COLUMNS, block_outputs=64, splits=3, shift=2)),
        ("max_subarray", 2, (50, 24, 5), SLICED, ORDERED),
        ("max_subarray", 1, (3, 70, 192), MISALIGNED, ORDERED_COLUMNS),
        ("sum", 1, (90, 70, 16), Layout((0, 1, 2), (90, 71, 16), (0, 0, 0)), replace(COLUMNS, flat=True)),
    ],
)  # fmt: skip
def test_machine_code_moves_what_the_model_says(
    operation: str, dim: int, shape: tuple[int, ...], layout: Layout, stage: Stage
) -> None:
    drawn = problems.problem_of(fold_case(operation, dim, shape, "bf16", "", layout=layout))
    first = launches_of(drawn, plan_of(stage, drawn.problem, drawn.program, H200))[0]
    made: Any = calls.compile_for(first.call, 90)
    assert bool(re.search(r"ld\.global\S*\.v4\.b32", made.asm["ptx"])) == (
        stage.family == "columns" or stage.shift > 0
    )
    found = executed(first, made.asm["ptx"], made.metadata.shared)
    for program, (loads, stores) in zip(first.programs(), found, strict=True):
        modelled, stored = first.modelled(program)
        assert modelled.sectors <= loads.sectors <= modelled.sectors + 2
        assert stores.sectors == stored.sectors


def test_the_model_takes_them() -> None:
    short = problems.problem_of(fold_case("softmax_pair", 2, (50000, 24, 5), "bf16", "", layout=SLICED_LARGE))
    assert plan_fold(short.problem, short.program, H200, "run_to_run").stages[0].flat
    assert not plan_fold(short.problem, short.program, H200, "batch_invariant").stages[0].flat


SLICED_LARGE = Layout((0, 1, 2), (50000, 26, 5), (0, 1, 0))


@pytest.mark.parametrize(
    ("shape", "dim", "layout", "shift"),
    [
        ((7, 92, 192), 1, Layout((0, 1, 2), (7, 92, 192), (0, 0, 0), 2), 2),
        ((7, 92, 192), 1, Layout((0, 1, 2), (7, 92, 200), (0, 0, 5)), 5),
        ((7, 92, 191), 1, Layout((0, 1, 2), (7, 92, 191), (0, 0, 0), 2), 0),
        ((7, 92, 192), 2, Layout((0, 1, 2), (7, 92, 192), (0, 0, 0), 2), 0),
        ((7, 92, 192), 1, None, 0),
    ],
    ids=["offset", "sliced", "odd", "rows", "aligned"],
)
def test_which_begin_alike(shape: tuple[int, ...], dim: int, layout: Layout | None, shift: int) -> None:
    drawn = problems.problem_of(fold_case("sum", dim, shape, "bf16", "", layout=layout))
    assert shift_of(drawn.problem) == shift
    shifts = [one.shift for one in FirstLaunch.keeping(drawn.problem, drawn.program, None).orders()]
    assert [n for n in shifts if n] == [shift] * (shift > 0)


@pytest.mark.parametrize(
    ("sizes", "shape", "close"),
    [((50_000, 127, 14), (50_000, 127, 3), True), ((50_000, 127, 3), (50_000, 127, 3), True),
     ((50_000, 127, 24), (50_000, 127, 3), False), ((50_000, 127, 17), (50_000, 127, 16), False)],
    ids=str,
)  # fmt: skip
def test_lanes_walk_groups_of_less_than_a_sector(
    sizes: tuple[int, ...], shape: tuple[int, ...], close: bool
) -> None:
    layout = Layout((0, 1, 2), sizes, (0, 0, 1 if sizes != shape else 0))
    drawn = problems.problem_of(fold_case("sum", 1, shape, "fp16", "", layout=layout))
    launch = replace(FirstLaunch.keeping(drawn.problem, drawn.program, None), flat=True)
    assert launch.geometry.close_groups == close
    if sizes[-1] == 14:  # groups without gaps are gathered
        (stage,) = plan_fold(drawn.problem, drawn.program, H200, "run_to_run").stages
        assert (stage.flat, stage.lanes, stage.gathered) == (True, 4, False)


def test_rows_taken_together_are_no_groups() -> None:
    """Their elements lie between each other's."""
    layout = Layout((0, 1), (100_000, 8), (0, 0))
    drawn = problems.problem_of(fold_case("sum", 0, (100_000, 5), "fp16", "", layout=layout))
    launch = FirstLaunch.keeping(drawn.problem, drawn.program, KeptDims((), 2))
    assert not replace(launch, flat=True).geometry.close_groups

"""Folds in the elements' order by any tile: under Triton's interpreter, and from PTX on the X-ray's machine.

Two lanes exchanged, an element twice or none of it: each changes the results here.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tilefold
from tilefold.algebra import program as programs
from tilefold.algebra.program import Program
from tilefold.backends.triton.executable import interpret
from tilefold.backends.triton.lower import calls_of
from tilefold.planner.choose import plan_of
from tilefold.planner.device import H200
from tilefold.planner.plan import Plan, Stage
from tilefold.planner.problem.canonical import Problem, canonical
from tilefold.planner.sizes import whole_splits
from xray.running import run_plan

pytestmark = [  # of numpy's, in Triton's interpreter
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
# A text as a number in base 31, modulo 2^32, each digit with its position added: what no exchange of two different elements
# leaves as it is, and no position that is another's.
TEXT = tilefold.Monoid(
    lambda a, b: (a.power * b.power, a.digits * b.power + b.digits),
    identity=(1, 0),
    fields=("power", "digits"),
    lift=lambda x, i: (31, x + i),
    index=True,
    commutative=False,
    check=False,
    dtypes=("input", "input"),
    name="text",
)


def text(x: torch.Tensor) -> torch.Tensor:
    """Rows read as numbers in base 31, as int32 wraps."""
    found = torch.zeros(x.shape[:-1], dtype=torch.int64)
    for position, digit in enumerate(x.unbind(-1)):
        found = (found * 31 + digit + position) & 0xFFFFFFFF
    return found.to(torch.int32)


def planned(x: torch.Tensor, dims: tuple[int, ...], stage: Stage) -> tuple[Problem, Program, Plan]:
    """The plan whose first launch is `stage`, with as many of its splits as have whole tiles."""
    program = programs.specialize(TEXT.total, (x.dtype,))
    problem = canonical([x], dims, ordered=True)
    tiles = problem.length // stage.step - (stage.align > 1)
    splits = whole_splits(tiles, min(stage.splits, tiles)) if tiles >= 2 else 1
    return problem, program, plan_of(replace(stage, splits=splits), problem, program, H200)


def folded(x: torch.Tensor, dims: tuple[int, ...], stage: Stage, interpreted: bool) -> torch.Tensor:
    problem, program, plan = planned(x, dims, stage)
    shape = [n for d, n in enumerate(x.shape) if d not in dims]
    results = [torch.empty(shape, dtype=dtype) for dtype in program.outputs]
    if interpreted:
        interpret(plan, calls_of(plan, problem, program, interpret=True), program, [x], results)
    else:
        run_plan(plan, problem, program, [x], results, 90)
    return results[1]


def digits(*shape: int) -> torch.Tensor:
    return torch.randint(1, 31, shape, generator=torch.Generator().manual_seed(0), dtype=torch.int32)


def row_stage(run: int, lanes: int, unroll: int, rows: int, warps: int, shares: bool) -> Stage:
    return Stage("ordered", rows, lanes, run, unroll, 1, warps, ordered=True, shares=shares)


ROWS = st.builds(
    row_stage,
    run=st.sampled_from([1, 2, 4]),
    lanes=st.sampled_from([1, 2, 8, 32, 64]),
    unroll=st.sampled_from([1, 2, 4]),
    rows=st.sampled_from([1, 2, 4]),
    warps=st.sampled_from([1, 2]),
    shares=st.booleans(),
)
COLUMNS = st.builds(
    row_stage,
    run=st.just(1),
    lanes=st.sampled_from([1, 2, 8, 16]),
    unroll=st.sampled_from([1, 2, 4]),
    rows=st.sampled_from([4, 16]),
    warps=st.sampled_from([1, 2, 4]),
    shares=st.booleans(),
)


@settings(max_examples=15)  # the interpreter is slow
@given(
    stage=ROWS,
    length=st.integers(2, 500),
    splits=st.integers(1, 3),
    aligned=st.booleans(),
)
def test_rows_by_any_tile(stage: Stage, length: int, splits: int, aligned: bool) -> None:
    x = digits(3, length)
    align = 4 if aligned and stage.run == 4 else 1
    got = folded(x, (1,), replace(stage, splits=splits, align=align), True)
    assert torch.equal(got, text(x)), (stage, length, splits, align)


@settings(max_examples=12)
@given(stage=COLUMNS, length=st.integers(2, 80), width=st.sampled_from([3, 16, 20]), splits=st.integers(1, 3))
def test_columns_by_any_tile(stage: Stage, length: int, width: int, splits: int) -> None:
    x = digits(length, width)
    got = folded(x, (0,), replace(stage, splits=splits), True)
    assert torch.equal(got, text(x.t())), (stage, length, width, splits)


@settings(max_examples=8)
@given(stage=ROWS, outer=st.sampled_from([1, 3]), deep=st.integers(2, 6), inner=st.integers(2, 30))
def test_dims_apart_by_any_tile(stage: Stage, outer: int, deep: int, inner: int) -> None:
    """Another dim lies between those that are folded: an element's place is counted along both."""
    x = digits(outer, deep, 3, inner)
    got = folded(x, (1, 3), replace(stage, run=1), True)
    assert torch.equal(got, text(x.transpose(1, 2).flatten(2))), (stage, outer, deep, inner)


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize(
    ("length", "run", "lanes", "unroll", "splits", "align"),
    [
        (300, 4, 32, 1, 1, 1),
        (1031, 4, 8, 2, 1, 4),
        (2050, 4, 32, 2, 3, 4),
        (75, 4, 1, 4, 1, 4),
        (640, 4, 4, 2, 2, 1),
    ],
)
def test_rows_on_the_machine(
    length: int, run: int, lanes: int, unroll: int, splits: int, align: int, shares: bool
) -> None:
    x = digits(5, length)
    stage = Stage(
        "ordered",
        1 if lanes == 32 else 4,
        lanes,
        run,
        unroll,
        splits,
        1,
        ordered=True,
        align=align,
        shares=shares,
    )
    assert torch.equal(folded(x, (1,), stage, False), text(x)), stage


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize(
    ("length", "width", "outputs", "lanes", "unroll", "splits", "warps"),
    [
        (100, 64, 32, 4, 2, 1, 1),
        (517, 72, 32, 16, 4, 2, 4),
        (40, 256, 128, 1, 8, 1, 1),
        (131, 12, 16, 8, 2, 3, 2),
    ],
)
def test_columns_on_the_machine(
    length: int, width: int, outputs: int, lanes: int, unroll: int, splits: int, warps: int, shares: bool
) -> None:
    x = digits(length, width)
    stage = Stage("ordered", outputs, lanes, 1, unroll, splits, warps, ordered=True, shares=shares)
    assert torch.equal(folded(x, (0,), stage, False), text(x.t())), stage

"""Short rows read as one run of memory: under Triton's interpreter, from their PTX, and what the planner says of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from problems import Drawn, problem_of

import tilefold
from backends.triton_cases import MONOIDS
from planner.executed import executed, launches_of, planned_as
from tilefold import monoids
from tilefold.algebra import program as programs
from tilefold.backends.triton import call as calls
from tilefold.bench.layout import Layout
from tilefold.bench.operations import fold_case, max_subarray
from tilefold.planner.choose import plan_fold, plan_of
from tilefold.planner.device import H200
from tilefold.planner.first_launch import FirstLaunch
from tilefold.planner.gathered import gathered_stage, gathers
from tilefold.planner.problem.canonical import canonical
from tilefold.planner.reading import reading_of
from tilefold.planner.stages.gathered import Groups
from tilefold.planner.thread_order import as_first_launch, kept_in_threads
from xray.running import fold, run_plan

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
FOLDED: dict[str, Any] = {
    "sum": monoids.SUM, "argmax": monoids.ARGMAX, "logsumexp": monoids.LOGSUMEXP, "welford": MONOIDS["welford"],
    "max_subarray": max_subarray(),
}  # fmt: skip


def rows(count: int, length: int, offset: int, gap: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows from a few elements after an aligned address, a few elements apart; whole numbers, many of them equal."""
    memory = torch.empty(count * (length + gap) + 32, dtype=dtype)
    drawn = torch.randint(-8, 9, memory.shape, generator=torch.Generator().manual_seed(length))
    memory.copy_(drawn)
    return memory[offset : offset + count * (length + gap)].view(count, length + gap)[:, :length]


def as_tuple(x: Any) -> tuple[torch.Tensor, ...]:
    return x if isinstance(x, tuple) else (x,)


@pytest.mark.parametrize("name", list(FOLDED))
@pytest.mark.parametrize(
    ("dtype", "length", "offset", "gap"),
    [(torch.bfloat16, 9, 0, 0), (torch.float32, 5, 3, 0), (torch.bfloat16, 7, 1, 2), (torch.float16, 16, 5, 3)],
    ids=str,
)  # fmt: skip
def test_rows_under_the_interpreter(
    name: str, dtype: torch.dtype, length: int, offset: int, gap: int
) -> None:
    x = rows(150, length, offset, gap, dtype)
    with tilefold.backend("interpret"):
        got = as_tuple(tilefold.reduce(x, FOLDED[name], 1))
        plan = tilefold.last_plan()
    assert plan is not None
    assert plan.stages[0].gathered
    for result, want in zip(got, as_tuple(tilefold.reduce(x, FOLDED[name], 1)), strict=True):
        torch.testing.assert_close(result, want, rtol=1e-2 if dtype.itemsize == 2 else 1e-5, atol=1e-5)


@pytest.mark.parametrize("name", list(FOLDED))
@pytest.mark.parametrize("width", [3, 8])
def test_permuted_groups_under_the_interpreter(name: str, width: int) -> None:
    x = rows(70, 5 * width, 0, 0, torch.bfloat16).view(70, 5, width).permute(2, 1, 0)
    monoid = FOLDED[name]
    program = programs.specialize(monoid.total, (x.dtype,))
    problem = canonical([x], (1,), ordered=not monoid.commutative)
    launch = replace(FirstLaunch.keeping(problem, program, None), flat=True)
    stage = kept_in_threads(gathered_stage(problem, not monoid.commutative, 2), launch.reading, program)
    with planned_as(stage), tilefold.backend("interpret"):
        got = as_tuple(tilefold.reduce(x, monoid, 1))
    for result, want in zip(got, as_tuple(tilefold.reduce(x, monoid, 1)), strict=True):
        torch.testing.assert_close(result, want, rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize("name", list(FOLDED))
@pytest.mark.parametrize(("dtype", "length"), [(torch.bfloat16, 27), (torch.float32, 5)], ids=str)
def test_rows_from_their_ptx(name: str, dtype: torch.dtype, length: int) -> None:
    x, monoid = rows(140, length, 3, 0, dtype), FOLDED[name]
    program = programs.specialize(monoid.total, (dtype,))
    got, _ = fold([x], program, (1,), 90, not monoid.commutative)
    for result, want in zip(got, as_tuple(tilefold.reduce(x, monoid, 1)), strict=True):
        torch.testing.assert_close(result, want.to(result.dtype), rtol=1e-2, atol=1e-5)


def drawn(shape: tuple[int, ...], dim: int, dtype: str, offset: int = 0, operation: str = "sum") -> Drawn:
    zeros = (0,) * len(shape)
    layout = Layout(tuple(range(len(shape))), shape, zeros, offset) if offset else None
    return problem_of(fold_case(operation, dim, shape, dtype, "", layout=layout))


@pytest.mark.parametrize(
    ("shape", "dim", "dtype", "offset", "wanted"),
    [((999, 27), 1, "bf16", 0, True), ((33, 5, 7), 2, "fp32", 1, True), ((999, 24), 1, "bf16", 0, False),
     ((999, 24), 1, "bf16", 1, True), ((999, 64), 1, "bf16", 1, False), ((27, 999), 0, "bf16", 0, False),
     ((999, 129), 1, "bf16", 0, False), ((999, 129), 1, "fp32", 0, False)],
    ids=str,
)  # fmt: skip
def test_rows_that_no_vector_divides_are_gathered(
    shape: tuple[int, ...], dim: int, dtype: str, offset: int, wanted: bool
) -> None:
    problem = drawn(shape, dim, dtype, offset).problem
    assert gathers(problem, reading_of(problem), 2) == wanted


def test_light_folds_of_words_are_read_by_vectors_from_anywhere() -> None:
    problem = drawn((999, 19), 1, "fp32").problem
    assert [gathers(problem, reading_of(problem), words) for words in (1, 2)] == [False, True]


def test_no_batch_changes_what_a_row_is_folded_by() -> None:
    one = drawn((100_001, 27), 1, "bf16")
    plan = plan_fold(one.problem.alone(), one.program, H200, "batch_invariant")
    assert not plan.stages[0].gathered


@pytest.mark.parametrize("operation", ["sum", "max_subarray"])
@pytest.mark.parametrize("offset", [0, 3])
def test_every_sector_is_foreseen(offset: int, operation: str) -> None:
    one = drawn((333, 27), 1, "bf16", offset, operation)
    (launched,) = launches_of(one, plan_fold(one.problem, one.program, H200, "run_to_run"))
    assert launched.stage.gathered
    made: Any = calls.compile_for(launched.call, 90)
    for program, (loads, stores) in zip(
        launched.programs(), executed(launched, made.asm["ptx"], made.metadata.shared), strict=True
    ):
        modelled, stored = launched.modelled(program)
        assert loads.sectors == modelled.sectors
        assert stores.sectors <= stored.sectors


def test_rows_a_power_of_two_apart_share_banks() -> None:
    assert [Groups(step, 1, 1, step).bank_turns(4) for step in (27, 24, 32)] == [1, 8, 32]
    assert [Groups(step, 1, 1, step).bank_turns(2) for step in (27, 64)] == [2, 32]


@pytest.mark.parametrize("name", list(FOLDED))
@pytest.mark.parametrize(
    ("dtype", "shape", "offset"),
    [(torch.bfloat16, (201, 7, 5), 0), (torch.float32, (70, 12, 3), 3), (torch.bfloat16, (50, 15, 8), 7),
     (torch.bfloat16, (45, 21, 8), 0), (torch.float32, (70, 5, 4), 0)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("turned", [False, True], ids=["end to end", "turned"])
def test_groups_of_short_columns(
    name: str, dtype: torch.dtype, shape: tuple[int, ...], offset: int, turned: bool
) -> None:
    memory = rows(1, math.prod(shape) + offset, 0, 0, dtype)[0]
    x, monoid = memory[offset:].view(shape), FOLDED[name]
    x = x.permute(2, 1, 0) if turned else x
    program = programs.specialize(monoid.total, (dtype,))
    problem = canonical([x], (1,), ordered=not monoid.commutative)
    launch = replace(FirstLaunch.keeping(problem, program, None), flat=True)
    assert gathers(problem, launch.reading, 2)
    stage = kept_in_threads(gathered_stage(problem, not monoid.commutative, 2), launch.reading, program)
    plan = plan_of(as_first_launch(stage, problem, program), problem, program, H200)
    got = [torch.empty((x.shape[0], x.shape[2]), dtype=dtype) for dtype in program.outputs]
    run_plan(plan, problem, program, [x], got, 90)
    for result, want in zip(got, as_tuple(tilefold.reduce(x, monoid, 1)), strict=True):
        torch.testing.assert_close(result, want.to(result.dtype), rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize("permuted", [False, True])
def test_groups_of_one_vector_are_gathered(permuted: bool) -> None:
    one = drawn((100_003, 21, 8), 1, "bf16")
    if permuted:
        layout = Layout((2, 1, 0), (8, 21, 100_003), (0, 0, 0))
        one = problem_of(fold_case("sum", 1, (8, 21, 100_003), "bf16", "", layout=layout))
    (stage,) = plan_fold(one.problem, one.program, H200, "run_to_run").stages
    assert stage.gathered
    assert stage.flat


@pytest.mark.parametrize(("width", "dtype"), [(16, "bf16"), (8, "fp32")], ids=str)
def test_groups_of_a_sector_are_read_as_columns(width: int, dtype: str) -> None:
    one = drawn((100_003, 21, width), 1, dtype)
    assert not any(s.gathered for s in plan_fold(one.problem, one.program, H200, "run_to_run").stages)


@pytest.mark.parametrize("operation", ["argmax", "max_subarray"])
def test_turned_results_leave_a_program_side_by_side(operation: str) -> None:
    layout = Layout((2, 1, 0), (8, 21, 333), (0, 0, 0))
    one = problem_of(fold_case(operation, 1, (8, 21, 333), "bf16", "", layout=layout))
    launch = replace(FirstLaunch.keeping(one.problem, one.program, None), flat=True)
    stage = kept_in_threads(gathered_stage(one.problem, operation != "argmax"), launch.reading, one.program)
    plan = plan_of(as_first_launch(stage, one.problem, one.program), one.problem, one.program, H200)
    (launched,) = launches_of(one, plan)
    made: Any = calls.compile_for(launched.call, 90)
    first, *_ = executed(launched, made.asm["ptx"], made.metadata.shared)
    groups, bytes_each = stage.block_outputs // 8, one.program.outputs[0].itemsize
    assert first[1].sectors <= 8 * (groups * bytes_each // 32 + 1)

"""Plans: pure, valid, and of the family their shape asks for."""

from __future__ import annotations

import html
import time
from dataclasses import replace

import problems
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tilefold
from tilefold import monoids
from tilefold.algebra.program import specialize
from tilefold.planner.choose import first_launches, plan_fold, plan_tensors
from tilefold.planner.device import H200, Device
from tilefold.planner.first_tile import first_tile
from tilefold.planner.folds import narrowed
from tilefold.planner.form_choice import least_needed
from tilefold.planner.plan import Plan, Stage
from tilefold.planner.problem.canonical import Problem, canonical
from tilefold.planner.programs import edges
from tilefold.planner.reading import alone, reading_of
from tilefold.planner.second_launch import second_launch

A100 = Device("NVIDIA A100", 108, 80, 2039.0, 164 * 1024)
SEEDS = range(40)


def plan(
    shape: tuple[int, ...], dim: int | None, monoid: tilefold.Monoid = monoids.SUM, **options: object
) -> Plan:
    x = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    return tilefold.explain_plan(x, monoid, dim, **options)  # type: ignore[arg-type]  # test options


@pytest.mark.parametrize(
    ("shape", "dim", "families"),
    [
        ((1 << 20, 8), 1, ["small_axis"]),
        ((1 << 20, 64), 1, ["small_axis"]),
        ((32768, 1024), 1, ["rows"]),
        ((16384, 8192), 1, ["rows"]),
        ((4096, 65536), 1, ["long_rows"]),
        ((1, 1 << 28), 1, ["long_rows", "partials"]),
        ((16384, 8192), 0, ["columns", "partials"]),
        ((64, 1 << 20), 0, ["columns"]),
    ],
)
def test_families(shape: tuple[int, int], dim: int, families: list[str]) -> None:
    assert [s.family for s in plan(shape, dim).stages] == families


@pytest.mark.parametrize("outputs", [1, 7, 100, 128, 1000, 100_000])
@pytest.mark.parametrize("splits", [2, 8, 50, 300, 5000])
def test_second_launches_of_many_states_have_a_thread_for_each(outputs: int, splits: int) -> None:
    stage = second_launch(outputs, splits, specialize(monoids.SUM.total, (torch.float32,)))
    assert stage.num_warps >= 4 or stage.block_outputs * stage.lanes < 128


def test_order_is_kept_for_monoids_that_need_it() -> None:
    assert all(s.ordered for s in plan((4, 1 << 20), 1, monoids.LAST).stages)


def test_plans_are_equal_printable_values() -> None:
    assert plan((300, 5000), 1) == plan((300, 5000), 1)
    assert hash(plan((300, 5000), 1)) == hash(plan((300, 5000), 1))
    assert "lanes" in str(plan((300, 5000), 1))


@pytest.mark.parametrize("shape", [(1, 1 << 28), (300, 5000), (8, 0)], ids=str)
def test_a_notebook_shows_each_step_with_its_buffers(shape: tuple[int, int]) -> None:
    made = plan(shape, 1)
    shown = made._repr_html_()
    assert shown.count("<tr>") >= 1 + len(made.steps)
    names = {name for step in made.steps for name in (*getattr(step, "reads", ()), *step.writes)}
    assert all(name in shown for name in names)
    assert all(html.escape(line.strip()) in shown for line in str(made).splitlines()[1 + len(made.working) :])


def test_early_start_needs_a_chip_that_can() -> None:
    assert plan((1, 1 << 28), 1, device=H200).overlap
    assert not plan((1, 1 << 28), 1, device=A100).overlap


@given(
    rows=st.integers(1, 1 << 22),
    length=st.integers(1, 1 << 22),
    dim=st.integers(0, 1),
    name=st.sampled_from(["SUM", "LAST", "LOGSUMEXP"]),
)
def test_every_plan_is_launchable(rows: int, length: int, dim: int, name: str) -> None:
    for stage in plan((rows, length), dim, getattr(monoids, name)).stages:
        check_stage(stage)


DOT = tilefold.Monoid(lambda a, b: a + b, 0, lift=lambda x, y: x * y, commutative=True, check=False)
TWO = tilefold.Monoid(
    lambda a, b: (tilefold.math.minimum(a.place, b.place),), (float("inf"),), fields=("place",), dtypes="index",
    lift=lambda x, y, i: (tilefold.math.where(x == y, i, i + 1),), index=True, commutative=True, check=False,
)  # fmt: skip


def check_stage(stage: Stage) -> None:
    sizes = (stage.block_outputs, stage.lanes, stage.run, stage.unroll, stage.num_warps)
    assert all(n >= 1 and n & (n - 1) == 0 for n in sizes), "Triton's tiles are powers of two"
    assert stage.num_warps <= 32
    assert stage.block_outputs * stage.step <= 65536


@given(rows=st.integers(2, 5000), length=st.integers(2, 1 << 22), dim=st.integers(0, 1))
def test_batch_invariant_plans_do_not_know_the_batch(rows: int, length: int, dim: int) -> None:
    x = torch.empty((rows, length) if dim else (length, rows), dtype=torch.bfloat16, device="meta")
    whole = tilefold.explain_plan(x, monoids.SUM, dim, guarantee="batch_invariant")
    few = x[:1] if dim else x[:, :1]
    alone = tilefold.explain_plan(few, monoids.SUM, dim, device=A100, guarantee="batch_invariant")
    for a, b in zip(whole.stages, alone.stages, strict=True):
        assert replace(a, evict_first=True) == replace(b, evict_first=True)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("length", [1000, 1 << 20])
def test_a_batch_invariant_plan_of_many_results_is_that_of_one(length: int, dim: int) -> None:
    x = torch.empty((4000, length) if dim else (length, 4000), dtype=torch.bfloat16, device="meta")
    one = x[:1] if dim else x[:, :1]
    plans = (tilefold.explain_plan(t, monoids.SUM, dim, guarantee="batch_invariant") for t in (x, one))
    many, alone = ([replace(s, evict_first=True) for s in plan.stages] for plan in plans)
    assert many == alone


@given(
    rows=st.integers(2, 300), length=st.integers(2, 5000), padding=st.integers(0, 9), row=st.integers(0, 299)
)
def test_batch_invariant_plans_do_not_know_the_batch_of_padded_rows(
    rows: int, length: int, padding: int, row: int
) -> None:
    x = torch.empty(rows, length + padding)[:, :length]
    few = x[row % rows : row % rows + 1]
    whole, alone = (tilefold.explain_plan(t, monoids.SUM, 1, guarantee="batch_invariant") for t in (x, few))
    assert whole.stages == alone.stages


@pytest.mark.parametrize(
    ("some", "one"),
    [
        pytest.param((70, 64), (70, 1), id="columns"),
        pytest.param((70, 3, 5), (70, 1, 1), id="columns of two dims"),
        pytest.param((5, 3, 1, 70), (1, 1, 1, 70), id="rows"),
    ],
)
def test_a_batch_of_one_is_planned_as_a_larger_one(some: tuple[int, ...], one: tuple[int, ...]) -> None:
    dim = some.index(70)
    plans = (
        tilefold.explain_plan(torch.empty(shape), monoids.SUM, dim, guarantee="batch_invariant")
        for shape in (some, one)
    )
    assert len({p.stages for p in plans}) == 1


def test_a_lane_is_in_order_only_where_its_positions_surely_are() -> None:
    def in_order(*inputs: torch.Tensor, dims: tuple[int, ...]) -> bool:
        """As the problem is, without dims kept apart."""
        monoid = TWO if len(inputs) == 2 else monoids.ARGMAX
        stage: Stage = tilefold.explain_plan(inputs, monoid, dims, guarantee="none").stages[0]
        return stage.in_order

    x, wide = torch.empty(400, 256, device="meta"), torch.empty(400, 260, device="meta")
    assert in_order(x, dims=(0, 1))
    assert in_order(wide[:, :256], dims=(0, 1)), "whole runs, row after row"
    assert not in_order(wide[:16, :255], dims=(0, 1)), "a run that crosses rows is shared by threads"
    assert not in_order(x.t(), dims=(0, 1)), "positions do not ascend"
    assert in_order(x, x, dims=(1,))
    assert not in_order(x, wide[:, 1:257], dims=(1,)), "two ways to share elements among threads"


@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant"])
@pytest.mark.parametrize("shape", [(3,), (4096, 4096), (64, 3333)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8], ids=str)
def test_a_wide_scalar_beside_narrow_elements(
    shape: tuple[int, ...], dtype: torch.dtype, guarantee: str
) -> None:
    x, scale = torch.empty(shape, dtype=dtype, device="meta"), torch.empty((), device="meta")
    for dim in range(len(shape)):
        for stage in tilefold.explain_plan((x, scale), DOT, dim, guarantee=guarantee).stages:
            check_stage(stage)


def test_dims_that_only_positions_keep_apart_are_one() -> None:
    """All of a permuted tensor is one run of memory to a monoid that sees no positions."""
    x = torch.empty(7, 40, 50, dtype=torch.bfloat16, device="meta").permute(1, 0, 2)
    for monoid, dims in ((monoids.SUM, 1), (monoids.LOGSUMEXP, 1), (monoids.ARGMAX, 3)):
        program = narrowed(specialize(monoid.total, (x.dtype,)), x.numel())
        problem, _ = plan_tensors([x], program, (0, 1, 2), H200, "run_to_run")
        assert len(problem.reduced_dims) == dims


# Triton's interpreter computes in numpy, which warns of overflow, and of arrays of one element taken as numbers.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["SUM", "LOGSUMEXP", "MAX", "LAST"])
@pytest.mark.parametrize("dims", [(0, 1, 2), (0, 2), (1, 2)], ids=str)
def test_permuted_inputs_fold_to_the_same(name: str, dims: tuple[int, ...]) -> None:
    x = torch.randint(-50, 50, (5, 12, 17)).float().permute(1, 2, 0)
    monoid = getattr(monoids, name)
    with tilefold.backend("interpret"):
        got = tilefold.reduce(x, monoid, dims)
    with tilefold.backend("reference"):
        want = tilefold.reduce(x, monoid, dims)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_rows_from_anywhere_have_a_tile_without_masks(dtype: torch.dtype) -> None:
    """A block that a mask touches is not absorbed whole: 217 us for 85 (docs/experiments/planning.md#counts)."""
    for length in range(129, 1024, 7):
        x = torch.empty(4000, length + length % 2 + 1, dtype=dtype, device="meta")[:, 1 : length + 1]
        (stage,) = tilefold.explain_plan(x, monoids.LOGSUMEXP, 1).stages
        assert stage.align == 1 or not stage.absorb or edges(stage, length)[1] > 0 or stage.lanes == 1


@pytest.mark.parametrize(
    ("shape", "dim", "launches"),
    [
        ((72, 37751), 1, 1),
        ((72, 75000), 1, 2),
        ((24, 37751), 1, 2),
        ((120, 13181 * 8), 0, 1),
        ((600, 13181 * 8), 0, 1),
    ],
    ids=str,
)
def test_no_second_launch_where_it_takes_longer_than_it_saves(
    shape: tuple[int, int], dim: int, launches: int
) -> None:
    """Rows of up to 128 KB for programs of their own, columns of up to 128 elements (docs/experiments/planning.md#counts)."""
    assert plan(shape, dim, monoids.MAX).launches == launches


@pytest.mark.parametrize(
    ("shape", "dim"), [((142, 30), 0), ((395, 4), 0), ((512, 8), 0), ((1, 10_084), 1)], ids=str
)
def test_folds_of_a_few_kilobytes_are_one_launch(shape: tuple[int, int], dim: int) -> None:
    assert plan(shape, dim).launches == 1


def test_ordered_rows_fill_the_chip_by_warps() -> None:
    """A program of a row has one warp: four of them an SM are not enough."""
    few, many = (plan((rows, 60_000), 1, monoids.LAST).stages[0].splits for rows in (700, 5000))
    assert few > 1 == many


def test_the_form_taken_is_the_one_that_needs_least() -> None:
    """Dims that do not merge, columns that no vector divides, rows of few results: other forms than the problem's own."""
    taken = set()
    for seed in SEEDS:
        drawn = problems.draw(seed)
        launches = list(first_launches(drawn.problem, drawn.program))
        stages = [first_tile(launch, launch.reading, H200, False) for launch in launches]
        first = plan_fold(drawn.problem, drawn.program, H200, "run_to_run").stages[0]
        assert first == stages[least_needed(list(zip(launches, stages, strict=True)), H200)]
        taken.add((first.kept_dims is not None, first.flat, first.shift > 0))
    assert len(taken) > 2


def test_only_run_to_run_has_other_forms() -> None:
    drawn = next(d for d in map(problems.draw, SEEDS) if _first(d, "run_to_run").kept_dims)
    for guarantee in ("none", "batch_invariant"):
        first = _first(drawn, guarantee)
        assert first.kept_dims is None
        assert not first.flat


def _first(drawn: problems.Drawn, guarantee: str) -> Stage:
    stage: Stage = plan_fold(drawn.problem, drawn.program, H200, guarantee).stages[0]
    return stage


def test_choosing_takes_milliseconds() -> None:
    """A quarter of a millisecond on a host of its own; tests share theirs."""
    taken = []
    for seed in range(15):
        drawn = problems.draw(seed)
        begun = time.process_time()
        plan_fold(drawn.problem, drawn.program, H200, "run_to_run")
        taken.append(time.process_time() - begun)
    assert sorted(taken)[len(taken) // 2] < 0.01


def invariant(rows: int, length: int, dim: int, dtype: torch.dtype) -> Problem:
    x = torch.empty((rows, length) if dim else (length, rows), dtype=dtype, device="meta")
    return canonical([x], (dim,), ordered=False, batches=True).alone()


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("length", [64, 1000, 4099, 50257])
@pytest.mark.parametrize("monoid", [monoids.SUM, monoids.LOGSUMEXP, monoids.ARGMAX], ids=str)
def test_batch_invariant_choices_do_not_know_the_batch(monoid: object, length: int, dim: int) -> None:
    program = narrowed(specialize(monoid.total, (torch.bfloat16,)), length)  # type: ignore[attr-defined]  # a Monoid
    found = {
        tuple(
            replace(stage, evict_first=True)
            for stage in plan_fold(
                invariant(rows, length, dim, torch.bfloat16),
                program,
                device,
                "batch_invariant",
            ).stages
        )
        for rows in (1, 2, 3, 7, 64, 100, 511, 512)
        for device in (H200, A100)
    }
    assert len(found) == 1


def test_a_batch_invariant_view_has_no_neighbours() -> None:
    problem = invariant(64, 1000, 1, torch.bfloat16)
    assert alone(reading_of(problem), problem).inner > 512

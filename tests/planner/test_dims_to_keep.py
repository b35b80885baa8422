"""What first launches may keep apart: every element is folded once, states are few."""

from __future__ import annotations

import pytest
import torch

import tilefold
from tilefold import monoids
from tilefold.algebra.program import specialize
from tilefold.planner.choose import plan_fold
from tilefold.planner.device import H200
from tilefold.planner.dims_to_keep import INPUT_BYTES, dims_to_keep
from tilefold.planner.folds import partial_dtypes
from tilefold.planner.kept_dims import first_problem, states_count, states_problem
from tilefold.planner.plan import KeptDims
from tilefold.planner.problem.canonical import canonical

DRAWN = [
    ((40000, 4099), (0,), None), ((40003, 4099), (0,), None), ((8, 11, 51697), (0, 2), None), ((7, 419, 159), (1,), None),
    ((504, 8, 8, 199), (0, 3), None), ((5, 63, 8, 9), (0, 2), (2, 0, 1, 3)), ((4803, 5, 19, 3), (0,), (2, 0, 1, 3)),
]  # fmt: skip


@pytest.mark.parametrize("monoid", [monoids.SUM, monoids.ARGMAX, monoids.LAST], ids=["sum", "argmax", "last"])
@pytest.mark.parametrize(("shape", "dim", "order"), DRAWN)
def test_every_element_is_folded_once(
    shape: tuple[int, ...], dim: tuple[int, ...], order: tuple[int, ...] | None, monoid: tilefold.Monoid
) -> None:
    x = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    x = x if order is None else x.permute(order)
    program = specialize(monoid.total, (x.dtype,))
    problem = canonical([x], dim, ordered=not monoid.commutative)
    for apart in dims_to_keep(problem, program):
        first = first_problem(problem, apart, program.algebra.index)
        assert first.outputs == states_count(problem, apart)
        assert (
            first.outputs * sum(d.itemsize for d in partial_dtypes(program)) * INPUT_BYTES
            <= problem.bytes_read
        )
        left_out = 0
        if first.ragged:
            last = first.output_dims[-1].size
            left_out = first.outputs // last * (last - first.ragged)
        assert first.outputs * first.length - left_out == x.numel()
        states = states_problem(problem, partial_dtypes(program), apart, 3, not monoid.commutative)
        assert states.outputs == problem.outputs
        assert states.outputs * states.length == 3 * first.outputs
        written = {d.output: d.size for d in states.output_dims}
        assert 1 + sum((n - 1) * s for s, n in written.items()) == problem.outputs


def test_every_choice_of_three_dims_is_one_and_of_four_none_of_two() -> None:
    """No two of the dims are neighbours in memory, and states are few beside the elements."""
    program = specialize(monoids.SUM.total, (torch.float32,))
    kept = {}
    for reduced in (3, 4):
        x = torch.empty([3] + [2, 64] * reduced, dtype=torch.float32, device="meta").transpose(0, -1)
        dims = tuple(range(2, 2 * reduced + 1, 2))
        problem = canonical([x], dims, ordered=False)
        assert len(problem.reduced_dims) == reduced
        kept[reduced] = {choice.dims for choice in dims_to_keep(problem, program)}
    assert {len(dims) for dims in kept[3]} >= {1, 2}
    assert {len(dims) for dims in kept[4]} <= {0}


def test_odd_widths_are_read_as_rows_that_vectors_divide() -> None:
    x = torch.empty((40000, 4099), dtype=torch.bfloat16, device="meta")
    program = specialize(monoids.SUM.total, (x.dtype,))
    problem = canonical([x], (0,), ordered=False)
    assert KeptDims((), 8) in list(dims_to_keep(problem, program))
    batches = plan_fold(problem, program, H200, "batch_invariant")
    assert all(stage.kept_dims is None for stage in batches.stages)

"""A problem's memory as the model sees it."""

from __future__ import annotations

import problems
import pytest

from tilefold.planner.folds import partial_dtypes, problem_of_partials
from tilefold.planner.geometry import geometry_of, partials_geometry

SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_partial_states_are_the_problem_that_the_second_launch_gets(seed: int) -> None:
    drawn = problems.draw(seed)
    sizes = tuple(d.itemsize for d in partial_dtypes(drawn.program))
    given = geometry_of(problem_of_partials(drawn.problem, drawn.program, 24))
    assert partials_geometry(drawn.problem.outputs, 24, sizes) == given

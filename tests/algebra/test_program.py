"""A program of a monoid and dtypes: which algebra it is written from, and its quick form."""

from __future__ import annotations

import pytest
import torch

import tilefold
from tilefold import monoids
from tilefold.algebra.program import is_watched, quick_form, specialize
from tilefold.backends import reference

WATCHED = {"norm": monoids.NORM(2.0), "welford": monoids.WELFORD}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", list(WATCHED))
def test_a_quick_form_has_the_results_and_says_whether_they_hold(name: str, dtype: torch.dtype) -> None:
    """Moderate numbers' squares are in range; those of huge numbers are not, and what is said of them is false."""
    program = specialize(WATCHED[name].total, (dtype,))
    assert is_watched(program)
    quick = quick_form(program)
    assert quick.outputs == (*program.outputs, torch.bool)
    x = torch.linspace(-3, 5, 40, dtype=dtype).view(4, 10)
    *got, holds = reference.fold([x], quick, (1,))
    assert holds.all()
    for g, w in zip(got, reference.fold([x], program, (1,)), strict=True):
        torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-7)
    huge = x * torch.finfo(dtype).max / 8
    assert not reference.fold([huge], quick, (1,))[-1].any()


def test_whole_numbers_are_watched_by_nothing() -> None:
    assert not is_watched(specialize(WATCHED["norm"].total, (torch.int32,)))
    assert not is_watched(specialize(tilefold.monoids.SUM.total, (torch.float32,)))

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilefold.bench.statistics import Quartiles, geometric_mean, quartiles, slower


def test_quartiles_of_five() -> None:
    assert quartiles([5.0, 1.0, 3.0, 2.0, 4.0]) == Quartiles(3.0, 2.0, 4.0, 5)


def test_one_sample_is_all_three() -> None:
    assert quartiles([7.0]) == Quartiles(7.0, 7.0, 7.0, 1)


@given(st.lists(st.floats(1e-3, 1e9), min_size=2, max_size=50))
def test_quartiles_lie_in_order_within_the_samples(samples: list[float]) -> None:
    spread = quartiles(samples)
    assert spread.q1_us is not None
    assert spread.q3_us is not None
    assert min(samples) <= spread.q1_us <= spread.median_us <= spread.q3_us <= max(samples)
    assert spread.median_us == pytest.approx(statistics.median(samples))


@pytest.mark.parametrize("samples", [[], [1.0, 0.0], [1.0, float("nan")], [-1.0]], ids=str)
def test_what_is_no_time_is_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="finite and positive"):
        quartiles(samples)


def test_geometric_mean() -> None:
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert math.isnan(geometric_mean([]))


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        pytest.param(Quartiles(110, 108, 112, 9), True, id="apart"),
        pytest.param(Quartiles(102, 101.5, 103, 9), False, id="within the noise"),
        pytest.param(Quartiles(110, 100, 130, 9), False, id="quartiles overlap"),
        pytest.param(Quartiles(110, None, None, None), True, id="no quartiles"),
        pytest.param(Quartiles(90, 89, 91, 9), False, id="faster"),
    ],
)
def test_slower_beyond_noise(new: Quartiles, expected: bool) -> None:
    assert slower(Quartiles(100, 99, 101, 9), new, 0.03, 0.3) is expected


def test_small_times_have_an_absolute_noise() -> None:
    assert not slower(Quartiles(4.0, 3.99, 4.01, 9), Quartiles(4.2, 4.19, 4.21, 9), 0.03, 0.3)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [(100.0, 104.0, True), (100.0, 102.9, False), (4.0, 4.35, True), (4.0, 4.29, False)],
    ids=["beyond the share", "within the share", "beyond the absolute", "within the absolute"],
)
def test_the_larger_of_both_noises_counts_and_not_their_sum(old: float, new: float, expected: bool) -> None:
    """3 % of 100 and 2 us, of 4 us and 0.3 us: a sum would forgive 5 and 0.42."""
    before, after = (Quartiles(m, m - 0.01, m + 0.01, 9) for m in (old, new))
    assert slower(before, after, 0.03, 2.0 if old == 100 else 0.3) is expected

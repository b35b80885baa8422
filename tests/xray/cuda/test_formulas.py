"""A formula gives back the numbers that it was made of, or there is none."""

from __future__ import annotations

import itertools

import pytest

from tilefold.xray.cuda.readable.formulas import NoFormulaError, formula


@pytest.mark.parametrize("first", [0, 3, -4])
@pytest.mark.parametrize(
    ("step", "far", "period"), [*itertools.product((0, 1, 4, -2), (0, 1, 128, -512), (2, 4, 8))]
)
def test_numbers_come_back(first: int, step: int, far: int, period: int) -> None:
    numbers = [first + step * (i % period) + far * (i // period) for i in range(2 * period)]
    text = formula(numbers).replace("/", "//")
    assert [eval(text, {"i": i}) for i in range(len(numbers))] == numbers, text  # text of ours


def test_what_follows_no_rule() -> None:
    with pytest.raises(NoFormulaError):
        formula([0, 1, 3, 7])
    with pytest.raises(NoFormulaError):
        formula([1, 0, 2])  # a period that does not divide the length


@pytest.mark.parametrize(
    "steps", [(1, 8, 2, 4), (4, 8, 1), (2, 1, 4), (0, 4, -8), (1, 2, 32, 64, 4), (8, 0, 1)], ids=str
)
def test_numbers_by_three_digits(steps: tuple[int, ...]) -> None:
    numbers = [5 + sum(s for b, s in enumerate(steps) if i >> b & 1) for i in range(1 << len(steps))]
    text = formula(numbers).replace("/", "//")
    assert [eval(text, {"i": i}) for i in range(len(numbers))] == numbers, text  # text of ours

"""What is a warning: a share of what the executed programs take at the least."""

from __future__ import annotations

import pytest

from tilefold.xray.chips import CHIPS
from tilefold.xray.observe.stakes import clocks, weighed
from tilefold.xray.report.model import Observation

CHIP = CHIPS["sm_90"]


def observation(code: str, cycles: int, severity: str = "warning") -> Observation:
    return Observation(
        code, severity, "k.py", 1, "numbers", "reason", "change", bytes_at_stake=0, cycles_at_stake=cycles
    )


@pytest.mark.parametrize(
    ("found", "severity"),
    [
        (observation("scalar-access", 80), "warning"),
        (observation("scalar-access", 79), "note"),
        (observation("bank-conflict", 200), "warning"),
        (observation("bank-conflict", 199), "note"),
        (observation("strong-atomic", 1), "warning"),
        (observation("wrong-fill", 1), "warning"),
        (observation("race", 1, "error"), "error"),
        (observation("no-tensor-core", 0), "warning"),
    ],
    ids=[
        "two-percent",
        "less",
        "five-percent-of-passes",
        "less-of-them",
        "waiting",
        "computed",
        "error",
        "not-counted",
    ],
)
def test_less_than_a_share_of_the_least_time_is_a_note(found: Observation, severity: str) -> None:
    assert weighed(found, 1000.0, CHIP).severity == severity


def test_the_share_is_said() -> None:
    assert weighed(observation("bank-conflict", 40), 1000, CHIP).evidence == (
        "numbers; 1.0 % of what a program takes at the least"
    )


def test_without_an_execution_nothing_is_weighed() -> None:
    assert weighed(observation("bank-conflict", 1), None, CHIP).severity == "warning"


def test_bytes_go_at_the_rate_of_memory() -> None:
    moved = Observation("wasted-sectors", "warning", "k.py", 1, "", "", "", bytes_at_stake=1987)
    assert clocks(moved, CHIP) == pytest.approx(100, rel=0.01)

"""`occupancy`: how few warps are few."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tilefold.xray.observe.resources import few_warps
from tilefold.xray.report.model import Occupancy


@pytest.mark.parametrize(
    ("warps", "limiter", "said"),
    [(15, "registers", True), (16, "registers", False), (17, "registers", False), (8, "nothing", False)],
)
def test_less_than_a_quarter_of_the_warps_is_few(warps: int, limiter: str, said: bool) -> None:
    """A quarter itself, which 128 registers a thread give, is not."""
    report: Any = SimpleNamespace(
        occupancy=Occupancy(warps, warps, 64, ((limiter, warps), ("blocks", 32)), limiter)
    )
    evidence: Any = None
    assert [o.code for o in few_warps(report, evidence)] == ["occupancy"] * said

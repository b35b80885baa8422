"""What docs/measured.md says of random problems: how many of the plans that were timed are those chosen now."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from changed import plan_of

from tilefold.bench.suites import load_suite
from tilefold.bench.summary import OURS
from tilefold.planner.device import Device

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "benchmarks")]
import readme_suites  # noqa: E402  # lives in benchmarks/

RESULTS = ROOT / "benchmarks" / "results"
# As their drivers tell of them, which is what plans of these runs were made for.
CHIPS = {
    chip.name: chip
    for chip in (
        Device("NVIDIA H100 80GB HBM3", 132, 90, 3352.32, 228 * 1024, 16),
        Device("NVIDIA H200", 132, 90, 4814.304, 228 * 1024, 16),
    )
}


@pytest.mark.parametrize("name", ["shapes", "products"])
def test_so_many_plans_of_a_run_are_chosen_now(name: str) -> None:
    """Where this fails, plans of drawn problems have changed: run the suite on a new seed, or count them in `CHANGED`."""
    result = readme_suites.load_all(*sorted(RESULTS.iterdir()))[name]
    timed = {case.name: found.plan for case in result.cases if (found := case.of(OURS)) and found.time_us}
    now = {
        case.name: plan_of(name, case, CHIPS[run.chip])
        for run in result.runs
        for case in load_suite(name).select("full", run.settings["seed"], run.settings["count"])
        if case.name in timed
    }
    assert now.keys() == timed.keys()
    changed = [case for case, plan in now.items() if plan is None or plan.note != timed[case]]
    assert len(changed) == readme_suites.CHANGED.get(name, 0), changed

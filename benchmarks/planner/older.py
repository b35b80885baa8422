"""Cells of committed runs whose plan is no longer chosen, by suite.

    PYTHONPATH=src python benchmarks/planner/older.py shapes scan topk transpose

Plans are an H200's; nothing runs. For suites that call tilefold by a `build_ours` of their own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from changed import plan_of

from tilefold.bench.results import read_results
from tilefold.bench.suites import load_suite
from tilefold.bench.summary import OURS

RESULTS = Path(__file__).parents[1] / "results" / "h200"


def older(suite: str) -> tuple[list[str], int]:
    """What changed of each such cell, and how many cells were timed."""
    result = read_results(RESULTS / f"{suite}.json")
    drawn = [run.settings for run in result.runs]
    cases = {
        case.name: case
        for settings in drawn
        for case in load_suite(suite).select("full", settings.get("seed", 0), settings.get("count", 60))
    }
    changed, timed = [], 0
    for cell in result.cases:
        plans = [m.plan for m in cell.measurements if m.variant == OURS and m.time_us]
        plan = plan_of(suite, cases[cell.name]) if plans else None
        timed += len(plans)
        if plan is not None and plan.note != plans[0]:
            changed.append(f"{cell.name}: {plans[0]} | {plan.note}")
    return changed, timed


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan again, print."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("suites", nargs="+", metavar="SUITE")
    for suite in parser.parse_args(arguments).suites:
        changed, timed = older(suite)
        print(*changed, f"{suite}: {len(changed)} of {timed}", sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

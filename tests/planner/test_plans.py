"""Plans of drawn calls of every operation, as they were written down: no plan changes unseen.

A change that means to alter some writes them anew (`python benchmarks/recording.py plans tests/planner/plans.txt`), reads in
the diff which calls have other tiles, and times these.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "benchmarks")]
import recording  # noqa: E402  # lives in benchmarks/


def test_plans_of_drawn_calls_are_those_written_down() -> None:
    written = Path(__file__).with_name("plans.txt").read_text(encoding="utf-8").splitlines()
    differing = [
        f"{line}\n    was {old.partition('|')[2]}"
        for line, old in zip(recording.plan_lines(), written, strict=True)
        if line != old
    ]
    assert not differing, "\n".join([*differing[:8], f"{len(differing)} plans differ"])

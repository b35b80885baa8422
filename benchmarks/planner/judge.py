"""Two variants of one run of the bench beside each other, by class.

    PYTHONPATH=src python benchmarks/planner/judge.py shapes.json [folds.json ...] --new "ours, fewer"

Of each dtype and size class, of each operation and of all: cases, mean and tenth percentile of the fraction of the limit
of the old and the new variant, the new time over the old (geometric mean), and how many cases are slower or faster beyond
3 % and 5 %. Then the cases that differ most, with both plans.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tilefold.bench.results import CaseResult, read_results
from tilefold.bench.statistics import geometric_mean
from tilefold.bench.summary import fractions, median_us, size_class

SHOWN = 12  # cases from each end


def ratio(case: CaseResult, old: str, new: str) -> float:
    """The new variant's time over the old one's."""
    times = median_us(case, new), median_us(case, old)
    assert times[0] is not None
    assert times[1] is not None
    return times[0] / times[1]


def classes_of(cases: Sequence[CaseResult]) -> dict[str, list[CaseResult]]:
    """All, by dtype and size, and by operation."""
    found: dict[str, list[CaseResult]] = {"all cases": list(cases)}
    for case in cases:
        for name in (f"{case.dtype}, bytes alone {size_class(case.floor_us)}", case.operation):
            found.setdefault(name, []).append(case)
    return found


def class_line(cases: Sequence[CaseResult], old: str, new: str) -> str:
    """The figures of one class."""
    shares = [sorted(fractions(cases, variant)) for variant in (old, new)]
    means = [statistics.mean(some) for some in shares]
    tenths = [np.quantile(some, 0.1) for some in shares]
    ratios = [ratio(case, old, new) for case in cases]
    slower = " | ".join(str(sum(r > beyond for r in ratios)) for beyond in (1.03, 1.05))
    faster = " | ".join(str(sum(r < 1 / beyond for r in ratios)) for beyond in (1.03, 1.05))
    return (
        f"{len(cases)} cases, mean {means[0]:.3f} -> {means[1]:.3f} ({means[1] - means[0]:+.3f}), "
        f"tenth percentile {tenths[0]:.3f} -> {tenths[1]:.3f}; time x {geometric_mean(ratios):.3f}; "
        f"slower beyond 3 % | 5 %: {slower}, faster: {faster}"
    )


def judged(cases: Sequence[CaseResult], old: str, new: str) -> Iterator[str]:
    """The lines of one result."""
    both = [case for case in cases if median_us(case, old) and median_us(case, new)]
    yield f"{len(both)} of {len(cases)} cases have both"
    for name, some in classes_of(both).items() if both else ():
        yield f"{name}: {class_line(some, old, new)}"
    ordered = sorted(both, key=lambda case: -ratio(case, old, new))
    shown = ordered if len(ordered) <= 2 * SHOWN else [*ordered[:SHOWN], *ordered[-SHOWN:]]
    for case in shown:
        said = []
        for variant in (old, new):
            found = case.of(variant)
            assert found is not None
            said.append(f"{found.fraction or 0:.2f} {found.plan}")
        yield f"  x {ratio(case, old, new):.3f} {case.name}: {said[0]} -> {said[1]}"
    for case in cases:
        for variant in (old, new):
            found = case.of(variant)
            if found is None or not found.time_us:
                yield f"  no time: {case.name}, {variant}: {found and (found.note or found.status)}"


def main() -> None:
    """Print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--old", default="ours")
    parser.add_argument("--new", required=True)
    given = parser.parse_args()
    for path in given.results:
        print(f"{path.name}: {given.new} after {given.old}")
        for line in judged(read_results(path).cases, given.old, given.new):
            print(line)


if __name__ == "__main__":
    main()

"""The cases of a suite, listed on any machine."""

from __future__ import annotations

from collections.abc import Sequence

from tilefold.bench.display import show_rows
from tilefold.bench.limits import floor_us
from tilefold.bench.selection import Selection, asked_suite, selected
from tilefold.bench.suites import load_suite
from tilefold.bench.variants import variants_of

HEADS = ("case", "bytes", "operations", "floor us", "tolerance")


def listed(
    name: str, asked: Selection, against: Sequence[str], variants: Sequence[str] | None, gb_per_s: float
) -> str:
    """Cases, compulsory bytes and operations, the time of the bytes alone, and each tolerance with its reason.

    Raises:
        ArgumentError: no such suite, variant or peer, or the suite has no case that was asked for.
    """
    suite = load_suite(name)
    cases = selected(suite, asked)
    suite = asked_suite(suite, asked)
    variants_of(suite, against, variants)
    rows = [
        (
            case.name,
            f"{case.compulsory_bytes}",
            f"{case.operations}",
            f"{floor_us(case.compulsory_bytes, gb_per_s):.2f}",
            "exact" if case.tolerance.exact else "bounded",
        )
        for case in cases
    ]
    reasons = dict.fromkeys(case.tolerance.why for case in cases)
    return "\n".join(
        [
            f"{name}: {suite.about.splitlines()[0]} {len(cases)} cases, floors at {gb_per_s:.0f} GB/s",
            show_rows(rows, HEADS),
            *(f"tolerance: {why}" for why in reasons),
            "",
        ]
    )

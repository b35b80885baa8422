"""What the suites declare, a line for each group of cases and each variant: figures of two versions are compared by it.

PYTHONPATH=src python tests/bench/declared.py writes it anew into declared.txt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import torch

from tilefold.bench.cases import Case, Variant
from tilefold.bench.suites import load_suite, suite_names

WRITTEN = Path(__file__).with_name("declared.txt")


def lines() -> Iterator[str]:
    """Every suite's variants, then its cases by group: how many, and a hash of what each of them is."""
    for name in suite_names():
        suite = load_suite(name)
        yield f"{name} against {', '.join(suite.against)}"
        yield from (f"{name} variant {_of_variant(variant)}" for variant in suite.variants)
        for size in ("small", "full"):
            groups: dict[str, list[str]] = {}
            for case in suite.select(size, 0, 24):
                groups.setdefault(case.group, []).append(_of_case(case))
            for group, cases in groups.items():
                digest = hashlib.sha256("\n".join(cases).encode()).hexdigest()[:8]
                yield f"{name} {size}, {group}: {len(cases)} {digest}"


def _of_variant(variant: Variant) -> str:
    flags = ("gpu_only", "warms", "graphs", "asked_only", "plan", "check", "compiles")
    return " ".join([variant.name, *(flag for flag in flags if getattr(variant, flag))])


def _of_case(case: Case) -> str:
    words = [
        case.name,
        case.compulsory_bytes,
        case.operations,
        case.headline,
        case.has_index,
        case.contiguous,
    ]
    return f"{words} {case.result_shapes} {case.result_dtypes} {_allowed(case)}"


def _allowed(case: Case) -> list[str]:
    """The distance allowed at 0, at 1 and at 1000."""
    if case.tolerance.bound is None:
        return []
    want = torch.tensor([0.0, 1.0, 1000.0], dtype=torch.float64)
    found = [case.tolerance.bound(want, dtype) for dtype in case.result_dtypes if dtype.is_floating_point]
    return [f"{float(f):.4g}" for bounds in found for f in bounds.flatten()]


if __name__ == "__main__":
    WRITTEN.write_text("".join(f"{line}\n" for line in lines()), encoding="utf-8")

"""Texts of plots: variants by their names for users, cases by their differences, the chip and the day."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilefold.bench.results import CaseResult, SuiteResult
from tilefold.bench.summary import PLANNED, SKINNY, timed

NAMES = {
    "ours": "tilefold",
    "torch": "torch eager",
    "compile": "torch.compile",
    "cupy": "CuPy",
    "jax": "JAX",
    "cuda.compute": "CUB (cuda.compute)",
    "quack": "QuACK",
    "liger": "Liger",
    "cublaslt": "cuBLASLt",
    "reduce 3-D": "tl.reduce, 3-D tile",
    "reduce flat": "tl.reduce, flat tile",
    "unrolled loads": "unrolled loads",
    "register tree": "tree in registers",
    "bmm": "bmm, then sum",
    "bmm compiled": "bmm, then sum, compiled",
    "custom op": "Inductor's choice of split-K",
    "custom op with ours": "Inductor's choice, tilefold offered",
    "custom op, ranges": "Inductor's choice, one graph",
    "custom op with ours, ranges": "... one graph, tilefold offered",
    "serial reducer": "split-K, serial sum",
    "serial reducer, ReLU apart": "split-K, serial sum, ReLU apart",
    "vector reducer": "split-K, vector sum",
    "vector reducer, ReLU apart": "split-K, vector sum, ReLU apart",
}
# Okabe and Ito's colours, which people with any colour vision tell apart. The common ones look the same in every plot.
COLOURS = {"ours": "#0072B2", "torch": "#D55E00", "compile": "#009E73", "cupy": "#E69F00", "jax": "#CC79A7"}
OTHERS = ("#56B4E9", "#7F7F7F", "#8C564B", "#B8A000", "#000000", "#9467BD")
MARKS = {"ours": "o", "torch": "s", "compile": "^", "cupy": "D", "jax": "v"}
OTHER_MARKS = ("P", "X", "*", "<", "h")  # one fewer than colours: together they repeat after thirty


def name_of(variant: str, suite: str = "") -> str:
    """A variant as a user would call it. torch's products are cuBLAS's."""
    if variant.startswith(PLANNED):
        return f"tilefold, {variant.removeprefix(PLANNED)}"
    name = NAMES.get(variant, variant)
    return f"{name} (cuBLAS)" if variant == "torch" and suite in SKINNY else name


def style_of(variants: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A colour and a mark a variant; tilefold in front of the others."""
    rest = [variant for variant in variants if variant not in COLOURS]
    styles = {}
    for variant in variants:
        place = rest.index(variant) if variant in rest else 0
        styles[variant] = {
            "color": COLOURS.get(variant, OTHERS[place % len(OTHERS)]),
            "marker": MARKS.get(variant, OTHER_MARKS[place % len(OTHER_MARKS)]),
            "zorder": 4 if variant == "ours" else 3,
        }
    return styles


def shape_label(case: CaseResult) -> str:
    """A shape whose long axes are powers of two reads better with them as such."""
    return "x".join(
        f"2^{n.bit_length() - 1}" if n >= 1 << 20 and n & (n - 1) == 0 else str(n) for n in case.shape
    )


def labels_of(cases: Sequence[CaseResult]) -> list[str]:
    """What tells cases apart: operation, shape, dim, dtype, as far as they differ in it; the shape where in nothing else."""
    shapes = _sizes_that_differ(cases) or [shape_label(case) for case in cases]
    parts: list[tuple[str, ...]] = [
        (case.operation, shape, f"dim {dims_label(case)}", case.dtype)
        for case, shape in zip(cases, shapes, strict=True)
    ]
    differ = [len(set(column)) > 1 for column in zip(*parts, strict=True)]
    differ[1] = differ[1] or not any(differ)
    return [", ".join(part for part, shown in zip(row, differ, strict=True) if shown) for row in parts]


def _sizes_that_differ(cases: Sequence[CaseResult]) -> list[str] | None:
    """Of products the one of M, N and K in which they differ: "K = 8192"."""
    if not all(case.operation.startswith("matmul") for case in cases):
        return None
    differ = [place for place in range(3) if len({case.shape[place] for case in cases}) > 1]
    return [f"{'MNK'[differ[0]]} = {case.shape[differ[0]]}" for case in cases] if len(differ) == 1 else None


def dims_label(case: CaseResult) -> str:
    """The reduced dims: "1", "0,2"."""
    return ",".join(map(str, case.dims)) if case.dims else str(case.dim)


def by_size(cases: Sequence[CaseResult]) -> list[CaseResult]:
    """Cases by the bytes that they must move."""
    return sorted(cases, key=lambda case: (case.floor_us, case.shape, case.name))


def timed_variants(result: SuiteResult, cases: Sequence[CaseResult]) -> list[str]:
    """The variants of which any of these cases was timed, in the result's order."""
    return [variant for variant in result.variants if any(timed(case, variant) for case in cases)]


def provenance(result: SuiteResult) -> str:
    """The chip and the day of each run: "NVIDIA H200, 2026-11-22"."""
    chips = ", ".join(dict.fromkeys(run.chip for run in result.runs))
    days = list(dict.fromkeys((run.date or "")[:10] for run in result.runs))
    return ", ".join([chips, *filter(None, days)])


def time_label(time_us: float) -> str:
    """A time in two or three digits, in the unit that suits it."""
    value, unit = (time_us, "us") if time_us < 1e4 else (time_us / 1e3, "ms")
    return f"{value:.0f} {unit}" if value >= 20 else f"{value:.1f} {unit}"

"""The README's six rows, and the suites beside `folds` for docs/measured.md; benchmarks/readme.py writes them.

A suite is shown as soon as a folder of benchmarks/results holds a run of it; of several chips' the newest.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

from readme_tables import PEERS, classes, farthest, limits_text, markdown, provenance, time_text

from tilefold.bench.plot_labels import name_of, shape_label
from tilefold.bench.results import CaseResult, SuiteResult, read_results
from tilefold.bench.statistics import geometric_mean
from tilefold.bench.summary import (
    DRAWN,
    DRAWN_PRODUCTS,
    OURS,
    complaints,
    fractions,
    median_us,
    not_slower,
    summary,
    timed,
)

SUITES = (
    "normalize",
    "gradients",
    "scan",
    "segment",
    "topk",
    "transpose",
    "atomic-sum",
    "real",
    "shapes",
    "products",
)
OWN = ("three launches",)  # other forms of ours
# Cells of a run of drawn problems whose plan has changed since; tests/planner/test_drawn_runs.py plans each again.
CHANGED: dict[str, int] = {"shapes": 11}
# Six rows of the README: the suite, and the name of its case.
README = (
    ("folds", "logsumexp dim1 16384x8192 bf16"),
    ("folds", "argmax dim0 16384x8192 bf16"),
    ("normalize", "softmax dim1 16384x8192 bf16"),
    ("scan", "cumsum dim0 16384x8192 fp32"),
    ("segment", "segment sum of power law dim0 268435456 fp32"),
    ("topk", "topk(8) dim1 8192x151936 bf16"),
)
# Rows of docs/measured.md.
SHOWN = (
    ("normalize", "softmax dim1 16384x8192 bf16"),
    ("normalize", "softmax dim1 4096x65536 bf16"),
    ("normalize", "softmax dim1 2048x151936 fp32"),
    ("normalize", "softmax dim0 16384x8192 bf16"),
    ("normalize", "layer_norm dim1 16384x8192 bf16"),
    ("normalize", "rms_norm+residual dim1 16384x8192 bf16"),
    ("gradients", "softmax dim1 16384x8192 bf16"),
    ("gradients", "softmax dim1 8192x151936 bf16"),
    ("gradients", "layer_norm dim1 16384x8192 bf16"),
    ("gradients", "rms_norm dim1 4096x65536 bf16"),
    ("gradients", "logsumexp dim1 16384x8192 bf16"),
    ("scan", "cumsum dim1 16384x8192 fp32"),
    ("scan", "cumsum dim0 16384x8192 fp32"),
    ("scan", "cumsum dim1 1x268435456 fp32"),
    ("scan", "affine dim2 2x16384x8192 fp32"),
    ("scan", "cummax dim1 16384x8192 fp32"),
    ("scan", "logcumsumexp dim1 16384x8192 fp32"),
    ("segment", "segment sum of 256 each dim0 268435456 fp32"),
    ("segment", "segment sum of power law dim0 268435456 fp32"),
    ("topk", "topk(8) dim1 8192x151936 bf16"),
    ("topk", "topk(8) dim1 32768x1024 bf16"),
    ("transpose", "transpose dim0,1 16384x8192 bf16"),
    ("transpose", "transpose dim0,1 16384x8192 fp32"),
)


def load_all(*folders: Path) -> dict[str, SuiteResult]:
    """The committed run of each suite that has one; of several folders' the newest."""
    found = {}
    for suite in SUITES:
        paths = (folder / f"{suite}.json" for folder in folders)
        runs = [read_results(path) for path in paths if path.is_file()]
        if runs:
            found[suite] = max(runs, key=lambda result: result.runs[0].date or "")
    return found


def others_of(result: SuiteResult) -> list[str]:
    """Every variant of a run that is not ours and was timed at least once."""
    cases = result.cases
    return [v for v in result.variants if v not in (OURS, *OWN) and any(timed(case, v) for case in cases)]


def fastest(case: CaseResult, variants: list[str]) -> str | None:
    """The fastest of these variants, of those that were timed."""
    times = {variant: time for variant in variants if (time := median_us(case, variant))}
    return min(times, key=lambda variant: times[variant]) if times else None


def row(case: CaseResult, variants: list[str], what: str = "") -> list[str]:
    """One case: its name and `what` is done, our time, torch's and torch.compile's, the fastest other, and two ratios."""
    ours, best = median_us(case, OURS), fastest(case, variants)
    rest = fastest(case, [variant for variant in variants if variant not in PEERS])
    theirs = [time_text(median_us(case, peer)) for peer in PEERS]
    other = f"{name_of(rest)} {time_text(median_us(case, rest))}" if rest else "-"
    best_us = median_us(case, best) if best else None
    ratio = f"{best_us / ours:.1f}" if ours and best_us else "-"
    share = "".join(f"{fraction:.2f}" for fraction in fractions([case])) or "-"
    dim = ",".join(map(str, case.dims)) if case.dims else str(case.dim)
    named = [f"{case.operation}{what} dim {dim}", f"{shape_label(case)} {case.dtype}"]
    return [*named, time_text(ours), *theirs, other, ratio, share]


def shown(found: dict[str, SuiteResult], names: Sequence[tuple[str, str]]) -> list[str]:
    """A table of some cases, of those that were checked and timed."""
    head = ["operation", "input", "tilefold", *PEERS.values(), "fastest other", "ratio", "of the limit"]
    rows = []
    for suite, name in names:
        result = found.get(suite)
        case = next((c for c in result.cases if c.name == name and timed(c)), None) if result else None
        if result and case:
            what = ", forward and backward," if suite == "gradients" else ""
            rows.append(row(case, others_of(result), what))
    return markdown(head, rows)


def render_readme(found: dict[str, SuiteResult]) -> str:
    """The README's rows, and what they mean."""
    said = (
        f"{provenance(found['folds'])}. Medians, cold L2, every answer checked first. The limit is the time of a copy of the "
        "bytes that a call must read and write, and of empty kernels: 1.00 would be perfect. The ratio is the fastest "
        "other's time over tilefold's; `-`: the peer does not have it."
    )
    return "\n".join([textwrap.fill(said, 126), "", *shown(found, README)])


def sentence(result: SuiteResult) -> str:
    """What can be said of one suite in a line or two."""
    cases = [case for case in result.cases if timed(case)]
    said = [f"{len(cases)} of {len(result.cases)} cells timed"]
    for name, large in (("bytes of 30 us and more", True), ("fewer", False)):
        some = fractions([case for case in cases if (case.floor_us >= 30) == large])
        if some and result.suite not in DRAWN_PRODUCTS:  # these may be bound by arithmetic
            said.append(
                f"{name}: {geometric_mean(some):.2f} of the limit on average, {min(some):.2f} at worst"
            )
    against = [(name_of(peer), *not_slower(cases, peer)) for peer in others_of(result)]
    held = ", ".join(f"{name} in {good} of {both}" for name, good, both in against if both)
    if held:
        said.append(f"not slower beyond 3 % than {held}")
    return "; ".join(said) + "."


def seed_text(result: SuiteResult) -> str:
    """The seeds that random problems were drawn from, the run's commit, and how many plans are the same now."""
    if result.suite not in (*DRAWN, *DRAWN_PRODUCTS):
        return ""
    seeds = dict.fromkeys(
        found[1] for run in result.runs if (found := re.search(r"--seed[ =](\d+)", run.command or ""))
    )
    run, cells = result.runs[0], sum(timed(case) is not None for case in result.cases)
    same = f"{cells - CHANGED.get(result.suite, 0)} of {cells} plans are those chosen now"
    return f" (drawn from seed {', '.join(seeds)} at commit {run.commit}; {same})" if seeds else ""


def drawn(result: SuiteResult) -> list[str]:
    """How random problems spread: each class and operation."""
    if result.suite not in (*DRAWN, *DRAWN_PRODUCTS):
        return []
    lines = [line for line in summary(result) if "tenth percentile" in line or "the better of" in line]
    return [f"- {line}" for line in lines]


def render_measured(found: dict[str, SuiteResult]) -> str:
    """The part of docs/measured.md: each suite's command, classes, its farthest cells and what was wrong."""
    intro = (
        "`-`: the peer does not have the operation. The ratio is the fastest other's time over tilefold's."
    )
    text: list[str] = [intro, "", *shown(found, SHOWN), ""]
    for suite, result in found.items():
        run = result.runs[0]
        where = f"{provenance(result)}{seed_text(result)}. {limits_text(result)}"
        peers = ", ".join(f"{name} {version}" for name, version in run.peers.items() if version)
        text += [f"### {suite}", "", textwrap.fill(f"{where}{f' Peers: {peers}.' if peers else ''}", 126), ""]
        text += [*classes(result), "", textwrap.fill(sentence(result), 126), ""]
        text += [*lines, ""] if (lines := drawn(result)) else []
        text += ["The farthest from the limit:", "", *farthest(result, 10), ""]
        wrong = [line for line in complaints(result) if line.startswith(("WRONG", "ERROR"))]
        text += [*(f"- {shortened(line)}" for line in wrong), ""] if wrong else []
    return (
        "\n".join(text[:-1])
        if found
        else "No whole run of the other suites beside their peers is committed yet."
    )


def shortened(line: str) -> str:
    """A complaint in one line, without colours of a terminal."""
    plain = "".join(c for c in re.sub(r"\x1b\[[0-9;]*m", "", line) if c.isprintable())
    return plain if len(plain) <= 160 else f"{plain[:157]}..."

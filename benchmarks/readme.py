"""The tables of measured results in README.md and docs/measured.md, from benchmarks/results.

python benchmarks/readme.py           rewrites the parts between the markers
python benchmarks/readme.py --check   exits 1 and says so in one line if a part says anything else
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import readme_suites
from readme_tables import PEERS, classes, farthest, limits_text, markdown, provenance, time_text

from tilefold.bench.plot_labels import shape_label
from tilefold.bench.results import CaseResult, SuiteResult, read_results
from tilefold.bench.statistics import geometric_mean
from tilefold.bench.summary import (
    OURS,
    complaints,
    fractions,
    median_us,
    not_slower,
    timed,
)

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "h100" / "folds.json"
BEGIN = "<!-- measured: written by benchmarks/readme.py -->"
END = "<!-- /measured -->"
BEGIN_SUITES = "<!-- measured suites: written by benchmarks/readme.py -->"
END_SUITES = "<!-- /measured suites -->"


def load(path: Path = RESULTS) -> SuiteResult:
    """The committed run."""
    return read_results(path)


def headline(results: SuiteResult) -> list[CaseResult]:
    """The headline cases that were checked and timed, in the run's order."""
    return [case for case in results.cases if case.headline and timed(case)]


def peers_of(cases: list[CaseResult]) -> list[str]:
    """The peers that any of these cases was timed against."""
    return [peer for peer in PEERS if any(timed(case, peer) for case in cases)]


def table(results: SuiteResult) -> list[list[str]]:
    """Head and rows: the fold, its input, microseconds, the faster peer's as a multiple of ours, the share of the limit."""
    cases = headline(results)
    peers = peers_of(cases)
    lines = [
        ["fold", "input", "tilefold", *(PEERS[p] for p in peers), *(["ratio"] * bool(peers)), "of the limit"]
    ]
    for case in cases:
        ours = median_us(case, OURS)
        theirs = [median_us(case, peer) for peer in peers]
        known = [time for time in theirs if time]
        faster = [f"{min(known) / ours:.1f}" if known and ours else "-"] * bool(peers)
        name = [f"{case.operation} dim {case.dim}", f"{shape_label(case)} {case.dtype}"]
        share = "".join(f"{fraction:.2f}" for fraction in fractions([case]))
        lines.append([*name, time_text(ours), *map(time_text, theirs), *faster, share or "-"])
    return lines


def sentences(results: SuiteResult) -> list[str]:
    """What can be said of all cases, the bad with the good."""
    cases = [case for case in results.cases if timed(case)]
    said = [f"{len(cases)} of {len(results.cases)} cells of the grid were checked and timed."]
    for peer, name in PEERS.items():
        good, both = not_slower(cases, peer)
        if both:
            said.append(f"Against {name}: not slower beyond 3 % in {good} of {both}.")
    large = fractions([case for case in cases if case.floor_us >= 30])
    small = fractions([case for case in cases if case.floor_us < 8])
    for values, which in ((large, "take 30 us and more"), (small, "take less than 8 us")):
        if values:
            mean = geometric_mean(values)
            said.append(
                f"Inputs whose bytes alone {which}: {mean:.2f} of the limit on average, {min(values):.2f} at worst."
            )
    return said


def render_headline(results: SuiteResult) -> list[str]:
    """How the folds were measured, and the table of headline cases."""
    *some, last = [f"{run.copy_gb_per_s or 0:.0f}" for run in results.runs]
    copies = f"{', '.join(some)} and {last} GB/s" if some else f"{last} GB/s"
    head = (
        f"{provenance(results)}. The limit of a call is the time to move the bytes that it must read and write, at the "
        f"bandwidth of a copy in the same run ({copies}), plus that of empty kernels, as many as it launches. "
        "The last column is the limit over the median time: 1.00 would be perfect. "
        "The ratio is the faster peer's time over tilefold's. Medians, cold L2; "
        "every answer was checked before it was timed."
    )
    heads, *rows = table(results)
    return [textwrap.fill(head, 126), "", *markdown(heads, rows)]


def render_measured(results: SuiteResult) -> str:
    """The part of docs/measured.md between the markers."""
    text = [*render_headline(results), "", textwrap.fill(limits_text(results), 126), "", *classes(results)]
    text += ["", textwrap.fill(" ".join(sentences(results)), 126)]
    wrong = [line for line in complaints(results) if line.startswith(("WRONG", "ERROR"))]
    text += ["", *(f"- {line}" for line in wrong)] if wrong else []
    text += ["", "The 25 farthest from the limit:", "", *farthest(results)]
    return "\n".join(text)


def replaced(name: str, page: str, part: str, begin: str, end: str) -> str:
    """The page with another part between the markers."""
    before, begins, rest = page.partition(begin)
    _, ends, after = rest.partition(end)
    if not begins or not ends:
        raise SystemExit(f"{name} must hold the lines {begin} and {end}, got a page without; put them back")
    return f"{before}{begin}\n{part}\n{end}{after}"


def main(argv: list[str], root: Path = ROOT, results: Path = RESULTS) -> int:
    """Rewrite or check the pages."""
    held, differs = load(results), False
    chips = sorted(folder for folder in results.parent.parent.iterdir() if folder.is_dir())
    others = readme_suites.load_all(*(chips if results == RESULTS else [results.parent]))
    parts = {
        "README.md": {(BEGIN, END): readme_suites.render_readme({"folds": held, **others})},
        "docs/measured.md": {
            (BEGIN, END): render_measured(held),
            (BEGIN_SUITES, END_SUITES): readme_suites.render_measured(others),
        },
    }
    for name, rendered in parts.items():
        page = root / name
        old = new = page.read_text(encoding="utf-8")
        for (begin, end), part in rendered.items():
            new = replaced(name, new, part, begin, end)
        if "--check" not in argv:
            page.write_text(new, encoding="utf-8")
        elif old != new:
            print(
                f"{name} must show what benchmarks/results holds, got another table; run python benchmarks/readme.py"
            )
            differs = True
    return int(differs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What can be said of a suite's results in a few lines, the bad with the good."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

import numpy as np

from tilefold.bench.results import ERROR, NOT_RUN, OK, WRONG, CaseResult, Measurement, SuiteResult
from tilefold.bench.statistics import geometric_mean

OURS = "ours"
PLANNED = "ours, "  # how the names of our own variants begin (`settings`)
NOISE = 1.03
SKINNY = ("decompose-k", "router")  # products, which are judged by ratios
DRAWN = ("shapes",)  # random problems, which are judged by their spread
DRAWN_PRODUCTS = ("products",)  # by ratios to the better of the peers here
PRODUCT_PEERS = ("torch", "compile")
SIZE_CLASSES = (">= 30 us", "8 to 30 us", "< 8 us")


def size_class(floor_us: float) -> str:
    """By the time of the compulsory bytes alone."""
    return SIZE_CLASSES[0] if floor_us >= 30 else SIZE_CLASSES[1] if floor_us >= 8 else SIZE_CLASSES[2]


def timed(case: CaseResult, variant: str = OURS) -> Measurement | None:
    """A variant's measurement if it was timed."""
    found = case.of(variant)
    return found if found and found.time_us else None


def median_us(case: CaseResult, variant: str) -> float | None:
    """A variant's median, if it was timed."""
    found = timed(case, variant)
    return found.time_us.median_us if found and found.time_us else None


def figure(name: str, case: CaseResult, variant: str) -> float | None:
    """A field of a variant's measurement, such as `host_us`, if it was timed and has it."""
    found: float | None = getattr(timed(case, variant), name, None)
    return found


def not_slower(cases: Sequence[CaseResult], peer: str) -> tuple[int, int]:
    """Cases where ours is not slower than a peer beyond 3 %, and cases where both were timed."""
    both = [(median_us(case, OURS), median_us(case, peer)) for case in cases]
    pairs = [(a, b) for a, b in both if a is not None and b is not None]
    return sum(a <= NOISE * b for a, b in pairs), len(pairs)


def fractions(cases: Sequence[CaseResult], variant: str = OURS) -> list[float]:
    """The fractions of the limit of the cases that have one."""
    found = [timed(case, variant) for case in cases]
    return [m.fraction for m in found if m and m.fraction]


def summary(result: SuiteResult) -> list[str]:
    """Means by dtype and size, the worst headline case, shares against each other variant, cells wrong or not run."""
    judged = [OURS] if OURS in result.variants else result.variants
    cases = [case for case in result.cases if any(timed(case, variant) for variant in judged)]
    lines = [f"{len(cases)} of {len(result.cases)} cases checked and timed"]
    for dtype in dict.fromkeys(case.dtype for case in cases):
        for name in SIZE_CLASSES:
            some = fractions([c for c in cases if c.dtype == dtype and size_class(c.floor_us) == name])
            if some:
                mean = f"geometric mean {geometric_mean(some):.3f} of the limit"
                lines.append(f"{dtype}, bytes alone {name}: {mean}, least {min(some):.3f}, of {len(some)}")
    headline = [case for case in cases if case.headline]
    if fractions(headline):
        worst = min((c for c in headline if fractions([c])), key=lambda case: fractions([case])[0])
        lines.append(f"worst of {len(headline)} headline cases: {worst.name} {fractions([worst])[0]:.3f}")
    others = [variant for variant in result.variants if variant != OURS]
    peers = [variant for variant in others if not variant.startswith(PLANNED)]
    for peer in others:
        for name, some_cases in (("all", cases), ("headline", headline)):
            good, both = not_slower(some_cases, peer)
            if both:
                lines.append(f"not slower than {peer} beyond 3 %, {name}: {good} of {both}")
    if result.suite == "host":
        lines += [line for peer in others if (line := host_line(cases, peer))]
    if result.suite in DRAWN:
        lines += drawn_lines(cases, peers)
    if result.suite in DRAWN_PRODUCTS:
        lines += drawn_product_lines(cases, [peer for peer in peers if peer in PRODUCT_PEERS])
    if result.suite in SKINNY:
        lines += skinny_lines(headline, peers)
    for variant in others:
        if variant.startswith(PLANNED):
            lines += planner_lines(cases, variant)
    return [*lines, *complaints(result)]


def planner_lines(cases: Sequence[CaseResult], other: str) -> list[str]:
    """Ours beside itself under another planner, in one run: mean fractions of the limit, and where it is slower."""
    both = [case for case in cases if timed(case) and timed(case, other)]
    lines = []
    for dtype in dict.fromkeys(case.dtype for case in both):
        for name in SIZE_CLASSES:
            some = [c for c in both if c.dtype == dtype and size_class(c.floor_us) == name]
            means = [geometric_mean(fractions(some, variant)) for variant in (OURS, other)]
            if some and all(mean > 0 for mean in means):
                said = f"{means[0]:.3f} of the limit, {other} {means[1]:.3f} ({means[0] - means[1]:+.3f})"
                lines.append(f"{dtype}, bytes alone {name}: {said}, of {len(some)}")
    ratios = sorted(((over_the_best(case, [other]) or 1.0, case.name) for case in both), reverse=True)
    slower = [f"{name} {ratio:.2f}" for ratio, name in ratios if ratio > 1.05]
    if both:
        named = f": {', '.join(slower[:5])}{' ...' * (len(slower) > 5)}" if slower else ""
        lines.append(f"slower than {other} beyond 5 % in {len(slower)} of {len(both)}{named}")
    return lines


def drawn_lines(cases: Sequence[CaseResult], peers: Sequence[str]) -> list[str]:
    """Of folds and of the other operations by dtype and size, of each operation and of all: mean, tenth percentile and worst
    fraction of the limit, and how many cases are slower than the best of the peers beyond 3 % and 15 %.
    """
    from tilefold.bench.operations import OPERATIONS

    classes: dict[str, list[CaseResult]] = {}
    for case in cases:
        kind = "folds" if case.operation in OPERATIONS else "other operations"
        sized = f"{kind}, {case.dtype}, bytes alone {size_class(case.floor_us)}"
        for name in (sized, f"{case.operation}, {case.dtype}", f"all {kind}"):
            classes.setdefault(name, []).append(case)
    return [
        f"{name}: {_drawn_line(some, peers)}" for name, some in sorted(classes.items()) if fractions(some)
    ]


def _drawn_line(cases: Sequence[CaseResult], peers: Sequence[str]) -> str:
    """The figures of one class."""
    shares = sorted(fractions(cases))
    said = (
        f"{len(shares)} cases, mean {statistics.mean(shares):.2f} of the limit, "
        f"tenth percentile {np.quantile(shares, 0.1):.2f}, worst {shares[0]:.2f}"
    )
    ratios = [ratio for case in cases if (ratio := over_the_best(case, peers))]
    if not ratios:
        return said
    beyond = [sum(ratio > limit for ratio in ratios) for limit in (NOISE, 1.15)]
    shares_of = [f"{count} of {len(ratios)} ({count / len(ratios):.0%})" for count in beyond]
    return f"{said}; slower than the best peer beyond 3 % in {shares_of[0]}, beyond 15 % in {shares_of[1]}"


def drawn_product_lines(cases: Sequence[CaseResult], peers: Sequence[str]) -> list[str]:
    """Of each kind of product and of all: the best peer's time over ours, and how often ours is slower beyond 3 %."""
    kinds: dict[str, list[tuple[float, str]]] = {}
    for case in cases:
        slower = over_the_best(case, peers)
        if slower:
            for name in (f"{case.operation}, {case.dtype}", "all"):
                kinds.setdefault(name, []).append((1 / slower, case.name))
    return [f"{name}: {_product_line(ratios, peers)}" for name, ratios in sorted(kinds.items())]


def _product_line(ratios: Sequence[tuple[float, str]], peers: Sequence[str]) -> str:
    """The figures of one kind."""
    beyond = sum(1 / ratio > NOISE for ratio, _ in ratios)
    worst, name = min(ratios)
    return (
        f"the better of {' and '.join(peers)} over ours {geometric_mean([r for r, _ in ratios]):.3f} on average, worst "
        f"{worst:.3f} ({name}); slower beyond 3 % in {beyond} of {len(ratios)} ({beyond / len(ratios):.0%})"
    )


def over_the_best(case: CaseResult, peers: Sequence[str]) -> float | None:
    """Our time over that of the fastest of the peers; None where one of the two was not timed."""
    ours, theirs = median_us(case, OURS), [t for t in (median_us(case, peer) for peer in peers) if t]
    return ours / min(theirs) if ours and theirs else None


def skinny_lines(cases: Sequence[CaseResult], peers: Sequence[str]) -> list[str]:
    """A peer's time over ours, on the device's clock and in CUDA graphs, for each kind of product."""
    lines = []
    for kind in dict.fromkeys((case.operation, case.dtype) for case in cases):
        some = [case for case in cases if (case.operation, case.dtype) == kind]
        for peer in peers:
            said = [f"{name} {_spread(ratios)}" for name, ratios in over_ours(some, peer).items() if ratios]
            if said:
                lines.append(f"{' '.join(kind)}: {peer} over ours: {'; '.join(said)}")
    return lines


def over_ours(cases: Sequence[CaseResult], peer: str) -> dict[str, list[float]]:
    """A peer's times over ours where both were timed, "cold" and in a CUDA "graph", the least first."""
    cold = [(median_us(case, peer), median_us(case, OURS)) for case in cases]
    graph = [(figure("graph_us", case, peer), figure("graph_us", case, OURS)) for case in cases]
    return {
        name: sorted(a / b for a, b in pairs if a and b) for name, pairs in (("cold", cold), ("graph", graph))
    }


def _spread(ratios: Sequence[float]) -> str:
    """Wins, and how far: "ours faster in 26 of 28, 1.15 on average (0.99 to 1.40, median 1.13)"."""
    wins, middle = sum(ratio > 1 for ratio in ratios), statistics.median(ratios)
    spread = f"{ratios[0]:.3f} to {ratios[-1]:.3f}, median {middle:.3f}"
    return f"ours faster in {wins} of {len(ratios)}, {geometric_mean(ratios):.3f} on average ({spread})"


def host_line(cases: Sequence[CaseResult], peer: str) -> str:
    """The host's cost of a call, ours over a peer's, on average and of the headline case; nothing where none has both."""
    pairs = [(c, c.of(OURS), c.of(peer)) for c in cases]
    ratios = {c: a.host_us / b.host_us for c, a, b in pairs if a and b and a.host_us and b.host_us}
    if not ratios:
        return ""
    headline = "".join(f"; {c.name} {ratio:.2f}" for c, ratio in ratios.items() if c.headline)
    return f"host time over {peer}'s: {geometric_mean(list(ratios.values())):.2f} on average{headline}"


def complaints(result: SuiteResult) -> list[str]:
    """Cells that were wrong, failed or not run, each with the reason; without peers that a machine lacks."""
    found = [
        f"{m.status.upper()}: {case.name}, {m.variant}: {m.note}"
        for case in result.cases
        for m in case.measurements
        if m.status in (WRONG, ERROR)
    ]
    skipped = sum(all(m.status == NOT_RUN for m in case.measurements) for case in result.cases)
    unfit = Counter(
        (m.variant, m.note)
        for case in result.cases
        for m in case.measurements
        if m.status == NOT_RUN and m.note
    )
    found += [f"NOT RUN: {variant} in {number} cases: {note}" for (variant, note), number in unfit.items()]
    noted = [f"{case.name}: {note}" for case in result.cases for note in case.notes if "clocks" in note]
    of_runs = [note for run in result.runs for note in run.notes]
    return found + noted + of_runs + ([f"{skipped} cases not run"] if skipped else [])


def failed(result: SuiteResult) -> bool:
    """Whether tilefold itself was wrong or failed anywhere, or nothing was timed."""
    mine = [case.of(OURS) for case in result.cases]
    timed_any = any(m.status == OK for case in result.cases for m in case.measurements)
    return any(m and m.status in (WRONG, ERROR) for m in mine) or not timed_any

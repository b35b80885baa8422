"""What can be said of a suite's results in a few lines, the bad with the good."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tilefold.bench.results import ERROR, NOT_RUN, OK, WRONG, CaseResult, Measurement, SuiteResult
from tilefold.bench.statistics import geometric_mean

OURS = "ours"
NOISE = 1.03
SKINNY = ("decompose-k", "router")  # products, which are judged by ratios
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


def not_slower(cases: Sequence[CaseResult], peer: str) -> tuple[int, int]:
    """Cases where ours is not slower than a peer beyond 3 %, and cases where both were timed."""
    both = [(median_us(case, OURS), median_us(case, peer)) for case in cases]
    pairs = [(a, b) for a, b in both if a is not None and b is not None]
    return sum(a <= NOISE * b for a, b in pairs), len(pairs)


def fractions(cases: Sequence[CaseResult], variant: str = OURS) -> list[float]:
    """The fractions of the limit of those cases that have one."""
    found = [timed(case, variant) for case in cases]
    return [m.fraction for m in found if m and m.fraction]


def summary(result: SuiteResult) -> list[str]:
    """Means by dtype and size, the worst headline case, shares against each other variant, what is wrong or not run."""
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
    for peer in result.variants:
        for name, some_cases in (("all", cases), ("headline", headline)):
            good, both = not_slower(some_cases, peer)
            if both and peer != OURS:
                lines.append(f"not slower than {peer} beyond 3 %, {name}: {good} of {both}")
    if result.suite == "host":
        lines += [line for peer in result.variants if peer != OURS and (line := host_line(cases, peer))]
    if result.suite in SKINNY:
        lines += skinny_lines(headline, [peer for peer in result.variants if peer != OURS])
    return [*lines, *complaints(result)]


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
    graph = [(_graph_us(case, peer), _graph_us(case, OURS)) for case in cases]
    return {
        name: sorted(a / b for a, b in pairs if a and b) for name, pairs in (("cold", cold), ("graph", graph))
    }


def _graph_us(case: CaseResult, variant: str) -> float | None:
    found = timed(case, variant)
    return found.graph_us if found else None


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
    """What was wrong, failed or not run, each with why; what is not asked of a machine (a missing peer) is not among it."""
    found = [
        f"{m.status.upper()}: {case.name}, {m.variant}: {m.note}"
        for case in result.cases
        for m in case.measurements
        if m.status in (WRONG, ERROR)
    ]
    skipped = sum(any(m.status == NOT_RUN for m in case.measurements) for case in result.cases)
    noted = [f"{case.name}: {note}" for case in result.cases for note in case.notes if "clocks" in note]
    of_runs = [note for run in result.runs for note in run.notes]
    return found + noted + of_runs + ([f"{skipped} cases not run"] if skipped else [])


def failed(result: SuiteResult) -> bool:
    """Whether tilefold itself was wrong or failed anywhere, or nothing was timed."""
    mine = [case.of(OURS) for case in result.cases]
    timed_any = any(m.status == OK for case in result.cases for m in case.measurements)
    return any(m and m.status in (WRONG, ERROR) for m in mine) or not timed_any

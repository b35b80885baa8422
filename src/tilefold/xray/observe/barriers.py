"""Barriers that no data needs, shown from the log of accesses before and behind them."""

from __future__ import annotations

from collections.abc import Iterator

from tilefold.xray.evidence import Evidence
from tilefold.xray.machine.crossings import needless_barriers
from tilefold.xray.report.model import Observation, Report

_CYCLES = 8  # that a warp waits at a barrier at least


def needless_barrier(report: Report, evidence: Evidence) -> Iterator[Observation]:
    """Barriers of the text that nothing crossed between warps, in any of the executed programs."""
    execution = evidence.execution
    if execution is None:
        return
    reached = execution.warps()
    by_line: dict[tuple[str, int], list[int]] = {}
    crossed = needless_barriers(execution.kernel, execution.outcomes)
    for number in crossed:
        by_line.setdefault(evidence.line(number), []).append(number)
    for place, numbers in by_line.items():
        times = sum(int(reached[n]) for n in numbers)
        rows = ", ".join(str(evidence.entry.instructions[n].line) for n in numbers)
        within = "; lanes of one warp share some, for which bar.warp.sync would do" if (
            "lanes" in {crossed[n] for n in numbers}
        ) else ""  # fmt: skip
        yield Observation(
            "needless-barrier",
            "note",
            *place,
            f"barriers in PTX lines {rows} were reached {times // report.num_warps} times, and no warp touched a byte behind "
            f"one that another had touched before it, one of them writing{within}",
            "the compiler guards the next use of shared memory, whether there is one or not",
            "nothing to do: Triton places its barriers itself; fewer changes of layout need fewer of them",
            cycles_at_stake=_CYCLES * times,
            numbers=(("barriers", len(numbers)), ("times", times // report.num_warps)),
        )

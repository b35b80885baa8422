"""Barriers that no data needs, shown from the log of accesses before and behind them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tilefold.xray.machine.crossings import needless_barriers
from tilefold.xray.report.model import Observation, Report

if TYPE_CHECKING:
    from tilefold.xray.report.build import Evidence

_CYCLES = 8  # that a warp waits at a barrier at least


def needless_barrier(report: Report, evidence: Evidence) -> Iterator[Observation]:
    """Barriers of the text that nothing crossed between warps, in any of the executed programs."""
    execution = evidence.execution
    if execution is None:
        return
    met = execution.warps()
    for number, crossed in needless_barriers(execution.kernel, execution.outcomes).items():
        instruction = evidence.entry.instructions[number]
        place = evidence.places.line(instruction) or ("", 0)
        within = (
            "; lanes of one warp share some, for which bar.warp.sync would do" if crossed == "lanes" else ""
        )
        yield Observation(
            "needless-barrier",
            "note",
            *place,
            f"the barrier in PTX line {instruction.line} was met {met[number] // report.num_warps} times, and no warp "
            f"touched a byte behind it that another had touched before it, one of them writing{within}",
            "the compiler guards the next use of shared memory, whether there is one or not",
            "nothing to do: Triton places its barriers itself; fewer changes of layout need fewer of them",
            cycles_at_stake=_CYCLES * int(met[number]),
            numbers=(("times", int(met[number]) // report.num_warps),),
        )

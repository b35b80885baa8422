"""The stake of an observation, beside a program's whole time: a small part of it is not a warning.

A program takes as long as its busiest unit, and no less than one trip to memory and back. Both that and what could be saved
are counted for the executed programs and scaled to the grid. What is shown is in one unit: microseconds of the launch.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilefold.planner.chips import Chip
from tilefold.xray.evidence import Evidence
from tilefold.xray.machine.counts import global_cost
from tilefold.xray.report.build import PORT
from tilefold.xray.report.model import Observation, Report
from tilefold.xray.report.traffic import done, weights

SHARE = 0.02  # of a program's least time, from which something is a warning
BANKS = 0.05  # the same for passes through shared memory: these mostly hide behind what other units do
# Of layouts, which no trial changes, more.
_SHARES = {"bank-conflict": BANKS, "layout-in-loop": 0.1, "small-axis-shuffles": 0.1}
_TRIP = 600  # clocks to memory and back, on each of these chips at the least
_ISSUE = 4  # instructions of warps that an SM issues in a clock
# Warnings about what is computed, and about waiting for other programs, whose time is not counted here.
_UNWEIGHED = ("wrong-fill", "tf32-dot", "strong-atomic")


def clocks(found: Observation, chip: Chip) -> float:
    """Clocks of an SM that an observation is about: bytes as memory delivers them, or L2 if they come from there."""
    rate = PORT if ("from", "L2") in found.numbers else chip.bytes_per_clock
    return found.bytes_at_stake / rate + found.cycles_at_stake / _ISSUE


class Stakes:
    """What is at stake in a whole launch. Each executed program stands for as many of the grid as are like it, line by line:
    what an observation's line moves and issues in each of them. Without an execution every program is like the one that was
    looked at."""

    def __init__(self, report: Report, evidence: Evidence) -> None:
        self._chip, self._evidence = evidence.compiled.job.chip, evidence
        self._count = report.grid[0] * report.grid[1] * report.grid[2]
        execution = evidence.execution
        self._outcomes = () if execution is None else execution.outcomes
        self._many = None if execution is None else weights(execution.programs, report.grid, done(execution))
        self._of: dict[tuple[str, int], list[int]] = {}
        for number, instruction in enumerate(evidence.entry.instructions):
            self._of.setdefault(evidence.places.line(instruction) or ("", 0), []).append(number)

    def over_grid(self, found: Observation) -> Observation:
        """An observation of the executed programs with what is at stake in the grid."""
        here = [n for place in ((found.file, found.line), *found.also) for n in self._of.get(place, ())]
        issued = self._scaled([int(o.issued[here].sum()) for o in self._outcomes])
        moved = issued
        if found.bytes_at_stake:
            wanted = set(here)
            costs = [global_cost(a for a in o.accesses if a.instruction in wanted) for o in self._outcomes]
            # What is read again is all of what a line asks for; of others it is what they ask for beyond their bytes.
            spare = [c.sectors - c.ideal for c in costs] if found.code != "read-again" else []
            moved = self._scaled(spare if any(spare) else [c.asked for c in costs]) or issued
        return replace(
            found,
            bytes_at_stake=round(found.bytes_at_stake * moved),
            cycles_at_stake=round(found.cycles_at_stake * issued),
        )

    def _scaled(self, each: list[int]) -> float:
        """The grid's, over that of the executed programs together; by all that they issue where these have nothing."""
        if self._many is None:
            return float(self._count)
        own = each if any(each) else [o.instructions for o in self._outcomes]
        return float(self._many @ np.array(own, float)) / max(sum(own), 1)

    def timed(self, found: Observation) -> Observation:
        """With the time of it on the SMs that the grid fills."""
        sms = min(self._chip.sms, self._count)
        return replace(found, us_at_stake=clocks(found, self._chip) / (sms * self._chip.clock_mhz))


def least_clocks(report: Report, evidence: Evidence) -> float | None:
    """Clocks that the grid's programs take at the least, one after the other; None without an execution."""
    totals, chip, execution = report.totals, evidence.compiled.job.chip, evidence.execution
    if execution is None or totals.work is None:
        return None
    rate = chip.fp16_per_clock if totals.work.tensor else chip.fp32_per_clock
    many = weights(execution.programs, report.grid, done(execution))
    own = np.array([o.instructions for o in execution.outcomes], float)
    each: float = max(
        _TRIP * len(execution.programs),
        totals.work.issued / _ISSUE,
        totals.shared_passes or 0,
        (totals.bytes_moved or 0) / PORT,
        totals.work.flops / rate,
    )
    return each * float(many @ own) / max(float(own.sum()), 1.0)


def weighed(found: Observation, least: float | None, chip: Chip) -> Observation:
    """The observation; as a note where it is about less than a share of the programs' least time."""
    at_stake = clocks(found, chip)
    if least is None or found.severity != "warning" or found.code in _UNWEIGHED or not at_stake:
        return found
    if at_stake >= _SHARES.get(found.code, SHARE) * least:
        return found
    return replace(
        found,
        severity="note",
        evidence=f"{found.evidence}; {100 * at_stake / least:.1f} % of what a program takes at the least",
    )

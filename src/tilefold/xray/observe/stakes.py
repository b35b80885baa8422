"""The stake of an observation, beside a program's whole time: a small part of it is not a warning.

A program takes as long as its busiest unit, and no less than one trip to memory and back. What could be saved is counted for
the same executed programs, so the share does not depend on how many were executed, nor on the grid. What is shown is scaled
to the grid, and in one unit: microseconds of the launch.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilefold.planner.chips import Chip
from tilefold.xray.evidence import Evidence
from tilefold.xray.report.build import PORT
from tilefold.xray.report.model import Observation, Report
from tilefold.xray.report.traffic import weights

SHARE = 0.02  # of a program's least time, from which something is a warning
BANKS = 0.05  # the same for passes through shared memory: these mostly hide behind what other units do
_TRIP = 600  # clocks to memory and back, on each of these chips at the least
_ISSUE = 4  # instructions of warps that an SM issues in a clock
# Warnings about what is computed, and about waiting for other programs, whose time is not counted here.
_UNWEIGHED = ("wrong-fill", "tf32-dot", "strong-atomic")


def clocks(found: Observation, chip: Chip) -> float:
    """Clocks of an SM that an observation is about: bytes as memory delivers them, or L2 if they come from there."""
    rate = PORT if ("from", "L2") in found.numbers else chip.bytes_per_clock
    return found.bytes_at_stake / rate + found.cycles_at_stake / _ISSUE


def over_grid(found: Observation, report: Report, evidence: Evidence) -> Observation:
    """The observation with what is at stake in the whole launch: bytes as all requests of the executed programs stand for the
    grid's, cycles as their instructions do. Without an execution every program is like the one that was looked at."""
    chip, execution = evidence.compiled.job.chip, evidence.execution
    count = report.grid[0] * report.grid[1] * report.grid[2]
    moved = issued = float(count)
    if execution is not None:
        done = np.array([o.instructions for o in execution.outcomes], float)
        issued = float(weights(execution.programs, report.grid) @ done) / max(done.sum(), 1)
        asked = report.totals.bytes_moved or 0
        moved = report.roofline.bytes_moved / asked if report.roofline is not None and asked else issued
    whole = replace(
        found,
        bytes_at_stake=round(found.bytes_at_stake * moved),
        cycles_at_stake=round(found.cycles_at_stake * issued),
    )
    return replace(whole, us_at_stake=clocks(whole, chip) / (min(chip.sms, count) * chip.clock_mhz))


def least_clocks(report: Report, evidence: Evidence) -> float | None:
    """Clocks that the executed programs take at the least, one after the other; None without an execution."""
    totals, chip = report.totals, evidence.compiled.job.chip
    if evidence.execution is None or totals.work is None:
        return None
    rate = chip.fp16_per_clock if totals.work.tensor else chip.fp32_per_clock
    return max(
        _TRIP * len(evidence.execution.programs),
        totals.work.issued / _ISSUE,
        totals.shared_passes or 0,
        (totals.bytes_moved or 0) / PORT,
        totals.work.flops / rate,
    )


def weighed(found: Observation, least: float | None, chip: Chip) -> Observation:
    """The observation; as a note where it is about less than a share of the programs' least time."""
    at_stake = clocks(found, chip)
    if least is None or found.severity != "warning" or found.code in _UNWEIGHED or not at_stake:
        return found
    if at_stake >= (BANKS if found.code == "bank-conflict" else SHARE) * least:
        return found
    return replace(
        found,
        severity="note",
        evidence=f"{found.evidence}; {100 * at_stake / least:.1f} % of what a program takes at the least",
    )

"""The stake of an observation, beside a program's whole time: a small part of it is not a warning.

A program takes as long as its busiest unit, and no less than one trip to memory and back. Both that and what could be saved
are counted for the executed programs and scaled to the grid. What is shown is in one unit: microseconds of the launch.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from tilefold.errors import TilefoldError
from tilefold.planner.chips import Chip
from tilefold.xray.evidence import Evidence, integer_arguments
from tilefold.xray.execution import Execution, Program, execute
from tilefold.xray.machine import Outcome, all_programs, chosen_programs
from tilefold.xray.machine.counts import GlobalCost, global_cost
from tilefold.xray.machine.types import Array
from tilefold.xray.observe.alike import classes
from tilefold.xray.ptx import parse
from tilefold.xray.report.build import PORT
from tilefold.xray.report.model import Observation, Report
from tilefold.xray.report.traffic import done, weights
from tilefold.xray.stages import Stages

SHARE = 0.02  # of a program's least time, from which something is a warning
BANKS = 0.05  # the same for passes through shared memory: these mostly hide behind what other units do
# Of layouts, which no trial changes, more.
_SHARES = {"bank-conflict": BANKS, "layout-in-loop": 0.1, "small-axis-shuffles": 0.1}
_STEPS = 400_000  # instructions of a warp, in all programs that are executed to learn what is at stake
_ALL, _RUN, _LEAST = (
    512,
    16,
    4,
)  # programs of a grid that are all executed; of another those between its ends, and the least
_TRIP = 600  # clocks to memory and back, on each of these chips at the least
_ISSUE = 4  # instructions of warps that an SM issues in a clock
_REQUESTS = (
    "scalar-access",
    "narrow-copy",
    "strong-atomic",
)  # whose cycles are those of requests with a lane on
# Warnings about what is computed, and about waiting for other programs, whose time is not counted here.
_UNWEIGHED = ("wrong-fill", "tf32-dot", "strong-atomic")


def clocks(found: Observation, chip: Chip) -> float:
    """Clocks of an SM that an observation is about: bytes as memory delivers them, or L2 if they come from there."""
    rate = PORT if ("from", "L2") in found.numbers else chip.bytes_per_clock
    return found.bytes_at_stake / rate + found.cycles_at_stake / _ISSUE


class Stakes:
    """What is at stake in a whole launch: what an observation's line moves and issues in all programs, over that of the
    executed ones. Where the TTIR says which programs do the same (`alike`), one of each class is executed for it; else all of
    a small grid; of others, if short, more than for the report, from which the grid's is an estimate. Without an execution
    every program is like the one that was looked at.
    """

    def __init__(self, report: Report, evidence: Evidence, stages: Stages | None = None) -> None:
        self._chip, self._evidence = evidence.compiled.job.chip, evidence
        self._count = report.grid[0] * report.grid[1] * report.grid[2]
        self._grid, self._stages = report.grid, stages
        execution = evidence.execution
        self._outcomes = () if execution is None else execution.outcomes
        self._of: dict[tuple[str, int], list[int]] = {}
        for number in range(len(evidence.entry.instructions)):
            self._of.setdefault(evidence.line(number), []).append(number)

    @functools.cached_property
    def _like(self) -> tuple[tuple[Outcome, ...], Array, bool]:
        """Executed programs, how many of the grid each stands for, and whether that is known and no estimate."""
        execution = self._evidence.execution
        assert execution is not None
        usual = execution.programs == chosen_programs(self._grid)
        if usual and self._stages is not None:
            done_ = dict(zip(execution.programs, execution.outcomes, strict=True))
            for programs, many, known in self._plans(execution):
                missing = [p for p in programs if p not in done_]
                compiled = self._evidence.compiled
                with contextlib.suppress(TilefoldError), self._stages.stage("executing more programs"):
                    more = execute(compiled, parse(compiled.ptx), missing) if missing else None
                    if more is None or len(more.programs) == len(missing):
                        done_ |= zip(missing, () if more is None else more.outcomes, strict=True)
                        return tuple(done_[p] for p in programs), many, known
        many = weights(execution.programs, self._grid, done(execution))
        return execution.outcomes, many, len(execution.programs) == self._count

    def _plans(self, execution: Execution) -> Iterator[tuple[tuple[Program, ...], Array, bool]]:
        """Programs that may be executed, how many of the grid each stands for, and whether that is known: the best first."""
        steps = max(o.instructions // max(o.issued.shape[1], 1) for o in execution.outcomes)
        most = _STEPS // max(steps, 1)
        found = one_of_each(self._evidence, self._grid, execution.programs)
        if found is not None and len(found[0]) <= max(most, len(execution.programs)):
            yield *found, True
        alike = len({o.instructions for o in execution.outcomes}) == 1
        programs, many = sampled(self._grid, most, alike=alike)
        if len(programs) >= min(_LEAST, self._count):
            yield programs, many, len(programs) == self._count

    def over_grid(self, found: Observation) -> Observation:
        """An observation of the executed programs with what is at stake in the grid."""
        if not (found.bytes_at_stake or found.cycles_at_stake):
            return found
        here = [n for place in found.places for n in self._of.get(place, ())]
        wanted = set(here)

        def issued_by(o: Outcome) -> int:
            return int(o.issued[here].sum())

        def cost_of(o: Outcome) -> GlobalCost:
            return global_cost(a for a in o.accesses if a.instruction in wanted)

        issued, moved = self._scaled(issued_by), 0.0
        if found.bytes_at_stake:
            # What is read again is all of what a line asks for; of others it is what they ask for beyond their bytes.
            spare = (
                0.0
                if found.code == "read-again"
                else self._scaled(lambda o: (c := cost_of(o)).sectors - c.ideal)
            )
            moved = spare or self._scaled(lambda o: cost_of(o).asked) or issued
        if found.code == "spill" and self._outcomes:  # of every thread
            moved = self._count / len(self._outcomes)
        if found.code in _REQUESTS:
            issued = self._scaled(lambda o: cost_of(o).requests) or issued
        issued = issued or self._scaled(lambda o: o.instructions)
        outcomes, _, known = self._like if self._outcomes else ((), None, True)
        return replace(
            found,
            bytes_at_stake=round(found.bytes_at_stake * (moved or issued)),
            cycles_at_stake=round(found.cycles_at_stake * issued),
            estimated_from=0 if known else len(outcomes),
        )

    def least_clocks(self, report: Report) -> float | None:
        """Clocks that the grid's programs take at the least, one after the other; None without an execution."""
        totals = report.totals
        if not self._outcomes or totals.work is None:
            return None
        rate = self._chip.fp16_per_clock if totals.work.tensor else self._chip.fp32_per_clock
        each: float = max(
            _TRIP * len(self._outcomes),
            totals.work.issued / _ISSUE,
            totals.shared_passes or 0,
            (totals.bytes_moved or 0) / PORT,
            totals.work.flops / rate,
        )
        return each * self._scaled(lambda o: o.instructions)

    def _scaled(self, each: Callable[[Outcome], int]) -> float:
        """The grid's, over that of the executed programs together; 0 where these have nothing."""
        if not self._outcomes:
            return float(self._count)
        if not (own := sum(map(each, self._outcomes))):
            return 0.0
        outcomes, many, _ = self._like
        return float(many @ np.array([*map(each, outcomes)], float)) / own

    def timed(self, found: Observation) -> Observation:
        """With the time of it on the SMs that the grid fills."""
        sms = min(self._chip.sms, self._count)
        return replace(found, us_at_stake=clocks(found, self._chip) / (sms * self._chip.clock_mhz))


def one_of_each(
    evidence: Evidence, grid: Program, executed: Sequence[Program]
) -> tuple[tuple[Program, ...], Array] | None:
    """A program of each class that does the same, an executed one where there is one, and how many there are of each; None
    where classes are not known."""
    if evidence.compiled.job.cluster > 1:
        return None
    sizes = {name: a.itemsize for name, a in evidence.parameters if a.pointer}
    found = classes(evidence.ttir, integer_arguments(evidence), grid, sizes)
    if found is None:
        return None
    first, counts = np.unique(found, return_index=True, return_counts=True)[1:]
    x, y, _ = grid
    of_class = {int(found[n]): (int(n % x), int(n // x % y), int(n // (x * y))) for n in first}
    for program in executed:
        of_class[int(found[program[0] + x * (program[1] + y * program[2])])] = program
    return tuple(of_class[n] for n in range(len(counts))), counts.astype(float)


def sampled(grid: Program, most: int, *, alike: bool, run: int = _RUN) -> tuple[tuple[Program, ...], Array]:
    """At most so many programs of a grid, and how many each stands for: all of a small one; of others the last along each of
    the dims and along several, and of those between as many as the rest allows: one behind the other where they are
    `alike` and only begin elsewhere, else apart.
    """
    count = math.prod(grid)
    if count <= min(_ALL, most):
        return all_programs(grid), np.ones(count)
    last = [(False, True) if size > 1 else (False,) for size in grid]
    kinds = list(itertools.product(*last))
    run = min(run, most - len(kinds) + 1, math.prod(max(n - 1, 1) for n in grid))
    if run < _LEAST:
        return (), np.zeros(0)
    programs: list[Program] = []
    many: list[float] = []
    for kind in kinds:
        inner = [n - 1 if n > 1 else 1 for n in grid]
        size = math.prod(n for n, end in zip(inner, kind, strict=True) if not end)
        # Those that are the last along no dim.
        each = 1 if any(kind) else run
        first, step = (size // 2, 1) if alike or each == 1 else (0, max(size // each, 1))
        for n in range(each):
            at = (first + n * step) % size
            place = []
            for length, end in zip(inner, kind, strict=True):
                place.append(length if end else at % length)
                at //= 1 if end else length
            programs.append((place[0], place[1], place[2]))
            many.append(size / each)
    return tuple(programs), np.array(many)


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

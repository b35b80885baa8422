"""All observations of a kernel, in the order of their stakes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from tilefold.xray.compile.job import Compiled
from tilefold.xray.evidence import Evidence
from tilefold.xray.observe import (
    again,
    arithmetic,
    associative,
    atomics,
    barriers,
    bounds,
    boxes,
    conflicts,
    halves,
    loops,
    masked,
    memory,
    offsets,
    orders,
    racing,
    remedies,
    resources,
    threads,
    unordered,
    vectors,
)  # fmt: skip
from tilefold.xray.observe.codes import CODES
from tilefold.xray.observe.joined import joined
from tilefold.xray.observe.stakes import Stakes, weighed
from tilefold.xray.observe.trials import Trials
from tilefold.xray.observe.values import StoppedError
from tilefold.xray.report.model import Observation, Report
from tilefold.xray.stages import Stages

_FINDERS = (
    racing.race, memory.wasted_sectors, conflicts.bank_conflict,
    threads.repeated_work, threads.repeated_dot, threads.small_axis_shuffles, loops.fold_in_loop,
    again.read_again,
    barriers.needless_barrier, atomics.strong_atomic, atomics.per_element_atomic, arithmetic.no_tensor_core,
    arithmetic.tf32_dot, arithmetic.approximate_math, resources.spill, resources.few_warps,
)  # fmt: skip
# Those that compile or execute the kernel again.
_TRYING = (bounds.out_of_bounds, offsets.offset_overflow, masked.wrong_fill, masked.undefined_counts,
    vectors.scalar_access, orders.race_of_reads, boxes.race_of_boxes, unordered.race_of_programs, loops.masked_rounds,
    loops.layout_in_loop, halves.narrow_sum, associative.not_associative,
)  # fmt: skip
_RANK = {"error": 0, "warning": 1, "note": 2}


# What was compiled or launched to try it, by an observation's code, file and line.
Variants = defaultdict[tuple[str, str, int], list[Compiled]]


@dataclass(frozen=True)
class Observed:
    """Observations: errors, then warnings, then notes; within these the costliest first. For each the variants of the kernel
    that were tried for it. `notes` for the report: which finders stopped at a bound."""

    observations: tuple[Observation, ...]
    variants: tuple[tuple[Compiled, ...], ...]
    notes: tuple[str, ...]


def observe(report: Report, evidence: Evidence, stages: Stages | None) -> Observed:
    """What every finder finds. `stages` follows the trials; None: there are none."""
    trials = Trials(evidence.compiled, evidence.execution, stages, math.prod(report.grid))
    started = [finder(report, evidence) for finder in _FINDERS]
    started += [finder(report, evidence, trials) for finder in _TRYING]
    found: list[Observation] = []
    variants: Variants = defaultdict(list)
    notes = [note for observations in started if (note := _collect(found, observations, trials, variants))]
    assert all(o.code in CODES for o in found)
    stakes = Stakes(report, evidence, stages)
    chip, least = evidence.compiled.job.chip, stakes.least_clocks(report)
    worth = [weighed(o, least, chip) for o in joined([stakes.over_grid(o) for o in found])]
    gained: list[tuple[Observation, tuple[Compiled, ...]]] = []
    for one in worth:
        # What a change saves may be less than what is at stake.
        o = stakes.timed(weighed(remedies.tried(one, report, evidence, trials), least, chip))
        before = [made for file, line in one.places for made in variants[one.code, file, line]]
        gained.append((o, tuple(dict.fromkeys([*before, *trials.taken()]))))
    gained.sort(key=lambda each: (_RANK[each[0].severity], -each[0].us_at_stake, each[0].code, each[0].line))
    return Observed(tuple(o for o, _ in gained), tuple(made for _, made in gained), tuple(notes))


def _collect(
    found: list[Observation], observations: Iterator[Observation], trials: Trials, variants: Variants
) -> str:
    """Add a finder's observations up to the bound where it stops, and what was tried for each; a note if it stopped."""
    try:
        # One after the other, so that what was found before is kept.
        for o in observations:
            found.append(o)
            variants[o.code, o.file, o.line] += trials.taken()
    except StoppedError as reason:
        return f"Not all observations were looked for: {reason}."
    finally:
        trials.taken()
    return ""

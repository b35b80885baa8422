"""One case: answers first, then all right variants in turns, then their host cost and their time inside a graph."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tilefold.bench import gate, results, timing, traps
from tilefold.bench.cases import Case, Choice, PlanNote, Variant
from tilefold.bench.clocks import ClockWatch
from tilefold.bench.limits import Limits, chain_kind, floor_us
from tilefold.bench.results import CaseResult, Measurement
from tilefold.bench.statistics import Quartiles
from tilefold.bench.timing import Stopwatch, Thunk
from tilefold.errors import TilefoldError

# Beyond it a launch is no part of a time worth looking at: no graphs, and the run's empty launches for a limit.
LAUNCH_COUNTS_BELOW_US = 100.0
EMPTY = "empty "


@dataclass
class Bench:
    """What all cases of a run share. `host` measures the host's cost with many more calls.

    `unfit` says of a case and a variant why it must not be compiled here. `spent` counts the seconds that went to inputs and
    references, to each variant's compilation and answers, and to times.
    """

    device: str
    stopwatch: Stopwatch
    limits: Limits
    watch: ClockWatch
    cache_bytes: int
    missing: frozenset[str] = frozenset()
    graphs: bool = True
    host: bool = False
    unfit: Mapping[tuple[str, str], str] = field(default_factory=dict)
    admitted: dict[str, Admitted] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def spending(self, what: str) -> Iterator[None]:
        """Count the time within."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.spent[what] = self.spent.get(what, 0.0) + time.perf_counter() - start


@dataclass(frozen=True)
class Admitted:
    """A variant that passed the gate: the choice of it that is timed, and how that launches."""

    choice: Choice
    plan: PlanNote


def blank_case(case: Case, variants: Sequence[Variant], copy_gb_per_s: float) -> CaseResult:
    """A case before it is measured."""
    return CaseResult(
        name=case.name,
        operation=case.operation,
        dim=case.dim if isinstance(case.dim, int) else None,
        dims=case.dims,
        shape=case.shape,
        dtype=case.dtype,
        group=case.group,
        headline=case.headline,
        compulsory_bytes=case.compulsory_bytes,
        operations=case.operations,
        floor_us=floor_us(case.compulsory_bytes, copy_gb_per_s),
        tolerance=case.tolerance.why,
        measurements=tuple(Measurement(variant.name) for variant in variants),
    )


def measure_case(bench: Bench, case: Case, variants: Sequence[Variant]) -> CaseResult:
    """Everything about one case. What fails is a row that says so, never the end of the run."""
    blank = blank_case(case, variants, bench.limits.copy_gb_per_s)
    try:
        with bench.spending("references"):
            probes = gate.probes_of(case, bench.device)
            traps.check_input(probes[0].x, case.name)
            x = case.like(probes[0].x)
        bench.admitted.clear()
        rows = {}
        for variant in variants:
            with bench.spending(variant.name):
                rows[variant.name] = _admit(bench, case, variant, x, probes)
        x.copy_(probes[0].x)  # a variant that was refused may have left anything
        del probes
        with bench.spending("times"):
            rows, empty_us = _time_all(bench, blank, rows, x, {v.name: v for v in variants})
        cold = traps.cold_note(case.input_bytes, bench.cache_bytes, bench.stopwatch.clock.flush_bytes)
        notes = tuple(note for note in (cold, bench.watch.look()) if note)
    except Exception as error:
        return replace(blank, measurements=tuple(_failed(v.name, error) for v in variants))
    return replace(blank, measurements=tuple(rows.values()), notes=notes, empty_us=empty_us)


def _failed(variant: str, error: Exception) -> Measurement:
    said = str(error) if isinstance(error, TilefoldError) else f"{type(error).__name__}: {error}"
    return Measurement(variant, results.ERROR, " ".join(said.split())[:300])


def _admit(
    bench: Bench, case: Case, variant: Variant, x: torch.Tensor, probes: Sequence[gate.Probe]
) -> Measurement:
    """The gate: the variant's choice that will be timed goes to `bench.admitted`, unless anything is wrong with it."""
    if variant.name in bench.missing:
        return Measurement(variant.name, results.MISSING, "cannot be imported here")
    if variant.gpu_only and bench.device == "cpu":
        return Measurement(variant.name, results.NEEDS_GPU, "runs on a GPU only")
    if unfit := bench.unfit.get((case.name, variant.name)):
        return Measurement(variant.name, results.NOT_RUN, unfit)
    try:
        x.copy_(probes[0].x)
        choices = variant.build(case, x)
        if not choices:
            return Measurement(variant.name, results.NO_SUCH, "has no such fold")
        for choice in choices:
            choice.call(x)  # compiles, so that the gate's poison is not eaten by the compiler's own tuning
            if variant.check:
                variant.check(choice.call, x)
            wrong = gate.check(case, choice.call, x, probes)
            if wrong:
                return Measurement(variant.name, results.WRONG, f"{choice.label}: {wrong}")
        choice = _fastest(bench, choices, x)
        plan = variant.plan() if variant.plan else PlanNote(choice.label)
    except Exception as error:
        return _failed(variant.name, error)
    if plan is None:
        return Measurement(variant.name, results.ERROR, "no plan was remembered")
    bench.admitted[variant.name] = Admitted(choice, plan)
    return Measurement(
        variant.name,
        results.OK,
        variant.note,
        launches=plan.launches if variant.plan else None,
        plan=plan.text,
    )


def _fastest(bench: Bench, choices: Sequence[Choice], x: torch.Tensor) -> Choice:
    """The choice with the least median, before anything is timed for the table."""
    if len(choices) == 1:
        return choices[0]
    times = bench.stopwatch.time({c.label: _bound(c, x) for c in choices})
    return min(choices, key=lambda choice: times[choice.label].median_us)


def _bound(choice: Choice, x: torch.Tensor) -> Thunk:
    return lambda: choice.call(x)


def _time_all(
    bench: Bench,
    case: CaseResult,
    rows: dict[str, Measurement],
    x: torch.Tensor,
    variants: Mapping[str, Variant],
) -> tuple[dict[str, Measurement], dict[str, float]]:
    """Times for all that passed, taken while nothing is compiled or chosen; and those of the empty launches.

    A variant that fails only now is a row that says so, and the others are timed without it.
    """
    calls = {name: _bound(timed.choice, x) for name, timed in bench.admitted.items()}
    while calls:
        try:
            times, hosts = _timed(bench, calls, _empties(bench, case))
            break
        except _FailedError as failed:
            for name in failed.of:
                rows = rows | {name: _failed(name, failed.error)}
                del calls[name], bench.admitted[name]
    else:
        return rows, {}
    empty_us = {
        name.removeprefix(EMPTY): times.pop(name).median_us for name in list(times) if name.startswith(EMPTY)
    }
    timed = {
        name: _row(
            rows[name],
            times[name],
            hosts.get(name),
            bench.limits.limit_us(case.compulsory_bytes, timed.plan, empty_us),
        )
        for name, timed in bench.admitted.items()
    }
    if bench.graphs and bench.device != "cpu":
        graphed = {name: call for name, call in calls.items() if variants[name].graphs}
        timed |= {name: _graphed(timed[name], call, times[name].median_us) for name, call in graphed.items()}
    return rows | timed, empty_us


class _FailedError(Exception):
    """These variants failed while times were taken."""

    def __init__(self, of: Sequence[str], error: Exception) -> None:
        super().__init__(str(error))
        self.of, self.error = of, error


def _timed(
    bench: Bench, calls: Mapping[str, Thunk], empties: Mapping[str, Thunk]
) -> tuple[dict[str, Quartiles], dict[str, float]]:
    """Times by the bench's clock, and the host's; an error says whose turn it was."""
    watched = None
    try:
        with traps.nothing_chosen() as watched:
            times = bench.stopwatch.time({**calls, **empties}, watched.turn)
            medians = {name: times[name].median_us for name in calls}
            most = {"batches": 15, "most": 500} if bench.host else {}
            hosts = timing.host_us(calls, bench.stopwatch.clock.finish, medians, turn=watched.turn, **most)
    except Exception as error:
        of = error.of if isinstance(error, traps.ChoiceError) else [watched.at_work] if watched else []
        if not of or not set(of) <= set(calls):
            raise
        raise _FailedError(of, error) from error
    return times, hosts


def _empties(bench: Bench, case: CaseResult) -> dict[str, Thunk]:
    """The chains of empty kernels that limits need, where a launch counts; already launched once by the run's limits."""
    if bench.device == "cpu" or case.floor_us > LAUNCH_COUNTS_BELOW_US:
        return {}
    plans = {chain_kind(timed.plan): timed.plan for timed in bench.admitted.values() if timed.plan.launches}
    for plan in plans.values():
        bench.limits.launch_us(plan)
    return {EMPTY + kind: bench.limits.empty_call(plan) for kind, plan in plans.items()}


def _row(row: Measurement, spread: Quartiles, host_us: float | None, limit_us: float) -> Measurement:
    fraction = limit_us / spread.median_us
    return replace(row, time_us=spread, host_us=host_us, limit_us=limit_us, fraction=fraction)


def _graphed(row: Measurement, call: Thunk, median_us: float) -> Measurement:
    """The row with its time in a CUDA graph, or with why it has none."""
    if median_us > LAUNCH_COUNTS_BELOW_US:
        return row
    try:
        return replace(row, graph_us=timing.graph_us(call, median_us))
    except Exception as error:
        said: Any = f"no graph: {type(error).__name__}"
        return replace(row, note="; ".join(filter(None, (row.note, said))))

"""A suite from its options to its result: choose cases, compile, measure the limits, measure the cases, write."""

from __future__ import annotations

import datetime
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

import tilefold
import tilefold.bench.machine as machine
from tilefold.bench import limits, timing
from tilefold.bench.cases import Case, Suite, Variant
from tilefold.bench.clocks import ClockWatch, clock_reader
from tilefold.bench.display import Display
from tilefold.bench.measure import Bench, blank_case, measure_case
from tilefold.bench.ours import OURS
from tilefold.bench.results import SCHEMA, Run, SuiteResult, writable_folder, write_results
from tilefold.bench.selection import Selection, asked_suite, selected
from tilefold.bench.timing import DeviceClock, HostClock, Pace, Stopwatch
from tilefold.bench.variants import peers_of, variants_of
from tilefold.bench.warm import LIMIT_S, NO_TIME_LEFT, Job, warm_caches

SAVED_EVERY_S = 5.0  # a killed run loses so much at most, beside the current case


@dataclass(frozen=True)
class Options(Selection):
    """The command line's options of a run. `against` None takes the suite's own peers, `variants` None all its own."""

    device: str = "cuda"
    against: tuple[str, ...] | None = None
    variants: tuple[str, ...] | None = None
    jobs: int = 0
    compile_s: float = LIMIT_S
    budget_s: float = 540.0
    pace: Pace = field(default_factory=Pace)
    graphs: bool = True
    flush: str = "write"
    out: Path = Path("bench-out")
    command: str = ""
    commit: str | None = None


@dataclass(frozen=True)
class Prepared:
    """A suite with a run's options, all names known and all peers looked for."""

    suite: Suite
    options: Options
    cases: Sequence[Case]
    variants: Sequence[Variant]
    versions: Mapping[str, str | None]


def prepared(suite: Suite, options: Options, display: Display) -> Prepared:
    """The work of a run of a suite.

    Raises:
        ArgumentError: the options fit no case, or name no peer.
        FileError: the folder of the files cannot be written.
    """
    cases = selected(suite, options)
    suite = asked_suite(suite, options)
    against = suite.against if options.against is None else options.against
    variants = variants_of(suite, against, options.variants)
    writable_folder(options.out)
    return Prepared(suite, options, cases, variants, peer_versions(against, display))


def run_suites(asked: Sequence[tuple[Suite, Options]], display: Display) -> Iterator[SuiteResult]:
    """Measure suites and write their files: every few seconds, at each one's end, and when they are interrupted.

    All are compiled ahead together. Each has its share of the time that is then left of the (first) budget, by its cases.

    Raises:
        ArgumentError: the options fit no case, or name no peer.
        FileError: the folder of the files cannot be written.
        KeyboardInterrupt: Ctrl-C; the cases that were done are in the files.
    """
    deadline = time.time() + asked[0][1].budget_s
    waiting = [prepared(suite, options, display) for suite, options in asked]
    unfit = warm(waiting, display, deadline)
    while waiting:
        share = len(waiting[0].cases) / sum(len(one.cases) for one in waiting)
        until = time.time() + share * (deadline - time.time())
        yield measure_suite(waiting.pop(0), unfit, until, display)


def measure_suite(
    asked: Prepared, unfit: Mapping[tuple[str, str, str], str], deadline: float, display: Display
) -> SuiteResult:
    """The limits, and then case after case until the deadline."""
    suite, options, cases = asked.suite, asked.options, asked.cases
    versions = dict(asked.versions)
    drawn = {"seed": options.seed, "count": options.count} if suite.drawn else {}
    missing = frozenset(name for name, version in versions.items() if version is None)
    ours = {(case, variant): why for (of, case, variant), why in unfit.items() if of == suite.name}
    bench = new_bench(suite, options, missing, ours)
    display.say(f"{suite.name}: {limits_in_words(bench)}")
    done = [blank_case(case, asked.variants, bench.limits.copy_gb_per_s) for case in cases]

    def keep(copy_again: float | None = None, *notes: str) -> SuiteResult:
        run = describe_run(bench, options, versions, copy_again, notes)
        run = replace(run, settings=run.settings | drawn)
        result = SuiteResult(SCHEMA, suite.name, (run,), tuple(done))
        write_results(result, options.out)
        return result

    saved_at, finished = time.monotonic(), 0
    try:
        for number, case in enumerate(cases):
            if time.time() > deadline:
                display.say(f"out of time: {len(cases) - number} cases not run")
                break
            done[number] = measure_case(bench, case, asked.variants)
            finished = number + 1
            display.measured(done[number], finished, len(cases))
            if time.monotonic() - saved_at > SAVED_EVERY_S:
                keep()
                saved_at = time.monotonic()
        display.say(f"{suite.name}: {spent_in_words(bench)}")
        return keep(*copy_once_more(bench))
    except KeyboardInterrupt:
        keep(None, f"interrupted after {finished} of {len(cases)} cases")
        display.say(f"interrupted: {finished} of {len(cases)} cases are in {options.out / suite.name}.json")
        raise


def peer_versions(against: Sequence[str], display: Display) -> dict[str, str | None]:
    """The peers' versions, None for one that is missing; each is said."""
    peers = peers_of(against)
    versions = {peer.name: peer.version for peer in peers}
    for peer in peers:
        display.say(f"peer {peer.name}: {versions[peer.name] or f'missing ({peer.trouble})'}")
    return versions


def limits_in_words(bench: Bench) -> str:
    """The copy's speed and the times of empty launches."""
    empties = ", ".join(f"{kind}: {us:.2f} us" for kind, us in bench.limits.empty_us.items())
    return f"copy {bench.limits.copy_gb_per_s:.0f} GB/s; empty launches {empties or 'none on a CPU'}"


def spent_in_words(bench: Bench) -> str:
    """The seconds of a suite's cases by stage, the longest first."""
    spent = sorted(bench.spent.items(), key=lambda item: -item[1])
    return "seconds of " + ", ".join(f"{what} {seconds:.0f}" for what, seconds in spent)


def copy_once_more(bench: Bench) -> tuple[float | None, str] | tuple[float]:
    """The copy's speed when all is done; or None and why: a variant that broke the device must not cost the run."""
    try:
        return (limits.copy_gb_per_s(bench.stopwatch, bench.device),)
    except Exception as error:
        return None, f"the copy could not be measured once more: {' '.join(str(error).split())[:200]}"


def warm(asked: Sequence[Prepared], display: Display, deadline: float) -> dict[tuple[str, str, str], str]:
    """Compile kernels that can be kept, in workers. At most 60 % of the budget goes to it, and 20 % to jobs in hand.

    It returns the suites, cases and variants that must not be compiled where they are timed, and why. A variant of
    tilefold's for which no time was left is: it costs a second.
    """
    options, start = asked[0].options, time.time()
    if not options.jobs or options.device == "cpu":
        return {}
    jobs = [job for one in asked for job in jobs_of(one, deadline - 0.4 * options.budget_s)]
    compiled = 0

    def told(done: int, trouble: str) -> None:
        nonlocal compiled
        compiled += not trouble
        if trouble and not trouble.endswith(NO_TIME_LEFT):
            display.say(f"not compiled ahead: {trouble}")
        display.warmed(done, len(jobs))

    unfit = warm_caches(jobs, options.jobs, told, 0.2 * options.budget_s, options.compile_s)
    display.say(
        f"compiled {compiled} of {len(jobs)} in {options.jobs} processes in {time.time() - start:.0f} s"
    )
    return {
        (job.suite, job.case, job.variant): why
        for job, why in unfit.items()
        if why != NO_TIME_LEFT or not job.variant.startswith(OURS.name)
    }


def jobs_of(asked: Prepared, until: float) -> list[Job]:
    """The jobs of a suite that are compiled ahead.

    Case after case: where time runs out the first cases have all they need, and cases with the same kernels are apart. What
    compiles longest comes first.
    """
    options = asked.options
    selection = Selection(**{f.name: getattr(options, f.name) for f in fields(Selection)})
    able = (v.name for v in asked.variants if v.warms and asked.versions.get(v.name, "there") is not None)
    names = sorted(able, key=lambda name: name != "compile")
    return [
        Job(asked.suite.name, case.name, name, options.device, until, selection)
        for case in asked.cases
        for name in names
    ]


def new_bench(
    suite: Suite,
    options: Options,
    missing: frozenset[str] = frozenset(),
    unfit: Mapping[tuple[str, str], str] | None = None,
) -> Bench:
    """The clock, and the limits measured by it. On a CPU host costs are those of one thread: more would wait."""
    if suite.host and options.device == "cpu":
        torch.set_num_threads(1)
    gpu = options.device != "cpu"
    if gpu:
        torch.cuda.set_device(
            torch.device(options.device).index or 0
        )  # events and streams belong to the current device
    stopwatch = Stopwatch(
        DeviceClock(options.device, clean=options.flush == "read") if gpu else HostClock(), options.pace
    )
    measured = limits.measure_limits(stopwatch, options.device)
    if gpu:
        torch.cuda.empty_cache()
    return Bench(
        options.device,
        stopwatch,
        measured,
        ClockWatch(clock_reader(options.device)),
        timing.l2_bytes(options.device),
        missing,
        options.graphs,
        suite.host,
        unfit or {},
    )


def describe_run(
    bench: Bench,
    options: Options,
    versions: dict[str, str | None],
    copy_again: float | None,
    notes_before: Sequence[str] = (),
) -> Run:
    """Where, when and how, for a reader who judges the figures or repeats them."""
    watch = bench.watch
    return Run(
        chip=machine.chip_name(options.device),
        driver=machine.driver_version(),
        torch=torch.__version__,
        triton=machine.version_of("triton"),
        python=sys.version.split()[0],
        tilefold=tilefold.__version__,
        commit=options.commit or machine.commit(),
        date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        command=options.command,
        copy_gb_per_s=bench.limits.copy_gb_per_s,
        copy_again_gb_per_s=copy_again,
        empty_us=dict(bench.limits.empty_us),
        peers=versions,
        settings=_settings(bench, options),
        clocks_mhz=(watch.lowest_mhz, watch.highest_mhz) if watch.highest_mhz else None,
        notes=(*notes_before, *_doubts(bench, copy_again)),
    )


def _settings(bench: Bench, options: Options) -> dict[str, Any]:
    """The options of a run that change figures."""
    flush_bytes = bench.stopwatch.clock.flush_bytes
    return {
        "warmup_ms": options.pace.warmup_ms,
        "repeat_ms": options.pace.repeat_ms,
        "size": options.size,
        "flush_bytes": flush_bytes,
        "flush": options.flush if flush_bytes else "none",
        "cache_bytes": bench.cache_bytes,
        "jobs": options.jobs,
        "threads": torch.get_num_threads(),
    }


def _doubts(bench: Bench, copy_again: float | None) -> list[str]:
    """Warnings for readers of the figures."""
    notes = []
    if copy_again and abs(copy_again / bench.limits.copy_gb_per_s - 1) > 0.03:
        notes.append(f"the copy ran at {copy_again:.0f} GB/s when all was done: the machine was not steady")
    if not bench.stopwatch.clock.flush_bytes:
        notes.append("caches were not flushed: an input that they can hold is marked as warm")
    if bench.device != "cpu" and not bench.watch.highest_mhz:
        notes.append("clocks could not be read")
    return notes


def default_jobs(device: str) -> int:
    """Workers that compile: all cores but two; none for a CPU's folds, which compile nothing."""
    return 0 if device == "cpu" else max(1, (os.cpu_count() or 2) - 2)

"""The launches of a script in one table, by what is at stake in all of them, and the configurations that a tuner tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilefold.errors import TilefoldError
from tilefold.xray.capture.launches import Captured, Launch, least_us, stake
from tilefold.xray.examine import examined
from tilefold.xray.render import words
from tilefold.xray.report.model import Report

COLUMNS = ("launch", "kernel", "line", "times", "grid", "executed", "at least", "at stake", "what")


@dataclass(frozen=True)
class Shown:
    """A distinct launch with its report, or why there is none."""

    launch: Launch
    report: Report | None
    said: str = ""

    @property
    def stake_us(self) -> float:
        """Microseconds at stake in all launches like it."""
        return 0.0 if self.report is None else stake(self.report) * self.launch.times


def by_stake(launches: Sequence[Launch], report: Callable[[Launch], Report]) -> list[Shown]:
    """Reports of launches, the costly ones first."""
    made = []
    for launch in launches:
        try:
            made.append(Shown(launch, report(launch)))
        except TilefoldError as error:  # noqa: PERF203 - a report costs a second
            made.append(Shown(launch, None, str(error)))
    return sorted(made, key=lambda shown: -shown.stake_us)


def rows(shown: Sequence[Shown]) -> Iterator[tuple[str, ...]]:
    """A row of the table for each distinct launch."""
    for one in shown:
        launch, report = one.launch, one.report
        place = launch.place.rpartition(":")
        least = "" if report is None else words.duration(least_us(report))
        loud = [] if report is None else [o for o in report.observations if o.severity != "note"]
        what = ", ".join(dict.fromkeys(o.code for o in loud)) or ("" if report else one.said)
        yield (
            str(launch.number), launch.kernel, f"{Path(place[0]).name}:{place[2]}", str(launch.times),
            "x".join(map(str, launch.job.grid)), "all" if launch.executed else f"{launch.programs}, then not",
            least, words.duration(one.stake_us) if one.stake_us else "", what,
        )  # fmt: skip


def heading(captured: Captured, kept: int) -> str:
    """How many launches there were, and how many are shown."""
    executed, n = sum(launch.executed for launch in captured.launches), len(captured.launches)
    reached = n + len(captured.refused)
    left = len(captured.distinct()) - kept
    return (
        f"{words.plural(reached, 'launch').replace('launchs', 'launches')} reached for {captured.target}, {n} captured, "
        f"{executed} executed; {len(captured.distinct())} distinct"
        + (f", {left} not shown here" if left else "")
    )


def tuned(launch: Launch) -> Iterator[tuple[str, ...]]:
    """The configurations that an autotuner tried: what each occupies, and its least time."""
    for tried in launch.tried:
        if tried.job is None:
            yield tried.settings, "not compiled, or too large", "", "", ""
            continue
        report = examined(tried.job, trials=False).report
        used = report.resources
        yield (
            tried.settings, str(used.registers), str(used.spilled), words.size(used.shared),
            words.duration(least_us(report)),
        )  # fmt: skip


TUNED = ("configuration", "registers", "bytes spilled", "shared memory", "at least")

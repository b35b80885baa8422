"""What was captured: launches, which of them are alike, and the report of each."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilefold.xray.compile.job import Job
from tilefold.xray.report.model import Report
from tilefold.xray.stages import Stages

if TYPE_CHECKING:
    from tilefold.xray.examine import Examined


@dataclass
class Tried:
    """A configuration of an autotuned kernel that was tried: what it sets, and its job (None where it does not compile)."""

    settings: str
    job: Job | None


@dataclass
class Launch:
    """One launch of a script.

    `job` has the kernel, its arguments with the values that they had, constants and grid; `place` is the line that launched.
    `executed` says that every program ran on the tensors; `why` says what came in between. `outside` tells of accesses to
    no tensor. `unknown_options` are options that Triton has on no CUDA target, as text. `tried` are an autotuner's
    configurations.
    """

    number: int
    kernel: str
    place: str
    job: Job
    executed: bool = False
    instructions: int = 0
    programs: int = 0
    why: str = ""
    outside: str = ""
    unknown_options: tuple[str, ...] = ()
    tried: tuple[Tried, ...] = ()
    times: int = 1
    seconds: float = 0.0

    @functools.cached_property
    def key(self) -> tuple[Any, ...]:
        """What launches that are alike have in common: all but the values of floats and of memory."""
        job = self.job
        shown = (str(a) if a.pointer or a.type[0] in "iun" else a.name for a in job.arguments)
        constants = tuple((n, repr(v)) for n, v in job.constants)
        return (
            job.name, id(job.kernel), tuple(shown), constants, job.grid, job.num_warps, job.num_stages, repr(job.options),
            job.cluster,
        )  # fmt: skip

    def report(self, *, trials: bool = True, run: bool = True, stages: Stages | None = None) -> Report:
        """The report of this launch, by the values that it was launched with.

        Raises:
            CompileError: the kernel does not compile.
        """
        return self.examined(trials=trials, run=run, stages=stages).report

    def examined(self, *, trials: bool = True, run: bool = True, stages: Stages | None = None) -> Examined:
        """The same with what the report was made from."""
        from tilefold.xray.examine import examined

        return examined(self.job, run=run, trials=trials, stages=stages)


@dataclass
class Captured:
    """All launches of a script, in their order; `refused` are launches that Triton did not compile, `notes` what a reader of
    the script's output must know."""

    target: str
    launches: list[Launch] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)

    def distinct(self) -> list[Launch]:
        """Launches no two of which are alike: the first of each kind, and how many there were as its `times`."""
        return [*self._firsts.values()]

    _firsts: dict[tuple[Any, ...], Launch] = field(default_factory=dict)

    def add(self, launch: Launch) -> bool:
        """Take a launch in; whether it is the first of its kind."""
        self.launches.append(launch)
        first = self._firsts.setdefault(launch.key, launch)
        if first is not launch:
            first.times += 1
        return first is launch


def stake(report: Report) -> float:
    """Microseconds at stake in a launch: of its errors and warnings together."""
    return sum(o.us_at_stake for o in report.observations if o.severity != "note")


def least_us(report: Report) -> float:
    """The least time of a launch, by the roofline; 0 where nothing was executed."""
    line = report.roofline
    return 0.0 if line is None else max(line.memory_us, line.l2_us, line.compute_us)

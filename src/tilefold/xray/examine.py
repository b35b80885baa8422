"""From a job to a report: compiled, executed, every line counted, observed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilefold.xray.compile import offline
from tilefold.xray.compile.job import Job
from tilefold.xray.evidence import gather
from tilefold.xray.execution import Program, chosen_programs
from tilefold.xray.observe.observe import observe
from tilefold.xray.report.build import build
from tilefold.xray.report.model import Report


def examine(job: Job, programs: Sequence[Program] | None = None, *, run: bool = True) -> Report:
    """Compile a job, execute programs of it (if `run`), and report.

    Raises:
        CompileError: the kernel does not compile.
        ArgumentError: a program outside the grid.
    """
    compiled = offline.compile_job(job)
    evidence, notes = gather(compiled, chosen_programs(job.grid, programs), run=run)
    report = build(evidence, notes)
    observations, more = observe(report, evidence)
    return replace(report, observations=observations, notes=(*report.notes, *more))

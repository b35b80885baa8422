"""From a job to a report: compiled, executed, every line counted, observed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilefold.xray.compile import offline
from tilefold.xray.compile.job import Compiled, Job
from tilefold.xray.evidence import Evidence, gather
from tilefold.xray.execution import Program, chosen_programs
from tilefold.xray.observe.observe import observe
from tilefold.xray.report.build import build
from tilefold.xray.report.model import Report
from tilefold.xray.stages import Stages

_UNTRIED = (
    "No trials were asked for: they alone show masked-rounds, races of reads and of boxes, loaded indices that wrap, what "
    "wrong-fill, narrow-sum and not-associative change in the results, and what widens a scalar-access."
)


@dataclass(frozen=True, eq=False)
class Examined:
    """A report, what it was made from, and for each of its observations the `variants` of the kernel that were tried."""

    report: Report
    evidence: Evidence
    variants: tuple[tuple[Compiled, ...], ...]


def examined(
    job: Job,
    programs: Sequence[Program] | None = None,
    *,
    run: bool = True,
    trials: bool = True,
    stages: Stages | None = None,
) -> Examined:
    """Compile a job, execute programs of it (if `run`), try changes (if `trials`), and report; `stages` follows along.

    Raises:
        CompileError: the kernel does not compile.
        ArgumentError: a program outside the grid.
    """
    stages = stages or Stages()
    with stages.stage("compiling"):
        compiled = offline.compile_job(job)
    evidence, notes = gather(compiled, chosen_programs(job.grid, programs), run=run, stages=stages)
    with stages.stage("counting"):
        report = build(evidence, notes)
    with stages.stage("observing"):
        observed = observe(report, evidence, stages if trials else None)
    untried = () if trials else (_UNTRIED,)
    said = (*report.notes, *observed.notes, *untried)
    return Examined(
        replace(report, observations=observed.observations, notes=said), evidence, observed.variants
    )

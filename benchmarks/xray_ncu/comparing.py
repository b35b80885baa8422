"""The X-ray over every program of each launch, beside the counters of a profile."""

from __future__ import annotations

import re
from typing import Any

from counters import QUANTITIES, Counters, agree, counters, launched, theirs
from launches import Fold, Launch, launches

from tilefold.planner.chips import chip_of
from tilefold.xray import Report
from tilefold.xray.compile.folds import fold_jobs
from tilefold.xray.compile.job import Job
from tilefold.xray.examine import examined
from tilefold.xray.explain import make_job
from tilefold.xray.machine import all_programs

TARGET = "sm_90"


def jobs(launch: Launch | Fold) -> list[tuple[str, Job]]:
    """What the X-ray compiles for a launch: of a fold one or two kernels."""
    if isinstance(launch, Fold):
        made = fold_jobs(launch.name, chip_of(TARGET))
        numbered = [f", launch {i + 1}" for i in range(len(made))] if len(made) > 1 else [""]
        return [(f"fold: {launch.name}{number}", job) for number, job in zip(numbered, made, strict=True)]
    given = {"num_warps": launch.num_warps, "num_stages": launch.num_stages, "target": TARGET}
    return [
        (launch.name, make_job(launch.kernel, launch.make(), launch.constants, grid=launch.grid, **given))
    ]


def compare(rows: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Every launch with its counts and the profile's."""
    all_jobs = [pair for launch in launches() for pair in jobs(launch)]
    # A kernel of the library goes by its name until it is compiled.
    kept = launched(rows, [(name, getattr(job.kernel, "__name__", job.kernel)) for name, job in all_jobs])
    return [one(name, job, row) for (name, job), row in zip(all_jobs, kept, strict=True)]


def one(name: str, job: Job, row: dict[str, str]) -> dict[str, Any]:
    """A launch with its counts and the profile's."""
    report = examined(job, all_programs(job.grid)).report
    _same_launch(name, report, row)
    return {
        "name": name, "kernel": row["Kernel Name"], "grid": list(job.grid), "num_warps": report.num_warps,
        "notes": list(report.notes), "counts": beside(report, counters(row)),
    }  # fmt: skip


def beside(report: Report, found: Counters) -> list[dict[str, Any]]:
    """Quantities that the profile holds and either side has any of."""
    counts = []
    for quantity in QUANTITIES:
        ours, other = quantity.ours(report), theirs(quantity, found)
        if ours is None or other is None or not (ours or other[1]):
            continue
        counts.append({"quantity": quantity.name, "counter": other[0], "xray": ours, "ncu": other[1],
                       "agrees": agree(ours, other[1])})  # fmt: skip
    return counts


def _same_launch(name: str, report: Report, row: dict[str, str]) -> None:
    """Both must have launched the same grid."""
    grid = tuple(int(n) for n in re.findall(r"\d+", row.get("Grid Size", "")))
    block = tuple(int(n) for n in re.findall(r"\d+", row.get("Block Size", "")))
    if (grid and grid != report.grid) or (block and block[0] != 32 * report.num_warps):
        raise SystemExit(
            f"xray_ncu: {name} must be launched as {report.grid} programs of {32 * report.num_warps} threads, "
            f"got {grid} of {block}"
        )
    if not report.executed:
        raise SystemExit(f"xray_ncu: {name} must be executed, got {report.notes}")

"""Launches of packages' wrappers as the table keeps them: captured by `tilefold.xray.capture`, each with its report."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import checkouts
import torch
import triton

from tilefold import xray
from tilefold.errors import CompileError
from tilefold.xray import Report
from tilefold.xray.capture.launches import Captured, Launch
from tilefold.xray.report.model import Observation

# Of the chip's, so that wrappers that spread work over cores launch eight programs, which a CPU can execute.
CORES = 8


class LateError(Exception):
    """A case that takes too long."""


@contextmanager
def captured() -> Iterator[Captured]:
    """Within, there is the chip; tensors are made on it, and what is launched is captured and executed."""
    os.environ["GEMS_VENDOR"] = "nvidia"  # FlagGems asks nvidia-smi otherwise
    with xray.capture("h200") as found, torch.device("cuda"):
        torch.cuda.get_device_properties().multi_processor_count = CORES
        triton.runtime.driver.active.utils.get_device_properties(0)["multiprocessor_count"] = CORES
        yield found


def records(found: Captured, *, notes: bool = False) -> list[dict[str, Any]]:
    """All launches of a capture, those that Triton refused too; their claims with notes if asked for."""
    reports = {launch.key: _report(launch) for launch in found.distinct()}
    made = [_record(launch, reports[launch.key], notes) for launch in found.launches]
    refused = (line.split(": ", 2) for line in found.refused)
    return [*made, *({**_EMPTY, "kernel": kernel, "error": said} for _, kernel, said in refused)]


def _report(launch: Launch) -> Report | None:
    try:
        return launch.report()
    except CompileError:
        return None


_EMPTY: dict[str, Any] = {
    "kernel": "", "grid": [], "num_warps": 4, "arguments": [], "constants": [], "reported": False, "executed": False,
    "observations": [], "claims": [], "instructions": 0, "seconds": 0.0, "unknown": "", "outside": "", "error": "",
}  # fmt: skip


def _record(launch: Launch, report: Report | None, notes: bool) -> dict[str, Any]:
    unknown = "must be known to be executed" in launch.why
    said = {} if report is None else {
        "arguments": list(report.arguments), "constants": list(report.constants), "observations": list(report.codes()),
        "claims": [claim(o) for o in report.observations if notes or o.severity != "note"],
    }  # fmt: skip
    return {
        **_EMPTY, "kernel": launch.kernel, "grid": list(launch.job.grid), "num_warps": launch.job.num_warps, **said,
        "reported": report is not None, "executed": launch.executed, "instructions": launch.instructions,
        "seconds": round(launch.seconds, 2), "unknown": launch.why if unknown else "", "outside": launch.outside,
        "error": "" if unknown else launch.why,
    }  # fmt: skip


def claim(found: Observation) -> dict[str, Any]:
    """An observation, without the line's text: that is another's."""
    return {
        "code": found.code, "severity": found.severity, "file": checkouts.place(found.file), "line": found.line,
        "also": [line for _, line in found.also], "evidence": found.evidence, "reason": found.reason, "change": found.change,
    }  # fmt: skip


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """An error if it takes longer."""

    def stop(*_: Any) -> None:
        raise LateError(f"not finished within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)

"""The machine and the software of a run: chip, driver, versions, commit."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch


def chip_name(device: str) -> str:
    """The GPU's name, or the CPU's model and how many threads torch uses."""
    if device != "cpu":
        return torch.cuda.get_device_name(device)
    return f"{_cpu_model()}, {torch.get_num_threads()} threads"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def driver_version() -> str | None:
    """The NVIDIA driver's version, or None without one."""
    return _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def commit() -> str | None:
    """The commit of the checkout that this package is part of, "+" behind it if files differ; None outside of one."""
    here = str(Path(__file__).parent)
    found = _output("git", "-C", here, "rev-parse", "--short=12", "HEAD")
    # An environment may lie in somebody else's checkout, whose commit says nothing of this package.
    if found is None or _output("git", "-C", here, "ls-files", Path(__file__).name) is None:
        return None
    return found + (
        "+" if _output("git", "-C", here, "status", "--porcelain", "--untracked-files=no") else ""
    )


def _output(*command: str) -> str | None:
    """The first line that a command prints, or None if it fails or is not there."""
    try:
        shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return shown.partition("\n")[0].strip() or None


def version_of(distribution: str) -> str | None:
    """An installed distribution's version, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None

"""nvcc, where it is: from CUDA C++ back to PTX."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from tilefold.errors import XrayError


def find_nvcc() -> str | None:
    """The path of nvcc, or None where there is none."""
    return shutil.which("nvcc")


def compile_ptx(source: str, target: str) -> str:
    """The PTX that nvcc makes of CUDA C++ for a target such as "sm_90a"; multiplications and additions are not fused.

    Raises:
        XrayError: there is no nvcc, or it refuses the source; its own words follow.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        raise XrayError(
            "cuda: nvcc must be on the PATH to check the translation, got none; install the CUDA toolkit"
        )
    with tempfile.TemporaryDirectory(prefix="tilefold-") as folder:
        path = Path(folder) / "kernel.cu"
        path.write_text(source, encoding="utf-8")
        command = [
            nvcc,
            f"-arch={target}",
            "-fmad=false",
            "-w",
            "-ptx",
            str(path),
            "-o",
            str(path.with_suffix(".ptx")),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise XrayError(f"cuda: nvcc must accept the translation, got {done.stderr.strip()[-2000:]}")
        return path.with_suffix(".ptx").read_text(encoding="utf-8")

"""Output of commands that cannot be written, or that nobody reads: one line at most, and never the exit code of a finding."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

ROOT = Path(__file__).parents[2]
OWN = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
}  # a child imports what this process does


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with a NaN."""
    path = tmp_path / "file.safetensors"
    save_file(
        {f"layer.{i}.weight": torch.tensor([[1.0, -3.0], [float("nan"), 4.0]]) for i in range(400)}, path
    )
    return path


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's device that is always full")
@pytest.mark.parametrize("options", [[], ["--json"]], ids=["table", "json"])
@pytest.mark.parametrize("buffering", ["", "1"], ids=["buffered", "unbuffered"])
def test_output_that_cannot_be_written_is_no_nan(file: Path, options: list[str], buffering: str) -> None:
    command = [sys.executable, "-m", "tilefold", "describe", str(file), *options]
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
            env={**OWN, "PYTHONUNBUFFERED": buffering},
        )  # fmt: skip
    assert result.returncode == 2
    assert re.match(r"tilefold: the output must be writable, got .*; make room", result.stderr)
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="pipes end otherwise here")
@pytest.mark.parametrize(
    "command",
    [
        ["tilefold", "describe", "FILE"],
        ["tilefold", "describe", "FILE", "--json"],
        ["tilefold", "plan", "16x16"],
        ["tilefold", "--help"],
        ["tilefold", "xray", "--help"],
        ["tilefold", "bench", "show", "RESULT"],
        ["tilefold.bench", "show", "RESULT"],
        ["tilefold.bench", "--dry-run"],
        ["tilefold.bench", "compare", "RESULT", "RESULT"],
        ["tilefold.bench", "--help"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("buffering", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_reader_that_reads_no_further_is_no_nan(file: Path, command: list[str], buffering: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    files = {"FILE": str(file), "RESULT": str(ROOT / "benchmarks" / "results" / "h200" / "host.json")}
    arguments = [files.get(argument, argument) for argument in command]
    try:
        result = subprocess.run(
            [sys.executable, "-m", *arguments], stdout=writer, stderr=subprocess.PIPE, check=False,
            env={**OWN, "PYTHONUNBUFFERED": buffering},
        )  # fmt: skip
    finally:
        os.close(writer)
    assert (result.returncode, result.stderr) == (-signal.SIGPIPE, b"")


@pytest.mark.skipif(os.name != "posix", reason="closes a descriptor as a shell does")
def test_an_output_that_is_closed_or_full_is_one_line() -> None:
    for redirect in (">&-", ">/dev/full"):
        for command in ("plan 4x5", "xray --help"):
            done = subprocess.run(
                ["sh", "-c", f"exec {sys.executable} -m tilefold {command} {redirect}"],
                stderr=subprocess.PIPE,
                env=OWN,
                text=True,
                check=False,
            )
            assert done.returncode == 2, (command, redirect)
            assert done.stderr.count("\n") == 1
            assert "the output must be" in done.stderr

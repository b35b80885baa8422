"""Run a command of `tilefold` in this process, and see what it printed and left as its exit code."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from unittest import mock

from tilefold import cli


@dataclass(frozen=True)
class Result:
    """What a command did."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def run(arguments: Sequence[str], **environment: str) -> Result:
    """`tilefold ARGUMENTS`, its streams no terminals."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.dict(os.environ, environment),
    ):
        code = cli.run(list(arguments))
    return Result(code, out.getvalue(), err.getvalue())

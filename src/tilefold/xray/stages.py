"""The current stage of an examination, and how long each stage took."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TextIO

from tilefold.cli.output import printable


class Stages:
    """Seconds and entries of each stage by its name; a stage within another one is not counted for that.

    With an `output` every change of stage is a line there, on a terminal always the same one, and `end` says where the
    seconds went.
    """

    def __init__(self, name: str = "", output: TextIO | None = None) -> None:
        self._name, self._output, self._here = name, output, output is not None and output.isatty()
        self._now, self._since, self._began = "", time.perf_counter(), time.perf_counter()
        self.seconds: dict[str, float] = {}
        self.entries: dict[str, int] = {}

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time within as this stage."""
        outer = self._now
        self._change(name)
        self.entries[name] = self.entries.get(name, 0) + 1
        self._say(f"{self._name}: {name}{self._times(name)} ({self._since - self._began:.1f} s)")
        try:
            yield
        finally:
            self._change(outer)

    def end(self) -> None:
        """Say the seconds of each stage, the longest first."""
        self._change("")
        ordered = sorted(self.seconds.items(), key=lambda item: -item[1])
        parts = [f"{name}{self._times(name)} {seconds:.1f}" for name, seconds in ordered if name]
        self._say(f"{self._name}: {self._since - self._began:.1f} s: {', '.join(parts)}", last=True)

    def _times(self, name: str) -> str:
        count = self.entries.get(name, 1)
        return f" x{count}" if count > 1 else ""

    def _change(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[self._now] = self.seconds.get(self._now, 0.0) + now - self._since
        self._now, self._since = name, now

    def _say(self, line: str, *, last: bool = False) -> None:
        if self._output is None:
            return
        before, after = ("\r\x1b[K", "\n" if last else "") if self._here else ("", "\n")
        self._output.write(f"{before}xray: {printable(line)}{after}")
        self._output.flush()

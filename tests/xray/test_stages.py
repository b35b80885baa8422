"""Where an examination's seconds go."""

from __future__ import annotations

import io
import time

from tilefold.xray.stages import Stages


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def used(output: io.StringIO | None) -> Stages:
    stages = Stages("kernel", output)
    with stages.stage("observing"):
        for _ in range(2):
            with stages.stage("trying"):
                time.sleep(0.01)
    stages.end()
    return stages


def test_a_stage_within_another_is_not_counted_for_that() -> None:
    stages = used(None)
    assert stages.entries == {"observing": 1, "trying": 2}
    assert stages.seconds["trying"] >= 0.02
    assert stages.seconds["observing"] < stages.seconds["trying"]


def test_a_file_gets_lines_and_a_terminal_one_that_changes() -> None:
    file, terminal = io.StringIO(), Terminal()
    used(file)
    used(terminal)
    lines = file.getvalue().splitlines()
    assert [line.rpartition(" (")[0] for line in lines[:-1]] == [
        "xray: kernel: observing",
        "xray: kernel: trying",
        "xray: kernel: trying x2",
    ]
    assert lines[-1].startswith("xray: kernel: 0.0 s: trying x2 0.0, observing 0.0")
    shown = terminal.getvalue()
    assert (shown.count("\n"), shown.count("\r\x1b[K"), shown[-1]) == (1, 4, "\n")

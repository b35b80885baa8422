"""What a run shows: a table, a bar and the time left in a terminal, lines in a pipe."""

from __future__ import annotations

import io

import pytest
from made import case_result, measurement
from rich.console import Console

from tilefold.bench import display


def test_a_terminal_gets_a_table_a_bar_and_the_time_left() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=140)
    shown = display.RichDisplay(console)
    shown.say("peer torch: 9")
    shown.warmed(1, 2)
    shown.measured(case_result(measurement(131.0), measurement(140.0, "torch")), 1, 2)
    shown.measured(case_result(measurement(9.5), shape=(4, 8)), 2, 2)
    shown.close()
    text = console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    for part in ("peer torch: 9", "getting ready", "measuring", "median us", "131.0", "left", "2/2", "0.980"):
        assert part in text


@pytest.mark.parametrize("width", [64, 80, 100, 160])
def test_a_narrow_terminal_gets_fewer_columns_and_whole_times(width: int) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    shown = display.RichDisplay(console)
    shown.measured(case_result(measurement(131.25), measurement(140.5, "a reducer, ReLU apart")), 1, 1)
    shown.close()
    last = console.file.getvalue().split("\x1b[2K")[-1].splitlines()  # type: ignore[attr-defined]  # a StringIO
    assert max(map(len, last)) <= width
    text = "\n".join(last)
    for part in ("sum dim1 1x2", "a reducer, ReLU apart", "median us", "131.2", "140.5"):
        assert part in text
    assert "…" not in text
    assert ("Not shown at this width" in text) == (width < 160)


def test_pipes_get_lines() -> None:
    assert isinstance(display.new_display(), display.PlainDisplay)
    assert display.left_text(125.9) == "2:05"

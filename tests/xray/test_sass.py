"""Machine code counted by line of source."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tilefold.xray.report.sass import count_by_line, local_by_line

TEXT = """\
        .section .text.kernel
        //## File "/k.py", line 3
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 IADD3 R2, R2, 0x1, RZ ;
        /*0020*/                   NOP ;
        //## File "/k.py", line 5
        /*0030*/              @UP1 UMOV UR4, URZ ;
        /*0040*/                   STL [R1], R2 ;
        //## File "/x/site-packages/triton/standard.py", line 9
        /*0050*/                   LDL R3, [R1] ;
        /*0060*/                   FADD R3, R3, R3 ;
        //## File "/x/site-packages/triton/standard.py", line 11
        /*0070*/                   FMUL R3, R3, R3 ;
        /*0080*/                   BRA 0x80 ;
        /*0090*/                   NOP ;
"""


def lines(callers: dict[tuple[str, int], list[tuple[str, int]]]) -> tuple[Any, Any]:
    """Instructions of the PTX by the innermost line, and the line that each is shown at."""
    made = tuple((place, shown) for place, several in callers.items() for shown in several)
    return made, SimpleNamespace(place=lambda one: (one[0],), line=lambda one: one[1])


def test_instructions_by_the_line_they_are_shown_at() -> None:
    """Padding counts for nothing. A line of Triton's is its caller's, of no line where it has several."""
    inner = ("/x/site-packages/triton/standard.py", 9)
    instructions, known = lines({inner: [("/k.py", 7)]})
    found = count_by_line(TEXT, instructions, known)
    assert found == {("/k.py", 3): 2, ("/k.py", 5): 2, ("/k.py", 7): 2, ("", 0): 2}
    instructions, known = lines({inner: [("/k.py", 7), ("/k.py", 8)]})
    assert count_by_line(TEXT, instructions, known) == {("/k.py", 3): 2, ("/k.py", 5): 2, ("", 0): 4}


def test_spilled_registers_by_line() -> None:
    instructions, known = lines({("/x/site-packages/triton/standard.py", 9): [("/k.py", 7)]})
    assert local_by_line(TEXT, instructions, known) == {("/k.py", 5): 1, ("/k.py", 7): 1}

"""What the debug information of a PTX says of its lines."""

from __future__ import annotations

from tilefold.xray.cuda.readable.source_names import places, waits

FILES = '.file 1 "/a/mine.py"\n.file 2 "/b/standard.py"\n'


def found(text: str) -> list[tuple[int, ...]]:
    made = places(FILES + text)
    return [made[n][:3] for n in range(3, 3 + len(text.splitlines()))]


def test_the_outermost_call_of_a_comment() -> None:
    text = ".loc 2 9 4 // standard.py:9:4 @[ standard.py:20:8 @[ mine.py:7:12 ] ]\nadd;\n.loc 1 8 2\nadd;"
    assert found(text) == [(1, 7, 12), (1, 7, 12), (1, 8, 2), (1, 8, 2)]


def test_the_outermost_call_of_inlined_at() -> None:
    """A call's own place says in its turn where it was inlined."""
    text = """\
.loc 1 7 12
.loc 2 20 8, function_name $L__info_string0, inlined_at 1 7 12 // standard.py:20:8
.loc 2 9 4, function_name $L__info_string1, inlined_at 2 20 8 // standard.py:9:4
add;
.loc 1 8 2 // mine.py:8:2"""
    assert found(text) == [(1, 7, 12)] * 4 + [(1, 8, 2)]


def test_places_without_a_line_change_nothing() -> None:
    assert found(".loc 1 7 12\n.loc 1 0 0\nadd;") == [(1, 7, 12)] * 3


def test_registers_that_are_waited_for() -> None:
    text = "// begin inline asm\n// wait for regs: %r1,%r12\n\n\twgmma.wait_group.sync.aligned 0;\nadd;"
    assert waits(text) == {4: ("%r1", "%r12")}

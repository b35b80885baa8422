"""Machine code counted by line of source."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from tilefold.xray.ptx.parser import path_of
from tilefold.xray.ptx.syntax import Instruction
from tilefold.xray.report.static import Lines, is_tritons

PLACE = re.compile(r'^\s*//## File "((?:[^"\\]|\\.)*)", line (\d+)')
_CODE = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*)")
_PADDING = ("NOP",)


def count_by_line(
    text: str, instructions: tuple[Instruction, ...], lines: Lines
) -> dict[tuple[str, int], int]:
    """Instructions of the machine code by the line they are shown at; ("", 0) where none is known.

    The disassembler names only the innermost line. Where that is Triton's own, the PTX tells who called it, unless
    several lines did.
    """
    return _counted(text, instructions, lines, lambda code: code not in _PADDING)


def local_by_line(
    text: str, instructions: tuple[Instruction, ...], lines: Lines
) -> dict[tuple[str, int], int]:
    """Loads and stores of local memory by line: where spilled registers are written and read."""
    return _counted(text, instructions, lines, lambda code: code in ("LDL", "STL"))


def _counted(
    text: str, instructions: tuple[Instruction, ...], lines: Lines, wanted: Callable[[str], bool]
) -> dict[tuple[str, int], int]:
    return dict(Counter(place for _, code, place in placed(text, instructions, lines) if wanted(code)))


def placed(
    text: str, instructions: tuple[Instruction, ...], lines: Lines
) -> Iterator[tuple[int, str, tuple[str, int]]]:
    """Each row of the text that is an instruction (from 0), its opcode and the line that it is shown at."""
    callers: dict[tuple[str, int], set[tuple[str, int]]] = defaultdict(set)
    for instruction in instructions:
        place, shown = lines.place(instruction), lines.line(instruction)
        if place and shown is not None:
            callers[place[0]].add(shown)
    current = ("", 0)
    for number, row in enumerate(text.splitlines()):
        if found := PLACE.match(row):
            current = (path_of(found[1]), int(found[2]))
        elif code := _CODE.match(row):
            yield number, code[1], _shown(current, callers)


def _shown(place: tuple[str, int], callers: dict[tuple[str, int], set[tuple[str, int]]]) -> tuple[str, int]:
    known = callers.get(place, set())
    if len(known) == 1:
        return next(iter(known))
    return ("", 0) if is_tritons(place[0]) or not place[1] else place

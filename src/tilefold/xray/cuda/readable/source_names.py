"""What the kernel's source calls its values and places, from the comments of the PTX and from Triton's GPU IR."""

from __future__ import annotations

import re
from pathlib import Path

from tilefold.xray.cuda.readable.values import Place
from tilefold.xray.ptx.parser import path_of

_FILE = re.compile(r'^\s*\.file\s+(\d+) "(.+)"$', re.M)
_LOCATED = re.compile(r"\s*\.loc\s+\d")
_NUMBERS = re.compile(r"(?:\.loc|inlined_at)\s+(\d+)\s+(\d+)\s+(\d+)")
_CHAIN = re.compile(r"(?:^|@\[)\s*(.+?):(\d+):(\d+)")
_LOC = re.compile(r"^(#loc\d*) = loc\((.*)\)$", re.M)
_NAMED = re.compile(r'"([A-Za-z_]\w*)"\((#loc\d*)\)')
_VALUE = re.compile(r'%([A-Za-z]\w*?)(?:_\d+)?(?::\d+)? = "?([\w.]+).* : (.*?) loc\(')
_FLOATS = ("float", "double", "__half", "__nv_bfloat16")
_PLACED = re.compile(r'"[^"]*":(\d+):(\d+)')


def places(ptx: str) -> dict[int, Place]:
    """The place of the user's source for each line of a PTX: of calls that were inlined the outermost.

    Triton writes these calls into the comment of `.loc` alone; newer versions write the call around as `inlined_at`.
    """
    files = {Path(path_of(path)).name: int(number) for number, path in _FILE.findall(ptx)}
    found: dict[int, Place] = {}
    calls: dict[Place, Place] = {}  # where the outermost call of a place is that was seen last
    now: Place | None = None
    for number, row in enumerate(ptx.split("\n"), start=1):
        if _LOCATED.match(row):
            written, _, comment = row.partition("//")
            (file, line, column), *around = _NUMBERS.findall(written)
            own = int(file), int(line), int(column)
            chain = _CHAIN.findall(comment)
            if around:
                call = tuple(map(int, around[-1]))
                calls[own] = own = calls.get(call, call)  # type: ignore[arg-type]  # three numbers
            elif chain:
                own = (files.get(chain[-1][0], 1), int(chain[-1][1]), int(chain[-1][2]))
            else:
                calls.pop(own, None)
            if own[1]:
                now = own
        if now is not None:
            found[number] = now
    return found


def waits(ptx: str) -> dict[int, tuple[str, ...]]:
    """The registers that Triton says, in a comment, are waited for by the instruction on the next line that is none."""
    found: dict[int, tuple[str, ...]] = {}
    now: tuple[str, ...] = ()
    for number, row in enumerate(ptx.split("\n"), start=1):
        words = row.strip()
        if words.startswith("// wait for regs:"):
            now = tuple(re.findall(r"%\w+", words))
        elif now and words and not words.startswith("//"):
            found[number], now = now, ()
    return found


class Names:
    """Names by line and column, as the locations of Triton's GPU IR give them, and what kinds of values have each."""

    def __init__(self, ttgir: str) -> None:
        texts = dict(_LOC.findall(ttgir))
        self._at: dict[tuple[int, int], str] = {}
        for body in texts.values():
            named = _NAMED.fullmatch(body)
            placed = _PLACED.fullmatch(texts.get(named[2], "")) if named else None
            if named and placed:
                self._at[int(placed[1]), int(placed[2])] = named[1]
        self._kinds: dict[str, set[str]] = {}
        for name, operation, types in _VALUE.findall(ttgir):
            self._kinds.setdefault(name, set()).add(_kind(operation, types.rsplit("->", 1)[-1]))

    def at(self, place: Place, kind: str) -> str | None:
        """The name of what is at a place, where values of a C++ type may have it.

        "program" stands for the number of a program: a name that is used at one place alone.
        """
        found = self._at.get(place[1:])
        if found is None:
            return None
        if kind == "program":
            return found if list(self._at.values()).count(found) == 1 else None
        asked = "float" if kind in _FLOATS else "bool" if kind == "bool" else "int"
        return found if asked in self._kinds.get(found, {asked}) else None


def _kind(operation: str, last: str) -> str:
    if "cmp" in operation:
        return "bool"
    if "ptr" in last:
        return "pointer"
    return "float" if re.search(r"b?f\d+", last) else "bool" if re.search(r"(x|\b)i1\b", last) else "int"

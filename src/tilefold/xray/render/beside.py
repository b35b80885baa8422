"""Two texts side by side, the lines that both have in one row."""

from __future__ import annotations

import difflib
import itertools
import shutil
from collections.abc import Iterator, Sequence

LEAST = 40  # columns of each text


def beside(first: Sequence[str], second: Sequence[str], width: int | None = None) -> Iterator[str]:
    """A row for each line, with a sign between: "|" where both differ, "<" or ">" where only the first or second has one.

    What does not fit into half of a terminal's width goes on in the next row.
    """
    half = max(((width or shutil.get_terminal_size((160, 24)).columns) - 3) // 2, LEAST)
    matcher = difflib.SequenceMatcher(None, [x.strip() for x in first], [x.strip() for x in second], False)
    for tag, a, b, c, d in matcher.get_opcodes():
        sign = {"equal": " ", "replace": "|", "delete": "<", "insert": ">"}[tag]
        for left, right in itertools.zip_longest(first[a:b], second[c:d]):
            mark = sign if left is not None and right is not None else "<" if right is None else ">"
            for one, other in itertools.zip_longest(_cut(left, half), _cut(right, half), fillvalue=""):
                yield f"{one:{half}} {mark} {other}".rstrip()


def _cut(line: str | None, half: int) -> list[str]:
    line = line or ""
    return [line[k : k + half] for k in range(0, max(len(line), 1), half)]

"""The source that a report's lines are of: whole functions, file by file."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Sequence
from pathlib import Path

from tilefold.xray.page.texts import Keys, Place, Row, python_rows

_AROUND = 2  # lines around one that stands in no function


def source_files(places: Iterable[Place], keys: Keys, texts: dict[Place, str]) -> list[tuple[str, list[Row]]]:
    """Each file's name and rows: the functions around its lines, a row of number 0 where lines are left out.

    `texts` are the report's own of each line, for files that are gone.
    """
    by_file: dict[str, list[int]] = {}
    for file, line in places:
        by_file.setdefault(file, []).append(line)
    return [(Path(file).name, _rows(file, lines, keys, texts)) for file, lines in by_file.items()]


def _rows(file: str, lines: Sequence[int], keys: Keys, texts: dict[Place, str]) -> list[Row]:
    held, wanted, found = linecache.getlines(file), set(lines), list[Row]()
    for first, last in _spans(held, lines) if held else [(n, n) for n in sorted(wanted)]:
        found += [(0, -1, "", "")] if found else []
        numbers = range(first, last + 1)
        rows = [
            (n, keys.of((file, n)) if n in wanted else -1, _line(held, n) or texts.get((file, n), ""))
            for n in numbers
        ]
        found += python_rows(rows)
    return found


def _line(held: Sequence[str], number: int) -> str:
    return held[number - 1].rstrip().expandtabs(4) if 0 < number <= len(held) else ""


def _spans(held: Sequence[str], lines: Sequence[int]) -> list[tuple[int, int]]:
    """First and last lines of the functions around some lines, in order; none overlaps another."""
    functions = _functions("".join(held))
    spans = sorted({_around(line, functions, len(held)) for line in lines})
    joined = spans[:1]
    for first, last in spans[1:]:
        if first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return joined


def _around(line: int, functions: Sequence[tuple[int, int]], length: int) -> tuple[int, int]:
    """The outermost function that a line is in, or a few lines."""
    holding = [span for span in functions if span[0] <= line <= span[1]]
    few = max(line - _AROUND, 1), min(line + _AROUND, max(length, line))
    return min(holding, default=few)


def _functions(text: str) -> list[tuple[int, int]]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    begins = [min([n.lineno, *(d.lineno for d in n.decorator_list)]) for n in found]
    return [(first, node.end_lineno or first) for first, node in zip(begins, found, strict=True)]

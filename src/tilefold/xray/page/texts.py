"""Rows of a text: its number, the line of source that it comes from, the text and its colours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from tilefold.xray.evidence import Evidence
from tilefold.xray.ir import Function
from tilefold.xray.ir.reader import path_of
from tilefold.xray.report.sass import placed
from tilefold.xray.report.static import line_of

Place = tuple[str, int]
# Number of the row in its text (0: none), number of its line among the keys (-1: none), text, colours.
Row = tuple[int, int, str, str]
_IR = re.compile(
    r'(?P<s>"[^"\n]*")|(?P<c>//.*)|(?P<r>%[\w.$#-]+)|(?P<t>[#!][\w.]+|tensor|memdesc)|(?P<f>\b[a-z]\w*\.[\w.]+)|'
    r"(?P<n>\b\d[\w.+-]*)"
)
_LOCATION = re.compile(r' ?loc\((?:"[^"]*"|[^()"]|\((?:"[^"]*"|[^()"]|\([^()]*\))*\))*\)')
# A value or an abbreviation: its name without its number.
_VALUE = re.compile(r"([%#][A-Za-z]*(?:_[A-Za-z]+)*)[\w$.]*")
_VARIABLE = re.compile(r"(?:scf\.for |[(,] ?)(%[\w$.]+)(?= =|:)")
_HEADING = re.compile(r"\s*// (\d+): (.*)")
_METADATA = re.compile(r"^!(\d+) = (?:distinct )?!DI\w+\((.*)\)", re.MULTILINE)
_FIELD = re.compile(r'(\w+): ("(?:[^"\\]|\\.)*"|[!\w-]+)')
_DEBUG = re.compile(r",? !dbg (!\d+)")
_LLVM_NOISE = ("!", "; ", "source_filename", "target ", "attributes ", "declare ", "  #dbg_")
_SASS_NOISE = re.compile(r"\s*(?:/\*[0-9a-f]{4,}\*/\s+NOP;|//##|\.(?:section|align|headerflags|elftype))")


class Keys:
    """Lines of source by number, in the order in which they are asked for; those of Triton's own files have none."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self._numbers: dict[Place, int] = {}

    def of(self, place: Place | None) -> int:
        """The number of a line; -1 of none."""
        if place is None or not place[1]:
            return -1
        if place not in self._numbers:
            self._numbers[place] = len(self.places)
            self.places.append(place)
        return self._numbers[place]


def ir_rows(text: str, function: Function, keys: Keys) -> list[Row]:
    """TTIR or TTGIR without the locations, which the rows' lines stand for."""
    places = {operation.row: line_of(operation.place) for operation in function.walk()}
    return [
        (n + 1, keys.of(places.get(n)), bare, ir_colours(bare))
        for n, row in enumerate(text.splitlines())
        if not row.startswith("#loc") and (bare := without_location(row))
    ]


def without_location(row: str) -> str:
    """A row of MLIR without what says where it comes from."""
    return _LOCATION.sub("", row).rstrip()


def llvm_rows(text: str, keys: Keys) -> list[Row]:
    """LLVM's IR of the kernel and of functions that it calls, without declarations and what only names lines."""
    data = {f"!{n}": dict(_FIELD.findall(said)) for n, said in _METADATA.findall(text)}
    found = [
        (n + 1, keys.of(line_of(_located(data, at[1]))) if (at := _DEBUG.search(row)) else -1, _DEBUG.sub("", row))
        for n, row in enumerate(text.splitlines()) if row and not row.startswith(_LLVM_NOISE)
    ]  # fmt: skip
    return _coloured(found, "llvm")


def _located(data: Mapping[str, Mapping[str, str]], name: str) -> tuple[Place, ...]:
    """The place that an entry of LLVM's metadata stands for, then those that it was inlined at."""
    found: list[Place] = []
    while entry := data.get(name):
        file = data.get(data.get(entry.get("scope", ""), {}).get("file", ""), {})
        if "line" in entry and file:
            path = Path(file.get("directory", "")[1:-1], file["filename"][1:-1])
            found.append((path_of(str(path)), int(entry["line"])))
        name = entry.get("inlinedAt", "")
    return tuple(found)


def ptx_rows(evidence: Evidence, keys: Keys) -> list[Row]:
    """The kernel's PTX without the rows that only say where others come from, and without debug sections."""
    rows = evidence.compiled.ptx.splitlines()
    places = {i.line - 1: evidence.places.line(i) for i in evidence.entry.instructions}
    ended = next(
        (n for n, row in enumerate(rows) if row.startswith(("\t.section", "\t.file"))),
        len(rows),
    )
    kept = [
        n for n, row in enumerate(rows[:ended])
        if row.strip() and not row.lstrip().startswith((".loc", "$L__tmp", "$L__func", "//"))
    ]  # fmt: skip
    found = [(n + 1, keys.of(places.get(n)), _bare(rows[n])) for n in kept]
    return _coloured(found, "ptx")


def sass_rows(evidence: Evidence, keys: Keys) -> list[Row]:
    """The machine code's instructions and labels."""
    places = {
        n: place
        for n, _, place in placed(evidence.machine.code, evidence.entry.instructions, evidence.places)
    }
    rows = enumerate(evidence.machine.code.splitlines())
    labels = re.compile(r"\.L_x_\d+:")
    found = [
        (n + 1, keys.of(places.get(n)), re.sub(r"^\s*/\*([0-9a-f]+)\*/\s*", r"\1  ", row).rstrip(" ;"))
        for n, row in rows if (n in places or labels.match(row)) and not _SASS_NOISE.match(row)
    ]  # fmt: skip
    return [(n, key, row, _sass_colours(row)) for n, key, row in found]


def cuda_rows(text: str, lines: Mapping[Place, str], keys: Keys) -> list[Row]:
    """CUDA C++, whose comments name the lines of source that the rows behind them come from."""
    by_line = {(line, said): (file, line) for (file, line), said in lines.items()}
    key, found = -1, []
    for number, row in enumerate(text.splitlines(), start=1):
        if heading := _HEADING.fullmatch(row):
            key = keys.of(by_line.get((int(heading[1]), heading[2].strip())))
        elif not row.startswith(" "):
            key = -1
        found.append((number, key, row))
    return _coloured(found, "cuda")


def python_rows(rows: Sequence[tuple[int, int, str]]) -> list[Row]:
    """Lines of source."""
    return _coloured(rows, "python")


def _bare(row: str) -> str:
    return row.expandtabs(4).rstrip()


def _coloured(rows: Sequence[tuple[int, int, str]], language: str) -> list[Row]:
    """Rows with the colours that pygments gives their words."""
    colours = _colours([text for _, _, text in rows], language)
    return [(number, key, text, said) for (number, key, text), said in zip(rows, colours, strict=True)]


def _colours(rows: Sequence[str], language: str) -> list[str]:
    from pygments.lexers import get_lexer_by_name

    whole = "\n".join(rows) + "\n"
    tokens = list(get_lexer_by_name(language, stripnl=False, ensurenl=False).get_tokens(whole))
    if "".join(text for _, text in tokens) != whole:  # pygments knows only one kind of line's end
        return [""] * len(rows)
    found: list[list[tuple[str, int]]] = [[]]
    for kind, text in tokens:
        first, *more = text.split("\n")
        found[-1].append((_class_of(kind), len(first)))
        found += [[(_class_of(kind), len(part))] for part in more]
    return [_runs(parts) for parts in found[:-1]]


def _class_of(kind: Any) -> str:
    """One letter for a kind of token: keyword, string, comment, number, function, register; "." for all others."""
    from pygments.token import Comment, Keyword, Name, Number, Operator, String

    kinds = (
        (Comment, "c"), (String, "s"), (Number, "n"), (Keyword.Type, "t"), (Keyword, "k"), (Operator.Word, "k"),
        (Name.Function, "f"), (Name.Decorator, "f"), (Name.Variable, "r"), (Name.Builtin, "t"),
    )  # fmt: skip
    return next((letter for whole, letter in kinds if kind in whole), ".")


def ir_colours(row: str) -> str:
    """Colours of a row of MLIR, for which pygments has no lexer."""
    parts, at = list[tuple[str, int]](), 0
    for found in _IR.finditer(row):
        parts += [(".", found.start() - at), (found.lastgroup or ".", found.end() - found.start())]
        at = found.end()
    return _runs(parts)


def _sass_colours(row: str) -> str:
    found = re.match(r"([0-9a-f]{4,}  )?(@!?U?P\w+\s+)?(\S+)", row)
    if found is None or found[1] is None:
        return f"f{len(row)}"
    return _runs([("c", len(found[1])), ("r", len(found[2] or "")), ("k", len(found[3]))])


def _runs(parts: Sequence[tuple[str, int]]) -> str:
    """Letters, each with how many characters it is for: "k3.1f6"; what has no colour at the end is left out."""
    groups = [
        (letter, sum(n for _, n in same))
        for letter, same in groupby(filter(_long, parts), lambda part: part[0])
    ]
    while groups and groups[-1][0] == ".":
        groups.pop()
    return "".join(f"{letter}{n}" for letter, n in groups)


def _long(part: tuple[str, int]) -> bool:
    return part[1] > 0


def changed_rows(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Rows of both, in order: " " in both, "-" in the first alone, "+" in the second alone, with their places (-1: none)."""
    from difflib import SequenceMatcher

    for tag, a, b, c, d in SequenceMatcher(None, before, after, False).get_opcodes():
        if tag == "equal":
            yield from ((" ", i, j) for i, j in zip(range(a, b), range(c, d), strict=True))
        else:
            yield from (("-", i, -1) for i in range(a, b))
            yield from (("+", -1, j) for j in range(c, d))


def plain_ir(rows: Sequence[str]) -> list[str]:
    """Rows of MLIR without what tells no rows apart: numbers of values and of abbreviations, and names of variables of loops,
    which a text that is read again loses."""
    heads = [row for row in rows if "scf." in row or row.lstrip().startswith("^")]
    variables = {name for row in heads for name in _VARIABLE.findall(row)}

    def plain(found: re.Match[str]) -> str:
        return "%" if found[0] in variables else found[1]

    return [_VALUE.sub(plain, row) for row in rows]


def near_changes(marks: Sequence[str], context: int = 3) -> list[bool]:
    """Whether each row is near one that changed."""
    changed = [n for n, mark in enumerate(marks) if mark != " "]
    shown = {m for n in changed for m in range(n - context, n + context + 1)}
    return [n in shown for n in range(len(marks))]

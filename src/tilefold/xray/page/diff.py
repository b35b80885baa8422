"""Two kernels side by side as one value: figures, lines, observations, and the texts where both are there.

A report that `--json` wrote has no texts but its lines; a page that `--html` wrote has all that it shows, so kernels of
different versions of Triton are compared by their pages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilefold.errors import ArgumentError
from tilefold.xray.page.texts import Row, changed_rows, near_changes, plain_ir
from tilefold.xray.render import words
from tilefold.xray.render.summary import cell, changed_lines, differs, figures
from tilefold.xray.report.model import Report, from_json

_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)
# What differs from compilation to compilation although nothing does: numbers of registers, values, labels and addresses.
_NUMBERS = {
    "LLVM": re.compile(r"()%\w+|()\b\d+(?=:)"),
    "PTX": re.compile(r"(%[a-z]+|\$L__[A-Za-z]+|_param_)\d+(?:_\d+)?"),
    "SASS": re.compile(r"(\bU?[RP]|\.L_x_|^)(?:[0-9a-f]+(?=  )|\d+\b)"),
}
Document = Mapping[str, Any]


def read_page(path: Path) -> list[Document]:
    """The document of a page that `--html` wrote.

    Raises:
        ArgumentError: the file cannot be read, or is no such page.
    """
    try:
        found = _DATA.search(path.read_text(encoding="utf-8"))
        document: Document = json.loads(found[1] if found else "{}")
        from_json(document["report"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        beside = sorted(path.parent.glob(f"{path.stem}.*{path.suffix}"), key=lambda p: (len(p.name), p.name))
        pages = [
            p.name for p in beside if re.fullmatch(r"\d+", p.name[len(path.stem) + 1 : -len(path.suffix)])
        ]
        got = "a page of a run" if pages else type(error).__name__
        instead = f"take one of {', '.join(pages[:4])}" if pages else f"write one with --html {path.name}"
        raise ArgumentError(
            f"xray: a page to compare must be one that --html wrote for a kernel, got {str(path)!r} ({got}); {instead}"
        ) from None
    return [document]


def diff_document(first: Document, second: Document) -> Document:
    """What a comparison shows of two documents, each with a `report`, and `texts` and `files` where it is of a page."""
    a, b = from_json(first["report"]), from_json(second["report"])
    left, right = figures(a), figures(b)
    sources = [
        [row for file in document.get("files", ()) for row in file["rows"]] for document in (first, second)
    ]
    texts: list[tuple[str, Sequence[Row], Sequence[Row]]] = (
        [("Source", sources[0], sources[1])] if all(sources) else []
    )
    others = {text["name"]: text["rows"] for text in second.get("texts", ())}
    texts += [
        (text["name"], text["rows"], others[text["name"]])
        for text in first.get("texts", ())
        if text["name"] in others
    ]
    pairs = {name: (left.get(name), right.get(name)) for name in {**left, **right}}
    return {
        "sides": [_side("A", a), _side("B", b)],
        "same": not differs(a, b),
        "figures": [_figure(name, *pair) for name, pair in pairs.items() if any(pair)],
        "lines": changed_lines(a, b),
        "observations": [*_only("A", a, b), *_only("B", b, a)],
        "texts": [_text(*text) for text in texts],
    }


def _side(name: str, report: Report) -> dict[str, Any]:
    said = [*report.arguments, *report.constants]
    return {"name": name, "kernel": report.kernel, "launch": words.launch(report), "said": said}


def _figure(name: str, a: float | None, b: float | None) -> tuple[str, str, str, str]:
    ratio = f"{b / a:.2f}" if a and b is not None else ""
    return name, cell(a), cell(b), "" if ratio == "1.00" else ratio


def _only(name: str, mine: Report, other: Report) -> list[tuple[str, str, str, str]]:
    found = [o for o in mine.observations if o.code not in other.codes()]
    return [(name, o.severity, o.code, f"{words.place(o)}: {o.evidence}") for o in found]


def _plain(name: str, rows: Sequence[str]) -> Sequence[str]:
    if name.startswith("TT"):
        return plain_ir(rows)
    return [_NUMBERS[name].sub(r"\1", row) for row in rows] if name in _NUMBERS else rows


def _text(name: str, first: Sequence[Row], second: Sequence[Row]) -> dict[str, Any]:
    """Rows near those that differ: mark, text; a row without a mark where some are left out."""
    sides = [[row[2] for row in rows] for rows in (first, second)]
    marked = list(changed_rows(*(_plain(name, side) for side in sides)))
    marks = [mark for mark, *_ in marked]
    shown: list[tuple[str, str]] = []
    for (mark, i, j), near in zip(marked, near_changes(marks), strict=True):
        if near:
            shown.append((mark, sides[1][j] if mark == "+" else sides[0][i]))
        elif not shown or shown[-1][0]:
            shown.append(("", ""))
    return {
        "name": name,
        "added": marks.count("+"),
        "gone": marks.count("-"),
        "rows": shown if any(m != " " for m in marks) else [],
    }

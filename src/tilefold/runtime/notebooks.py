"""Values as a notebook shows them: tables of HTML, in which all text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_CELL = 'style="text-align:left;vertical-align:top"'


def table(title: str, rows: Iterable[Sequence[object]], head: Sequence[str] = ()) -> str:
    """A table with a title; the first cell of each row names the row.

    >>> print(table("<sum>", []))
    <table><caption>&lt;sum&gt;</caption><tbody></tbody></table>
    """
    heads = "".join(f"<th {_CELL}>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{_row(row)}</tr>" for row in rows)
    shown = f"<thead><tr>{heads}</tr></thead>" if heads else ""
    return f"<table><caption>{escape(title)}</caption>{shown}<tbody>{body}</tbody></table>"


def _row(cells: Sequence[object]) -> str:
    first, *others = (escape(str(cell)).replace("\n", "<br>") for cell in cells)
    return f"<th {_CELL}>{first}</th>" + "".join(f"<td {_CELL}>{cell}</td>" for cell in others)

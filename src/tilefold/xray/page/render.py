"""Documents as HTML files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilefold.cli.pages import render

FOLDER = Path(__file__).parent


def render_page(document: Mapping[str, Any], index: str = "") -> str:
    """A kernel's page; `index` is the file of a script's launches, which it then leads back to."""
    line = document["roofline"]
    return render(FOLDER, "page.html", data=document, plots=bool(line and line["flops"]), page=document, index=index)


def render_index(title: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]], notes: Sequence[str]) -> str:
    """The launches of a script, each with a link to its page: `cells`, and `file` ("" where there is no page)."""
    return render(FOLDER, "index.html", title=title, columns=columns, rows=rows, notes=notes)


def render_diff(documents: Sequence[Mapping[str, Any]]) -> str:
    """Pairs of kernels side by side."""
    return render(FOLDER, "diff.html", pairs=documents)

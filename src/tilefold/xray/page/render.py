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
    marked = any(spare > 0.1 for key in document["keys"] for _, _, spare in key["cells"])
    return render(
        FOLDER,
        "page.html",
        data=document,
        plots=bool(line and line["flops"]),
        page=document,
        index=index,
        marked=marked,
    )


def render_index(
    title: str,
    heading: str,
    columns: Sequence[str],
    rows: Sequence[tuple[Sequence[str], str]],
    *,
    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = (),
    notes: Sequence[str] = (),
) -> str:
    """The launches of a script: the cells of each, and the file of its page ("": none); further tables, and notes."""
    named = [{"cells": cells, "file": file} for cells, file in rows]
    return render(
        FOLDER,
        "index.html",
        title=title,
        heading=heading,
        columns=columns,
        rows=named,
        tables=tables,
        notes=notes,
    )


def render_diff(documents: Sequence[Mapping[str, Any]]) -> str:
    """Pairs of kernels side by side, as `diff_document` has them."""
    return render(FOLDER, "diff.html", pairs=documents)

"""A document as one HTML file: nothing is fetched, and only the page's own script and styles may run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from tilefold.algebra.monoid import Monoid
from tilefold.cli.pages import render
from tilefold.watch.document import Document, make_document

FOLDER = Path(__file__).parent


def render_page(monoid: Monoid, row: Sequence[torch.Tensor] | None = None) -> str:
    """A page on which a row streams chunk by chunk through a monoid's recurrence: the text of one HTML file.

    The running state after chunk k is combine(state after chunk k - 1, state of chunk k alone); the page draws every field of
    it, and what `project` says of it, beside those of the whole row in float64.

    Args:
        monoid: the monoid to fold with.
        row: for each input one tensor [N], 1 <= N <= 4096, of any dtype that folds take; a row of 57 elements is drawn
            without. States are carried in the dtypes that `tilefold.reduce` carries them in, and computed by the definition,
            with the elements of a chunk combined by a tree.

    Raises:
        ArgumentError: a row is not 1-D, has a wrong length, or there is not one for each input.
        DtypeError: the monoid does not fold elements of this dtype.

    Example:
        >>> import tilefold
        >>> page = render_page(tilefold.monoids.LOGSUMEXP)
        >>> page.startswith("<!doctype html>")
        True
    """
    return render_document(make_document(monoid, row))


def render_document(document: Document) -> str:
    """The page of a document."""
    return render(FOLDER, "page.html", data=document, plots=True, document=document)

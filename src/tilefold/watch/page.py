"""A document as one HTML file: nothing is fetched, and only the page's own script and styles may run."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import torch

from tilefold.algebra.monoid import Monoid
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
    import jinja2
    from markupsafe import Markup

    from tilefold import __version__

    loader = jinja2.FileSystemLoader(FOLDER)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    style = _asset("uplot/uPlot.min.css") + _asset("page.css")
    script = f"/*!\n{_asset('uplot/LICENSE')}*/\n{_asset('uplot/uPlot.iife.min.js')}\n{_asset('page.js')}"
    return environment.get_template("page.html").render(
        document=document,
        # Escaped for a script element, and the package's own files, which the policy names by their hashes.
        data=Markup(json_for_script(document)),
        style=Markup(style),
        script=Markup(script),
        policy=policy(style, script),
        version=__version__,
    )


def _asset(name: str) -> str:
    """A file of the package."""
    return (FOLDER / name).read_text(encoding="utf-8")


def json_for_script(value: object) -> str:
    """JSON that nothing in it can end the script element of.

    >>> print(json_for_script("</script>"))
    "\\u003c/script\\u003e"
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def policy(style: str, script: str) -> str:
    """A Content-Security-Policy under which only this style and this script run, and nothing is loaded."""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

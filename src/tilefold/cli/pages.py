"""HTML pages of the commands: one file each, that loads nothing; only the page's own script and styles may run."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

from tilefold.errors import ArgumentError

FOLDER = Path(__file__).parent
PLOTS = "uplot/uPlot.min.css", "uplot/uPlot.iife.min.js", "uplot/LICENSE"


def render(folder: Path, template: str, *, data: object = None, plots: bool = False, **values: Any) -> str:
    """A template of a package's folder as a page, with the styles of all its pages (parts.css), and its styles and script,
    which have its name.

    Names in `values` are escaped. `data` is what the page's script reads, as JSON; `plots`: the script draws with uPlot.
    """
    import jinja2
    from markupsafe import Markup

    from tilefold import __version__

    stem = template.removesuffix(".html")
    looks = FOLDER / "pages.css", folder / "parts.css", folder / f"{stem}.css"
    style, script = "".join(map(_text, looks)), _text(folder / f"{stem}.js")
    if plots:
        look, code, licence = (_text(FOLDER / name) for name in PLOTS)
        style, script = look + style, f"/*!\n{licence}*/\n{code}\n{script}"
    loader = jinja2.FileSystemLoader([folder, FOLDER])
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    return environment.get_template(template).render(
        # Escaped for a script element, and the package's own files, which the policy names by their hashes.
        data=Markup(json_for_script(data)),
        style=Markup(style),
        script=Markup(script),
        policy=policy(style, script),
        version=__version__,
        **values,
    )


@cache
def _text(path: Path) -> str:
    """A file of the package; nothing where there is none."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


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


def write_page(path: str, page: str, call: str) -> None:
    """A page into a file, whose name is printed, or to the output for "-".

    Raises:
        ArgumentError: the file cannot be written.
    """
    if path == "-":
        sys.stdout.write(page + "\n")
        return
    write_file(path, page, call)
    sys.stdout.write(f"{path}: {len(page.encode()) / 1e3:.0f} kB, opens in any browser\n")


def check_place(path: str, option: str, call: str) -> None:
    """Before the work whose result is to be written to a file: whether it can be.

    Raises:
        ArgumentError: it cannot.
    """
    file = Path(path)
    try:
        if not file.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, f"there is no folder {str(file.parent)!r}")
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        if not os.access(file if file.exists() else file.parent, os.W_OK):
            raise PermissionError(errno.EACCES, "it may not be written")
    except OSError as error:
        raise ArgumentError(
            f"{call}: {option} must be a file that can be written, got {path!r} ({error.strerror}); choose another"
        ) from None


def write_file(path: str, page: str, call: str) -> None:
    """A page into a file, without a word.

    Raises:
        ArgumentError: the file cannot be written.
    """
    try:
        # The page's policy names its script by a hash: no other line ends.
        Path(path).write_text(page + "\n", encoding="utf-8", newline="\n")
    except OSError as error:
        raise ArgumentError(
            f"{call}: --html must be a file that can be written, got {path!r} ({error.strerror}); choose another"
        ) from None

"""`tilefold watch`: a page on which a row streams chunk by chunk through a monoid's recurrence."""

from __future__ import annotations

from collections.abc import Sequence

from tilefold.cli.fold_text import monoid_named
from tilefold.cli.pages import write_page
from tilefold.cli.parser import Parser, as_type, needed


def parser() -> Parser:
    """The command's options."""
    made = Parser(
        "watch",
        "Write a page on which a row streams chunk by chunk through a monoid's recurrence: the state's fields and the "
        "result, until they equal those of the whole row. One file, which opens from disk and loads nothing.",
        examples={
            "watch logsumexp --html page.html": "the online softmax pair, with a row that is drawn",
            "watch max --row logits.npy --html page.html": "a row of yours",
            "watch affine --row a.npy --row b.npy --html page.html": "a monoid of two inputs: a row for each, in order",
            "watch mine.py::top2 --html page.html": "a monoid of yours",
        },
    )
    add = made.add_argument
    add("monoid", type=as_type(monoid_named), metavar="MONOID",
        help="a name of tilefold.monoids, or FILE.py::name (the file is imported)")  # fmt: skip
    add("--row", action="append", default=[], metavar="FILE.npy",
        help="a 1-D array of 1 to 4096 elements; once for each input of the monoid; a row is drawn without")  # fmt: skip
    add("--html", required=True, metavar="OUT.html", help='the page to write, or "-" for the output')
    return made


def run(arguments: Sequence[str]) -> int:
    """Write the page, and say where it is."""
    options = parser().parse_args(arguments)
    needed("jinja2", "watch", "pages")
    from tilefold.watch import read_rows, render_page

    page = render_page(options.monoid, read_rows(options.row) if options.row else None)
    write_page(options.html, page, "watch")
    return 0

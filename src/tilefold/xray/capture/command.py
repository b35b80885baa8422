"""`tilefold xray run`: a script's launches, captured and reported without a GPU."""

from __future__ import annotations

import argparse
import errno
import fnmatch
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tilefold.cli.output import complain, printable
from tilefold.cli.parser import EXIT_CODES, Parser, count, needed
from tilefold.errors import ArgumentError, CaptureError

if TYPE_CHECKING:
    from tilefold.xray.capture.launches import Captured, Launch
    from tilefold.xray.capture.summary import Shown
    from tilefold.xray.report.model import Report

Tabulated = tuple[str, Sequence[str], Sequence[Sequence[str]]]  # title, heads, rows
MANY = 40  # distinct launches that the table has reports of, unless all are asked for


def parser() -> Parser:
    """The options of `xray run`."""
    made = Parser(
        "xray run",
        "Run a script on a chip that is not there: its Triton launches are captured, executed and reported.",
        examples={
            "xray run train.py --steps 2": "options behind the script are the script's",
            "xray run --kernel '_fwd*' bench.py": "reports of some kernels",
            "xray run -m pytest tests/test_norm.py -k fp16": "a module, as python -m runs it",
            "xray run --save launches script.py": "a file for each distinct launch, which runs alone",
            "xray run --html launches.html script.py": "a page of all launches, and one of each beside it",
        },
        exit_codes={
            **EXIT_CODES,
            1: "the script failed (its own exit code), or --fail-on found observations",
        },
        notes="The script runs as code, with your rights. Nothing is timed: times that it measures are NaN.\n"
        "docs/xray-run.md says what answers for the chip, and what cannot be pretended.",
    )
    add = made.add_argument
    add("script", nargs="?", metavar="SCRIPT.py", help="the script; what follows it are its arguments")
    add("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help=argparse.SUPPRESS)
    add(
        "-m",
        dest="module",
        nargs=argparse.REMAINDER,
        metavar="MODULE",
        help="run a module instead, with what follows it",
    )
    add("--target", "--chip", default="sm_90", metavar="CHIP", help="as of xray")
    add("--kernel", metavar="NAME", help="the full reports of kernels of this name; * stands for any letters")
    add("--first", type=count, metavar="N", help="the full reports of the first N of the table")
    add("--all", action="store_true", help="the full reports of all distinct launches")
    add("--configurations", choices=("first", "all"), default="first", metavar="WHICH",
        help="of autotuned kernels: first, that compiles; or all, in a table")  # fmt: skip
    add(
        "--budget",
        type=count,
        metavar="N",
        help="instructions of warps that one launch may take (default: 1 million)",
    )
    add("--quick", action="store_true", help="no trials in full reports")
    add(
        "--save",
        metavar="DIR",
        help="write a file for each distinct launch: the kernel and its inputs; it runs alone",
    )
    add(
        "--html",
        metavar="OUT.html",
        help="write a page with the table, and beside it a page of each distinct launch, OUT.1.html and so on",
    )
    add("--json", metavar="FILE", help='write all reports there, or to the output for "-"')
    add(
        "--fail-on",
        metavar="WHAT",
        help="exit 1 for observations of this kind: error, warning (both), or a code",
    )
    return made


def run(arguments: Sequence[str]) -> int:
    """Run a script, and show what it launched."""
    from tilefold.cli.pages import check_place
    from tilefold.xray.capture.script import run_script
    from tilefold.xray.capture.session import LAUNCH

    options = parser().parse_args(arguments)
    words = options.module if options.module is not None else [options.script, *options.arguments]
    if not words or words[0] is None:
        raise ArgumentError("xray: run must be given a script, got none; write SCRIPT.py or -m MODULE")
    if options.html is not None:
        needed("pygments", "xray run", "pages")
        if options.html == "-":
            raise ArgumentError(
                "xray: run --html must name a file, beside which the pages are written, got '-'; name one"
            )
    for option in ("html", "json"):
        if getattr(options, option) not in (None, "-"):
            check_place(getattr(options, option), f"run --{option}", "xray")
    if options.save is not None:
        _make_folder(options.save)
    captured, code, said = run_script(
        words, module=options.module is not None, target=options.target,
        budget=LAUNCH if options.budget is None else options.budget, every_configuration=options.configurations == "all",
    )  # fmt: skip
    sys.stdout.flush()
    failed = _show(captured, options) if captured.launches else []
    for line in captured.refused:
        complain(f"xray: not compiled: {line}")
    for line in captured.notes:
        complain(f"xray: {line}")
    if not captured.launches:
        complain("xray: the script launched no Triton kernel")
    if said:
        complain(f"xray: the script ended early: {said}")
    for line in failed:
        complain(line)
    return code or int(bool(failed))


def _show(captured: Any, options: argparse.Namespace) -> list[str]:
    """The table, the reports that were asked for, files; lines of what `--fail-on` found."""
    from tilefold.xray.capture.summary import COLUMNS, TUNED, by_stake, heading, rows, tuned
    from tilefold.xray.render import output

    distinct = captured.distinct()
    wanted = [l for l in distinct if options.kernel is None or fnmatch.fnmatchcase(l.kernel, options.kernel)]
    if options.kernel is not None and not wanted:
        known = ", ".join(dict.fromkeys(l.kernel for l in distinct))
        raise ArgumentError(
            f"xray: --kernel must name a kernel that was launched, got {options.kernel!r}; take one of {known}"
        )
    kept = wanted if options.all or options.json or options.save else wanted[:MANY]
    full = bool(options.kernel or options.all) and not options.quick
    pages = None if options.html is None else Path(options.html)
    shown = by_stake(kept, lambda launch: _report(launch, full, pages))
    reports = [one.report for one in shown if one.report is not None]
    tables = [
        (f"configurations of {one.launch.kernel}, launch {one.launch.number}", TUNED, list(tuned(one.launch)))
        for one in shown if one.launch.tried and (pages is not None or options.json != "-")
    ]  # fmt: skip
    if pages is not None:
        _write_index(pages, options.script or " ".join(options.module), captured, shown, tables)
    if options.save is not None:
        _save(options.save, kept)
    if options.json is not None:
        output.write_reports(options.json, reports)
    if options.json != "-":
        _table(heading(captured, len(kept)), COLUMNS, list(rows(shown)))
        for table in tables:
            _table(*table)
        first = len(shown) if options.kernel or options.all else options.first or 0
        there = [(one.launch, one.report) for one in shown[:first] if one.report is not None]
        output.show([made if full or options.quick else launch.report() for launch, made in there], False)
    return [] if options.fail_on is None else output.failures(reports, options.fail_on)


def _report(launch: Launch, trials: bool, pages: Path | None) -> Report:
    """The report of a launch, and its page where they are wanted."""
    if pages is None:
        return launch.report(trials=trials)
    from tilefold.cli.pages import write_file
    from tilefold.xray.page import document, render_page

    made = launch.examined(trials=trials)
    write_file(str(_page_of(launch, pages)), render_page(document(made), quote(pages.name)), "xray run")
    return made.report


def _page_of(launch: Launch, pages: Path) -> Path:
    return pages.with_name(f"{pages.stem}.{launch.number}{pages.suffix}")


def _write_index(
    pages: Path, script: str, captured: Captured, shown: Sequence[Shown], tables: Sequence[Tabulated]
) -> None:
    """The page of all launches, which leads to those of each."""
    from tilefold.cli.pages import write_page
    from tilefold.xray.capture.summary import COLUMNS, heading, rows
    from tilefold.xray.page import render_index

    files = ["" if one.report is None else quote(_page_of(one.launch, pages).name) for one in shown]
    notes = [*(f"Not compiled: {line}" for line in captured.refused), *captured.notes]
    listed = list(zip(rows(shown), files, strict=True))
    page = render_index(script, heading(captured, len(shown)), COLUMNS, listed, tables=tables, notes=notes)
    write_page(str(pages), page, "xray run")


def _table(title: str, columns: Sequence[str], found: Sequence[Sequence[str]]) -> None:
    from tilefold.xray.render.output import print_all, rich_is_here

    if not rich_is_here():
        lines = [title, *("  ".join(map(printable, row)) for row in (columns, *found))]
        sys.stdout.write("\n".join(lines) + "\n")
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(printable(title)), box=SIMPLE_HEAD, title_justify="left", show_edge=False, pad_edge=False
    )
    for name in columns:
        table.add_column(
            name, overflow="fold", justify="right" if name in ("times", "at least", "at stake") else "left"
        )
    for row in found:
        table.add_row(*(Text(printable(cell)) for cell in row))
    print_all([table])


def _save(folder: str, launches: Sequence[Any]) -> None:
    from tilefold.xray.capture.saving import reproducer

    try:
        for launch in launches:
            file = Path(folder) / f"launch_{launch.number}_{launch.kernel}.py"
            try:
                file.write_text(reproducer(launch), encoding="utf-8")
            except CaptureError as error:
                complain(str(error))
    except OSError as error:
        raise _refused(folder, error) from None


def _make_folder(folder: str) -> None:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, "it may not be written")
    except OSError as error:
        raise _refused(folder, error) from None


def _refused(folder: str, error: OSError) -> ArgumentError:
    return ArgumentError(
        f"xray: --save must name a folder that can be written, got {folder!r} ({error.strerror}); choose another"
    )

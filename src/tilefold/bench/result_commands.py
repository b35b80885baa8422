"""`tilefold bench compare`, `plot`, `merge` and `show`: results that were measured before, on any machine."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tilefold.cli.parser import EXIT_CODES, Parser, number

if TYPE_CHECKING:
    from tilefold.bench.results import SuiteResult


def write(text: str) -> None:
    """A line, at once: a reader at the end of a pipe sees it when it happens."""
    print(text, file=sys.stdout, flush=True)


def compare_parser() -> Parser:
    """The options of `bench compare`."""
    from tilefold.bench.compare import NOISE, NOISE_US

    made = Parser(
        "bench compare",
        "What got slower between two results beyond noise, or is wrong now.",
        examples={
            "bench compare OLD.json NEW.json": "all variants",
            "bench compare OLD.json NEW.json --variant ours": "tilefold alone: peers drift too",
        },
        exit_codes={**EXIT_CODES, 1: "something got slower, or is wrong now"},
    )
    made.add_argument("old", type=Path, metavar="OLD.json", help="results from before")
    made.add_argument("new", type=Path, metavar="NEW.json", help="results to judge")
    made.add_argument("--variant", action="append", dest="variants", metavar="NAME",
        help="only this, such as ours; again for more")  # fmt: skip
    made.add_argument("--noise", type=number(0), default=NOISE, metavar="SHARE", help="of the old median")
    made.add_argument("--noise-us", type=number(0), default=NOISE_US, metavar="US", help="microseconds")
    return made


def compare(arguments: Sequence[str]) -> int:
    """What got slower beyond noise: exit code 1 if anything did."""
    from tilefold.bench.compare import compare_results
    from tilefold.bench.results import read_results

    options = compare_parser().parse_args(arguments)
    old, new = read_results(options.old), read_results(options.new)
    found = compare_results(old, new, options.variants, options.noise, options.noise_us)
    for title, lines in (("note", found.remarks), ("faster", found.faster), ("slower", found.worse)):
        for line in lines:
            write(f"{title}: {line}")
    write(f"{found.compared} compared: {len(found.worse)} worse, {len(found.faster)} faster")
    return int(bool(found.worse))


def plot_parser() -> Parser:
    """The options of `bench plot`."""
    made = Parser(
        "bench plot",
        "Draw results as PNG files, on any machine with matplotlib (pip install 'tilefold[bench]').",
        examples={"bench plot folds.json --out plots": "one picture an operation, and one of all"},
    )
    made.add_argument("results", type=Path, nargs="+", metavar="RESULT.json", help="files of tilefold bench")
    made.add_argument("--out", type=Path, default=Path("bench-out/plots"), metavar="FOLDER", help="where to")
    return made


def plot(arguments: Sequence[str]) -> int:
    """Draw the plots of results."""
    from tilefold.bench.results import read_results

    options = plot_parser().parse_args(arguments)
    check_matplotlib()
    for result in [read_results(path) for path in options.results]:
        draw(result, options.out)
    return 0


def check_matplotlib() -> None:
    """Refuse before anything is measured or read."""
    from tilefold.bench.plots import matplotlib_figure

    matplotlib_figure()


def draw(result: SuiteResult, folder: Path) -> None:
    """Draw a result's plots and say which."""
    from tilefold.bench.plots import draw_plots
    from tilefold.bench.results import writable_folder

    writable_folder(folder)
    for path in draw_plots(result, folder):
        write(f"drawn: {path}")


def merge_parser() -> Parser:
    """The options of `bench merge`."""
    made = Parser(
        "bench merge",
        "Write the parts of a suite (bench --part) as one result; a later file's case replaces an earlier one's.",
        examples={"bench merge 1/folds.json 2/folds.json --out all": "two parts as one"},
    )
    made.add_argument("results", type=Path, nargs="+", metavar="RESULT.json", help="of one suite")
    made.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where to")
    return made


def merge(arguments: Sequence[str]) -> int:
    """Several parts of a suite as one."""
    from tilefold.bench.results import merge_results, read_results, write_results
    from tilefold.bench.selection import in_order
    from tilefold.bench.summary import summary

    options = merge_parser().parse_args(arguments)
    merged = in_order(merge_results([read_results(path) for path in options.results]))
    written, _ = write_results(merged, options.out)
    write("\n".join([*summary(merged), f"written: {written}"]))
    return 0


def show_parser() -> Parser:
    """The options of `bench show`."""
    made = Parser(
        "bench show",
        "A result's rows, and what can be said of them.",
        examples={"bench show benchmarks/results/h200/folds.json": "all columns of all variants"},
    )
    made.add_argument("result", type=Path, metavar="RESULT.json", help="a file of tilefold bench")
    return made


def show(arguments: Sequence[str]) -> int:
    """A result's rows and summary."""
    from tilefold.bench.display import HEADS, cells, show_rows
    from tilefold.bench.results import read_results
    from tilefold.bench.summary import summary

    result = read_results(show_parser().parse_args(arguments).result)
    write(show_rows([cells(case, row) for case in result.cases for row in case.measurements], HEADS))
    write("\n" + "\n".join(summary(result)))
    return 0


PARSERS: Mapping[str, object] = {
    "compare": compare_parser,
    "plot": plot_parser,
    "merge": merge_parser,
    "show": show_parser,
}

"""`tilefold bench`: answers compared, then timed beside peers."""

from __future__ import annotations

import argparse
import math
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilefold.bench import result_commands as bench_results
from tilefold.bench.result_commands import write
from tilefold.cli.parser import EXIT_CODES, WIDTH, Parser, as_type, count, names, number
from tilefold.errors import ArgumentError

if TYPE_CHECKING:
    from tilefold.bench.cases import Suite
    from tilefold.bench.run import Options

COMMANDS = {
    "compare": bench_results.compare,
    "plot": bench_results.plot,
    "merge": bench_results.merge,
    "show": bench_results.show,
}
_NOTES = """\
bench compare OLD.json NEW.json   cases that got slower beyond noise
bench plot RESULT.json ...        draw results (needs matplotlib)
bench merge RESULT.json ...       the parts of a suite (--part) as one result
bench show RESULT.json            a result's rows and its summary

Results are SUITE.json and SUITE.csv. docs/bench.md has the method."""


def run(arguments: Sequence[str]) -> int:
    """Measure a suite, list it, or work on results."""
    if arguments and arguments[0] in COMMANDS:
        return COMMANDS[arguments[0]](arguments[1:])
    options = parser().parse_args(arguments)
    return dry_run(options) if options.dry_run else measure(options, arguments)


def parser() -> Parser:
    """The options of a run."""
    made = Parser(
        "bench",
        "Time folds and products beside their peers, after comparing answers.",
        usage="tilefold bench SUITE [options]\n       tilefold bench compare|plot|merge|show ...",
        examples={
            "bench folds --against torch,compile": "a suite",
            "bench folds --shapes 4096x4099,64x256x56x56 --dims 0 --dtype bf16": "any shape",
            "bench folds --shapes 64x256x56x56 --dims 0,2,3 --operations var": "several dims together",
            "bench folds --monoid mine.py::top2 --shapes 16384x8192": "a monoid of yours, over any shape",
            "bench shapes --seed 7 --count 60": "random problems",
            "bench folds --device cpu": "no GPU: small sizes, to see it work",
            "bench --dry-run": "cases, bytes and floors, on any machine",
        },
        exit_codes={
            **EXIT_CODES,
            0: "done, all of tilefold's answers right",
            1: "an answer of tilefold's was wrong or failed, or nothing could be timed",
            130: "interrupted (Ctrl-C); the cases that were done are kept",
        },
        notes=f"suites:\n{_suites()}\n\n{_NOTES}",
    )
    made.add_argument("suite", nargs="?", type=names, metavar="SUITE",
        help="one of the suites below; or several, as scan,topk: compiled ahead together, one budget for all")  # fmt: skip
    what = made.add_argument_group("cases")
    _add_problems(what)
    _add_selection(what)
    _add_measuring(made.add_argument_group("how it is measured"))
    _add_results(made.add_argument_group("results"))
    return made


def _add_problems(group: Any) -> None:
    add = group.add_argument
    add("--shapes", type=_shapes, metavar="MxN,...",
        help="shapes of the suite or any others, which become cases of its operations")  # fmt: skip
    add("--dims", "--dim", type=_dims, action="append", metavar="D[,D...]|all",
        help="reduce these dims, together where there are several; again for more")  # fmt: skip
    add(
        "--dtype",
        "--dtypes",
        type=names,
        dest="dtypes",
        metavar="DTYPE,...",
        help="only these, such as bf16,fp32",
    )
    add("--operations", type=names, metavar="NAME,...", help="only these, such as sum,argmax")
    add(
        "--monoid",
        metavar="NAME",
        help="measure this in place of the suite's operations: a name of tilefold.monoids, or FILE.py::name (the file is "
        "imported). Its answer is its own in float64 on the CPU; NAME_in_torch(x, dim) of its file is torch's form",
    )
    add(
        "--tolerance",
        type=number(0),
        metavar="SHARE",
        help="of an answer of --monoid, beside rounding; 5e-5 without",
    )


def _add_selection(group: Any) -> None:
    add = group.add_argument
    add("--headline", action="store_true", help="the headline cases only")
    add(
        "--cases",
        type=_lines,
        dest="names",
        metavar="FILE",
        help="only those that a text file names, one a line, as --dry-run does",
    )
    add("--seed", type=count, default=0, metavar="N", help="of the random problems of shapes and products")
    add("--count", type=count, default=60, metavar="N", help="how many random problems")
    add(
        "--part",
        type=_part,
        default=(1, 1),
        metavar="I/N",
        help="every N-th case from the I-th on; all without; see merge",
    )
    add("--against", type=_peer_names, metavar="PEER,...",
        help="torch,compile,cupy,jax,cuda.compute,quack, or none; the suite's own choice without")  # fmt: skip
    add("--variant", action="append", dest="variants", metavar="NAME",
        help="of the suite's own only this, such as ours; again for more")  # fmt: skip


def _add_measuring(group: Any) -> None:
    add = group.add_argument
    add("--device", metavar="DEVICE", help="cuda, cuda:1 ... or cpu (default: cuda)")
    add(
        "--size",
        choices=("full", "small"),
        metavar="full|small",
        help="full on a GPU, small on a CPU by default",
    )
    add(
        "--jobs",
        type=count,
        metavar="N",
        help="processes that compile before anything is timed; all cores but two without",
    )
    add(
        "--compile-s",
        type=number(0, above=True),
        default=120.0,
        metavar="S",
        help="of one variant of a case in such a process; a longer one is not timed",
    )
    add(
        "--budget-s",
        type=number(-math.inf),
        default=540.0,
        metavar="S",
        help="cases not begun by then are left out",
    )
    add("--warmup-ms", type=number(0), default=5.0, metavar="MS", help="of each variant of a case")
    add("--repeat-ms", type=number(0), default=25.0, metavar="MS", help="of each variant of a case")
    add("--flush", choices=("write", "read"), default="write", metavar="write|read",
        help="what empties the L2 before a sample: a write, as do_bench's, or a write and then a read, which leaves it "
        "nothing to write back")  # fmt: skip
    add("--no-graphs", action="store_true", help="no time in a CUDA graph")


def _add_results(group: Any) -> None:
    add = group.add_argument
    add("--out", type=Path, default=Path("bench-out"), metavar="FOLDER", help="for SUITE.json and SUITE.csv")
    add("--plots", action="store_true", help="draw the plots too")
    add("--commit", metavar="TEXT", help="the commit to record where there is no git")
    add("--dry-run", action="store_true", help="list cases, bytes and floors; measure nothing")
    add(
        "--gb-per-s",
        type=number(0, above=True),
        metavar="N",
        help="of a dry run's floors; an H200's copy without",
    )


def _peer_names(text: str) -> tuple[str, ...]:
    """Names of peers; "none" is no peer."""
    return () if text == "none" else names(text)


def _lines(path: str) -> tuple[str, ...]:
    """The lines of a text file that are not empty."""
    try:
        found = tuple(line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"must be a text file, got {path!r} ({error})") from None
    return tuple(filter(None, found))


def _shapes(text: str) -> tuple[str, ...]:
    from tilefold.cli.fold_text import read_shape

    return tuple("x".join(map(str, as_type(read_shape)(word))) for word in names(text))


def _dims(text: str) -> str:
    from tilefold.cli.fold_text import read_dims

    as_type(read_dims)(text)
    return text


def _part(text: str) -> tuple[int, int]:
    first, _, parts = text.partition("/")
    if not (text.isascii() and first.isdigit() and parts.isdigit() and 1 <= int(first) <= int(parts)):
        raise argparse.ArgumentTypeError(f"must be I/N, I from 1 to N, got {text!r}; write it like 2/3")
    return int(first), int(parts)


def _suites() -> str:
    """Each suite and the first line of its description."""
    from tilefold.bench.suites import load_suite

    lines = (f"  {name:15s}{load_suite(name).about.splitlines()[0]}" for name in _suite_names())
    return "\n".join(textwrap.fill(line, WIDTH, subsequent_indent=" " * 17) for line in lines)


def _suite_names() -> list[str]:
    from tilefold.bench.suites import suite_names

    return suite_names()


def measure(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Measure suites."""
    if options.suite is None:
        raise ArgumentError(f"bench: SUITE must be one of {', '.join(_suite_names())}, got none; name one")
    from tilefold.bench.display import new_display
    from tilefold.bench.run import run_suites
    from tilefold.bench.suites import load_suite
    from tilefold.bench.summary import failed, summary

    suites = list(map(load_suite, options.suite))
    asked = [(suite, options_of(options, suite, arguments)) for suite in suites]
    if options.plots:
        bench_results.check_matplotlib()
    display, out, results = new_display(), asked[0][1].out, []
    try:
        for result in run_suites(asked, display):
            results.append(result)
            if len(suites) > 1:  # the end of a later suite must not lose this one's results
                display.say("\n".join([f"{result.suite}:", *summary(result)]))
    finally:
        display.close()
    for result in results:
        write("\n".join(["", *summary(result), f"written: {out / result.suite}.json and .csv"]))
        if options.plots:
            bench_results.draw(result, out / "plots")
    return int(any(map(failed, results)))


def _recorded(arguments: Sequence[str]) -> str:
    """The command as results keep it: without the folder on the machine that ran it."""
    words, place = ["tilefold", "bench", *arguments], ("--out",)
    kept = [w for i, w in enumerate(words) if w not in place and words[i - 1] not in place]
    return shlex.join(w for w in kept if not w.startswith("--out="))


def selection_of(options: argparse.Namespace, small: bool) -> dict[str, Any]:
    """The options of a `Selection`, by its fields."""
    from tilefold.bench.selection import Selection

    return {field.name: getattr(options, field.name) for field in fields(Selection)} | {
        "size": options.size or ("small" if small else "full"),
        "dims": None if options.dims is None else tuple(options.dims),
    }


def options_of(options: argparse.Namespace, suite: Suite, arguments: Sequence[str]) -> Options:
    """The command line as options of a run of a suite: one that folds on a CPU does so wherever it is asked for.

    Raises:
        ArgumentError: there is no GPU and the run needs one.
    """
    from tilefold.bench.run import Options, default_jobs
    from tilefold.bench.timing import Pace

    device = "cpu" if suite.cpu_only else _device(options.device)
    _check_gpu(device, suite, options.size)
    return Options(
        **selection_of(options, small=device == "cpu"),
        device=device,
        # torch.compile needs a C++ compiler and seconds a case on a CPU: only where it is asked for.
        against=("torch",) if device == "cpu" and options.against is None else options.against,
        variants=None if options.variants is None else tuple(options.variants),
        jobs=default_jobs(device) if options.jobs is None else options.jobs,
        compile_s=options.compile_s,
        budget_s=options.budget_s,
        pace=Pace(options.warmup_ms, options.repeat_ms),
        graphs=not options.no_graphs,
        flush=options.flush,
        out=options.out,
        command=_recorded(arguments),
        commit=options.commit,
    )


def _check_gpu(device: str, suite: Suite, size: str | None) -> None:
    import torch

    if device == "cpu" and suite.needs_gpu and size != "small":
        raise ArgumentError(
            f"bench: {suite.name} needs a GPU, got --device cpu; run it where there is one (--size small tries its ways on "
            "a CPU)"
        )
    if device != "cpu" and not torch.cuda.is_available():
        fix = "run it on a machine with one" if suite.needs_gpu else "try --device cpu"
        raise ArgumentError(f"bench: {suite.name} needs a GPU, got a machine without one; {fix}")
    there = torch.cuda.device_count()
    if device != "cpu" and (torch.device(device).index or 0) >= there:
        raise ArgumentError(
            f"bench: --device must be one of this machine's GPUs ({there}), got {device!r}; count from cuda:0"
        )


def _device(name: str | None) -> str:
    """ "cuda", "cuda:1" ..., or "cpu"."""
    import torch

    try:
        device = torch.device(name or "cuda")
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ArgumentError(
            f"bench: --device must be cpu, cuda or cuda:1 ..., got {name!r}; leave it out for a GPU"
        )
    return "cpu" if device.type == "cpu" else str(device)


def dry_run(options: argparse.Namespace) -> int:
    """List the cases of one suite, or of all that have such cases, drawing nothing."""
    from tilefold.bench.dry_run import listed
    from tilefold.bench.limits import H200_COPY_GB_PER_S
    from tilefold.bench.selection import Selection
    from tilefold.bench.variants import peers_of

    peers_of(options.against or ())
    asked = Selection(**selection_of(options, small=options.device == "cpu"))
    refusals, fitting = [], 0
    for name in options.suite or _suite_names():
        try:
            text = listed(
                name, asked, options.against or (), options.variants, options.gb_per_s or H200_COPY_GB_PER_S
            )
        except ArgumentError as error:  # of all suites, those that have such cases
            refusals.append(error)
            continue
        fitting += 1
        write(text)
    if not fitting:
        raise refusals[0]
    return 0

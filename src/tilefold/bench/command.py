"""The command line of `tilefold bench`, on argparse alone: it must run where only torch and Triton are installed."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tilefold.errors import ArgumentError, TilefoldError

if TYPE_CHECKING:
    from tilefold.bench.results import SuiteResult
    from tilefold.bench.run import Options

EPILOG = """
tilefold bench SUITE            measure a suite and write SUITE.json and SUITE.csv
tilefold bench --dry-run        list cases, bytes and floors, on any machine
tilefold bench compare OLD NEW  what got slower beyond noise; exit code 1 if anything did
tilefold bench plot RESULT      draw a result's plots (needs matplotlib)
tilefold bench merge RESULT...  the parts of a suite (--part) as one result
tilefold bench show RESULT      a result's rows and its summary

exit code 0: done, all of tilefold's answers right; 1: an answer of tilefold's was wrong or failed, nothing could be timed, or
something got slower; 2: what was asked for cannot be done; 130: interrupted, the cases that were done are kept
"""


def main(argv: Sequence[str]) -> int:
    """Run one command; errors of the caller are one line on stderr and exit code 2, Ctrl-C is 130."""
    commands = {"compare": compare, "plot": plot, "merge": merge, "show": show}
    try:
        if argv and argv[0] in commands:
            return commands[argv[0]](argv[1:])
        return measure(argv)
    except TilefoldError as error:
        _write(str(error), sys.stderr)
        return 2
    except KeyboardInterrupt:
        _write("bench: interrupted", sys.stderr)
        return 130


def _write(text: str, stream: TextIO | None = None) -> None:
    print(text, file=stream or sys.stdout, flush=True)


def _names(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)


def _peer_names(text: str) -> tuple[str, ...]:
    """As `_names`; "none" is nobody."""
    return () if text == "none" else _names(text)


def _some_names(text: str) -> tuple[str, ...]:
    """As `_names`, where naming nothing would select nothing."""
    if not _names(text):
        raise argparse.ArgumentTypeError(f"must name something, got {text!r}")
    return _names(text)


def _number(least: float, above: bool = False) -> Callable[[str], float]:
    """A finite number from `least` on, or above it."""

    def parsed(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or number < least or (above and number == least):
            rule = (
                ""
                if least == -math.inf
                else f" {'above' if above else 'from'} {least:g}{'' if above else ' on'}"
            )
            raise argparse.ArgumentTypeError(f"must be a finite number{rule}, got {text!r}")
        return number

    return parsed


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 on, got {text!r}")
    return int(text)


def _part(text: str) -> tuple[int, int]:
    number, _, parts = text.partition("/")
    if not (text.isascii() and number.isdigit() and parts.isdigit() and 1 <= int(number) <= int(parts)):
        raise argparse.ArgumentTypeError(f"must be like 2/3, got {text!r}")
    return int(number), int(parts)


# ------------------------------------------------------------------------------------------------------ measure


def measuring_parser() -> argparse.ArgumentParser:
    """The options of a run."""
    p = argparse.ArgumentParser(
        "tilefold bench",
        description="Time folds beside what one would use instead, after comparing answers.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    p.add_argument("suite", nargs="?", metavar="SUITE", help="one of: " + ", ".join(_suite_names()))
    p.add_argument("--shapes", type=_some_names, help="only these, such as 16384x8192,1x268435456")
    p.add_argument("--dtype", type=_some_names, dest="dtypes", help="only these, such as bf16,fp32")
    p.add_argument("--operations", type=_some_names, help="only these, such as sum,argmax")
    p.add_argument("--dims", type=_some_names, help="only these, such as 1")
    p.add_argument("--headline", action="store_true", help="the headline cases only")
    p.add_argument(
        "--against", type=_peer_names, help="peers: torch,compile,cupy,jax,cuda.compute,quack, or none"
    )
    p.add_argument(
        "--variant",
        action="append",
        dest="variants",
        help="of the suite's own only this, such as ours; again for more",
    )
    p.add_argument("--device", help="cuda (the default), cuda:1 ..., or cpu")
    p.add_argument("--size", choices=("full", "small"), help="full on a GPU, small on a CPU by default")
    p.add_argument(
        "--part", type=_part, default=(1, 1), help="every n-th case from the i-th on, as i/n; see merge"
    )
    p.add_argument("--jobs", type=_count, help="processes that compile before anything is timed")
    p.add_argument(
        "--budget-s", type=_number(-math.inf), default=540.0, help="cases not begun by then are left out"
    )
    p.add_argument("--warmup-ms", type=_number(0), default=5.0, help="of each variant of a case")
    p.add_argument("--repeat-ms", type=_number(0), default=25.0, help="of each variant of a case")
    p.add_argument(
        "--flush",
        choices=("write", "read"),
        default="write",
        help="what empties the L2 before a sample: a write, as do_bench's (the default), or a write and then a read, "
        "which leaves it nothing to write back",
    )
    p.add_argument("--no-graphs", action="store_true", help="no time in a CUDA graph")
    p.add_argument("--out", type=Path, default=Path("bench-out"), help="folder for SUITE.json and SUITE.csv")
    p.add_argument("--plots", action="store_true", help="draw the plots too")
    p.add_argument("--commit", help="what to record where there is no git")
    p.add_argument("--dry-run", action="store_true", help="list cases, bytes and floors; measure nothing")
    p.add_argument(
        "--gb-per-s", type=_number(0, above=True), help="of a dry run's floors (an H200's copy by default)"
    )
    return p


def _suite_names() -> list[str]:
    from tilefold.bench.suites import suite_names

    return suite_names()


def measure(argv: Sequence[str]) -> int:
    """Measure a suite, or list it."""
    args = measuring_parser().parse_args(argv)
    if args.dry_run:
        return dry_run(args)
    if args.suite is None:
        raise ArgumentError(f"bench: SUITE must be one of {', '.join(_suite_names())}, got none; name one")
    from tilefold.bench.display import new_display
    from tilefold.bench.run import on, run_suite
    from tilefold.bench.suites import load_suite
    from tilefold.bench.summary import failed, summary

    suite = load_suite(args.suite)
    options = on(suite, options_of(args, suite.name, suite.needs_gpu, suite.cpu_only, argv))
    if args.plots:
        _needs_matplotlib()
    display = new_display()
    try:
        result = run_suite(suite, options, display)
    finally:
        display.close()
    _write("\n".join(["", *summary(result), f"written: {options.out / suite.name}.json and .csv"]))
    if args.plots:
        _draw(result, options.out / "plots")
    return int(failed(result))


def _recorded(argv: Sequence[str]) -> str:
    """The command as results keep it: without the folder on the machine that ran it."""
    words, place = ["tilefold", "bench", *argv], ("--out",)
    kept = [w for i, w in enumerate(words) if w not in place and words[i - 1] not in place]
    return shlex.join(w for w in kept if not w.startswith("--out="))


def options_of(
    args: argparse.Namespace, suite: str, needs_gpu: bool, cpu_only: bool, argv: Sequence[str]
) -> Options:
    """The command line as options of a run.

    Raises:
        ArgumentError: there is no GPU and the run needs one.
    """
    import torch

    from tilefold.bench.run import Options, default_jobs
    from tilefold.bench.timing import Pace

    device = "cpu" if cpu_only else _device(args.device)
    if device == "cpu" and needs_gpu and args.size != "small":
        raise ArgumentError(
            f"bench: {suite} needs a GPU, got --device cpu; run it where there is one (--size small tries its ways on a CPU)"
        )
    if device != "cpu" and not torch.cuda.is_available():
        fix = "run it on a machine with one" if needs_gpu else "try --device cpu"
        raise ArgumentError(f"bench: {suite} needs a GPU, got a machine without one; {fix}")
    count = torch.cuda.device_count()
    if device != "cpu" and (torch.device(device).index or 0) >= count:
        raise ArgumentError(
            f"bench: --device must be one of this machine's GPUs ({count}), got {device!r}; count from cuda:0"
        )
    return Options(
        device=device,
        size=args.size or ("small" if device == "cpu" or cpu_only else "full"),
        shapes=args.shapes,
        dtypes=args.dtypes,
        operations=args.operations,
        dims=args.dims,
        headline=args.headline,
        part=args.part,
        # torch.compile needs a C++ compiler and seconds a case on a CPU: only where it is asked for.
        against=("torch",) if device == "cpu" and args.against is None else args.against,
        variants=None if args.variants is None else tuple(args.variants),
        jobs=default_jobs(device) if args.jobs is None else args.jobs,
        budget_s=args.budget_s,
        pace=Pace(args.warmup_ms, args.repeat_ms),
        graphs=not args.no_graphs,
        flush=args.flush,
        out=args.out,
        command=_recorded(argv),
        commit=args.commit,
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


DRY_HEADS = ("case", "bytes", "operations", "floor us", "tolerance")


def dry_run(args: argparse.Namespace) -> int:
    """Cases, compulsory bytes and operations, and the time of the bytes alone: on any machine, drawing nothing."""
    from tilefold.bench.display import show_rows
    from tilefold.bench.limits import H200_COPY_GB_PER_S, floor_us
    from tilefold.bench.run import Options, selected
    from tilefold.bench.suites import load_suite
    from tilefold.bench.variants import peers_of, variants_of

    speed = args.gb_per_s or H200_COPY_GB_PER_S
    peers_of(args.against or ())
    fitting, refusals = 0, []
    for name in [args.suite] if args.suite else _suite_names():
        suite = load_suite(name)
        small = args.size == "small" or (args.size is None and args.device == "cpu")
        options = Options(
            size="small" if small else "full",
            shapes=args.shapes,
            dtypes=args.dtypes,
            operations=args.operations,
            dims=args.dims,
            headline=args.headline,
            part=args.part,
        )
        try:
            variants_of(suite, args.against or (), args.variants)
            cases = selected(suite, options)
        except ArgumentError as error:  # of all suites, those that have such cases
            refusals.append(error)
            continue
        fitting += 1
        rows = [
            (c.name, f"{c.compulsory_bytes}", f"{c.operations}", f"{floor_us(c.compulsory_bytes, speed):.2f}",
             "exact" if c.tolerance.exact else "bounded")
            for c in cases
        ]  # fmt: skip
        _write(f"{name}: {suite.about.splitlines()[0]} {len(cases)} cases, floors at {speed:.0f} GB/s")
        _write(show_rows(rows, DRY_HEADS))
        for why in dict.fromkeys(c.tolerance.why for c in cases):
            _write(f"tolerance: {why}")
        _write("")
    if not fitting:
        raise refusals[0]
    return 0


# ------------------------------------------------------------------------------------------ results that exist


def _parser(name: str, about: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(f"tilefold bench {name}", description=about, allow_abbrev=False)


def compare(argv: Sequence[str]) -> int:
    """What got slower beyond noise: exit code 1 if anything did."""
    from tilefold.bench.compare import NOISE, NOISE_US, compare_results
    from tilefold.bench.results import read_results

    p = _parser("compare", "What got slower beyond noise, or is wrong now; exit code 1 if anything.")
    p.add_argument("old", type=Path, metavar="OLD")
    p.add_argument("new", type=Path, metavar="NEW")
    p.add_argument(
        "--variant",
        action="append",
        dest="variants",
        help="only this, such as ours (peers drift too); again for more",
    )
    p.add_argument("--noise", type=_number(0), default=NOISE, help="share of the old median")
    p.add_argument("--noise-us", type=_number(0), default=NOISE_US, help="microseconds")
    args = p.parse_args(argv)
    found = compare_results(
        read_results(args.old), read_results(args.new), args.variants, args.noise, args.noise_us
    )
    for title, lines in (("note", found.remarks), ("faster", found.faster), ("slower", found.worse)):
        for line in lines:
            _write(f"{title}: {line}")
    _write(f"{found.compared} compared: {len(found.worse)} worse, {len(found.faster)} faster")
    return int(bool(found.worse))


def plot(argv: Sequence[str]) -> int:
    """Draw the plots of results, on any machine with matplotlib."""
    from tilefold.bench.results import read_results

    p = _parser("plot", "Draw latency by shape and fraction of the limit as PNG files.")
    p.add_argument("results", type=Path, nargs="+", metavar="RESULT.json")
    p.add_argument("--out", type=Path, default=Path("bench-out/plots"))
    args = p.parse_args(argv)
    _needs_matplotlib()
    for result in [read_results(path) for path in args.results]:
        _draw(result, args.out)
    return 0


def _needs_matplotlib() -> None:
    """Refuse before anything is measured or read."""
    from tilefold.bench.plots import matplotlib_figure

    matplotlib_figure()


def _draw(result: SuiteResult, folder: Path) -> None:
    from tilefold.bench.plots import draw_plots
    from tilefold.bench.results import writable_folder

    writable_folder(folder)
    for path in draw_plots(result, folder):
        _write(f"drawn: {path}")


def merge(argv: Sequence[str]) -> int:
    """Several parts of a suite as one."""
    from tilefold.bench.results import merge_results, read_results, write_results
    from tilefold.bench.summary import summary

    p = _parser("merge", "Write the parts of a suite as one; a later file's case replaces an earlier one's.")
    p.add_argument("results", type=Path, nargs="+", metavar="RESULT.json")
    p.add_argument("--out", type=Path, required=True)
    args = p.parse_args(argv)
    merged = in_order(merge_results([read_results(path) for path in args.results]))
    written, _ = write_results(merged, args.out)
    _write("\n".join([*summary(merged), f"written: {written}"]))
    return 0


def in_order(result: SuiteResult) -> SuiteResult:
    """A result with its cases as its suite lists them, those of shapes that it does not list at the end."""
    from tilefold.bench.suites import load_suite

    suite = load_suite(result.suite)
    listed = [case.name for size in ("full", "small") for case in suite.cases(size)]
    places = {name: place for place, name in enumerate(listed)}
    cases = sorted(result.cases, key=lambda case: places.get(case.name, len(places)))
    return replace(result, cases=tuple(cases))


def show(argv: Sequence[str]) -> int:
    """A result's rows and summary."""
    from tilefold.bench.display import HEADS, cells, show_rows
    from tilefold.bench.results import read_results
    from tilefold.bench.summary import summary

    p = _parser("show", "Print the rows of a result and what can be said of them.")
    p.add_argument("result", type=Path, metavar="RESULT.json")
    args = p.parse_args(argv)
    result = read_results(args.result)
    _write(show_rows([cells(case, row) for case in result.cases for row in case.measurements], HEADS))
    _write("\n" + "\n".join(summary(result)))
    return 0

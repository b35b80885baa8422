"""`tilefold describe`: the statistics of every tensor of checkpoints."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilefold.cli.output import complain
from tilefold.cli.parser import EXIT_CODES, Parser, known_device, needed, number, whole_above_0
from tilefold.errors import TilefoldError, printable

if TYPE_CHECKING:
    from tilefold.checkpoints.describe import FileReport

FILE = "a checkpoint (safetensors, npy, npz, torch.save), a directory of them, a pattern in quotes, or an *.index.json"


def parser() -> Parser:
    """The command's options."""
    made = Parser(
        "describe",
        "Statistics of every tensor in files, in one pass over each. A directory stands for the checkpoints in it, "
        "a pattern for the files that it matches, an index for its shards. docs/describe.md explains each number.",
        examples={
            "describe model.safetensors": "a table",
            "describe --fail-on-nan checkpoints/": "for a script: exit code 0 says that all is finite",
            "describe --json 'run/*.pt' > run.json": "all that is known, for a program",
            "describe --world 8 checkpoints/": "by eight processes; torchrun -m tilefold describe DIR on several hosts",
        },
        exit_codes={
            **EXIT_CODES,
            1: "a tensor holds NaN or inf and --fail-on-nan was given, or goes beyond --fail-above",
            2: "a file or tensor could not be described: one line each on stderr, all others are still done",
        },
    )
    made.add_argument("files", nargs="+", metavar="FILE", help=FILE)
    made.add_argument("--json", action="store_true", dest="as_json", help="print JSON instead of tables")
    made.add_argument(
        "--device", default="cpu", metavar="DEVICE", help="where to fold: cpu, cuda, cuda:1 ..."
    )
    made.add_argument(
        "--world",
        type=whole_above_0,
        default=1,
        metavar="N",
        help="read by so many processes, each its part of the bytes",
    )
    made.add_argument("--fail-on-nan", action="store_true", help="exit with 1 if any tensor holds NaN or inf")
    made.add_argument(
        "--fail-above", type=number(0.0), metavar="X", help="exit with 1 if any finite absmax is above X"
    )
    return made


def run(arguments: Sequence[str]) -> int:
    """Describe the files; the exit code."""
    options = parser().parse_args(arguments)
    device = known_device(options.device, "describe")
    if not options.as_json:
        needed("rich", "describe", "tables", ", or take --json")
    limit: float | None = options.fail_above
    show = None if options.as_json else lambda report: _show(report, limit)
    outcome = _describe_all(options.files, device, options.world, show)
    if outcome is None:
        return 0  # rank 0 says it
    if options.as_json:
        _print_json(outcome)
    if outcome.errors or any(report.refused for report in outcome.reports):
        return 2
    not_finite = options.fail_on_nan and not all(report.finite for report in outcome.reports)
    return int(not_finite or (limit is not None and any(report.above(limit) for report in outcome.reports)))


@dataclass
class _Outcome:
    """The findings of a run of `describe`: reports, bad files and arguments, and skipped files."""

    reports: list[FileReport] = field(default_factory=list)
    errors: list[dict[str, str]] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)

    def fail(self, path: object, error: object) -> None:
        """One line now, and the reason in the JSON."""
        reason = str(error).removeprefix(f"describe: {printable(str(path))}: ")
        complain(f"describe: {path}: {reason}")
        self.errors.append({"path": str(path), "reason": reason})


@dataclass(frozen=True)
class _Task:
    """A file to describe, with the names that an index says to be in it, or why there is none."""

    path: Path
    promised: tuple[str, ...] = ()
    failure: TilefoldError | None = None


def _find_all(arguments: Sequence[str], outcome: _Outcome, silent: bool) -> list[_Task]:
    """What all arguments stand for, in their order."""
    from tilefold.checkpoints.files import find_files

    tasks: list[_Task] = []
    for argument in arguments:
        try:
            found = find_files(argument)
        except TilefoldError as error:
            tasks.append(_Task(Path(argument), failure=error))
            continue
        tasks += [_Task(index, failure=error) for index, error in found.failed]
        tasks += [_Task(path, found.promised.get(path, ())) for path in found.files]
        if found.skipped:
            if not silent:
                complain(f"describe: {argument}: skipped, since no checkpoint: {found.skipped_line()}")
            outcome.skipped.append({"path": argument, "names": list(found.skipped)})
    return tasks


def _describe_all(
    arguments: Sequence[str], device: str, world: int, show: Callable[[FileReport], None] | None
) -> _Outcome | None:
    """Describe file after file, showing each report when it is there, and go on after a bad file. None on another rank than
    the first."""
    from tilefold.checkpoints import ranks
    from tilefold.checkpoints.tensor_files import payload_bytes

    outcome = _Outcome()
    tasks = _find_all(arguments, outcome, silent=ranks.is_other())
    sizes = [0 if task.failure else payload_bytes(task.path) for task in tasks]
    paths = [None if task.failure else str(task.path) for task in tasks]
    if ranks.is_launched():
        gathered = ranks.by_launched(paths, sizes, device)
        if gathered is None:
            return None
        made = gathered.reports()
    else:
        made = (
            _alone(tasks, sizes, device)
            if world == 1
            else ranks.by_processes(paths, sizes, world, device).reports()
        )
    for task in tasks:
        if task.failure is not None:
            outcome.fail(task.path, task.failure)
            continue
        _, report, failures = next(made)
        path = task.path
        for failure in failures:
            outcome.fail(path, failure)
        if report is None:
            continue
        outcome.reports.append(report)
        if show is not None:
            show(report)
        for refusal in report.refused:
            complain(f"describe: {path}: {refusal.name}: {refusal.reason}")
        missing = sorted(set(task.promised) - report.names) if not failures else []
        if missing:
            got = f"no {missing[0]!r}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            rule = "the shard must hold what its index places there"
            outcome.fail(path, f"{rule}, got {got}; download it again")
    return outcome


def _alone(
    tasks: Sequence[_Task], sizes: Sequence[int], device: str
) -> Iterator[tuple[int, FileReport | None, list[str]]]:
    """Each file's report, if there is one, and what failed."""
    from tilefold.checkpoints.describe import describe_file
    from tilefold.checkpoints.memory import bounded_memory

    for place, task in enumerate(tasks):
        if task.failure is not None:
            continue
        try:
            bar = _progress(task.path.name, sum(sizes[:place]), sum(sizes))
            with bar as follow, bounded_memory(sizes[place], device):
                report = describe_file(task.path, device, follow)
        except TilefoldError as error:
            yield place, None, [str(error)]
        else:
            yield place, report, []


def _show(report: FileReport, limit: float | None) -> None:
    from rich.console import Console

    from tilefold.checkpoints.tables import render_report

    console = Console()
    known = console.is_terminal or "COLUMNS" in os.environ
    if not known:
        console = Console(width=100_000)  # a pipe or a file: whole names, every column, one line a tensor
    console.print(render_report(report, console.width if known else None, limit))


Follow = Callable[[str, int], None]


@contextlib.contextmanager
def _progress(file: str, before: int, total: int) -> Iterator[Follow]:
    """A bar on stderr with the tensor at hand and the bytes done, in this file and those before it; gone when done.

    Silent where no terminal or no rich is.
    """
    if not sys.stderr.isatty():
        yield lambda name, done: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        from tilefold.checkpoints.tables import printable, shorten
    except ImportError:
        yield lambda name, done: None
        return
    words = TextColumn("{task.description}", markup=False)
    columns = (words, BarColumn(bar_width=24), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(shorten(printable(file), 30), total=total or None, completed=before)

        def follow(name: str, done: int) -> None:
            text = f"{shorten(printable(file), 20)} {shorten(printable(name), 24)}"
            bar.update(task, description=text, completed=min(before + done, total))

        yield follow


def _print_json(outcome: _Outcome) -> None:
    from tilefold.checkpoints.describe import SCHEMA, totals

    document = {
        "schema": SCHEMA,
        "files": [report.as_json() for report in outcome.reports],
        "errors": outcome.errors,
        "skipped": outcome.skipped,
        "totals": totals(tensor for report in outcome.reports for tensor in report.tensors),
    }
    sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")

"""The command line: each command calls one public function and shows what it returns."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from tilefold.errors import ArgumentError, TilefoldError
from tilefold.output import run_command

if TYPE_CHECKING:
    import torch

    from tilefold.algebra.monoid import Monoid
    from tilefold.describe import FileReport

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
Files = Annotated[
    list[Path], typer.Argument(help="Files: .safetensors, .npy, .npz, .pt, .pth.", metavar="FILE")
]


@app.callback()
def tilefold() -> None:
    """Fold any tensor with any monoid."""


@app.command()
def describe(
    files: Files,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    device: Annotated[str, typer.Option(help="Where to fold: cpu, cuda, cuda:1 ...")] = "cpu",
    fail_on_nan: Annotated[
        bool, typer.Option("--fail-on-nan", help="Exit 1 if any tensor holds NaN or inf.")
    ] = False,
) -> None:
    """Statistics of every tensor in FILES, in one pass over each.

    Exit code 2 if a file or tensor could not be described (one line each on stderr; all others are still done).

    Else 1 if --fail-on-nan is given and a tensor holds NaN or inf. Else 0. A closed pipe ends it by SIGPIPE (141).
    """
    try:
        _check_device(device)
    except ArgumentError as error:
        _complain(str(error))
        raise typer.Exit(2) from None
    reports, errors = _describe_all(files, device, shown=not as_json)
    if as_json:
        _print_json(reports, errors)
    if errors or any(report.refused for report in reports):
        raise typer.Exit(2)
    if fail_on_nan and not all(report.finite for report in reports):
        raise typer.Exit(1)


def _describe_all(
    files: Sequence[Path], device: str, shown: bool
) -> tuple[list[FileReport], list[dict[str, str]]]:
    """Describe file after file, showing each report when it is there, and go on after a bad file."""
    from tilefold.describe import describe_file
    from tilefold.tensor_files import payload_bytes

    reports: list[FileReport] = []
    errors: list[dict[str, str]] = []
    sizes = [payload_bytes(path) for path in files]
    for number, path in enumerate(files):
        try:
            with _progress_bar() as bar:
                follow = _follow(bar, path.name, sum(sizes[:number]), sum(sizes))
                report = describe_file(path, device, follow)
        except TilefoldError as error:
            _complain(str(error))
            errors.append({"path": str(path), "reason": str(error).removeprefix(f"describe: {path}: ")})
            continue
        reports.append(report)
        if shown:
            _show(report)
        for refusal in report.refused:
            _complain(f"describe: {path}: {refusal.name}: {refusal.reason}")
    return reports, errors


def _complain(line: str) -> None:
    """One line on stderr, whatever its length and whatever a file put into it."""
    from tilefold.tables import printable

    print(printable(line), file=sys.stderr)


def _show(report: FileReport) -> None:
    from tilefold.tables import render_report

    console = Console()
    known = console.is_terminal or "COLUMNS" in os.environ
    if not known:
        console = Console(width=100_000)  # a pipe or a file: whole names, every column, one line a tensor
    console.print(render_report(report, console.width if known else None))


def _progress_bar() -> Progress:
    """By bytes, on stderr, gone when done; silent where no terminal is."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _follow(bar: Progress, file: str, before: int, total: int) -> Callable[[str, int], None]:
    """Show the tensor at hand and the bytes done, in this file and those before it."""
    from tilefold.tables import printable, shorten

    task = bar.add_task(shorten(printable(file), 30), total=total or None, completed=before)

    def follow(name: str, done: int) -> None:
        text = f"{shorten(printable(file), 20)} {shorten(printable(name), 24)}"
        bar.update(task, description=text, completed=min(before + done, total))

    return follow


def _print_json(reports: Sequence[FileReport], errors: Sequence[dict[str, str]]) -> None:
    from tilefold.describe import SCHEMA, totals

    document = {
        "schema": SCHEMA,
        "files": [report.as_json() for report in reports],
        "errors": list(errors),
        "totals": totals(tensor for report in reports for tensor in report.tensors),
    }
    sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")


def _check_device(name: str) -> None:
    """Refuse a device that is not there, before any file is read."""
    import torch

    here = ["cpu"] + [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type == "cpu" or f"{device.type}:{device.index or 0}" in here:
        return
    raise ArgumentError(
        f"describe: --device must be one of {', '.join(here)}, got {name!r}; try --device cpu"
    )


@app.command()
def plan(
    shape: Annotated[str, typer.Argument(help="Shape, like 16384x8192.")],
    monoid: Annotated[str, typer.Option(help="A monoid of tilefold.monoids.")] = "SUM",
    dim: Annotated[int, typer.Option(help="The dim to fold.")] = -1,
    dtype: Annotated[str, typer.Option(help="A torch dtype.")] = "bfloat16",
) -> None:
    """How an H200 would fold a tensor, without one."""
    from tilefold.explain import explain_plan

    try:
        tensor = _shaped(_sizes(shape), _known_dtype(dtype))
        typer.echo(str(explain_plan(tensor, _known_monoid(monoid), dim)))
    except TilefoldError as error:
        _complain(f"plan: {str(error).removeprefix('explain_plan: ')}")
        raise typer.Exit(2) from None


def _sizes(text: str) -> list[int]:
    parts = text.split("x")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ArgumentError(f"a shape must be sizes joined by x, got {text!r}; write it like 16384x8192")
    return [int(part) for part in parts]


def _shaped(sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of that shape without data."""
    import torch

    if math.prod(max(1, size) for size in sizes) * dtype.itemsize >= 2**63:
        raise ArgumentError(
            f"a shape must hold fewer than 2^63 bytes, got {'x'.join(map(str, sizes))}; take smaller sizes"
        )
    return torch.empty(sizes, dtype=dtype, device="meta")


def _known_dtype(name: str) -> torch.dtype:
    import torch

    dtype: Any = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ArgumentError(f"--dtype must name a dtype of torch, got {name!r}; try float32 or bfloat16")
    return dtype


def _known_monoid(name: str) -> Monoid:
    from tilefold import monoids
    from tilefold.algebra.monoid import Monoid

    found: Any = getattr(monoids, name.upper(), None)
    if not isinstance(found, Monoid):
        known = sorted(key for key, value in vars(monoids).items() if isinstance(value, Monoid))
        raise ArgumentError(
            f"--monoid must be one of {', '.join(known)}, got {name!r}; monoids are named there"
        )
    return found


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def bench(context: typer.Context) -> None:
    """Time folds beside what one would use instead, after comparing answers (bench --help has all)."""
    from tilefold.bench.command import main as run_command

    raise typer.Exit(run_command(context.args))


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def xray(context: typer.Context) -> None:
    """What the compiler made of a Triton kernel, with no GPU (xray --help has all)."""
    from tilefold.xray.command import main as run_command

    raise typer.Exit(run_command(context.args))


def main() -> None:
    """The console script."""
    run_command(lambda: app(prog_name="tilefold"))

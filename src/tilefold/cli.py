"""The command line: each command calls one public function and shows what it returns."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from tilefold.errors import TilefoldError

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
Files = Annotated[
    list[Path], typer.Argument(help="Files: .safetensors, .npy, .npz, .pt, .pth.", metavar="FILE...")
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
    """Statistics of every tensor in FILES, in one pass over each."""
    from tilefold.describe import FileReport, describe_file

    _check_device(device)
    errors = Console(stderr=True)
    reports: list[FileReport] = []
    failed = False
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}", markup=False), console=errors, transient=True
    ) as bar:
        for path in files:
            task = bar.add_task(printable(path.name), total=None)
            try:
                report = describe_file(path, device, _follow(bar, task))
                reports.append(report)
                for line in report.refused:
                    failed = True
                    errors.print(Text(printable(line)), soft_wrap=True)
            except TilefoldError as error:
                failed = True
                errors.print(Text(printable(str(error))), soft_wrap=True)
            bar.remove_task(task)
    if as_json:
        sys.stdout.write(json.dumps([r.as_json() for r in reports], indent=1) + "\n")
    else:
        for report in reports:
            Console().print(report_table(report))
    if failed:
        raise typer.Exit(2)
    if fail_on_nan and not all(r.finite for r in reports):
        raise typer.Exit(1)


def _follow(bar: Progress, task: TaskID) -> Callable[[str], None]:
    """Show a tensor's name while it is folded."""
    return lambda name: bar.update(task, description=printable(name))


def _check_device(device: str) -> None:
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        typer.echo(
            f"describe: --device must name a device that is here, got {device!r} ({reason}); try --device cpu",
            err=True,
        )
        raise typer.Exit(2) from None


def printable(text: str) -> str:
    """Text from a file made safe for a terminal: control characters are shown, not obeyed."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def report_table(report: object) -> Table:
    """A file's report as a rich table; tensors with NaN or inf are marked."""
    from tilefold.describe import FileReport

    assert isinstance(report, FileReport)
    table = Table(title=Text(printable(report.path)), title_justify="left")
    table.add_column("tensor", overflow="fold")
    for name in ("dtype", "shape"):
        table.add_column(name, no_wrap=True)
    for name in ("count", "nan", "inf", "zero", "min", "max", "absmax", "mean", "std"):
        table.add_column(name, justify="right", no_wrap=True)
    for t in report.tensors:
        numbers = [_number(v) for v in (t.min, t.max, t.absmax, t.mean, t.std)]
        cells = [
            t.name,
            t.dtype,
            "x".join(map(str, t.shape)) or "scalar",
            f"{t.count}",
            f"{t.nans}",
            f"{t.infs}",
            f"{t.zeros}",
            *numbers,
        ]
        table.add_row(*(Text(printable(c)) for c in cells), style=None if t.finite else "bold red")
    totals = report.as_json()["totals"]
    table.add_section()
    table.add_row(
        f"{len(report.tensors)} tensors",
        "",
        f"{totals['bytes'] / 1e6:.1f} MB",
        *(f"{totals[k]}" for k in ("count", "nans", "infs", "zeros")),
    )
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


@app.command()
def plan(
    shape: Annotated[str, typer.Argument(help="Shape, like 16384x8192.")],
    monoid: Annotated[str, typer.Option(help="A monoid of tilefold.monoids.")] = "SUM",
    dim: Annotated[int, typer.Option(help="The dim to fold.")] = -1,
    dtype: Annotated[str, typer.Option(help="A torch dtype.")] = "bfloat16",
) -> None:
    """How an H200 would fold a tensor, without one."""
    import torch

    from tilefold import monoids
    from tilefold.fold import explain_plan

    try:
        sizes = [int(n) for n in shape.split("x")]
        chosen, kind = getattr(monoids, monoid.upper()), getattr(torch, dtype)
        typer.echo(str(explain_plan(torch.empty(sizes, dtype=kind, device="meta"), chosen, dim)))
    except (TilefoldError, ValueError, AttributeError, TypeError) as error:
        typer.echo(f"plan: {error}", err=True)
        raise typer.Exit(2) from None


def main() -> None:
    """The console script."""
    app()

"""`tilefold xray`: its options, and what it prints. Exit code 2 for what cannot be done, 0 otherwise."""

from __future__ import annotations

import argparse
import ast
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilefold.errors import ArgumentError, TilefoldError
from tilefold.xray.report.model import SCHEMA, Report, from_json

if TYPE_CHECKING:
    from tilefold.xray.compile.job import Job

_EPILOG = """\
tilefold xray diff A B compares two reports: files that --json wrote, or the options of a report in quotes.
The kernel's file is imported, so it runs as code. docs/xray.md says what each number and observation means."""


def main(arguments: Sequence[str]) -> int:
    """Run the command; its exit code."""
    try:
        if arguments and arguments[0] == "diff":
            return _diff(arguments[1:])
        options = _parser().parse_args(arguments)
        jobs = _jobs(options)
        if options.cuda is not None:
            _write_cuda(options.cuda, jobs)
        reports = _reports(jobs, options)
        if options.json is not None:
            _write(
                options.json,
                json.dumps({"schema": SCHEMA, "reports": [r.as_json() for r in reports]}, indent=1),
            )
        else:
            _show(reports)
    except TilefoldError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tilefold xray",
        description="What the compiler made of a Triton kernel, line by line, on a machine with no GPU.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("kernel", nargs="?", metavar="FILE.py::kernel", help="the kernel; its file is imported")
    add("--arg", action="append", default=[], metavar="NAME=TYPE",
        help="*fp32, *fp32[1000], @rows.npy, i32:1000, fp32:1e-6; !div16 behind it says what divides it")  # fmt: skip
    add("--const", action="append", default=[], metavar="NAME=VALUE", help="a tl.constexpr parameter")
    add("--case", metavar="NAME", help="a case that the file's xray_cases() offers")
    add("--fold", metavar="TEXT", help='a fold of the library: "logsumexp dim=1 16384x8192 bf16"')
    add("--grid", metavar="X[,Y[,Z]]", help="programs (1)")
    add("--num-warps", type=int, metavar="N", help="warps of a program (4)")
    add("--num-stages", type=int, metavar="N", help="stages of software pipelines (3)")
    add("--target", metavar="ARCH", help="sm_80, sm_90 or sm_100 (sm_90)")
    add("--program", action="append", metavar="X[,Y[,Z]]",
        help="execute this program (more than once: several); else the first, a middle and the last")  # fmt: skip
    add("--static", action="store_true", help="execute nothing")
    add("--cuda", metavar="OUT.cu", help="write the CUDA C++ that the kernel amounts to")
    add(
        "--json",
        metavar="FILE",
        help='write the reports there, or to the output for "-", instead of showing them',
    )
    return parser


def _jobs(options: argparse.Namespace) -> list[Job]:
    """The kernels that the options name, one or a fold's launches."""
    from tilefold.xray.chips import chip_of
    from tilefold.xray.explain import file_job

    if options.fold is not None:
        from tilefold.xray.compile.folds import fold_jobs

        _refuse_with_fold(options)
        return fold_jobs(options.fold, chip_of(options.target or "sm_90"))
    if options.kernel is None:
        raise ArgumentError("xray: a kernel must be named, got none; write FILE.py::kernel, or --fold TEXT")
    given = {
        n: getattr(options, n)
        for n in ("num_warps", "num_stages", "target")
        if getattr(options, n) is not None
    }
    if options.grid is not None:
        given["grid"] = _numbers("--grid", options.grid)
    if options.case is not None:
        if options.arg or options.const:
            raise ArgumentError(
                "xray: --case brings its own arguments, got --arg or --const as well; leave one out"
            )
        return [file_job(options.kernel, options.case, **given)]
    constants = {n: _constant(v) for n, v in map(_named, options.const)}
    return [file_job(options.kernel, args=dict(map(_named, options.arg)), constants=constants, **given)]


def _reports(jobs: Sequence[Job], options: argparse.Namespace) -> list[Report]:
    from tilefold.xray.report.build import examine

    programs = [_program(text) for text in options.program] if options.program else None
    return [examine(job, programs, run=not options.static) for job in jobs]


def _refuse_with_fold(options: argparse.Namespace) -> None:
    names = ("kernel", "case", "grid", "num_warps", "num_stages")
    given = [n for n in names if getattr(options, n) is not None] + [
        n for n in ("arg", "const") if getattr(options, n)
    ]
    if given:
        raise ArgumentError(
            f"xray: --fold plans its own kernels, got also {', '.join(given)}; give a target and programs at most"
        )


def _named(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ArgumentError(f"xray: an argument must be written NAME=..., got {text!r}; like n=i32:1000")
    return name, value


def _constant(text: str) -> Any:
    """A Python literal, a name of triton.language, or text."""
    if text.startswith("tl."):
        import triton.language as tl

        found = getattr(tl, text[3:], None)
        if found is None:
            raise ArgumentError(f"xray: --const must be a literal or a name of triton.language, got {text!r}")
        return found
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _numbers(option: str, text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not 1 <= len(parts) <= 3 or not all(p.strip().isdigit() for p in parts):
        raise ArgumentError(f"xray: {option} must be one to three numbers, got {text!r}; like 8 or 8,4")
    return tuple(int(p) for p in parts)


def _program(text: str) -> tuple[int, int, int]:
    x, y, z = (*_numbers("--program", text), 0, 0)[:3]
    return (x, y, z)


def _write(path: str, text: str) -> None:
    """Text into a file, or to the output for "-"."""
    if path == "-":
        sys.stdout.write(text + "\n")
        return
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ArgumentError(
            f"xray: an output must be a file that can be written, got {path!r} ({error.strerror}); choose another"
        ) from None


def _write_cuda(path: str, jobs: Sequence[Job]) -> None:
    """The CUDA C++ of every kernel, each in a file of its own; checked where nvcc is."""
    from tilefold.xray.compile.offline import compile_job
    from tilefold.xray.cuda import compile_ptx, find_nvcc, translate
    from tilefold.xray.ptx import parse

    for number, job in enumerate(jobs, start=1):
        made = translate(parse(compile_job(job).ptx))
        file = path if number == 1 else str(Path(path).with_suffix(f".{number}{Path(path).suffix}"))
        _write(file, made)
        checked = "no nvcc is here to check it"
        if find_nvcc() is not None:
            compile_ptx(made, f"{job.chip.target}a" if job.chip.architecture >= 90 else job.chip.target)
            checked = "nvcc accepts it"
        print(f"xray: {file} is {job.name} in CUDA C++; {checked}", file=sys.stderr)


def read_reports(path: Path) -> list[Report]:
    """Reports as `--json` wrote them.

    Raises:
        ArgumentError: the file cannot be read, or holds something else.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        listed = document["reports"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArgumentError(
            f"xray: a report must be a file that --json wrote, got {str(path)!r} ({type(error).__name__})"
        ) from None
    return [from_json(report) for report in listed]


def _diff(arguments: Sequence[str]) -> int:
    from tilefold.xray.render.diff import render_diff

    if len(arguments) != 2:
        raise ArgumentError(
            f"xray: diff compares two reports, got {len(arguments)}; write tilefold xray diff A B"
        )
    first, second = (_either(text) for text in arguments)
    _print([render_diff(a, b) for a, b in zip(first, second, strict=False)])
    return 0


def _either(text: str) -> list[Report]:
    """Reports of a JSON file, or of the options in a quoted text."""
    if text.endswith(".json"):
        return read_reports(Path(text))
    options = _parser().parse_args(shlex.split(text))
    return _reports(_jobs(options), options)


def _show(reports: Sequence[Report]) -> None:
    from tilefold.xray.render.terminal import render_report

    _print([render_report(report) for report in reports])


def _print(shown: Sequence[Any]) -> None:
    from rich.console import Console

    console = Console(soft_wrap=False)
    if not (console.is_terminal or "COLUMNS" in os.environ):
        console = Console(width=160)  # a pipe or a file
    for renderable in shown:
        console.print(renderable)

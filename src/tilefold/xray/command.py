"""`tilefold xray`: what the compiler made of a Triton kernel, with no GPU."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilefold.cli.output import complain, printable
from tilefold.cli.pages import check_place
from tilefold.cli.parser import EXIT_CODES, Parser, count, needed, numbers
from tilefold.errors import ArgumentError
from tilefold.xray.render.output import failures, print_all, rich_is_here, show, write, write_reports
from tilefold.xray.report.model import Report, from_json

if TYPE_CHECKING:
    from tilefold.planner.chips import Chip
    from tilefold.xray.compile.job import Job
    from tilefold.xray.cuda.forms import Form
    from tilefold.xray.examine import Examined

# What observations cite by line, besides the kernel's own source.
TEXTS = {"ttgir": "Triton's GPU IR", "ptx": "the PTX", "sass": "the machine code as it is disassembled"}
_NOTES = """\
The kernel's file is imported, so it runs as code. docs/xray.md says what each number and observation means."""


def parser() -> Parser:
    """The command's options."""
    made = Parser(
        "xray",
        "What the compiler made of a Triton kernel, line by line, on a machine with no GPU.",
        examples={
            "xray kernels.py::softmax --arg x_ptr=*fp32 --arg n=i32:1000 --const BLOCK=1024": "a kernel of a file",
            "xray kernels.py": "the file's kernels and cases",
            "xray kernels.py --case softmax --arg n=i32:77 --target sm_80": "a case of xray_cases(), one argument another",
            "xray --fold 'logsumexp dim=1 16384x8192 bf16'": "the library's own kernels",
            "xray --fold 'mine.py::top2 dim=0,2 64x256x56x56 fp32'": "those of a monoid of yours, any dims",
            "xray diff A.json B.json": "two reports side by side; xray diff --help has more",
            "xray run train.py": "every launch of a script; xray run --help has more",
        },
        exit_codes={**EXIT_CODES, 1: "--fail-on found observations, one line each on stderr"},
        notes=_NOTES,
    )
    _add_launch(made)
    _add_report(made)
    return made


def _add_launch(made: Parser) -> None:
    """The kernel, its arguments, and the chip that it is compiled for."""
    add = made.add_argument
    add("kernel", nargs="?", metavar="FILE.py::kernel",
        help="the kernel; its file is imported. FILE.py alone lists its kernels and cases")  # fmt: skip
    add("--arg", action="append", default=[], metavar="NAME=TYPE",
        help="*fp32, *fp32[1000], @rows.npy, &other (its memory), i32:1000, fp32:1e-6, None; "
        "!div16 behind it says what divides it")  # fmt: skip
    add("--const", action="append", default=[], metavar="NAME=VALUE",
        help="a tl.constexpr parameter: a literal, float(\"-inf\"), tl.float32, a tuple of these, or a word")  # fmt: skip
    add("--case", metavar="NAME",
        help="a case that the file's xray_cases() offers; arguments given beside it replace its own")  # fmt: skip
    add("--fold", metavar="TEXT",
        help="a fold of the library: MONOID SHAPE DTYPE dim=D[,D...]|all, and strides=, offset=, guarantee= as of plan; "
        "MONOID is a name of tilefold.monoids or FILE.py::name")  # fmt: skip
    add("--grid", type=numbers, metavar="X[,Y[,Z]]", help="programs (default: 1)")
    add("--num-warps", type=count, metavar="N", help="warps of a program (default: 4)")
    add("--num-stages", type=count, metavar="N", help="stages of software pipelines (default: 3)")
    add(
        "--target",
        "--chip",
        metavar="CHIP",
        help="sm_80, sm_90, sm_100, or a100, h200, h100, b200 (default: sm_90, an H200)",
    )


def _add_report(made: Parser) -> None:
    """Options of execution, views and files."""
    add = made.add_argument
    add("--program", type=numbers, action="append", metavar="X[,Y[,Z]]",
        help="execute this program, again for more; the first, a middle and the last without")  # fmt: skip
    add("--static", action="store_true", help="execute nothing")
    add(
        "--quick",
        action="store_true",
        help="no trials: nothing is compiled again to show that a change helps",
    )
    add("--progress", action=argparse.BooleanOptionalAction,
        help="a line on stderr with the current stage, at last the seconds of each (default: on a terminal)")  # fmt: skip
    add("--all", action="store_true", dest="everything", help="also observations with nothing to do about")
    add(
        "--fail-on",
        metavar="WHAT",
        help="exit 1 for observations of this kind: error, warning (both), or a code",
    )
    for kind, what in TEXTS.items():
        add(
            f"--{kind}",
            metavar="FILE",
            help=f'write {what} there with line numbers, or to the output for "-"',
        )
    add(
        "--cuda",
        metavar="OUT.cu",
        help="write the CUDA C++ that the kernel amounts to; its first line says what is proven",
    )
    add(
        "--as",
        choices=("readable", "plain", "ptx"),
        default="readable",
        dest="form",
        metavar="FORM",
        help="of --cuda: readable, as a person would write it (the default); plain, a statement an instruction; or ptx",
    )
    add(
        "--json",
        metavar="FILE",
        help='write the reports there, or to the output for "-", instead of showing them',
    )
    add(
        "--html",
        metavar="OUT.html",
        help="write a page of the report: source, texts, tiles, accesses, passes; of further kernels OUT.2.html and so on",
    )


def diff_parser() -> Parser:
    """The options of `xray diff`."""
    made = Parser(
        "xray diff",
        "Two reports side by side: what differs of the launch, the totals, the lines and the observations.",
        examples={
            "xray diff A.json B.json": "two files that xray --json wrote",
            "xray diff 'k.py --case a' 'k.py --case b'": "two kernels, by the options of a report in quotes",
            "xray diff A.html B.html --html AB.html": "two pages of --html as one, of any versions of Triton",
        },
    )
    made.add_argument(
        "first", metavar="A", help="a file of --json or --html, or the options of a report in quotes"
    )
    made.add_argument("second", metavar="B", help="another")
    made.add_argument(
        "--cuda",
        action="store_true",
        help="the CUDA of both side by side instead; A and B are options of a report in quotes",
    )
    made.add_argument(
        "--html",
        metavar="OUT.html",
        help="write the comparison as a page, with the texts of both",
    )
    return made


def run(arguments: Sequence[str]) -> int:
    """Show, write or compare reports."""
    if arguments and arguments[0] == "diff":
        return _diff(arguments[1:])
    if arguments and arguments[0] == "run":
        from tilefold.xray.capture.command import run as run_script

        return run_script(arguments[1:])
    options = parser().parse_args(arguments)
    if _names_a_file_alone(options, arguments):
        _list(options.kernel)
        return 0
    for option in ("html", "json", "cuda", *TEXTS):
        if getattr(options, option) not in (None, "-"):
            check_place(getattr(options, option), f"--{option}", "xray")
    jobs = _jobs(options)
    if options.cuda is not None:
        _write_cuda(options.cuda, jobs, options.form)
    _write_texts(jobs, options)
    if options.html is not None:
        needed("pygments", "xray", "pages")
    made = _examined(jobs, options)
    reports = [one.report for one in made]
    if options.html is not None:
        _write_pages(options.html, made)
    failed = [] if options.fail_on is None else failures(reports, options.fail_on)
    if options.json is not None:
        write_reports(options.json, reports)
    elif options.html is None and "-" not in (getattr(options, kind) for kind in TEXTS):
        show(reports, options.everything)
    for line in failed:
        complain(line)
    return 1 if failed else 0


def _write_texts(jobs: Sequence[Job], options: argparse.Namespace) -> None:
    """The texts that observations cite, of every kernel in a file of its own; to the output one after the other."""
    from tilefold.xray.compile.texts import text_of

    for kind in TEXTS:
        path = getattr(options, kind)
        for number, job in enumerate(jobs, start=1) if path is not None else ():
            write(_numbered(path, number), text_of(job, kind, numbered=True))


def _numbered(path: str, number: int) -> str:
    """The file of the n-th kernel: the first one's as it was named."""
    return (
        path if number == 1 or path == "-" else str(Path(path).with_suffix(f".{number}{Path(path).suffix}"))
    )


def _jobs(options: argparse.Namespace) -> list[Job]:
    """The kernels that the options name, one or a fold's launches."""
    from tilefold.planner.chips import chip_of
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
        given["grid"] = options.grid
    given |= {"args": dict(map(_named, options.arg)), "constants": _constants(options.const)}
    return [file_job(options.kernel, options.case, **given)]


def _constants(texts: Sequence[str]) -> dict[str, Any]:
    from tilefold.xray.compile.constants import constant

    return {name: constant(text) for name, text in map(_named, texts)}


def _names_a_file_alone(options: argparse.Namespace, arguments: Sequence[str]) -> bool:
    return len(arguments) == 1 and options.kernel is not None and "::" not in options.kernel


def _list(file: str) -> None:
    """The kernels and cases of a file: what to give `tilefold xray`."""
    from tilefold.xray.compile import source

    module = source.load_file(Path(file))
    kernels = source.kernels_of(module)
    callers = source.called_by(kernels)
    lines = [f"kernels of {file}:" if kernels else f"{file} has no kernels"]
    for name, kernel in kernels.items():
        called = f"  (called by {', '.join(callers[name])})" if name in callers else ""
        lines.append(f"  {name}({', '.join(source.parameters_of(kernel))}){called}")
    cases = source.cases_of(module)
    lines.append("no cases: the file has no xray_cases()" if cases is None else "cases:")
    lines += [f"  {name}: {source.case_line(case)}" for name, case in (cases or {}).items()]
    sys.stdout.write("\n".join(map(printable, lines)) + "\n")


def _write_pages(path: str, made: Sequence[Examined]) -> None:
    """A page of each kernel, in a file of its own."""
    from tilefold.cli.pages import write_page
    from tilefold.xray.page import document, render_page

    for number, one in enumerate(made, start=1):
        write_page(_numbered(path, number), render_page(document(one)), "xray")


def _examined(jobs: Sequence[Job], options: argparse.Namespace) -> list[Examined]:
    from tilefold.xray.examine import examined
    from tilefold.xray.stages import Stages

    programs = [(*place, 0, 0)[:3] for place in options.program] if options.program else None
    shown = sys.stderr.isatty() if options.progress is None else options.progress
    made = []
    for job in jobs:
        stages = Stages(job.name, sys.stderr if shown else None)
        run, trials = not options.static, not options.quick
        made.append(examined(job, programs, run=run, trials=trials, stages=stages))
        stages.end()
    return made


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


def _write_cuda(path: str, jobs: Sequence[Job], form: Form) -> None:
    """Every kernel in a file of its own, with what nvcc and the X-ray's machine prove of it."""
    from tilefold.xray.compile.offline import compile_job
    from tilefold.xray.cuda import write_form

    for number, job in enumerate(jobs, start=1):
        made = write_form(compile_job(job), form)
        file = _numbered(path, number)
        write(file, made.text)
        said = "proven" if made.verdict.proven else "not proven"
        why = f"; not readable: {made.fell_back}" if made.fell_back else ""
        complain(f"xray: {file} is {job.name} as {made.form}, {said}: {made.verdict.said}{why}")


def write_call(
    path: str, inputs: Any, operation: Any, words: dict[str, Any], guarantee: str, name: str, chip: Chip
) -> None:
    """The launches of a call, as `explain_plan` is given it, as CUDA, each in a file of its own.

    Raises:
        ArgumentError: the call launches no kernel of the library, or the file cannot be written.
    """
    from tilefold.xray.compile.folds import jobs_of_call

    jobs = jobs_of_call(inputs, operation, words, guarantee, name, chip)
    if not jobs:
        raise ArgumentError(
            f"xray: a call must launch kernels of the library to be written as CUDA, got {name}, which launches none"
        )
    _write_cuda(path, jobs, "readable")


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
            f"xray: a report must be a file that --json wrote, got {str(path)!r} "
            f"({type(error).__name__}); write one with --json {path.name}"
        ) from None
    return [from_json(report) for report in listed]


def _diff(arguments: Sequence[str]) -> int:
    options = diff_parser().parse_args(arguments)
    if options.html not in (None, "-"):
        check_place(options.html, "diff --html", "xray")
    if options.cuda:
        _diff_cuda(options.first, options.second)
        return 0
    if options.html is not None:
        needed("pygments", "xray", "pages")
    pairs = list(
        zip(
            *(_either(text, options.html is not None) for text in (options.first, options.second)),
            strict=False,
        )
    )
    if options.html is not None:
        from tilefold.cli.pages import write_page
        from tilefold.xray.page import diff_document, render

        write_page(options.html, render.render_diff([diff_document(a, b) for a, b in pairs]), "xray")
        return 0
    pairs = [(from_json(a["report"]), from_json(b["report"])) for a, b in pairs]
    if rich_is_here():
        from tilefold.xray.render.diff import render_diff

        print_all([render_diff(a, b) for a, b in pairs])
    else:
        from tilefold.xray.render.plain import diff_text

        sys.stdout.write("\n".join(diff_text(a, b) for a, b in pairs))
    return 0


def _diff_cuda(*texts: str) -> None:
    """The kernels of both, in readable CUDA, side by side."""
    from tilefold.xray.compile.offline import compile_job
    from tilefold.xray.cuda import write_form
    from tilefold.xray.render.beside import beside

    for text in texts:
        if text.endswith(".json"):
            raise ArgumentError(
                f"xray: diff --cuda must have the options of two reports, got {text!r}; a report has no CUDA"
            )
    written = [
        [write_form(compile_job(j)).text for j in _jobs(parser().parse_args(shlex.split(t)))] for t in texts
    ]
    for one, other in zip(*written, strict=False):
        sys.stdout.write("\n".join(map(printable, beside(one.splitlines(), other.splitlines()))) + "\n")


def _either(text: str, texts: bool) -> list[Mapping[str, Any]]:
    """Documents (`report`, and what a page has besides) of a file of JSON, of a page, or of the options in a quoted text; for
    these, `texts` says whether more than the report is wanted."""
    from tilefold.xray.page import document, read_page

    if text.endswith(".html"):
        return read_page(Path(text))
    if text.endswith(".json"):
        return [{"report": report.as_json()} for report in read_reports(Path(text))]
    options = parser().parse_args(shlex.split(text))
    made = _examined(_jobs(options), options)
    return [document(one) if texts else {"report": one.report.as_json()} for one in made]

"""The case book: small kernels, what studies concluded of each, and what the X-ray shows now.

`python examples/casebook/book.py` renews casebook.md beside this file, `make case-book` the pages of CUDA too. No GPU needed.
"""

from __future__ import annotations

import functools
import inspect
import sys
from itertools import groupby
from pathlib import Path

HERE = Path(__file__).parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

import kernels  # noqa: E402
from cases import CASES, Case  # noqa: E402

from tilefold import xray  # noqa: E402
from tilefold.xray.compile.offline import compile_job  # noqa: E402
from tilefold.xray.cuda.readable import readable  # noqa: E402
from tilefold.xray.cuda.translate import read_line  # noqa: E402
from tilefold.xray.explain import file_job  # noqa: E402
from tilefold.xray.ptx import parse  # noqa: E402

PAGE = HERE / "casebook.md"
COLUMNS = (
    "| configuration | registers | shared memory | issued | asked for | moved | shuffles | barriers | observations |",
    "|---|---|---|---|---|---|---|---|---|",
)
_HEAD = """\
# The case book

What a study of April 2023 concluded when it read the PTX of small kernels by hand (H100, the Triton of that month), and notes
of others (cases 13 and 16 to 18), and what the X-ray shows for {target} with Triton {triton}. Made by `make
case-book`; the kernels are in [kernels.py](kernels.py), how each answer is computed in [cases.py](cases.py). Each case also
has the CUDA that its configurations amount to; [Kernels as CUDA](../../docs/xray-cuda.md) says how far that is proven.

| | case | the conclusion then |
|---|---|---|
{table}
"""


def reports_of(case: Case, target: str) -> dict[str, xray.Report]:
    """The X-ray's reports of a case's configurations."""
    return {name: _report(name, target) for name in case.configurations}


@functools.cache
def _report(name: str, target: str) -> xray.Report:
    return xray.explain_file(str(HERE / "kernels.py"), name, target=target)


def book(target: str = "sm_90") -> str:
    """The whole book as Markdown."""
    chapters, rows, version, written = [], [], "", set[str]()
    for number, case in enumerate(CASES, start=1):
        found = reports_of(case, target)
        holds, answer = case.now(found)
        version = next(iter(found.values())).triton
        verdict = "confirmed" if holds else "corrected"
        rows.append(f"| {number} | {case.title} | {verdict} |")
        fresh = [name for name in case.configurations if name not in written]
        written.update(fresh)
        chapters.append(
            chapter(number, case, found, verdict, answer, target, fresh or [*case.configurations])
        )
    head = _HEAD.format(target=target, triton=version, table="\n".join(rows))
    return "\n".join([head, *chapters])


def chapter(
    number: int,
    case: Case,
    found: dict[str, xray.Report],
    verdict: str,
    answer: str,
    target: str,
    written: list[str],
) -> str:
    """One case: kernels and CUDA of some configurations, what was concluded, the answer, and all side by side."""
    parts = [f"## {number}. {case.title}", ""]
    for kernel, names in groupby(written, lambda name: kernels.xray_cases()[name]["kernel"]):
        parts += ["```text", inspect.getsource(kernel.fn).strip(), "```", ""]
        for name in names:
            parts += [*cuda(name, target), ""]
    parts += [
        f"*Then:* {case.then}", "",
        f"*Now, {verdict}:* {answer}.", "",
        *COLUMNS,
        *(row(name, report) for name, report in found.items()), "",
    ]  # fmt: skip
    return "\n".join(parts)


def cuda(name: str, target: str) -> list[str]:
    """What a thread does, in the CUDA that the kernel amounts to; it is proven by `tilefold xray --cuda`, not here."""
    compiled = compile_job(file_job(str(HERE / "kernels.py"), name, target=target))
    text = readable(compiled, read_line)
    (entry,) = parse(compiled.ptx).entries
    body = text[text.index('extern "C"') :].rstrip().splitlines()
    asked = f"What do you expect a thread of `{name}` to do?"
    asked += f" {len(entry.instructions)} instructions of PTX, in {len(body)} lines of CUDA"
    return ["<details>", f"<summary>{asked}</summary>", "", "```cuda", *body, "```", "</details>"]


def row(name: str, report: xray.Report) -> str:
    """A configuration's totals; executed numbers are sums over its executed programs."""
    work, totals = report.totals.work, report.totals
    assert work is not None, report.notes
    codes = ", ".join(dict.fromkeys(report.codes())) or "none"
    return (
        f"| {name} | {report.resources.registers} | {report.resources.shared} B | {work.issued} | {totals.bytes_asked} B | "
        f"{totals.bytes_moved} B | {work.shuffles} | {work.barriers // report.num_warps} | {codes} |"
    )


if __name__ == "__main__":
    PAGE.write_text(book(), encoding="utf-8")

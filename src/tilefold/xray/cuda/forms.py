"""The CUDA file of a kernel in a form that is asked for, with what is proven of it in its first line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tilefold.errors import ArgumentError
from tilefold.xray.compile.job import Compiled
from tilefold.xray.cuda.proof import Verdict, prove
from tilefold.xray.cuda.readable import UnreadableError, readable
from tilefold.xray.cuda.translate import Lines, read_line, translate
from tilefold.xray.execution import Program
from tilefold.xray.ptx import parse

Form = Literal["readable", "plain", "ptx"]
FORMS: tuple[Form, ...] = ("readable", "plain", "ptx")


@dataclass(frozen=True)
class Written:
    """A file's text and form; what is known of it, and why it is not the form that was asked for."""

    text: str
    form: Form
    verdict: Verdict
    fell_back: str = ""

    @property
    def lines(self) -> int:
        """Lines of the kernel, from its signature to its last brace; functions above it do not count."""
        begin = self.text.find('extern "C" __global__')
        return len(self.text[max(begin, 0) :].strip().splitlines())


def write_form(
    compiled: Compiled,
    form: Form = "readable",
    *,
    lines: Lines | None = None,
    programs: Sequence[Program] | None = None,
) -> Written:
    """A kernel as readable CUDA C++, as plain CUDA C++ (a statement an instruction), or as its PTX.

    A readable file that is not proven because it is refused, or stores other bits, gives way to the plain form, and the
    second line says why.

    Raises:
        ArgumentError: there is no such form.
        XrayError: the module has not one kernel.
    """
    if form not in FORMS:
        raise ArgumentError(
            f"cuda: a form must be one of {', '.join(FORMS)}, got {form!r}; take one of these"
        )
    if form == "ptx":
        return Written(compiled.ptx, "ptx", Verdict(True, "it is Triton's own"))
    reason = ""
    if form == "readable":
        try:
            text = readable(compiled, lines or read_line)
        except UnreadableError as error:
            reason = str(error).removeprefix("cuda: ").removesuffix("; take the plain form")
        else:
            verdict = prove(compiled, text, programs)
            if verdict.proven or verdict.said.startswith(("nvcc was not found", "it could not be executed")):
                return _headed(text, "readable", verdict, "")
            reason = verdict.said
    text = translate(parse(compiled.ptx), lines=lines)
    return _headed(text, "plain", prove(compiled, text, programs), reason)


def _headed(text: str, form: Form, verdict: Verdict, reason: str) -> Written:
    known = (
        "Proven: nvcc's PTX of this file stores the same bits as Triton's" if verdict.proven else "Not proven"
    )
    head = f"// {known}: {verdict.said}. Compile with nvcc -fmad=false.\n"
    if reason:
        head += f"// The plain form, because of the readable one: {reason}.\n"
    return Written(head + text, form, verdict, reason)

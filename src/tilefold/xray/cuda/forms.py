"""The CUDA file of a kernel in a form that is asked for, with what is proven of it in its first line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tilefold.errors import ArgumentError
from tilefold.xray.compile.job import Compiled
from tilefold.xray.cuda.proof import Verdict, prove
from tilefold.xray.cuda.readable import Readable, UnreadableError, by_regions
from tilefold.xray.cuda.translate import read_line, translate
from tilefold.xray.ptx import parse

Form = Literal["readable", "plain", "ptx"]
MOST_TRIES = 8  # regions of a kernel of which one at a time is said without loops over values
_UNDECIDED = ("nvcc was not found", "it could not be executed")
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


def write_form(compiled: Compiled, form: Form = "readable") -> Written:
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
            made, verdict = _proven(compiled)
        except UnreadableError as error:
            reason = str(error).removeprefix("cuda: ").removesuffix("; take the plain form")
        else:
            if verdict.proven or verdict.said.startswith(_UNDECIDED):
                return _headed(made.text, "readable", verdict, "", made.note)
            reason = verdict.said
    text = translate(parse(compiled.ptx))
    return _headed(text, "plain", prove(compiled, text), reason)


def _proven(compiled: Compiled) -> tuple[Readable, Verdict]:
    """The readable form; where it stores other bits, that with one region said one value after another, or with all."""
    first = made = by_regions(compiled, read_line)
    verdict = prove(compiled, made.text)
    if verdict.proven or verdict.said.startswith(_UNDECIDED):
        return made, verdict
    tries = [(*made.careful, k) for k in range(made.regions)[:MOST_TRIES] if k not in made.careful]
    for careful in (*tries, tuple(range(made.regions))):
        made = by_regions(compiled, read_line, careful)
        other = prove(compiled, made.text)
        if other.proven:
            return made, other
    return first, verdict


def _headed(text: str, form: Form, verdict: Verdict, reason: str, note: str = "") -> Written:
    known = (
        "Proven: nvcc's PTX of this file stores the same bits as Triton's" if verdict.proven else "Not proven"
    )
    head = f"// {known}: {verdict.said}. Compile with nvcc -fmad=false.\n"
    if reason:
        head += f"// The plain form, because of the readable one: {reason}.\n"
    if note:
        head += f"// What loops would say wrong, or could not say, stands alone: {note}.\n"
    return Written(head + text, form, verdict, reason)

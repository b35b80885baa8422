"""The texts that a report cites by their lines: Triton's two, PTX, and the machine code as the disassembler shows it."""

from __future__ import annotations

from tilefold.errors import ArgumentError
from tilefold.xray.compile import offline
from tilefold.xray.compile.job import Job

KINDS = ("ttir", "ttgir", "ptx", "sass")


def text_of(job: Job, kind: str, *, numbered: bool = False) -> str:
    """One of a kernel's texts; `numbered` puts each line's number before it, as observations cite them.

    Raises:
        ArgumentError: there is no such text.
        CompileError: the kernel does not compile.
    """
    if kind not in KINDS:
        raise ArgumentError(
            f"xray: a text must be one of {', '.join(KINDS)}, got {kind!r}; take one of these"
        )
    compiled = offline.compile_job(job)
    text = offline.assemble(compiled).code if kind == "sass" else getattr(compiled, kind)
    if not numbered:
        return str(text)
    rows = str(text).splitlines()
    width = len(str(len(rows)))
    return "\n".join(f"{number:{width}}  {row}" for number, row in enumerate(rows, start=1))

"""The case book: what a study of 2023 concluded of fifteen small kernels by reading their PTX, and what the X-ray says now.

Each case is explained without a GPU: compiled, executed from its PTX, and written as the CUDA C++ that it amounts to, which
nvcc compiles again and which stores the same bits.
"""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shown import console, has_triton, label, say, show_table

BOOK = Path(__file__).parent / "casebook"


@functools.cache
def book() -> Any:
    """The module that makes the case book."""
    sys.path.insert(0, str(BOOK))
    import book  # type: ignore[import-not-found]  # beside the page

    return book


@functools.cache
def report_of(name: str) -> Any:
    """The X-ray's report of a configuration of the case book."""
    from tilefold import xray

    return xray.explain_file(str(BOOK / "kernels.py"), name, target="sm_90")


def sectors_of(report: Any, kind: str) -> float:
    """Sectors of 32 bytes of one access of a warp, in the mean."""
    found = [a for line in report.lines for a in line.accesses if (a.space, a.kind) == ("global", kind)]
    return float(sum(a.sectors for a in found) / sum(a.requests for a in found))


def verdicts() -> None:
    """The case book's table, from its page."""
    text = (BOOK / "casebook.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+?) \| (\w+) \|$", text, re.MULTILINE)
    label("The conclusions of other studies today (examples/casebook/casebook.md)")
    show_table(["", "case", "the conclusion"], rows, texts=3)


def in_cuda() -> None:
    """The first case in CUDA C++, and its bits through nvcc."""
    from tilefold.xray.compile.offline import compile_job
    from tilefold.xray.compile.source import load_file
    from tilefold.xray.cuda import compile_ptx, find_nvcc, translate
    from tilefold.xray.execution import execute
    from tilefold.xray.explain import make_job
    from tilefold.xray.machine import all_programs
    from tilefold.xray.ptx import parse

    case = dict(load_file(BOOK / "kernels.py").xray_cases()["copy"])
    kernel, arguments = case.pop("kernel"), case.pop("args")
    x = torch.randn(arguments["n"], generator=torch.Generator().manual_seed(0))
    arguments |= {"x_ptr": x, "y_ptr": torch.zeros_like(x)}
    job = make_job(kernel, arguments, case.pop("constants"), **case)
    compiled = compile_job(job)
    read = parse(compiled.ptx)
    text = translate(read)
    label("Case 1, a masked copy, in the CUDA C++ that its PTX amounts to (tilefold xray --cuda)")
    console.print(text[text.index("    // kernels.py") : text.rindex("    return;")].rstrip(), markup=False)
    ways = [read] if find_nvcc() is None else [read, parse(compile_ptx(text, read.target[0]))]
    for way in ways:
        stored = execute(compiled, way, list(all_programs(job.grid))).memory.read("1:y_ptr", np.float32)
        assert np.array_equal(stored, x.numpy())
    said = (
        "nvcc compiles it, and it stores the same bits."
        if len(ways) > 1
        else "No nvcc is here to compile it."
    )
    say(f"Executed from its PTX, it copies {len(x)} floats. {said}")


def main() -> None:
    """All of it."""
    verdicts()
    if has_triton():
        in_cuda()


if __name__ == "__main__":
    main()

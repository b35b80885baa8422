"""Kernels of every kind as CUDA, readable and plain: a hash of each text is written down, and compared with today's.

PYTHONPATH=src:tests python tests/xray/cuda/texts.py writes texts.txt anew, with the Triton that constraints.txt pins; with a
folder behind it the texts themselves into that folder, to see what differs between two versions.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tilefold.planner.chips import chip_of
from tilefold.xray.compile.folds import fold_jobs
from tilefold.xray.compile.job import Compiled
from tilefold.xray.compile.offline import compile_job
from tilefold.xray.cuda import translate
from tilefold.xray.cuda.readable import UnreadableError, readable
from tilefold.xray.cuda.translate import read_line
from tilefold.xray.explain import make_job
from tilefold.xray.ptx import parse
from xray.cuda.generated import source
from xray.cuda.test_readable import ALL, FOLDS, OTHERS, compiled

WRITTEN = Path(__file__).with_name("texts.txt")
DRAWN = 40


def kernels() -> Iterator[tuple[str, Compiled]]:
    """The tests' and the case book's, folds of the library, drawn ones."""
    for file, name in ALL:
        yield name, compiled(file, name)
    for name, (kernel, arguments, constants) in OTHERS.items():
        yield name, compile_job(make_job(kernel, arguments, {**constants, "BLOCK": 256}))
    for fold in FOLDS:
        for number, job in enumerate(fold_jobs(fold, chip_of("sm_90"))):
            yield f"{fold}, launch {number}", compile_job(job)
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(DRAWN):
            file = Path(folder, f"drawn{seed}.py")
            file.write_text(source(seed), encoding="utf-8")
            yield f"drawn {seed}", compiled(file, "kernel")


def texts(made: Compiled) -> tuple[str, str]:
    """The readable text, or why there is none, and the plain one."""
    try:
        short = readable(made, read_line)
    except UnreadableError as error:
        short = str(error)
    return short, translate(parse(made.ptx))


def lines() -> Iterator[str]:
    """Of each kernel: lines and hashes of both texts, and its name."""
    for name, made in kernels():
        said = [f"{len(t.splitlines())} {hashlib.sha256(t.encode()).hexdigest()[:8]}" for t in texts(made)]
        yield f"{', '.join(said)}: {name}"


def main() -> None:
    """Write hashes, or the texts into a folder."""
    if not sys.argv[1:]:
        WRITTEN.write_text("\n".join(lines()) + "\n", encoding="utf-8")
        return
    for name, made in kernels():
        for form, text in zip(("readable", "plain"), texts(made), strict=True):
            Path(sys.argv[1], f"{name.replace('/', ' ')}, {form}.cu").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

"""Writes docs/xray-cuda.md: `PYTHONPATH=src:tests python tests/xray/cuda/table.py`."""

from __future__ import annotations

from pathlib import Path

from tilefold.xray.cuda import write_form
from tilefold.xray.ptx import parse
from xray.cuda.test_readable import ALL, compiled

PAGE = Path(__file__).parents[3] / "docs" / "xray-cuda.md"
HEAD = """\
# Kernels as CUDA

What `tilefold xray --cuda` writes of the case book's kernels and of some more (tests/xray/cuda/kernels.py): instructions of
Triton's PTX, lines of the kernel in the plain and in the readable form, and whether nvcc's PTX of the readable file stores
the same bits as Triton's, executed by the X-ray. Written by `tests/xray/cuda/table.py`.

| kernel | instructions | plain | readable | bits equal |
| --- | ---: | ---: | ---: | --- |
"""


def main() -> None:
    """A row a kernel."""
    rows = []
    for file, name in ALL:
        made = compiled(file, name)
        (entry,) = parse(made.ptx).entries
        plain, readable = write_form(made, "plain"), write_form(made)
        said = "yes" if readable.verdict.proven else f"not proven: {readable.verdict.said}"
        said += f" (plain: {readable.fell_back})" if readable.fell_back else ""
        rows.append(f"| {name} | {len(entry.instructions)} | {plain.lines} | {readable.lines} | {said} |")
    PAGE.write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Writes docs/xray-cuda.md and docs/xray-cuda-kernels.md: `PYTHONPATH=src:tests python tests/xray/cuda/table.py`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path

from tilefold.xray.cuda import write_form
from tilefold.xray.ptx import parse
from xray.cuda.test_readable import ALL, OWN, cases, compiled

PAGE = Path(__file__).parents[3] / "docs" / "xray-cuda.md"
KERNELS = PAGE.with_name("xray-cuda-kernels.md")
SHOWN = ("softmax", "layer norm", "tiled transpose", "ragged", "scan of pairs", "matmul", "matmul of four warps",
         "attention of four warps", "welford norm", "dequant")  # fmt: skip
HEAD = """\
# Kernels as CUDA

What `tilefold xray --cuda` writes of the case book's kernels and of some more (tests/xray/cuda/kernels.py): instructions of
Triton's PTX, lines of the kernel in the plain and in the readable form, and whether nvcc's PTX of the readable file stores
the same bits as Triton's, executed by the X-ray. [Some of them whole](xray-cuda-kernels.md), and in the
[case book](../examples/casebook/casebook.md). Written by `tests/xray/cuda/table.py`.

| kernel | instructions | plain | readable | bits equal |
| --- | ---: | ---: | ---: | --- |
"""


FAMILIES = Path(__file__).with_name("families.json")
OTHERS = "## Kernels of others"  # which benchmarks/xray_public/as_cuda.py writes
FAMILIES_HEAD = """\
## The library's kernels

Calls that reach every kernel of the library, with the lines of Triton's PTX and of the readable file of each launch. Both are
executed on the same tensors, the file's in each order of warps, and must leave the same bytes. Executed by
`make cuda-families`.

| call | kernel | Triton's PTX, lines | CUDA, lines | bits equal |
| --- | --- | ---: | ---: | --- |
"""

KERNELS_HEAD = """\
# Ten kernels in Triton and in CUDA

Before a kernel's CUDA is opened: what do you expect a thread to hold, how often do threads wait for each other, and what goes
through shared memory? The functions above each kernel (reductions over a block, instructions without a word in C++) are
left out here. Written by `tests/xray/cuda/table.py`.
"""


def kernels() -> str:
    """Each kernel's source, and its CUDA with what is proven of it."""
    parts = [KERNELS_HEAD]
    for name in SHOWN:
        made = compiled(OWN, name)
        written = write_form(made)
        head, _, body = written.text.partition('extern "C"')
        case = cases(OWN)[name]
        parts += [
            f"## {name[0].upper()}{name[1:]}",
            "",
            "```text",
            inspect.getsource(case["kernel"].fn).strip(),
            "```",
            "",
            "<details>",
            f"<summary>{head.splitlines()[0].removeprefix('// ')} {written.lines} lines.</summary>",
            "",
            "```cuda",
            f'extern "C"{body}'.rstrip(),
            "```",
            "</details>",
            "",
        ]
    return "\n".join(parts)


def main() -> None:
    """A row a kernel, and the kernels."""
    rows = []
    for file, name in ALL:
        made = compiled(file, name)
        (entry,) = parse(made.ptx).entries
        plain, readable = write_form(made, "plain"), write_form(made)
        said = "yes" if readable.verdict.proven else f"not proven: {readable.verdict.said}"
        said += f" (plain: {readable.fell_back})" if readable.fell_back else ""
        rows.append(f"| {name} | {len(entry.instructions)} | {plain.lines} | {readable.lines} | {said} |")
    KERNELS.write_text(kernels(), encoding="utf-8")
    others = PAGE.read_text(encoding="utf-8").partition(OTHERS)
    parts = [HEAD + "\n".join(rows), FAMILIES_HEAD + "\n".join(families()), "".join(others[1:]).rstrip()]
    PAGE.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def families() -> Iterator[str]:
    """A row a launch of the library, as families.py left them."""
    for row in json.loads(FAMILIES.read_text(encoding="utf-8")):
        yield f"| {row['call']} | `{row['kernel']}` | {row['ptx']} | {row['lines']} | {row['bits']} |"


if __name__ == "__main__":
    main()

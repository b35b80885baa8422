"""Writes docs/xray-cuda.md and docs/xray-cuda-kernels.md: `make case-book`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tilefold.xray.compile.source import load_file
from tilefold.xray.cuda import write_form
from tilefold.xray.explain import explain_file
from tilefold.xray.ptx import parse
from xray.cuda.test_readable import ALL, CASE_BOOK, MOST, MOST_OF_OTHERS, OWN, cases, compiled

PAGE = Path(__file__).parents[3] / "docs" / "xray-cuda.md"
KERNELS = PAGE.with_name("xray-cuda-kernels.md")
SHOWN = ("softmax", "layer norm", "tiled transpose", "ragged", "scan of pairs", "matmul", "matmul of four warps",
         "attention of four warps", "welford norm", "dequant")  # fmt: skip
# What a reader may ask before the CUDA is opened; the counts answer.
QUESTIONS = {
    "softmax": "How often do warps wait for each other, for a maximum and a sum?",
    "layer norm": "How often do warps wait for each other, for a mean and a variance? Is the row read a second time?",
    "tiled transpose": "Masked in both dims: how wide are loads and stores, and what moves for each element?",
    "ragged": "What is executed where a row has no elements?",
    "scan of pairs": "How many shuffles does a warp make for 512 pairs, 4 of them of a thread?",
    "matmul": "How far ahead of their product are tiles copied, and what waits for them?",
    "matmul of four warps": "Which instruction multiplies, who issues it, and when is it waited for?",
    "attention of four warps": "What goes through shared memory between the two products? Which values live across the loop?",
    "welford norm": "How many divisions does a thread make before the first shuffle?",
    "dequant": "How many times is a byte of two numbers loaded?",
}
HEAD = """\
# Kernels as CUDA

What `tilefold xray --cuda` writes of the case book's kernels and of some more (tests/xray/cuda/kernels.py): instructions of
Triton's PTX, lines of the kernel in the plain and in the readable form, the lines that a test allows it, and whether nvcc's
PTX of the readable file stores the same bits as Triton's, executed by the X-ray. Allowed are one and a half times those of
a study that translated the case book's kernels by hand (a masked copy 9, of one warp 13, of sixteen 8, a loop 13, two dims
34, a static length 9, a dynamic one 29, a tail split off 36, sums 31, 31, and 41 with an atomic, a sigmoid 9), or what a
person would take. Functions above a kernel do not count. [Some of them whole](xray-cuda-kernels.md), and in the
[case book](../examples/casebook/casebook.md). Written by `make case-book`.

## How it reads

- Above a kernel stand its launch, and of each named tile the elements that a thread holds, as Triton's layouts give them.
- A value has the name that the source gives the line's result. A step on the way to it is called after that: `mean_part`
  is what a thread has of `mean`, `mean_sum` the sum that the line goes on with, `row_loaded` what is loaded before it is
  converted, `x_at` a place in memory. Of a function of yours that was inlined, its own names are taken. What has no name is
  called `value`, `at` (a whole number), `on` (a condition), `other` (of another lane).
- Functions above the kernel: `block_sum` and its like are folds over all threads, also inside of loops; `combine` makes one
  state of two where a state is several values (an argmax's pair, Welford's mean, sum and count), for what a thread has of its
  own as for lanes, and `block_fold` folds such over all threads; `warp_scan` scans lanes; `log_f32` and its like are
  functions of mathematics that the compiler wrote out. Divisions by constants are divisions again. What a thread scans of
  its own is still written out, step by step.
- Twenty kernels of twenty other projects were read by someone who had neither their names nor their source (2026-11-28): he
  named the operation of all, from an int8-quantising norm to the backward of deformable attention, and of nineteen said
  what a thread holds (the twentieth holds one value). What cost him most: scans, folds of pairs and dequantisation
  written out step by step, offsets and swizzles in shared memory without the element that they lead to, and names of array
  parts (`acc` for one accumulator of eight).

## Random kernels

Kernels drawn by tests/xray/cuda/generated.py (elementwise, masked, folds, scans, products, loops, ifs, gathers, atomics),
2026-11-28: `CUDA_KERNELS=300 CUDA_SEED=281100 pytest tests/xray/cuda/test_readable.py -k drawn` gave 299 that are proven and
one that could not be written (values of one array that were made of each other; mended, and a test). With that mended and
folds of several values as functions, CUDA_SEED=281700 gave 299 that are proven and one that takes the plain form (a whole
number that is seen as 16 bits of it). With lanes' scans as functions CUDA_SEED=282000 gave 300 that are proven, and under
Triton 3.9 the first 100 of CUDA_SEED=282500 are.

## Lengths

| kernel | instructions | plain | readable | allowed | bits equal |
| --- | ---: | ---: | ---: | ---: | --- |
"""


FAMILIES = Path(__file__).with_name("families.json")
OTHERS = "## Kernels of others"  # which benchmarks/xray_public/as_cuda.py writes
FAMILIES_HEAD = """\
## The library's kernels

Calls that reach every kernel of the library, with the lines of Triton's PTX and of the readable file of each launch. Both are
executed on the same tensors, the file's in each order of warps, and must leave the same bytes. Where a row says no, the
readable file stores other bits, and `--cuda` writes the plain form. Executed by `make cuda-families`.

| call | kernel | Triton's PTX, lines | CUDA, lines | bits equal |
| --- | --- | ---: | ---: | --- |
"""

SPEEDS = PAGE.parent.parent / "benchmarks/results/h200/experiments/cuda-beside-triton.json"
SPEEDS_HEAD = """\
## Speed

Triton's cubin and the readable file's in turns on an {device}, {date}, medians of {rounds} launches with an empty L2: as
fast in the median within {median:.1%}. Bits are of all that is stored on the chip. "fused": the assembler, as Triton calls
it, fuses a product with a sum that the PTX writes apart (a division's last product with a subtraction), so that Triton's
bits are other than its PTX says; the file has those of the PTX, as `ptxas --fmad=false` has.
`loop` is one program that waits for one load after the other, of arrays of its own: Triton's same cubin took 392, 743,
769 and 393 us in four runs. `python benchmarks/cuda_beside_triton.py`.

| kernel | bits | Triton, us | CUDA, us | ratio |
| --- | --- | ---: | ---: | ---: |
"""

KERNELS_HEAD = """\
# Kernels in Triton and in CUDA

Before a kernel's CUDA is opened: what do you expect a thread to hold, how often do threads wait for each other, and what goes
through shared memory? Below stands what the X-ray counts of the programs that it executes. No study has concluded anything of
these kernels; those of which one has are in the [case book](../examples/casebook/casebook.md). The functions above each
kernel (reductions over a block, instructions without a word in C++) are left out here. Written by `make case-book`.
"""


def kernels() -> str:
    """Each kernel's source, its CUDA with what is proven of it, and counts."""
    book = load_file(CASE_BOOK.with_name("book.py"))
    return "\n".join([KERNELS_HEAD, *(line for name in SHOWN for line in shown(name, book))])


def shown(name: str, book: Any) -> list[str]:
    """A kernel's section."""
    written = write_form(compiled(OWN, name))
    head, _, body = written.text.partition('extern "C"')
    proof = f"{head.splitlines()[0].removeprefix('// ')} {written.lines} lines."
    return [
        f"## {name[0].upper()}{name[1:]}",
        "",
        "```text",
        inspect.getsource(cases(OWN)[name]["kernel"].fn).strip(),
        "```",
        "",
        "<details>",
        f"<summary>{QUESTIONS[name]} {proof}</summary>",
        "",
        "```cuda",
        f'extern "C"{body}'.rstrip(),
        "```",
        "</details>",
        "",
        *book.COLUMNS,
        book.row(name, explain_file(str(OWN), name)),
        "",
    ]


def main() -> None:
    """A row a kernel, and the kernels."""
    rows = []
    for file, name in ALL:
        made = compiled(file, name)
        (entry,) = parse(made.ptx).entries
        plain, readable = write_form(made, "plain"), write_form(made)
        said = "yes" if readable.verdict.proven else f"not proven: {readable.verdict.said}"
        said += f" (plain: {readable.fell_back})" if readable.fell_back else ""
        lines = f"{plain.lines} | {readable.lines} | {MOST.get(name, MOST_OF_OTHERS)}"
        rows.append(f"| {name} | {len(entry.instructions)} | {lines} | {said} |")
    KERNELS.write_text(kernels(), encoding="utf-8")
    others = PAGE.read_text(encoding="utf-8").partition(OTHERS)
    parts = [
        HEAD + "\n".join(rows),
        FAMILIES_HEAD + "\n".join(families()),
        speeds(),
        "".join(others[1:]).rstrip(),
    ]
    PAGE.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def families() -> Iterator[str]:
    """A row a launch of the library, as families.py left them."""
    for row in json.loads(FAMILIES.read_text(encoding="utf-8")):
        yield f"| {row['call']} | `{row['kernel']}` | {row['ptx']} | {row['lines']} | {row['bits']} |"


def speeds() -> str:
    """The times beside Triton's, as a GPU's run left them."""
    found = json.loads(SPEEDS.read_text(encoding="utf-8"))
    keys = ("kernel", "bits", "triton_us", "cuda_us", "ratio")
    rows = ["| " + " | ".join(str(row.get(key, "")) for key in keys) + " |" for row in found["rows"]]
    median = abs(found["median_ratio"] - 1)
    return SPEEDS_HEAD.format(**found, median=median) + "\n".join(rows)


if __name__ == "__main__":
    main()

"""The walk through the library: what `make demo` shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
sys.path[:0] = [str(ROOT / "benchmarks")]
import readme  # noqa: E402  # lives in benchmarks/

# What the walk shows of each thing that the project was asked for, its lines joined.
WALKED = (
    # a short axis
    "OR, AND, XOR of int32 [6, 40, 16] over any axis: shapes of the results, whose bits are numpy's dim 0 dim 1 dim 2",
    "XOR [40, 16] [6, 16] [6, 40] [40] []",
    "executed here from its PTX: tilefold's bits instructions bytes moved tl.reduce of a 3-D tile",
    "K unrolled loads",
    "tl.reduce of flat rows",
    "int64 limit tilefold 3-D loads flat compile of limit 64x128x4",
    "1024x2048x8",
    "tilefold bench or-small-axis --against torch,compile",
    # reductions and online algorithms
    "max equal equal equal equal equal equal min equal equal equal equal equal equal cumsum",
    "a state of (unit, elements, count, pivot, sum, squares)",
    "each held whole 1. ring_rows",
    "rows of 4194304 elements, read again from the L2 1. clear",
    "max -inf (float32) -128 (int8)",
    "and -1 (int32) 255 (uint8)",
    "error wrong-fill wrong_fill.py:",
    "tilefold's own maximum of such rows, 64x1000 fp32: nothing found.",
    "build/welford.html",
    # kernels explained
    "13 A transposed matrix confirmed 14 A sigmoid confirmed 15 A small product confirmed",
    "if (p1) r1 = *(Held32*)(rd1);",
    "Executed from its PTX, it copies 1000 floats.",
    # skinny products
    "of float64's, and so is tilefold.inductor.matmul",
    "28 products of bf16 with ReLU",
    "torch.compile, max-autotune 1",
    "custom op, S chosen by Inductor 1",
    "two kernels, a serial reducer 1",
    "two kernels, a vector reducer 1",
    "for exact shapes and for ranges of rows, and with mm=True for torch.mm itself",
    "T tilefold eager compile custom op 1",
    "leave these as CSV and plots",
    # training
    "tilefold.nn.swap(model): 8 swapped, 0 left",
    "Largest difference from torch's loss:",
    "The last flagged number of rows of 64, 120 steps",
    # transposes and atomic sums
    "bytes tilefold torch compile of limit 1 (int8)",
    "256 of a row wasted-sectors",
    "a tile, 64 x 64 none",
    "triton: atomics, 1 result of 16777216 elements, rows contiguous, atomic add",
    'fp32 tilefold "none" relaxed acquire release acq_rel torch',
    'warning strong-atomic: an atomic of order "acq_rel"',
)


def test_the_walk() -> None:
    """As in a terminal of 80 columns, without the demo's checkpoint or with it."""
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "walk.py")]
    shown = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**ENVIRONMENT, "COLUMNS": "80"}
    ).stdout
    lines = shown.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    headings = [line.split(" ", 1)[0] for line in lines if line.endswith("─") and line[0].isdigit()]
    assert headings == [f"{n}." for n in range(1, 15)]
    one_line = " ".join(shown.split())
    assert [part for part in WALKED if part not in one_line] == []
    for part in (
        "either = tilefold.Monoid(",
        "overflow",
        "build/softmax_pair.html",
        "ordered",
        "No NaN, no inf.",
        "! NaN or inf in 1 of 2",
        "float64 gives the same",
        "error  wrong-fill  wrong_fill.py:",
    ):
        assert part in shown
    if not torch.cuda.is_available():
        assert "results measured elsewhere" in shown
        assert shown.count("Its plan on an H200 (planned here, not run)") == 4
        assert readme.load().runs[0].chip in shown

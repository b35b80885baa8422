"""A transpose at a copy's speed, a sum by atomic operations, and what is wasted by the ways in which one first writes them.

A matrix that is transposed an element at a time, or stored with a stride, wastes most of each memory transaction; tiles make
both sides whole. A sum of which each program adds its part with one atomic operation needs no second launch, and gives up the
order.
"""

from __future__ import annotations

import torch
from explained import report_of, sectors_of
from shown import committed, console, has_triton, label, measured_on, say, show_plan, show_table

import tilefold
from tilefold import monoids
from tilefold.bench.summary import fractions, median_us

DTYPES = {"int8": torch.int8, "bf16": torch.bfloat16, "fp32": torch.float32, "int64": torch.int64}
NAIVE = {
    "transpose, elements": ("an element", 1),
    "transpose, strided": ("256 of a row", 256),
    "transpose, tiles": ("a tile, 64 x 64", 4096),
}
SEMANTICS = ("relaxed", "acquire", "release", "acq_rel")


def moved() -> None:
    """`tilefold.transpose` of 1-, 2-, 4- and 8-byte elements: the same bits here, a copy's speed on an H200."""
    results = committed("transpose")
    rows = []
    for name, dtype in DTYPES.items():
        x = torch.randint(-100, 100, (70, 33, 9)).to(dtype)
        got, want = tilefold.transpose(x, 0, 2), x.transpose(0, 2).contiguous()
        assert torch.equal(got, want)
        assert got.is_contiguous()
        case = next(c for c in results.cases if c.headline and c.dtype == name)
        times = [f"{median_us(case, variant) or 0:.0f}" for variant in ("ours", "torch", "compile")]
        rows.append([f"{x.element_size()} ({name})", *times, f"{fractions([case])[0]:.2f}"])
    label("tilefold.transpose(x, 0, 2) of [70, 33, 9], elements of 1, 2, 4 and 8 bytes: torch's bits")
    say(f"{measured_on(results)}: 16384x8192. Limit: a copy, and a launch.")
    show_table(["bytes", "tilefold", "torch", "compile", "of limit"], rows)
    large = torch.empty(16384, 8192, dtype=torch.bfloat16, device="meta")
    show_plan("Its plan on an H200", tilefold.explain_plan(large, tilefold.transpose, dim0=0, dim1=1))


def naive() -> None:
    """The naive ones beside tiles, as the case book has them: transactions counted."""
    label(
        "Transactions of a naive transpose, fp32 256x256 (the case book's case 13; `tilefold bench transpose` times them)"
    )
    if not has_triton():
        return
    rows = []
    for name, (title, elements) in NAIVE.items():
        report = report_of(name)
        each = elements * len(report.programs)
        load, store = (sectors_of(report, kind) for kind in ("load", "store"))
        codes = ", ".join(dict.fromkeys(report.codes())) or "none"
        rows.append([title, codes, f"{load:.0f}", f"{store:.0f}", f"{report.totals.bytes_moved / each:g}"])
    show_table(["a program moves", "found", "sectors a load", "a store", "bytes an element"], rows, texts=2)
    say(
        "Counted in the execution: sectors of 32 bytes that a warp's access touches. 8 bytes an element is the least: 4 "
        "are read, 4 written."
    )


def atomic() -> None:
    """The atomic sum beside the deterministic one."""
    x = torch.randint(-9, 9, (100_003,)).float()
    assert tilefold.reduce(x, monoids.SUM, guarantee="none") == tilefold.reduce(x, monoids.SUM) == x.sum()
    label('tilefold.reduce(x, SUM, guarantee="none"): an atomic operation a program, no fixed order')
    console.print("100003 whole numbers here: the same sum with each guarantee (a CPU has one way)")
    large = torch.empty(1 << 24, device="meta")
    for guarantee in ("none", "run_to_run"):
        plan = tilefold.explain_plan(large, monoids.SUM, 0, guarantee=guarantee)
        show_plan(f'2^24 fp32 on an H200, "{guarantee}"', plan)
    results = committed("atomic-sum")
    variants = ["ours", "ours, no guarantee", *(f"atomic, {name}" for name in SEMANTICS), "torch"]
    rows = [
        [f"{case.shape[-1]}", *(f"{median_us(case, variant) or 0:.1f}" for variant in variants)]
        for case in results.cases
    ]
    label(f"{measured_on(results)}: each memory semantics beside the fold")
    show_table(["fp32", "tilefold", '"none"', *SEMANTICS, "torch"], rows)


def strong() -> None:
    """The case book's atomic sum: its order is stronger than a sum needs."""
    label("An atomic sum without a memory semantics (the case book's case 11), X-rayed")
    if not has_triton():
        return
    found = next(o for o in report_of("atomic sum").observations if o.code == "strong-atomic")
    say(f"{found.severity}  {found.code}: {found.evidence}", indent="  ")
    say(f"why: {found.reason}", indent="    ")
    say(f"do: {found.change}", indent="    ")


def main() -> None:
    """All of it."""
    moved()
    naive()
    atomic()
    strong()


if __name__ == "__main__":
    main()

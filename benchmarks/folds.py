"""Measure every fold of the grid against the limit of the memory, and against torch. Run it on a GPU; see --help."""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import peers
import report
import timing
import torch
from peers import Cell

SCHEMA = 1


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__)
    names = lambda text: [word for word in text.split(",") if word]  # noqa: E731 - a type for argparse
    p.add_argument("--ops", type=names)
    p.add_argument("--shapes", type=names, help="such as 16384x8192,1x268435456")
    p.add_argument("--dims", type=names)
    p.add_argument("--dtypes", type=names)
    p.add_argument("--headline", action="store_true", help="the 16 headline cells only")
    p.add_argument("--part", default="1/1", help="every n-th cell, such as 2/3")
    p.add_argument("--against", type=names, default=[], help="torch,compile")
    p.add_argument(
        "--jobs", type=int, default=0, help="worker processes that compile before anything is timed"
    )
    p.add_argument("--warm-only", action="store_true")
    p.add_argument("--budget-s", type=float, default=540)
    p.add_argument("--warmup-ms", type=float, default=10)
    p.add_argument("--repeat-ms", type=float, default=40)
    p.add_argument("--host", action="store_true", help="also the host's cost of a call")
    p.add_argument("--out", type=Path, default=Path("bench-out"))
    p.add_argument("--device", default="cuda")
    p.add_argument("--smoke", action="store_true", help="tiny shapes")
    return p.parse_args(argv)


def selected(args: argparse.Namespace) -> list[Cell]:
    """The cells that the command line asks for, in order."""
    cells = [
        cell
        for cell in peers.all_cells(args.smoke)
        if (not args.headline or cell.headline)
        and (not args.ops or cell.op in args.ops)
        and (not args.shapes or "x".join(map(str, cell.shape)) in args.shapes)
        and (not args.dims or str(cell.dim) in args.dims)
        and (not args.dtypes or cell.dtype in args.dtypes)
    ]
    part, parts = map(int, args.part.split("/"))
    return cells[part - 1 :: parts]


def warm_caches(cells: list[Cell], args: argparse.Namespace, deadline: float) -> None:
    """Compile in workers, before anything is timed: inductor's own tuning would disturb the figures."""
    variants = ["ours"] + ["compile"] * ("compile" in args.against)
    jobs = [(variant, cell, args.device, deadline) for variant in variants for cell in cells]
    start = time.time()
    with ProcessPoolExecutor(args.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            for variant, cell, error in pool.map(peers.warm, jobs):
                if error:
                    print(f"warm {variant} {cell}: {error}", flush=True)
        except BrokenProcessPool as error:  # a worker died: the rest compiles when it is timed
            print(f"warm: {error}", flush=True)
    print(f"warmed {len(jobs)} in {time.time() - start:.0f} s", flush=True)


def short(plan: Any) -> str:
    """A plan in one word a stage."""
    stages = [
        f"{s.family}:k{s.block_kept},l{s.lanes},r{s.run}x{s.unroll},s{s.splits},w{s.num_warps}"
        for s in plan.stages
    ]
    return " + ".join(stages or [plan.backend]) + (" overlap" if plan.overlap else "")


class Bench:
    """The run's timer, ceilings and current input."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Measure the copy and the empty launches."""
        self.args = args
        gpu = args.device != "cpu"
        self.timer = timing.device_timer(args.warmup_ms, args.repeat_ms) if gpu else timing.host_timer()
        self.copy = timing.copy_bytes_per_us(self.timer, args.device, 1 << 29 if gpu else 1 << 16)
        if gpu:
            torch.cuda.empty_cache()
        self.empty = timing.EmptyLaunches(self.timer, args.device)
        for launches, overlap in ((1, False), (2, False), (2, True)):
            self.empty.time_us(launches, overlap)
        self.key: Any = None
        self.x = torch.empty(0)

    def input(self, cell: Cell) -> torch.Tensor:
        """The cell's input, kept while the shape and dtype stay."""
        if self.key != (cell.shape, cell.dtype):
            self.x = torch.empty(0)
            self.x = peers.draw_input(cell.shape, cell.dtype, self.args.device)
            self.key = (cell.shape, cell.dtype)
        return self.x

    def variant(self, name: str, cell: Cell, want: Any) -> tuple[timing.Timing | None, str]:
        """Check, then time. A wrong answer is not timed."""
        x = self.input(cell)
        try:
            call = peers.VARIANTS[name](cell)
            call(x)  # compiles, so that the poison below is not eaten by the compiler's own tuning
            peers.poison_cache(want, peers.expected_dtypes(cell))
            wrong = peers.fault(cell, x, call(x), want)
            return (None, f"WRONG: {wrong}") if wrong else (self.timer(lambda: call(x)), "ok")
        except Exception as error:  # a cell that fails is a row of the table, not the end of the run
            return None, f"ERROR: {type(error).__name__}: {str(error)[:200]}"

    def row(self, cell: Cell) -> report.Row:
        """Everything about one cell."""
        import tilefold

        x = self.input(cell)
        want = peers.answer(cell, x)
        sizes = [t.numel() * d.itemsize for t, d in zip(want, peers.expected_dtypes(cell), strict=True)]
        total = x.numel() * x.element_size() + sum(sizes)
        mine, checked = self.variant("ours", cell, want)
        plan = tilefold.last_plan() if mine else None
        row = blank_row(cell) | {"bytes": total, "floor_us": total / self.copy, "checked": checked}
        if mine and not plan:
            row["checked"] = "ERROR: no plan was remembered"
        if mine and plan:
            launches = max(plan.launches, 1)
            least = self.empty.time_us(launches, plan.overlap) + row["floor_us"]
            row |= {
                "time_us": mine.median_us, "q1": mine.q1_us, "q3": mine.q3_us,
                "efficiency": least / mine.median_us, "launches": launches, "plan": short(plan),
            }  # fmt: skip
        for name in self.args.against:
            peer, note = self.variant(name, cell, want)
            row[f"{name}_us"], row[f"{name}_note"] = peer.median_us if peer else None, note
        return row


def blank_row(cell: Cell) -> report.Row:
    """A row before its figures: every column is there."""
    columns = cell.shape[-1]
    rows = 1
    for size in cell.shape[:-1]:
        rows *= size
    empty = dict.fromkeys(("time_us", "q1", "q3", "efficiency", "launches", "plan", "torch_us", "compile_us"))
    return {
        "operation": cell.op, "dim": cell.dim, "shape": "x".join(map(str, cell.shape)), "rows": rows,
        "columns": columns, "dtype": cell.dtype, "headline": cell.headline, "bytes": 0, "floor_us": 0.0,
        **empty, "torch_note": None, "compile_note": None, "checked": "not run",
    }  # fmt: skip


def line(row: report.Row) -> str:
    """What is printed of a cell while it runs."""
    time_text = f"{row['time_us']:9.1f} us {row['efficiency']:.3f}" if row["time_us"] else row["checked"]
    notes = [
        f"{key[:-5]} {row[key]}" for key in ("torch_note", "compile_note") if row[key] not in (None, "ok")
    ]
    others = [f"{key[:-3]} {row[key]:.1f}" for key in ("torch_us", "compile_us") if row[key]]
    return "  ".join([f"{report.label(row):44s}", time_text, *others, *notes, row["plan"] or ""])


def host_costs(device: str) -> dict[str, float]:
    """Host time of a repeated one-launch call, ours and torch's, in microseconds."""
    import tilefold

    x = torch.randn(32, 1024, device=device)
    synchronize = torch.cuda.synchronize if device != "cpu" else lambda: None
    calls = 2000 if device != "cpu" else 20
    candidates = {"tilefold.sum": lambda: tilefold.sum(x, dim=1), "torch.sum": lambda: torch.sum(x, dim=1)}
    return {
        name: timing.host_call_us(call, synchronize, calls, 20 if device != "cpu" else 2)
        for name, call in candidates.items()
    }


def driver() -> str:
    """The driver's version, or what stands for it without a GPU."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[0].strip()
    except (OSError, subprocess.CalledProcessError):
        return "none"


def header(bench: Bench) -> dict[str, Any]:
    """Where, when and how the figures were made, and the two ceilings."""
    try:
        from triton import __version__ as triton_version
    except ImportError:
        triton_version = "none"
    gpu = bench.args.device != "cpu"
    return {
        "schema": SCHEMA, "chip": torch.cuda.get_device_name() if gpu else "cpu", "driver": driver(),
        "torch": torch.__version__, "triton": triton_version,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]), "copy_gb_per_s": bench.copy / 1e3,
        "empty_us": bench.empty.times_us, "warmup_ms": bench.args.warmup_ms, "repeat_ms": bench.args.repeat_ms,
    }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Warm, measure, write, summarize."""
    args = arguments(argv)
    deadline = time.time() + args.budget_s
    os.environ.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE", "1")
    cells = selected(args)
    if args.jobs and args.device != "cpu":
        # One compile thread a worker: the workers are the parallelism.
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        # Half of the time at most goes to warming, unless warming is all there is to do.
        warm_caches(cells, args, deadline if args.warm_only else deadline - args.budget_s / 2)
    if args.warm_only:
        return 0
    bench = Bench(args)
    result = header(bench) | {"rows": [blank_row(cell) for cell in cells]}
    print(
        f"{result['chip']}: copy {result['copy_gb_per_s']:.0f} GB/s, empty launches {result['empty_us']}",
        flush=True,
    )
    if args.host:
        result["host_us"] = host_costs(args.device)
        print(f"host us a call: {result['host_us']}", flush=True)
    for number, cell in enumerate(cells):
        if time.time() > deadline:
            print(f"out of time: {len(cells) - number} cells not run", flush=True)
            break
        result["rows"][number] = bench.row(cell)
        print(line(result["rows"][number]), flush=True)
        if number % 20 == 19:
            report.write(result, args.out)
    report.write(result, args.out)
    print("\n" + report.summary(result["rows"]))
    return int(any(row["checked"].startswith(("WRONG", "ERROR")) for row in result["rows"]))


if __name__ == "__main__":
    sys.exit(main())

"""The least time in which any kernel reads so many bytes once, after a flush that wrote and after one that then read.

    PYTHONPATH=src python benchmarks/cold_reads.py --out cold-reads.json

A fold's limit is an empty launch and its bytes at the speed of a large copy. Small inputs stay behind it, and this says how
far that is the memory's doing: kernels that do nothing but read (cold_reads.cu), by plain loads and bulk copies, in many
shapes, over as many bytes as the bench's small cases have. A flush leaves the L2 full of what it wrote, which has to go to
memory before new lines can come; `--flush read` of the bench, and the second column here, have nothing to write back. Every
kernel's sum is compared with float64 before it is timed. Needs a GPU of sm_90 and CuPy.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cupy
import torch

from tilefold.bench import limits, machine
from tilefold.bench.cases import PlanNote
from tilefold.bench.timing import DeviceClock, Pace, Stopwatch

SOURCE = Path(__file__).with_suffix(".cu")
MEGABYTES = (16, 32, 64)  # 32768 rows of 256 bf16, of 256 fp32, of 1024 bf16
VECTOR = 16
# A kernel: its name, what launches it, the source's macros, CTAs (0: one a tile), bytes of shared memory.
Reader = tuple[str, Any, dict[str, Any], int, int]


def shapes(sms: int) -> Iterator[tuple[str, dict[str, Any], int, int]]:
    """(name, the source's macros, CTAs or 0 for one a tile, bytes of shared memory)."""
    for policy, threads, loads in itertools.product(
        (None, "evict_first", "evict_unchanged"), (256, 512, 1024), (4, 8, 16)
    ):
        if threads * loads > 8192 or (policy != "evict_first" and (threads, loads) != (512, 8)):
            continue
        hint = {} if policy is None else {"POLICY": f'"{policy}"'}
        for ctas in (0, sms, 2 * sms, 4 * sms):
            name = f"loads: {policy or 'as usual'}, {threads} threads, {loads} a thread, {ctas or 'all'} CTAs"
            yield name, {"THREADS": threads, "LOADS": loads, **hint}, ctas, 0
    for chunk, stages in ((8192, 12), (16384, 8), (16384, 12), (32768, 6)):
        macros = {"THREADS": 512, "BULK": 1, "CHUNK": chunk, "STAGES": stages}
        yield f"bulk copies: {chunk} bytes, {stages} on their way", macros, sms, chunk * stages


def readers(sms: int) -> list[Reader]:
    """The kernels, compiled."""
    made = []
    for name, macros, ctas, shared in shapes(sms):
        options = ("-std=c++17", *(f"-D{key}={value}" for key, value in macros.items()))
        kernel = cupy.RawModule(code=SOURCE.read_text(encoding="utf-8"), options=options).get_function("read")
        if shared:
            kernel.max_dynamic_shared_size_bytes = shared
        made.append((name, kernel, macros, ctas, shared))
    return made


def calls(x: torch.Tensor, kernels: list[Reader]) -> dict[str, Callable[[], None]]:
    """A call of each kernel over x, each shown to read every element.

    Raises:
        SystemExit: a sum is wrong.
    """
    vectors = x.numel() * x.element_size() // VECTOR
    sums = torch.empty(1 << 20, device="cuda")
    want, bound = float(x.double().sum()), 2.0**-18 * float(x.double().abs().sum())
    made: dict[str, Callable[[], None]] = {}
    for name, kernel, macros, ctas, shared in kernels:
        grid = ctas or vectors // (macros["THREADS"] * macros["LOADS"])
        arguments = (x.data_ptr(), sums.data_ptr(), cupy.int64(vectors))

        def call(kernel: Any = kernel, grid: int = grid, threads: int = macros["THREADS"], a: Any = arguments,
                 shared: int = shared) -> None:  # fmt: skip
            kernel((grid,), (threads,), a, shared_mem=shared)

        sums.zero_()
        call()
        if not abs(float(sums.double().sum()) - want) <= bound:
            raise SystemExit(f"WRONG SUM: {name}")
        made[name] = call
    return made


def main() -> None:
    """Measure, print the fastest of each flush, and write all of it."""
    p = argparse.ArgumentParser(description="How fast bytes can be read once from a cold L2.")
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--commit", default=None)
    args = p.parse_args()
    cupy.cuda.Stream.from_external(torch.cuda.current_stream()).use()
    kernels = readers(torch.cuda.get_device_properties(0).multi_processor_count)
    report: dict[str, Any] = {
        "chip": machine.chip_name("cuda"), "driver": machine.driver_version(), "torch": torch.__version__,
        "commit": args.commit or machine.commit(), "sizes": {},
    }  # fmt: skip
    for flush in ("write", "read"):
        watch = Stopwatch(DeviceClock(clean=flush == "read"), Pace(2.0, 8.0))
        measured = limits.measure_limits(watch, "cuda")
        report[f"copy_gb_per_s_{flush}"] = measured.copy_gb_per_s
        for megabytes in MEGABYTES:
            x = torch.randn(megabytes << 18, device="cuda")
            empty = measured.empty_call(PlanNote("", 1))
            times = watch.time({"empty": empty, **calls(x, kernels)})
            median = {name: round(spread.median_us, 2) for name, spread in times.items()}
            limit = median.pop("empty") + limits.floor_us(x.numel() * 4, measured.copy_gb_per_s)
            name, best = min(median.items(), key=lambda item: item[1])
            report["sizes"].setdefault(str(megabytes), {})[flush] = {
                "limit_us": round(limit, 2),
                "us": median,
            }
            print(
                f"{megabytes} MB after a {flush}: limit {limit:.2f} us, read in {best:.2f} ({limit / best:.3f}; {name})"
            )
    args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

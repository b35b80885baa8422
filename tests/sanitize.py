"""compute-sanitizer over every family of kernels: python tests/sanitize.py memcheck|racecheck|initcheck [ITS OPTIONS]

Each hazard is shown with the fold or product it came in; exit code 1 if there is any. Needs a CUDA device and the CUDA
toolkit's compute-sanitizer. cuBLAS's kernels are not ours: no product here is left to it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
HAZARD = re.compile(r"Race reported|Uninitialized|Invalid|hazard detected|Error:")
DETAIL = re.compile(r"and (Write|Read) access|^=+ +at |SUMMARY|Traceback|^\w*Error")
FOLDS = [
    "sum", "max", "argmax", "any", "logsumexp", "welford", "describe", "pair", "attention", "affine", "sum without identity",
]  # fmt: skip
LONG = {
    "row of 1000", "small axis many", "long columns", "eight long rows", "channels", "strided long", "wide columns",
    "odd long rows", "columns 257",
}  # fmt: skip
PRODUCTS = ((1, 7168, 256), (16, 8192, 16), (48, 20480, 48), (63, 1000, 65), (300, 512, 128))
# Rows and columns held whole, aligned and not, in rings (by programs and clusters that walk, too) and in windows: also more
# programs than a chip runs at a time.
MAPS = (
    ((33, 1000), 1),
    ((9, 4099), 1),
    ((7, 300, 129), 1),
    ((64, 50257), 1),
    ((3, 262144), 1),
    ((40000, 96), 0),
    ((5000, 256), 1),
    ((700, 8192), 1),
    ((300, 65536), 1),
    ((1000, 4096), 0),
)


# Lines walked whole, several at a time, in chunks with and without vectors; and shared by programs that wait for each other.
SCANS = (
    ((3000, 1000), 1),
    ((999, 13), 1),
    ((77, 4099), 1),
    ((3, 400_003), 1),
    ((1, 1 << 21), 1),
    ((4097, 513), 0),
    ((70_001, 24), 0),
    ((3000, 8192), 0),
)


def run() -> None:
    """Under the sanitizer: every family, its name said before it runs."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    import torch

    for name in _calls():
        torch.cuda.synchronize()  # what the call before did is said beneath its own name
        print(f"@ {name}", flush=True)
    torch.cuda.synchronize()
    print("@ done", flush=True)


def _calls() -> Iterator[str]:
    """Names of calls; each is made when the next one is asked for."""
    import torch

    import tilefold
    from backends.triton_cases import LARGE, MONOIDS, SMALL
    from tilefold import monoids

    for case in [*SMALL, *(case for case in LARGE if case.name in LONG)]:
        for name in FOLDS:
            yield f"{name} of {case.name}"
            tilefold.reduce(case.make(MONOIDS[name], torch.float32, "cuda"), MONOIDS[name], case.dims)
    for shape in ((1000, 1000), (777, 4099), (5000, 8), (40, 8, 8), (5, 129, 64)):
        for dtype in (torch.uint8, torch.bfloat16, torch.float32):
            yield f"transpose of {shape}, {dtype}"
            tilefold.transpose(torch.ones(shape, device="cuda").to(dtype), -1, -2)
    for shape, dim in (
        ((3000, 1024), 1),
        ((300, 8192), 1),
        ((9, 50257), 1),
        ((1, 1 << 20), 1),
        ((999, 13), 1),
        ((5000, 64), 0),
    ):
        for dtype in (torch.bfloat16, torch.float32, torch.float64):
            yield f"topk of {shape} along {dim}, {dtype}"
            tilefold.topk(torch.randn(shape, device="cuda").to(dtype), 8, dim)
    for shape, dim in SCANS:
        for dtype in (torch.float32, torch.bfloat16):
            yield f"scans of {'x'.join(map(str, shape))} along {dim}, {dtype}"
            x = torch.randn(shape, device="cuda", dtype=dtype)
            tilefold.cumsum(x, dim)
            tilefold.cummax(x, dim)
            tilefold.scan(x, monoids.LOGSUMEXP, dim, reverse=True, return_state=True)
            tilefold.scan((x, x), monoids.AFFINE, dim, exclusive=True, guarantee="batch_invariant")
    for shape, dim in MAPS:
        for dtype in (torch.float32, torch.bfloat16):
            yield f"softmax of {'x'.join(map(str, shape))}, dim {dim}, {dtype}"
            x = torch.randn(shape, device="cuda", dtype=dtype)
            tilefold.softmax(x, dim)
            tilefold.softmax(x, dim, guarantee="batch_invariant")
            tilefold.rms_norm(x, x.shape[1:], residual=x)
            weight = torch.randn(x.shape[1:], device="cuda", dtype=dtype)
            tilefold.layer_norm(x, x.shape[1:], weight, weight)
    lengths = torch.tensor([0, 64, 0, 0, 3, 90_000, 1, 0, 31, 33, 500, 0], device="cuda")
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    for shape in ((100_003,), (100_003, 5), (100_003, 200)):
        for guarantee in ("run_to_run", "batch_invariant"):
            for borders in (offsets, offsets - 100, offsets.flip(0)):
                yield f"segments of {shape}, {guarantee}, from {int(borders[0])}"
                tilefold.segment_reduce(
                    torch.ones(shape, device="cuda"), monoids.SUM, borders, guarantee=guarantee
                )
    yield "a sum by atomics"
    tilefold.reduce(torch.ones(1 << 22, device="cuda"), monoids.SUM, guarantee="none")
    for rows, depth, columns in PRODUCTS:
        a, b = torch.randn(rows, depth, device="cuda"), torch.randn(depth, columns, device="cuda")
        for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8):
            yield f"product of {rows} x {depth} x {columns}, {dtype}"
            left, right = (8 * a).to(dtype), (8 * b).to(dtype)
            turned = left.mT.contiguous().mT, right.mT.contiguous().mT
            for operands in ((left, right), turned):
                for guarantee in ("run_to_run", "batch_invariant"):
                    options = {"epilogue": "relu", "guarantee": guarantee}
                    if tilefold.explain_plan(operands, tilefold.matmul, **options).strategy != "cublas":
                        tilefold.matmul(*operands, **options)
        for row in (monoids.WELFORD, monoids.LOGSUMEXP, monoids.MAX_WITH_INDEX):
            yield f"rows by {row.name}, {rows} x {depth} x {columns}"
            tilefold.matmul(a, b, row=(row, None))


def main(tool: str, *options: str) -> int:
    """Run this file under the sanitizer and sort what it says by call."""
    found = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    command = [
        found,
        "--tool",
        tool,
        "--print-limit",
        "100000",
        "--target-processes",
        "all",
        *options,
        sys.executable,
    ]
    process = subprocess.Popen(
        [*command, __file__, "run"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout
    now, shown, calls, hazards = "", "", 0, 0
    for line in process.stdout:
        text = line.strip().removeprefix("========= ").strip()
        if line.startswith("@ "):
            now, calls = line[2:].strip(), calls + 1
        elif HAZARD.search(line):
            hazards += 1
            print(f"{now}: {text}" if now != shown else f"    {text}", flush=True)
            shown = now
        elif DETAIL.search(line):
            print(f"    {text}", flush=True)
    code = process.wait()
    print(f"{tool}: {calls - 1} calls, {hazards} hazards, exit {code}, last {now!r}")
    return int(bool(hazards or code or now != "done"))


if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:
        run()
    elif sys.argv[1:2] and sys.argv[1] in ("memcheck", "racecheck", "initcheck"):
        sys.exit(main(*sys.argv[1:]))
    else:
        sys.exit(str(__doc__))

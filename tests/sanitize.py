"""compute-sanitizer over every family: python tests/sanitize.py memcheck|racecheck|initcheck [OPTIONS] [ITS OPTIONS]

Each hazard is shown with the call it came in; exit code 1 if there is any. Needs a CUDA device and the CUDA toolkit's
compute-sanitizer. cuBLAS's kernels are not ours: no product here is left to it.

Inputs lie between elements that are written too: kernels read whole vectors of 16 bytes where a row ends within one, and
leave out what is beyond it, so initcheck then reports only what a kernel should have been given or should have written.

`--only maps` makes the calls whose name has that text; `--part 2/5` every fifth of them from the second on. Several of these
at a time need ports of their own: `--port 20000 --launch-timeout 0`, 22000, ...
`python tests/sanitize.py run` makes them without the sanitizer: that fills Triton's cache, since compiling takes most of the
time.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HAZARD = re.compile(r"Race reported|Uninitialized|Invalid|hazard detected|Error:")
DETAIL = re.compile(r"and (Write|Read) access|^=+ +at |SUMMARY|Traceback|^\w*Error")
# What a tool says of right kernels, by "TOOL CALL: LINE": counted, and shown with the reason at the end.
HARMLESS = {
    r"racecheck .*Warning: Race reported between Write access at map_offset.* in clusters\.py": (
        "a warp writes a cluster's barrier under thread 0's predicate, and no other thread reaches it"
    ),
    r"racecheck .*Warning: Race reported between Read access at map_spans.* in primitives\.py": (
        "threads of rows beyond the tensors' read the last row again while its own thread writes there: nobody reads theirs"
    ),
    r"initcheck segments of .*descending": (
        "where offsets do not ascend some states are not written, and results are unspecified"
    ),
}
FOLDS = [
    "sum", "max", "argmax", "any", "logsumexp", "welford", "describe", "pair", "attention", "affine", "sum without identity",
]  # fmt: skip
LONG = {
    "row of 1000", "small axis many", "long columns", "eight long rows", "channels", "strided long", "wide columns",
    "odd long rows", "columns 257",
}  # fmt: skip
SELECTIONS = (
    ((3000, 1024), 1),
    ((300, 8192), 1),
    ((9, 50257), 1),
    ((1, 1 << 20), 1),
    ((999, 13), 1),
    ((5000, 64), 0),
    ((8, 50_001), 0),
    ((40, 30_000), 0),
    ((3000, 4097), 0),
)
PRODUCTS = (
    (1, 7168, 256),
    (16, 8192, 16),
    (48, 20480, 48),
    (63, 1000, 65),
    (300, 512, 128),
    (601, 1301, 401),
)
# Rows and columns held whole, aligned and not, in rings (by programs and clusters that walk, too), in spans and pieces and in
# windows: also more programs than a chip runs at a time.
MAPS = (
    ((33, 1000), 1),
    ((9, 4099), 1),
    ((7, 300, 129), 1),
    ((64, 50257), 1),
    ((3, 262144), 1),
    ((32, 151936), 1),
    ((16, 1 << 20), 1),
    ((40000, 96), 0),
    ((40001, 11), 1),
    ((999, 101), 1),
    ((5000, 256), 1),
    ((3001, 392), 1),
    ((700, 8192), 1),
    ((700, 3001), 1),
    ((700, 9001), 1),
    ((200, 33333), 1),
    ((300, 65536), 1),
    ((1000, 4096), 0),
    ((501, 7, 13), 1),
    ((70, 17, 14), 1),
    ((20, 60, 33), 1),
    ((3, 60, 1001), 1),
    ((100, 30_000), 0),
)


# Lines walked whole, several at a time, in chunks with and without vectors; and shared by programs that wait for each other.
SCANS = (
    ((3000, 1000), 1),
    ((999, 13), 1),
    ((77, 4099), 1),
    ((3, 400_003), 1),
    ((45, 1 << 15), 1),
    ((40, 70_001), 1),
    ((350_000, 56), 0),
    ((1, 1 << 21), 1),
    ((4097, 513), 0),
    ((70_001, 24), 0),
    ((3000, 8192), 0),
    ((7, 100_001), 0),
    ((13, 60_000), 0),
    ((40, 19, 641), 1),
)

# The same, of inputs whose dims lie in memory the other way round, so that results are stored the other way round.
TURNED = (((13, 11, 13_375), 1), ((2, 131, 37, 1033), 2))

# Lines that so many programs share that most wait for others which began long before; "look-back" is in their names.
LOOK_BACK = (("cummax", (1, 41_000_003), 1), ("affine", (1_300_001, 16), 0))
SHARES = 10_000  # and more: at least four times what a chip runs at a time


def run(part: str, only: str) -> None:
    """Under the sanitizer: every family, its name said before it runs."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    import torch

    index, count = map(int, part.split("/"))
    families = chain(
        _folds(),
        _moves(),
        _losses(),
        _selections(),
        _scans(),
        _maps(),
        _backwards(),
        _segments(),
        _tables(),
        _products(),
    )
    chosen = ((name, call) for name, call in families if only in name)
    for name, call in islice(chosen, index - 1, None, count):
        torch.cuda.synchronize()  # what the call before did is said beneath its own name
        print(f"@ {name}", flush=True)
        call()
    torch.cuda.synchronize()
    print("@ done", flush=True)


Calls = Iterator[tuple[str, Callable[[], object]]]


def _folds() -> Calls:
    import torch

    import tilefold
    from backends.triton_cases import LARGE, MONOIDS, SMALL
    from tilefold import monoids

    def fold(case: Any, monoid: Any) -> None:
        tilefold.reduce(case.make(monoid, torch.float32, "cuda"), monoid, case.dims)

    for case in [*SMALL, *(case for case in LARGE if case.name in LONG)]:
        for name in FOLDS:
            yield f"{name} of {case.name}", partial(fold, case, MONOIDS[name])
    atomic = partial(tilefold.reduce, monoid=monoids.SUM, guarantee="none")
    yield "a sum by atomics", lambda: atomic(torch.ones(1 << 22, device="cuda"))


def _losses() -> Calls:
    import torch

    import tilefold
    from backends.triton_cases import framed

    def loss(shape: tuple[int, int], dtype: torch.dtype) -> None:
        x = framed(torch.randn(shape, device="cuda").to(dtype)).requires_grad_()
        target = framed(torch.randint(-1, shape[1], shape[:1], device="cuda"))
        weight = framed(torch.ones(shape[1], device="cuda"))
        torch.autograd.grad(tilefold.cross_entropy(x, target, weight, ignore_index=-1), x)

    # Whole vectors of rows, as in BACKWARDS.
    for shape in ((1, 1), (300, 1000), (132, 4099)):
        for dtype in (torch.bfloat16, torch.float32):
            yield f"cross_entropy of {shape}, {dtype}", partial(loss, shape, dtype)


def _moves() -> Calls:
    import torch

    import tilefold
    from backends.triton_cases import framed

    def transpose(shape: tuple[int, ...], dims: tuple[int, int], dtype: torch.dtype) -> None:
        tilefold.transpose(framed(torch.ones(shape, device="cuda").to(dtype)), *dims)

    shapes = ((1000, 1000), (777, 4099), (5000, 8), (40, 8, 8), (5, 129, 64), (5, 1, 701))
    for shape, dims in (
        *((shape, (-1, -2)) for shape in shapes),
        ((6, 50, 301), (0, 1)),
        ((7, 5, 6, 2601), (1, 2)),
        ((3, 3, 66_045), (1, 2)),
        ((152, 16, 739), (1, 2)),
    ):
        for dtype in (torch.uint8, torch.bfloat16, torch.float32):
            yield f"transpose of {shape}, {dims}, {dtype}", partial(transpose, shape, dims, dtype)


def _selections() -> Calls:
    import torch

    import tilefold
    from backends.triton_cases import framed

    def topk(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
        tilefold.topk(framed(torch.randn(shape, device="cuda").to(dtype)), 8, dim)

    for shape, dim in SELECTIONS:
        for dtype in (torch.bfloat16, torch.float32, torch.float64):
            yield f"topk of {shape} along {dim}, {dtype}", partial(topk, shape, dim, dtype)


def _scans() -> Calls:
    import torch

    import tilefold
    from backends.triton_cases import framed
    from tilefold import monoids

    def turned(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
        x = framed(torch.randn(shape[::-1], device="cuda", dtype=dtype)).permute(*reversed(range(len(shape))))
        tilefold.logcumsumexp(x, dim)
        tilefold.cummax(x, dim)
        tilefold.scan((x, x), monoids.AFFINE, dim, reverse=True, exclusive=True, return_state=True)

    def scans(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
        x = framed(torch.randn(shape, device="cuda", dtype=dtype))
        tilefold.cumsum(x, dim)
        tilefold.cummax(x, dim)
        tilefold.scan(x, monoids.LOGSUMEXP, dim, reverse=True, return_state=True)
        tilefold.scan((x, x), monoids.AFFINE, dim, exclusive=True, guarantee="batch_invariant")
        halves = framed(torch.randn(2 * x.numel() + 1, device="cuda", dtype=dtype))
        tilefold.scan(
            (halves[: x.numel()].view(shape), halves[-x.numel() :].view(shape)), monoids.AFFINE, dim
        )

    for shape, dim in SCANS:
        for dtype in (torch.float32, torch.bfloat16):
            yield (
                f"scans of {'x'.join(map(str, shape))} along {dim}, {dtype}",
                partial(scans, shape, dim, dtype),
            )
    for shape, dim in TURNED:
        for dtype in (torch.float32, torch.bfloat16):
            yield (
                f"scans of {'x'.join(map(str, shape))} along {dim}, {dtype}, stored the other way round",
                partial(turned, shape, dim, dtype),
            )
    for which, shape, dim in LOOK_BACK:
        yield (
            f"look-back of {which} of {'x'.join(map(str, shape))} along {dim}",
            partial(look_back, which, shape, dim),
        )


def look_back(which: str, shape: tuple[int, ...], dim: int) -> None:
    """One scan that over 10,000 programs share, of a line or of a few columns."""
    import torch

    import tilefold
    from backends.triton_cases import framed
    from tilefold import monoids

    x = framed(torch.randn(shape, device="cuda"))
    if which == "affine":
        tilefold.scan((x, x), monoids.AFFINE, dim)
    else:
        tilefold.cummax(x, dim)
    plan: Any = tilefold.last_plan()
    assert plan.launched[0].settings.shares > SHARES, plan


def _maps() -> Calls:
    import torch

    import tilefold
    from backends.triton_cases import framed

    def maps(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
        x = framed(torch.randn(shape, device="cuda", dtype=dtype))
        tilefold.softmax(x, dim)
        tilefold.softmax(x, dim, guarantee="batch_invariant")
        tilefold.rms_norm(x, x.shape[1:], residual=x)
        weight = framed(torch.randn(x.shape[1:], device="cuda", dtype=dtype))
        tilefold.layer_norm(x, x.shape[1:], weight, weight)
        tilefold.rms_norm(x, x.shape[1:], weight)
        tilefold.rms_norm_quantized(x, x.shape[1:], weight, residual=x)

    for shape, dim in MAPS:
        for dtype in (torch.float32, torch.bfloat16):
            yield f"maps of {'x'.join(map(str, shape))}, dim {dim}, {dtype}", partial(maps, shape, dim, dtype)


# Rows that backwards hold in registers, in blocks of several programs, in rings and, where sums over rows are due, in groups.
# Whole vectors in all: behind a saved result memory is not initialized, and a vector that ends there is read whole.
BACKWARDS = ((700, 1000), (70, 4104), (300, 8192), (64, 65536), (32, 151936), (304, 11), (16, 33333))


def _backwards() -> Calls:
    import torch

    import tilefold
    from backends.triton_cases import framed

    def gradients(shape: tuple[int, int], dtype: torch.dtype) -> None:
        x, given = (framed(torch.randn(shape, device="cuda", dtype=dtype)) for _ in range(2))
        weight = framed(torch.randn(shape[1:], device="cuda", dtype=dtype)).requires_grad_()
        x = x.detach().requires_grad_()
        made = [tilefold.softmax(x, 1), tilefold.layer_norm(x, shape[1:], weight, weight)]
        torch.autograd.grad([*made, tilefold.rms_norm(x, shape[1:], weight)], [x, weight], [given] * 3)
        folded = [tilefold.var(x, 1), tilefold.logsumexp(x, 1), tilefold.amax(x, 1)]
        torch.autograd.grad(folded, x, [given[:, 0]] * 3)

    for shape in BACKWARDS:
        for dtype in (torch.float32, torch.bfloat16):
            yield f"backwards of {'x'.join(map(str, shape))}, {dtype}", partial(gradients, shape, dtype)


def _segments() -> Calls:
    import torch

    import tilefold
    from backends.triton_cases import framed
    from tilefold import monoids

    lengths = torch.tensor([0, 64, 0, 0, 3, 90_000, 1, 0, 31, 33, 500, 0], device="cuda")
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))

    def segments(shape: tuple[int, ...], guarantee: Any, borders: torch.Tensor) -> None:
        ones = framed(torch.ones(shape, device="cuda"))
        tilefold.segment_reduce(ones, monoids.SUM, borders, guarantee=guarantee)

    for shape in ((100_003,), (100_003, 5), (100_003, 200)):
        for guarantee in ("run_to_run", "batch_invariant"):
            for said, borders in (
                ("", offsets),
                (", from -100", offsets - 100),
                (", descending", offsets.flip(0)),
            ):
                yield f"segments of {shape}, {guarantee}{said}", partial(segments, shape, guarantee, borders)


def _tables() -> Calls:
    import torch

    import tilefold
    from backends.triton_cases import framed
    from tilefold import monoids

    def many(monoid: Any, ahead: int) -> None:
        sizes = (1, 7, 4097, 100_003)
        ones = [framed(torch.ones(ahead + n, device="cuda"))[ahead:] for n in sizes]
        tilefold.reduce_many(ones, monoid, together=not monoid.algebra.index)

    for monoid in (monoids.NORM(2), monoids.WELFORD, monoids.ARGMAX):
        for ahead in (0, 1):
            yield f"tables, {monoid.name}, from {ahead}", partial(many, monoid, ahead)


def _products() -> Calls:
    import torch

    import tilefold
    from backends.triton_cases import framed
    from tilefold import monoids

    def products(left: torch.Tensor, right: torch.Tensor) -> None:
        turned = left.mT.contiguous().mT, right.mT.contiguous().mT
        for operands in ((left, right), turned):
            for guarantee in ("run_to_run", "batch_invariant"):
                options: dict[str, Any] = {"epilogue": "relu", "guarantee": guarantee}
                if tilefold.explain_plan(operands, tilefold.matmul, **options).strategy != "cublas":
                    tilefold.matmul(*operands, **options)

    for rows, depth, columns in PRODUCTS:
        a, b = torch.randn(rows, depth, device="cuda"), torch.randn(depth, columns, device="cuda")
        for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8):
            name = f"product of {rows} x {depth} x {columns}, {dtype}"
            yield name, partial(products, framed((8 * a).to(dtype)), framed((8 * b).to(dtype)))
        for row in (monoids.WELFORD, monoids.LOGSUMEXP, monoids.MAX_WITH_INDEX):
            name = f"rows by {row.name}, {rows} x {depth} x {columns}"
            yield name, partial(tilefold.matmul, a, b, row=(row, None))


def main(tool: str, part: str, only: str, options: list[str]) -> int:
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
        [*command, __file__, "run", "--part", part, "--only", only],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout
    now, shown, calls, hazards, harmless = "", "", 0, 0, Counter[str]()
    for line in process.stdout:
        text = line.strip().removeprefix("========= ").strip()
        if line.startswith("@ "):
            now, calls = line[2:].strip(), calls + 1
        elif HAZARD.search(line):
            why = [reason for said, reason in HARMLESS.items() if re.match(said, f"{tool} {now}: {text}")]
            harmless.update(why)
            if not why:
                hazards += 1
                print(f"{now}: {text}" if now != shown else f"    {text}", flush=True)
                shown = now
        elif DETAIL.search(line):
            print(f"    {text}", flush=True)
    code = process.wait()
    for why, times in harmless.items():
        print(f"{times} times: {why}")
    print(f"{tool}: {calls - 1} calls, {hazards} hazards, exit {code}, last {now!r}")
    return int(bool(hazards or code or now != "done"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tool", choices=("memcheck", "racecheck", "initcheck", "run"))
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--only", default="")
    asked, options = parser.parse_known_args()
    if asked.tool == "run":
        run(asked.part, asked.only)
    else:
        sys.exit(main(asked.tool, asked.part, asked.only, options))

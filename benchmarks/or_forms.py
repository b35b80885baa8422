"""OR over a short last axis, every way a kernel author would write it, beside tilefold: `python benchmarks/or_forms.py`.

Forms: `reduce3d` (tl.reduce on a [rows, columns, K] tile), `loads` (K strided loads), `flat` (tl.reduce on a contiguous
[rows, K] tile), `tree` (halves combined in registers), `compile` (torch.compile), `ours`. Answers are compared before
anything is timed; each form's best block and warps are chosen first, then all forms take turns: the median of five rounds.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timing
import torch
import triton
import triton.language as tl

import tilefold

SHAPES = ((64, 128, 4), (128, 256, 8), (256, 512, 16), (512, 1024, 4), (1024, 2048, 8), (2048, 4096, 16))
Form = Callable[[], Any]


@triton.jit
def _either(a, b):
    return a | b


@triton.jit
def _reduce3d(x_ptr, y_ptr, M, N, K: tl.constexpr, BLOCK: tl.constexpr):
    """A [BLOCK, BLOCK, K] tile; writes BLOCK x BLOCK results."""
    offs_m = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[:, None]
    offs_n = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    mask = (offs_m < M) & (offs_n < N)
    places = (offs_m * N + offs_n)[:, :, None] * K + tl.arange(0, K)[None, None, :]
    tile = tl.load(x_ptr + places, mask=mask[:, :, None], other=0)
    tl.store(y_ptr + offs_m * N + offs_n, tl.reduce(tile, 2, _either), mask=mask)


@triton.jit
def _loads(x_ptr, y_ptr, M, N, K: tl.constexpr, BLOCK: tl.constexpr):
    """K loads, each with stride K; writes BLOCK x BLOCK results."""
    offs_m = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[:, None]
    offs_n = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    mask = (offs_m < M) & (offs_n < N)
    rows = x_ptr + (offs_m * N + offs_n) * K
    state = tl.load(rows, mask=mask, other=0)
    for k in tl.static_range(1, K):
        state |= tl.load(rows + k, mask=mask, other=0)
    tl.store(y_ptr + offs_m * N + offs_n, state, mask=mask)


@triton.jit
def _flat(x_ptr, y_ptr, R, K: tl.constexpr, BLOCK: tl.constexpr):
    """A contiguous [BLOCK, K] tile; writes BLOCK results."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    offs = tl.arange(0, BLOCK)
    mask = first + offs < R
    tile = tl.load(
        x_ptr + (first + offs)[:, None] * K + tl.arange(0, K)[None, :], mask=mask[:, None], other=0
    )
    tl.store(y_ptr + first + offs, tl.reduce(tile, 1, _either), mask=mask)


@triton.jit
def _tree(x_ptr, y_ptr, R, K: tl.constexpr, LEVELS: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK * K contiguous elements, halved LEVELS times in registers; writes BLOCK results."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    offs = tl.arange(0, BLOCK * K)
    state = tl.load(x_ptr + first * K + offs, mask=offs < (R - first) * K, other=0)
    for _ in tl.static_range(LEVELS):
        left, right = tl.split(tl.reshape(state, [state.shape[0] // 2, 2]))
        state = left | right
    rows = tl.arange(0, BLOCK)
    tl.store(y_ptr + first + rows, state, mask=first + rows < R)


def forms(x: torch.Tensor, y: torch.Tensor) -> dict[str, list[Form]]:
    """Every form of one problem, each with its variants; all but `compile` and `ours` write into y."""
    m, n, k = x.shape
    levels = k.bit_length() - 1
    found: dict[str, list[Form]] = {
        "reduce3d": [], "loads": [], "flat": [], "tree": [],
        "compile": [functools.partial(compiled(), x)], "ours": [lambda: tilefold.bitwise_or(x, dim=2)],
    }  # fmt: skip
    for block in (16, 32):
        grid = (triton.cdiv(m, block), triton.cdiv(n, block))
        found["reduce3d"].append(lambda g=grid, b=block: _reduce3d[g](x, y, m, n, k, b))
        found["loads"].append(lambda g=grid, b=block: _loads[g](x, y, m, n, k, b))
    for block in (64, 128, 256, 512):
        for warps in (4, 8):
            grid = (triton.cdiv(m * n, block),)
            found["flat"].append(lambda g=grid, b=block, w=warps: _flat[g](x, y, m * n, k, b, num_warps=w))
            found["tree"].append(
                lambda g=grid, b=block, w=warps: _tree[g](x, y, m * n, k, levels, b, num_warps=w)
            )
    return found


def compiled() -> Callable[[torch.Tensor], torch.Tensor]:
    """The form that torch.compile fuses into one kernel, tuned for one shape."""
    torch._dynamo.reset()
    fold = lambda x: functools.reduce(torch.bitwise_or, x.unbind(-1))  # noqa: E731  # the text that is compiled
    return torch.compile(fold, dynamic=False, mode="max-autotune-no-cudagraphs")


def right(form: Form, y: torch.Tensor, want: torch.Tensor) -> bool:
    """Whether the form's answer, returned or written into y, is exact."""
    y.fill_(-1)
    result = form()
    return torch.equal(result if isinstance(result, torch.Tensor) else y, want)


def row(shape: tuple[int, int, int], dtype: torch.dtype, timer: timing.Timer) -> dict[str, Any]:
    """Each form's best median, in microseconds; a wrong variant is named and not timed."""
    x = torch.randint(0, 2**31 - 1, shape, device="cuda", dtype=dtype)
    want = functools.reduce(torch.bitwise_or, x.unbind(-1))
    y = torch.empty_like(want)
    candidates = forms(x, y)
    wrong = [name for name, variants in candidates.items() for form in variants if not right(form, y, want)]
    chosen = {
        name: min(variants, key=lambda form: timer(form).median_us) for name, variants in candidates.items()
    }
    rounds = [{name: timer(form).median_us for name, form in chosen.items()} for _ in range(5)]
    times = {name: statistics.median(r[name] for r in rounds) for name in chosen if name not in wrong}
    return {"shape": "x".join(map(str, shape)), "dtype": str(dtype)[6:], "wrong": wrong, "times_us": times}


def main() -> int:
    """Measure all shapes in both dtypes, print and write."""
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--out", type=Path, default=Path("bench-out"))
    args = p.parse_args()
    timer = timing.device_timer(5, 25)
    rows = []
    for dtype in (torch.int64, torch.int32):
        for shape in SHAPES:
            rows.append(row(shape, dtype, timer))
            times = rows[-1]["times_us"]
            best = min(v for name, v in times.items() if name != "ours")
            text = "  ".join(f"{name} {v:.1f}" for name, v in times.items())
            print(
                f"{rows[-1]['dtype']} {rows[-1]['shape']:14s} ours / best other {times['ours'] / best:.3f}  {text}",
                flush=True,
            )
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "or-forms.json").write_text(
        json.dumps({"chip": torch.cuda.get_device_name(), "rows": rows}, indent=1)
    )
    return int(any(r["wrong"] for r in rows))


if __name__ == "__main__":
    raise SystemExit(main())

"""Programs of one class do the same: what they issue, and what they ask of memory."""

from __future__ import annotations

from typing import Any

import pytest
import triton
import triton.language as tl

from tilefold import xray
from tilefold.xray.compile.offline import compile_job
from tilefold.xray.execution import execute
from tilefold.xray.explain import make_job
from tilefold.xray.ir import read
from tilefold.xray.machine import all_programs
from tilefold.xray.machine.counts import global_cost
from tilefold.xray.observe.alike import classes
from tilefold.xray.ptx import parse
from xray.observe.planted import XY


@triton.jit
def flat(x_ptr, y_ptr, n, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


@triton.jit
def rows(x_ptr, y_ptr, n, stride, B: tl.constexpr):
    """Rows that begin anywhere, in rounds; the first few have a branch of their own."""
    row = tl.program_id(0)
    for start in range(0, n, B):
        offs = start + tl.arange(0, B)
        x = tl.load(x_ptr + row * stride + offs, mask=offs < n, other=0.0)
        if row < 3:
            x = x * 2 + tl.sum(x, 0)
        tl.store(y_ptr + row * stride + offs, x, mask=offs < n)


@triton.jit
def tiles(x_ptr, y_ptr, M, N, G: tl.constexpr, B: tl.constexpr):
    """Tiles of a matrix, the programs numbered in groups of rows."""
    pid, columns = tl.program_id(0), tl.cdiv(N, B)
    group = pid // (G * columns)
    high = tl.minimum(tl.cdiv(M, B) - group * G, G)
    i = (group * G + pid % (G * columns) % high) * B + tl.arange(0, B)[:, None]
    j = (pid % (G * columns) // high) * B + tl.arange(0, B)[None, :]
    kept = (i < M) & (j < N)
    tl.store(y_ptr + i * N + j, tl.load(x_ptr + i * N + j, mask=kept), mask=kept)


@triton.jit
def triangle(x_ptr, y_ptr, n, B: tl.constexpr):
    """As many rounds as the program has tiles before it."""
    here = tl.program_id(0) * B + tl.arange(0, B)
    total = tl.zeros([B], tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * B, B):
        offs = start + tl.arange(0, B)
        total += tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(y_ptr + here, total, mask=here < n)


@triton.jit
def blocks(x_ptr, y_ptr, n, N: tl.constexpr, B: tl.constexpr):
    """Blocks of columns, which go down."""
    at, columns = tl.arange(0, B)[:, None], tl.program_id(0) * B + tl.arange(0, B)
    total = tl.zeros([B, B], tl.float32)
    for _ in range(0, n, B):
        kept = (at < n) & (columns < N)[None, :]
        total += tl.load(x_ptr + at * N + columns[None, :], mask=kept, other=0.0)
        at += B
    tl.store(y_ptr + columns, tl.sum(total, 0), mask=columns < N)


@triton.jit
def wrapped(x_ptr, y_ptr, n, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y_ptr + offs, tl.load(x_ptr + (offs + 5) % n), mask=offs < n)


@triton.jit
def tapered(x_ptr, y_ptr, n, B: tl.constexpr):
    offs = tl.arange(0, B)
    some = offs < tl.program_id(0) * n
    tl.store(
        y_ptr + tl.program_id(0) * B + offs,
        tl.load(x_ptr + tl.program_id(0) * B + offs, mask=some),
        mask=some,
    )


@triton.jit
def looked_up(x_ptr, i_ptr, y_ptr, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y_ptr + offs, tl.load(x_ptr + tl.load(i_ptr + offs)))


@triton.jit
def chosen(x_ptr, i_ptr, y_ptr, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    x = tl.load(x_ptr + offs)
    tl.store(y_ptr + offs, tl.load(i_ptr + offs, mask=x > 0), mask=x > 0)


def told_apart(
    kernel: Any, args: dict[str, Any], constants: dict[str, Any], grid: tuple[int, int, int]
) -> Any:
    compiled = compile_job(make_job(kernel, args, constants, grid=grid))
    ttir = read(compiled.ttir)
    pairs = [*zip(ttir.parameters, compiled.parameters, strict=False)]
    known = {name: int(a.value) for name, a in pairs if isinstance(a.value, int) and not a.pointer}
    return compiled, classes(ttir, known, grid, {name: a.itemsize for name, a in pairs if a.pointer})


@pytest.mark.parametrize(
    ("kernel", "args", "constants", "count", "most"),
    [
        (flat, {"n": 1000}, {"B": 128}, 8, 2), (flat, {"n": 1111}, {"B": 64}, 18, 2),
        (rows, {"n": 75, "stride": 75}, {"B": 64}, 40, 36), (rows, {"n": 64, "stride": 64}, {"B": 64}, 20, 3),
        (tiles, {"M": 70, "N": 50}, {"G": 2, "B": 16}, 20, 12), (triangle, {"n": 300}, {"B": 64}, 5, 5),
        (blocks, {"n": 40}, {"N": 72, "B": 16}, 5, 5), (wrapped, {"n": 500}, {"B": 64}, 8, 8),
        (tapered, {"n": 7}, {"B": 64}, 12, 11),
    ],
    ids=["tail", "odd-tail", "odd-rows", "rows", "groups", "rounds", "carried", "wrapped", "tapered"],
)  # fmt: skip
def test_programs_of_a_class_do_the_same(
    kernel: Any, args: dict[str, Any], constants: dict[str, Any], count: int, most: int
) -> None:
    grid = (count, 1, 1)
    compiled, found = told_apart(kernel, {**XY, **args}, constants, grid)
    done: dict[int, set[Any]] = {}
    outcomes = execute(compiled, parse(compiled.ptx), all_programs(grid)).outcomes
    for number, outcome in zip(found.tolist(), outcomes, strict=True):
        done.setdefault(number, set()).add((outcome.instructions, global_cost(outcome.accesses)))
    assert all(len(each) == 1 for each in done.values()), done
    assert len(done) <= most


@pytest.mark.parametrize("kernel", [looked_up, chosen])
def test_what_memory_decides_is_not_told(kernel: Any) -> None:
    args = {**XY, "i_ptr": "*i32"}
    assert told_apart(kernel, args, {"B": 64}, (4, 1, 1))[1] is None


def test_an_estimate_says_so() -> None:
    """Of a thousand programs whose places are looked up, some are executed; of such that are alike one is enough."""
    reports = [
        xray.explain(kernel, {**XY, **args}, {"B": 64}, grid=2000)
        for kernel, args in ((looked_up, {"i_ptr": "*i32"}), (flat, {"n": 2000 * 64 - 3}))
    ]
    estimated = [{o.estimated_from for o in r.observations if o.us_at_stake} for r in reports]
    assert all(n > 0 for n in estimated[0])
    assert estimated[1] <= {0}
